//! Timelines as functions of the host's counter: which lines an entry gets, and what they achieve.

use std::collections::BTreeMap;

use timevisor_clock_page::{ClockStatus, EntryIdentity, Line, Lines};
use timevisor_guests::entries::TimelineEntry;
use timevisor_protocols::channel::{Achieved, Epoch};
use timevisor_time::{Duration, Instant, Local, Period, Tai, TimescaleId};
use timevisor_timelines::{ClockId, Entry, LifeId, Source};

use super::clocks::State;
use crate::leap::Leap;

/// Entries follow lines that are published in the same moment; whatever little is between is made up for in this long.
const FOLLOW: Duration = Duration::from_secs(1);

/// Beyond two publications.
const LEAP_MARGIN: Duration = Duration::from_secs(2);

/// The zero of a local timeline.
#[derive(Clone, Copy, Debug)]
struct Zero {
    counter: u64,
    period: Period,
}

/// All timelines' lines at one publication.
pub struct Knowledge {
    states: Vec<State>,
    zeros: BTreeMap<LifeId, Zero>,
    now: u64,
    nominal: Period,
    expiry: u64,
    /// Around a leap second a UTC timeline says nothing: its count repeats a second (or leaves one out), and a page that
    /// is read between two publications would be off by one.
    leap_margin: Duration,
    /// TAI - UTC now; `None` while it is not known, or about to change.
    tai_offset: Option<i16>,
}

impl Knowledge {
    pub fn new(nominal: Period, publish_interval: Duration) -> Self {
        Self {
            states: Vec::new(),
            zeros: BTreeMap::new(),
            now: 0,
            nominal,
            expiry: 0,
            leap_margin: publish_interval + publish_interval + LEAP_MARGIN,
            tai_offset: None,
        }
    }

    /// Takes a publication in: what each clock says, the first one being the host's.
    pub fn update(&mut self, states: Vec<State>, now: u64, expiry: u64, leap: &Leap) {
        (self.states, self.now, self.expiry) = (states, now, expiry);
        let host = self.states.first().and_then(|state| state.lines);
        let margin = self.leap_margin;
        self.tai_offset =
            host.and_then(|lines| steady_offset(leap, lines.at(now).estimate, margin));
    }

    /// What is achieved is asked for this counter value from now on: bounds grow between publications.
    pub fn advance(&mut self, now: u64) {
        self.now = now;
    }

    /// A local timeline begins at this counter value. Its rate is the counter's nominal one, for good.
    pub fn begin(&mut self, life: LifeId, counter: u64) {
        let zero = Zero { counter, period: self.nominal };
        self.zeros.entry(life).or_insert(zero);
    }

    /// Forgets local timelines that are gone.
    pub fn keep(&mut self, alive: impl Fn(LifeId) -> bool) {
        self.zeros.retain(|life, _| alive(*life));
    }

    /// After the counter was disturbed, no local timeline goes on: which ones there were.
    pub fn forget_local(&mut self) {
        self.zeros.clear();
    }

    /// What a page's entry is to say; `age` is that of whoever owns the page.
    pub fn entry(&self, entry: &Entry, age: (Option<Lines<Local>>, u64)) -> TimelineEntry {
        let (lines, status, disruptions) = match entry.source {
            Source::Elapsed => (age.0, known(age.0.as_ref()), age.1),
            source => self.lines(source, entry.epoch),
        };
        let clock = self.state(entry.source);
        let timescale = match entry.epoch {
            Epoch::Tai => TimescaleId::Tai,
            Epoch::Utc => TimescaleId::Utc,
            Epoch::Local => TimescaleId::Local,
        };
        let name = entry.name;
        let identity =
            EntryIdentity::new(entry.timeline.0, name.as_str(), timescale, entry.place.generation);
        TimelineEntry {
            index: usize::from(entry.place.entry),
            identity,
            required_ns: entry.required_half_width_ns.unwrap_or(0),
            disruptions,
            lines,
            status,
            estimated_error: clock.map_or(Duration::ZERO, |state| state.estimated_error),
            as_of: clock.map_or(self.now, |state| state.as_of),
            tai_offset: self.tai_offset.filter(|_| entry.epoch != Epoch::Local),
            slew_horizon: self.nominal.ticks_in(FOLLOW),
        }
    }

