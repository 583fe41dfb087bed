//! `--clockbound`: the page's clock for programs linked with AWS ClockBound's clients.
//!
//! Written in the agent's loop, twenty times a second and after the clock was steered. Clients compare the
//! marker in the segments with the one of /dev/vmclock0: after a resume, a migration or a restore they say
//! "disrupted" by themselves, until the agent has read the new page. A guest without that device would let
//! them read the time of before, so nothing is said there.
//!
//! Layout 2 is a bound on CLOCK_REALTIME, which is known only with `--set-clock`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use timevisor_clock_page::reader::{Promise, check, counter_of, marker};
use timevisor_clock_page::{ClockStatus, Reader};
use timevisor_linux::clock::bracket;
use timevisor_linux::clockbound_segment::{QUIET, Segment, SegmentError};
use timevisor_linux::counter::HostCounter;
use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page::ReadPage;
use timevisor_protocols::clockbound::{
    Bodies, Bounded, DIRECTORY, Disciplined, NAME_2, NAME_3, Status, VERSION_2, VERSION_3, VMCLOCK,
};
use timevisor_time::Duration;

use crate::span::of_std;

/// How often the segments are renewed: the bound of layout 2 grows by half a millisecond a second.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long to wait before retrying a device that is not there yet.
const RETRY: Duration = Duration::from_secs(1);
/// How long to wait before retrying segments that another program writes.
const YIELD: Duration = Duration::from_secs(30);
const BRACKET_TRIES: usize = 3;

/// The option.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub struct Options {
    /// Give the page's clock to programs linked with AWS ClockBound's clients, in DIR
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = DIRECTORY)]
    clockbound: Option<PathBuf>,
}

/// The segments, once they can be written.
struct Segments {
    older: Segment,
    newer: Segment,
}

impl Segments {
    fn create(directory: &Path) -> Result<Self, SegmentError> {
        let unknown = Bodies::unknown(None);
        Ok(Self {
            older: Segment::create(directory, NAME_2, VERSION_2, &unknown.older)?,
            newer: Segment::create(directory, NAME_3, VERSION_3, &unknown.newer)?,
        })
    }

    fn publish(&mut self, bodies: &Bodies) -> Result<(), SegmentError> {
        self.newer.publish(&bodies.newer)?;
        self.older.publish(&bodies.older)
    }
}

/// Writes ClockBound's segments.
pub struct ClockBound {
    directory: PathBuf,
    segments: Option<Segments>,
    page: Option<Reader<ReadPage, HostCounter>>,
    wake: Duration,
    /// The last message, so that it is not logged again and again.
    told: String,
}

impl ClockBound {
    /// Returns `None` unless requested. Fails where the segments cannot be made.
    pub fn start(options: &Options, now: Duration) -> anyhow::Result<Option<Self>> {
        let Some(directory) = options.clockbound.clone() else { return Ok(None) };
        let segments = Segments::create(&directory).context("--clockbound")?;
        let found = segments.older.is_of_before() || segments.newer.is_of_before();
        let wake = if found { now + of_std(QUIET) } else { now };
        Ok(Some(Self {
            directory,
            segments: Some(segments),
            page: None,
            wake,
            told: String::new(),
        }))
    }

    /// When [`Self::on_timer`] next has something to do.
    pub fn poll_at(&self) -> Duration {
        self.wake
    }

    /// Renews the segments when it is time to. `drift_ppb`: how fast CLOCK_REALTIME runs away at most, if that is known.
    pub fn on_timer(&mut self, now: Duration, drift_ppb: Option<u32>) {
        if now < self.wake {
            return;
        }
        self.wake = now + INTERVAL;
        match self.renew(now, drift_ppb) {
            Ok(true) => self.tell(&format!(
                "{} has the page's clock for ClockBound's clients",
                self.directory.display()
            )),
            Ok(false) => self.wake = self.wake.max(now + RETRY),
            Err(error) => {
                // What another program writes is left to it.
                self.segments = None;
                self.wake = now + YIELD;
                self.tell(&format!("clients of ClockBound get no time: {error:#}"));
            }
        }
    }

    /// Returns false where there is no page yet.
    fn renew(&mut self, now: Duration, drift_ppb: Option<u32>) -> anyhow::Result<bool> {
        let Some(segments) = &mut self.segments else {
            self.segments = Some(Segments::create(&self.directory)?);
            // It may still have its other writer; the next turn finds out.
            self.wake = now + of_std(QUIET);
            return Ok(false);
        };
        if self.page.is_none() {
            match open(VMCLOCK.as_ref()) {
                Ok(page) => self.page = Some(page),
                Err(error) => {
                    segments.publish(&Bodies::unknown(None))?;
                    self.tell(&format!(
                        "clients of ClockBound get no time: {error:#}; they need the vmclock device (docs/how-to/clockbound.md)"
                    ));
                    return Ok(false);
                }
            }
        }
        let Some(page) = &self.page else { return Ok(false) };
        // Before the page is read, so that no marker vouches for the time of before.
        let marker = marker(page.page());
        let bodies = look(page, marker, drift_ppb);
        segments.publish(&bodies.unwrap_or(Bodies::unknown(Some(marker))))?;
        Ok(true)
    }

    fn tell(&mut self, text: &str) {
        if self.told != text {
            tracing::info!("{text}");
            text.clone_into(&mut self.told);
        }
    }
}

impl Drop for ClockBound {
    fn drop(&mut self) {
        let marker = self.page.as_ref().map(|page| marker(page.page()));
        if let Some(segments) = &mut self.segments {
            // An error means that they are not ours any more.
            let _ = segments.publish(&Bodies::unknown(marker));
        }
    }
}

fn open(path: &Path) -> anyhow::Result<Reader<ReadPage, HostCounter>> {
    let page = ReadPage::new(SharedMapping::of_device(path)?)?;
    check(&page)?;
    let id = counter_of(&page, 0);
    let counter = HostCounter::for_reader(id)
        .with_context(|| format!("the page counts {}, which is not here", id.name()))?;
    Ok(Reader::open(page, counter, 0)?)
}

fn look(
    page: &Reader<ReadPage, HostCounter>,
    marker: u64,
    drift_ppb: Option<u32>,
) -> Option<Bodies> {
    let before = timevisor_linux::clock::monotonic();
    let seen = bracket(page.counter(), BRACKET_TRIES);
    let promise = Promise::of(&page.words().ok()?, seen.before)?;
    let status = match promise.status {
        ClockStatus::Synchronized => Status::Synchronized,
        _ => Status::FreeRunning,
    };
    let Promise { from, at_from, until, at_until, .. } = promise;
    let bounded = Bounded { from, at_from, until, at_until };
    let latest = promise.at(seen.after)?.latest();
    let disciplined = drift_ppb.map(|drift_ppb| Disciplined {
        monotonic: before,
        realtime: seen.realtime,
        earliest: at_from.earliest(),
        latest,
        left: promise.left(),
        // The rate that was fed forward and the true one are both within the page's limits.
        drift_ppb: promise.rate_spread_ppb().saturating_mul(2).saturating_add(drift_ppb),
    });
    Some(Bodies::of(status, Some(marker), Some(&bounded), disciplined.as_ref()))
}
