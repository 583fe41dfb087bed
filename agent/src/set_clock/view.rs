//! Reading the page and CLOCK_REALTIME side by side.

use std::time::Instant;

use anyhow::Context as _;
use timevisor::{Client, Options, ReadError, Timeline};
use timevisor_clock_page::{Counter, CounterId, Notice};
use timevisor_linux::clock::bracket;
use timevisor_linux::counter::calibrate::{RawBracket, best_bracket, from_brackets};
use timevisor_time::{Duration, Period, RateError};

use super::beside::{Beside, Unusable};
use super::law::Era;

/// How often to check for a page. Early in the boot, it is missing until the driver has probed it.
pub const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);
/// The narrowest bracket out of this many is kept.
const TRIES: usize = 5;
/// The page's rate is measured over this many ticks, about half a second.
const RATE_TICKS: u64 = 1 << 30;
/// This machine's own rate is used once its error is at most this.
const RATE_ERROR: RateError = RateError::from_ppm(1);

/// The page's clock.
pub struct View {
    client: Client,
    timeline: Timeline,
}

/// The page's counter, for brackets.
struct Stamps<'a>(&'a Timeline);

impl Counter for Stamps<'_> {
    /// Only calibrations call this; the brackets here do not.
    fn id(&self) -> CounterId {
        CounterId::Invalid
    }
    fn read_ordered(&self) -> u64 {
        self.0.stamp()
    }
}

/// What a look at both clocks gives.
#[derive(Clone, Copy, Debug)]
pub enum Looked {
    /// Both, at one moment.
    Beside(Beside),
    /// The page vouches for nothing that CLOCK_REALTIME could be compared with.
    Nothing,
}

impl View {
    /// Opens this machine's page.
    pub fn open(name: &str) -> anyhow::Result<Self> {
        Self::of(Options::new().name(name).connect()?)
    }

    /// Waits until this machine's page exists, and opens it.
    pub fn wait_for(name: &str, until: Instant) -> anyhow::Result<Self> {
        loop {
            match Self::open(name) {
                Ok(view) => return Ok(view),
                Err(_) if Instant::now() < until => std::thread::sleep(LOOK_INTERVAL),
                Err(error) => return Err(error).context("there is no page to wait for"),
            }
        }
    }

    /// The page that a client reads.
    pub fn of(client: Client) -> anyhow::Result<Self> {
        let timeline = client.timeline("tai").or_else(|_| client.timeline("utc"))?;
        Ok(Self { client, timeline })
    }

    /// The path of the page.
    pub fn path(&self) -> String {
        self.client.page().path.display().to_string()
    }

    /// The page's timeline.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The current era of the page: a cheap check without a system call. `None` if it cannot be
    /// read just now.
    pub fn era(&mut self) -> Option<Era> {
        let reading = match self.timeline.now() {
            Ok(reading) => reading,
            Err(ReadError::Gone) => {
                // On the page of another host, the timeline may have moved to another entry.
                if let Ok(moved) = Self::of(self.client.clone()) {
                    *self = moved;
                }
                return None;
            }
            Err(ReadError::WriterStalled | ReadError::OutOfOrder | ReadError::Truncated) => {
                return None;
            }
        };
        Some(Era { disruption: reading.disruption(), tai_offset: reading.tai_offset() })
    }

    /// Reads CLOCK_REALTIME along with the page, and the era to which this reading belongs.
    pub fn look(&self) -> Result<(Era, Beside), Unusable> {
        let at = bracket(&Stamps(&self.timeline), TRIES);
        let now = self.timeline.now().map_err(|_| Unusable::Changing)?;
        if !now.is_known() {
            return Err(Unusable::Status(now.status()));
        }
        let convert = |stamp| self.timeline.convert(stamp).map_err(|_| Unusable::Changing);
        let middle = convert(at.before.wrapping_add(at.width() / 2))?;
        let beside = Beside::of(&convert(at.before)?, &middle, &convert(at.after)?, at.realtime)?;
        let era = Era { disruption: middle.disruption(), tai_offset: middle.tai_offset() };
        Ok((era, beside))
    }

    /// As [`Self::look`]; a page that has just changed is read again.
    pub fn look_settled(&self) -> Looked {
        for _ in 0..TRIES {
            match self.look() {
                Ok((_, beside)) => return Looked::Beside(beside),
                Err(Unusable::Changing) => {}
                Err(_) => break,
            }
        }
        Looked::Nothing
    }

    /// What the host announces; nothing where the page cannot be read.
    pub fn notice(&self) -> Notice {
        self.client.notice().unwrap_or_default()
    }

    /// Reads the page's counter along with CLOCK_MONOTONIC_RAW.
    fn raw(&self) -> RawBracket {
        best_bracket(&Stamps(&self.timeline))
    }

    fn base(&self, first: RawBracket) -> Option<f64> {
        let raw = from_brackets(first, self.raw()).ok().filter(|raw| raw.error <= RATE_ERROR)?;
        Some(self.period()?.relative_to(raw.period))
    }

    /// The length of a tick, according to the page.
    fn period(&self) -> Option<Period> {
        let from = self.timeline.stamp();
        let at = |stamp| self.timeline.convert(stamp).ok().map(|reading| reading.estimate());
        let elapsed: Duration = at(from.wrapping_add(RATE_TICKS))? - at(from)?;
        Period::from_ratio(elapsed, RATE_TICKS)
    }
}

/// True seconds per second of CLOCK_MONOTONIC_RAW, minus one: what the kernel's rate has to
/// correct. It is fed forward, because the kernel's loop alone would end with an offset of 8 us for
/// every ppm.
pub struct Pace {
    first: RawBracket,
    known: f64,
    is_measured: bool,
}

impl Pace {
    /// `found` is used until a better value is known.
    pub fn new(view: &View, found: f64) -> Self {
        Self { first: view.raw(), known: found, is_measured: false }
    }

    /// Restarts the measurement after a disturbance of the counter; the old value is used until
    /// then.
    pub fn restart(&mut self, view: &View) {
        self.first = view.raw();
        self.is_measured = false;
    }

    /// Whether the value was measured since the last disturbance.
    pub fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// The best value known now.
    pub fn base(&mut self, view: &View) -> f64 {
        if let Some(base) = view.base(self.first) {
            (self.known, self.is_measured) = (base, true);
        }
        self.known
    }
}