    /// What a timeline gives now.
    pub fn achieved(&self, source: Source, epoch: Epoch, age: Option<Lines<Local>>) -> Achieved {
        // As the clients do: a counter of 1 GHz resolves 1 ns, however many ppm it is off.
        let tick = self.nominal.to_bits() - self.nominal.to_bits() / 1024;
        let resolution_ns = ns(Period::from_bits(tick).span_ceil(1));
        let lines = if source == Source::Elapsed { age } else { self.lines(source, epoch).0 };
        let Some(lines) = lines else {
            return Achieved { resolution_ns, ..Achieved::default() };
        };
        let at = lines.at(self.now);
        let error = self.state(source).map_or(Duration::ZERO, |state| state.estimated_error);
        Achieved {
            below_ns: ns(at.estimate - at.earliest),
            above_ns: ns(at.latest - at.estimate),
            estimated_error_ns: ns(error).filter(|_| error != Duration::MAX),
            resolution_ns,
        }
    }

    fn state(&self, source: Source) -> Option<&State> {
        match source {
            Source::Clock(ClockId(index)) => self.states.get(index),
            Source::Local { .. } | Source::Elapsed | Source::Undefined => None,
        }
    }

    fn lines(&self, source: Source, epoch: Epoch) -> (Option<Lines<Local>>, ClockStatus, u64) {
        match source {
            Source::Clock(_) => self.following(source, epoch),
            Source::Undefined | Source::Elapsed => (None, ClockStatus::Unknown, 0),
            Source::Local { life, .. } => {
                let lines = self.zeros.get(&life).map(|zero| self.local(zero));
                (lines, known(lines.as_ref()), life.0)
            }
        }
    }

    fn following(&self, source: Source, epoch: Epoch) -> (Option<Lines<Local>>, ClockStatus, u64) {
        let Some(state) = self.state(source) else { return (None, ClockStatus::Unknown, 0) };
        let Some(lines) = &state.lines else { return (None, state.status, state.disruptions) };
        if epoch != Epoch::Utc {
            return (Some(local(lines, 0)), state.status, state.disruptions);
        }
        match self.tai_offset {
            // A leap second is a step, so the offset is part of what counts steps.
            Some(offset) => {
                let disruptions = (state.disruptions << 16) | u64::from(offset.cast_unsigned());
                (Some(local(lines, -i64::from(offset))), state.status, disruptions)
            }
            None => (None, ClockStatus::Unreliable, state.disruptions << 16),
        }
    }

    /// Exact: this timeline is what the counter says.
    fn local(&self, zero: &Zero) -> Lines<Local> {
        let line = Line { time: Instant::from_bits(0), period: zero.period };
        let lines = Lines {
            base: zero.counter,
            expiry: self.expiry,
            earliest: line,
            estimate: line,
            latest: line,
            holdover: 0,
        };
        lines.rebased(self.now)
    }
}

/// A timeline that follows no reference is known, or it is not.
fn known(lines: Option<&Lines<Local>>) -> ClockStatus {
    if lines.is_some() { ClockStatus::Synchronized } else { ClockStatus::Unknown }
}

fn local(lines: &Lines<Tai>, offset_secs: i64) -> Lines<Local> {
    lines.shifted(Duration::from_secs(offset_secs))
}

/// TAI - UTC, where it is the same a while before and after.
fn steady_offset(leap: &Leap, tai: Instant<Tai>, margin: Duration) -> Option<i16> {
    let before = leap.offset_of_tai(tai - margin).ok()?;
    let after = leap.offset_of_tai(tai + margin).ok()?;
    (before == after).then_some(after)
}

/// Rounded up: errors never understate. `None` for what is not known.
fn ns(span: Duration) -> Option<u64> {
    (span < Duration::MAX).then(|| u64::try_from(span.ceil_nanos()).unwrap_or(0))
}
