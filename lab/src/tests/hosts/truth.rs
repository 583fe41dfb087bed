//! Do the bounds contain the truth? The lab's chronyd serves this machine's CLOCK_REALTIME (`-x`:
//! it never touches it), so the truth that timevisord estimates over the network can be read
//! directly beside its page.

use std::time::{Duration, Instant};

use anyhow::ensure;
use timevisor_linux::clock::bracket;

use crate::host::Host;
use crate::interrupt;
use crate::reader::HostPage;
use crate::scenario::Context;

/// From before the first exchange until the rate is known, and through a restart of the daemon.
pub(crate) fn bounds_hold_the_truth(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::following(ctx, &server.address().ip().to_string())?;
    let first = watch(&host, Duration::from_secs(40))?;
    let known = host.json(&["status"])?["clock"]["rate_bound_ppb"].as_f64().unwrap_or(f64::MAX);
    host.kill();
    let alone = watch(&host, Duration::from_secs(3))?;
    host.restart()?;
    let resumed = host.json(&["status"])?["clock"]["rate_bound_ppb"].as_f64().unwrap_or(0.0);
    ensure!(
        resumed <= known * 1.01,
        "the restart forgot the rate: {known} ppb before, {resumed} ppb after"
    );
    let again = watch(&host, Duration::from_secs(5))?;
    ensure!(known < 25_000.0, "the rate is known to {known} ppb only after 40 s");
    ensure!(
        alone.last_width_ns > alone.first_width_ns,
        "without a daemon the bounds did not grow: {alone:?}"
    );
    let readings = first.readings + alone.readings + again.readings;
    Ok(format!(
        "{readings} readings, truth inside every time; rate within {:.1} ppm after 40 s; half-width {} us at last, \
         worst error {} us",
        known / 1000.0,
        again.last_width_ns / 2000,
        first.worst_ns.max(alone.worst_ns).max(again.worst_ns) / 1000
    ))
}

#[derive(Debug)]
struct Watched {
    readings: u64,
    first_width_ns: i64,
    last_width_ns: i64,
    worst_ns: i64,
}

fn watch(host: &Host, span: Duration) -> anyhow::Result<Watched> {
    let page = HostPage::open(host.directory())?;
    let mut seen = Watched { readings: 0, first_width_ns: 0, last_width_ns: 0, worst_ns: 0 };
    let end = Instant::now() + span;
    while Instant::now() < end {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(1));
        // CLOCK_REALTIME was read somewhere between two counter values, so it must be consistent
        // with the bounds at both.
        let moment = bracket(page.counter(), 3);
        let (before, after) = (page.convert(moment.before)?, page.convert(moment.after)?);
        if !before.has_estimate() {
            continue;
        }
        let truth = moment.realtime.floor_nanos()
            + i64::from(before.tai_offset().unwrap_or(0)) * 1_000_000_000;
        let (earliest, latest) = (before.earliest.floor_nanos(), after.latest.ceil_nanos());
        ensure!(
            earliest <= truth && truth <= latest + 1,
            "truth {truth} is not in {earliest}..{latest}: {} ns outside; {before:?}",
            (earliest - truth).max(truth - latest)
        );
        seen.readings += 1;
        seen.last_width_ns = latest - earliest;
        if seen.first_width_ns == 0 {
            seen.first_width_ns = seen.last_width_ns;
        }
        seen.worst_ns = seen.worst_ns.max((before.estimate.floor_nanos() - truth).abs());
    }
    ensure!(seen.readings > 100, "too few readings: {seen:?}");
    Ok(seen)
}
