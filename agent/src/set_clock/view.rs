//! Reading the page and CLOCK_REALTIME side by side.

use std::time::Instant;

use anyhow::Context as _;
use timevisor::{Client, Options, ReadError, Timeline};
use timevisor_clock_page::{Counter, CounterId};
use timevisor_linux::clock::bracket;
use timevisor_linux::counter::calibrate::{RawBracket, best_bracket, from_brackets};
use timevisor_time::{Duration, Period, RateError};

use super::beside::{Beside, Unusable};
use super::law::Era;

/// A page may not be there yet: early in the boot, before the driver has probed it.
pub const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);
/// The narrowest bracket of so many is kept.
const TRIES: usize = 5;
/// The page's rate is taken over this many ticks: half a second or so.
const RATE_TICKS: u64 = 1 << 30;
/// How well this machine's own rate has to be known before it counts.
const RATE_ERROR: RateError = RateError::from_ppm(1);

/// The page's clock.
pub struct View {
    client: Client,
    timeline: Timeline,
}

/// The page's counter, for brackets.
struct Stamps<'a>(&'a Timeline);

impl Counter for Stamps<'_> {
    /// Only calibrations ask; the brackets here do not.
    fn id(&self) -> CounterId {
        CounterId::Invalid
    }
    fn read_ordered(&self) -> u64 {
        self.0.stamp()
    }
}

impl View {
    /// The page of this machine.
    pub fn open(name: &str) -> anyhow::Result<Self> {
        Self::of(Options::new().name(name).connect()?)
    }

    /// The page of this machine, which may not be there yet.
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

    /// Where the page is.
    pub fn path(&self) -> String {
        self.client.page().path.display().to_string()
    }

    /// Its clock.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The era that the page is in: the cheap look, no system call. `None` when it cannot be read
    /// just now.
    pub fn era(&mut self) -> Option<Era> {
        let reading = match self.timeline.now() {
            Ok(reading) => reading,
            Err(ReadError::Gone) => {
                // On the page of another host, the timeline may have another place.
                if let Ok(moved) = Self::of(self.client.clone()) {
                    *self = moved;
                }
                return None;
            }
            Err(ReadError::WriterStalled | ReadError::OutOfOrder) => return None,
        };
        Some(Era { disruption: reading.disruption(), tai_offset: reading.tai_offset() })
    }

    /// CLOCK_REALTIME beside the page, and the era that this is of.
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

    /// The page's counter beside CLOCK_MONOTONIC_RAW.
    fn raw(&self) -> RawBracket {
        best_bracket(&Stamps(&self.timeline))
    }

    fn base(&self, first: RawBracket) -> Option<f64> {
        let raw = from_brackets(first, self.raw()).ok().filter(|raw| raw.error <= RATE_ERROR)?;
        Some(self.period()?.relative_to(raw.period))
    }

    /// The length of a tick by the page.
    fn period(&self) -> Option<Period> {
        let from = self.timeline.stamp();
        let at = |stamp| self.timeline.convert(stamp).ok().map(|reading| reading.estimate());
        let elapsed: Duration = at(from.wrapping_add(RATE_TICKS))? - at(from)?;
        Period::from_ratio(elapsed, RATE_TICKS)
    }
}

/// True seconds per second of CLOCK_MONOTONIC_RAW, minus one: what the kernel's rate has to make up
/// for. Fed forward, because the kernel's loop alone would end 8 us off for every ppm.
pub struct Pace {
    first: RawBracket,
    known: f64,
}

impl Pace {
    /// `found`: what counts until something better is known.
    pub fn new(view: &View, found: f64) -> Self {
        Self { first: view.raw(), known: found }
    }

    /// The counter was disturbed: it is measured again, and what was known counts until then.
    pub fn restart(&mut self, view: &View) {
        self.first = view.raw();
    }

    /// What is known now.
    pub fn base(&mut self, view: &View) -> f64 {
        self.known = view.base(self.first).unwrap_or(self.known);
        self.known
    }
}
