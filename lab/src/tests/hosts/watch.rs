//! Watches a daemon's page beside CLOCK_REALTIME, which is the truth, or a known distance from it.

use std::time::{Duration, Instant};

use anyhow::ensure;
use timevisor_linux::clock::bracket;
use timevisor_time::Duration as Span;

use crate::host::Host;
use crate::interrupt;
use crate::reader::HostPage;

/// Time between two questions whether the watch is over.
const ASK: Duration = Duration::from_millis(100);

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(crate) readings: u64,
    pub(crate) last_width_ns: i64,
    pub(crate) worst_ns: i64,
    widths_ns: Vec<i64>,
}

impl Watched {
    /// The median half-width, ns.
    pub(crate) fn median_half_ns(&self) -> i64 {
        let mut widths = self.widths_ns.clone();
        widths.sort_unstable();
        widths.get(widths.len() / 2).copied().unwrap_or(0) / 2
    }
}

/// For some seconds after the clock is synchronized, checks that every interval contains
/// CLOCK_REALTIME + `ahead`.
///
/// # Errors
/// When one does not, or the clock was lost.
pub(crate) fn watch(host: &Host, ahead: Span, width_ns: i64) -> anyhow::Result<Watched> {
    host.wait_synchronized(width_ns / 1000)?;
    watch_for(host, ahead, Duration::from_secs(8))
}

/// The same for a time, without waiting first.
///
/// # Errors
/// As [`watch`].
pub(crate) fn watch_for(host: &Host, ahead: Span, time: Duration) -> anyhow::Result<Watched> {
    let end = Instant::now() + time;
    let seen =
        watch_until(host, ahead, time + Duration::from_secs(30), || Ok(Instant::now() >= end))?;
    ensure!(seen.readings > 100, "too few readings: {}", seen.readings);
    Ok(seen)
}

/// The same until `done` says so.
///
/// # Errors
/// As [`watch`], or when it is not over within `patience`.
pub(crate) fn watch_until(
    host: &Host,
    ahead: Span,
    patience: Duration,
    mut done: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Watched> {
    let page = HostPage::open(host.directory())?;
    let mut seen = Watched::default();
    let mut ask_at = Instant::now();
    let end = Instant::now() + patience;
    loop {
        interrupt::check()?;
        if Instant::now() >= ask_at {
            if done()? {
                return Ok(seen);
            }
            ask_at = Instant::now() + ASK;
            if Instant::now() >= end {
                return Err(anyhow::Error::new(interrupt::Late)
                    .context(format!("not within {patience:?}; the log:\n{}", host.log_text())));
            }
        }
        std::thread::sleep(Duration::from_millis(2));
        let moment = bracket(page.counter(), 3);
        let (before, after) = (page.convert(moment.before)?, page.convert(moment.after)?);
        ensure!(before.has_estimate(), "the clock was lost: {before:?}");
        let offset = i64::from(before.tai_offset().unwrap_or(0)) * 1_000_000_000;
        let truth = (moment.realtime + ahead).floor_nanos() + offset;
        let (earliest, latest) = (before.earliest.floor_nanos(), after.latest.ceil_nanos());
        ensure!(
            earliest <= truth && truth <= latest + 1,
            "truth {truth} is not in {earliest}..{latest}: {} ns outside; {before:?}",
            (earliest - truth).max(truth - latest)
        );
        seen.readings += 1;
        seen.last_width_ns = latest - earliest;
        seen.widths_ns.push(latest - earliest);
        seen.worst_ns = seen.worst_ns.max((before.estimate.floor_nanos() - truth).abs());
    }
}
