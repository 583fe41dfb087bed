//! Timelines as lines on the host's counter: a clock shifted to TAI or UTC, or a local count.

use std::collections::BTreeMap;

use timevisor_clock_page::{ClockStatus, Line, Lines};
use timevisor_time::{Duration, Instant, Local, Period, Tai};

use crate::publication::ClockState;

/// A UTC timeline says nothing for two publications and this long around a leap second.
const LEAP_MARGIN: Duration = Duration::from_secs(2);

/// The timescale of a timeline that follows a clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// International Atomic Time.
    Tai,
    /// Coordinated Universal Time.
    Utc,
}

/// What one timeline says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimelineState {
    /// Its lines in force; `None` while nothing is known.
    pub lines: Option<Lines<Local>>,
    /// How far they may be trusted.
    pub status: ClockStatus,
    /// A number that changes whenever what was published before is void.
    pub disruptions: u64,
}

impl TimelineState {
    /// A timeline that follows no reference: it is known, or it is not.
    #[must_use]
    pub fn unreferenced(lines: Option<Lines<Local>>, disruptions: u64) -> Self {
        let status = if lines.is_some() { ClockStatus::Synchronized } else { ClockStatus::Unknown };
        Self { lines, status, disruptions }
    }
}

/// The start of a local timeline. Its rate is the counter's nominal one, for good.
#[derive(Clone, Copy, Debug)]
struct Zero {
    counter: u64,
    period: Period,
}

/// All clocks and local timelines of a host at one publication.
#[derive(Debug)]
pub struct TimelineClocks {
    clocks: Vec<ClockState>,
    zeros: BTreeMap<u64, Zero>,
    now: u64,
    nominal: Period,
    expiry: u64,
    /// UTC repeats or omits a second at a leap second, and a page that is read between two
    /// publications would be off by one second. UTC timelines say nothing this close to one.
    leap_margin: Duration,
    /// TAI - UTC now; `None` while it is not known, or about to change.
    tai_offset: Option<i16>,
}

impl TimelineClocks {
    /// No clocks yet. `nominal` is the counter's period.
    #[must_use]
    pub fn new(nominal: Period, publish_interval: Duration) -> Self {
        Self {
            clocks: Vec::new(),
            zeros: BTreeMap::new(),
            now: 0,
            nominal,
            expiry: 0,
            leap_margin: publish_interval + publish_interval + LEAP_MARGIN,
            tai_offset: None,
        }
    }

    /// Takes in a publication at counter value `now`: what each clock says, the host's first. Lines
    /// of local timelines expire at `expiry`; `tai_offset` is TAI - UTC at an instant, where known.
    pub fn update(
        &mut self,
        clocks: Vec<ClockState>,
        now: u64,
        expiry: u64,
        tai_offset: impl Fn(Instant<Tai>) -> Option<i16>,
    ) {
        (self.clocks, self.now, self.expiry) = (clocks, now, expiry);
        let host = self.clocks.first().and_then(|clock| clock.lines);
        self.tai_offset = host.and_then(|lines| {
            let estimate = lines.at(now).estimate;
            let before = tai_offset(estimate - self.leap_margin)?;
            let after = tai_offset(estimate + self.leap_margin)?;
            (before == after).then_some(after)
        });
    }

    /// Answers are for this counter value from now on: bounds grow between publications.
    pub fn advance(&mut self, now: u64) {
        self.now = now;
    }

    /// The counter value that answers are for.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// TAI - UTC now; `None` while it is not known, or about to change.
    #[must_use]
    pub fn tai_offset(&self) -> Option<i16> {
        self.tai_offset
    }

    /// The counter's nominal period.
    #[must_use]
    pub fn nominal(&self) -> Period {
        self.nominal
    }

    /// A local timeline starts at this counter value, unless it already has.
    pub fn begin(&mut self, life: u64, counter: u64) {
        let zero = Zero { counter, period: self.nominal };
        self.zeros.entry(life).or_insert(zero);
    }

    /// Forgets the local timelines that are not among these.
    pub fn keep(&mut self, alive: impl Fn(u64) -> bool) {
        self.zeros.retain(|life, _| alive(*life));
    }

    /// The counter was disturbed: no local timeline continues.
    pub fn forget_local(&mut self) {
        self.zeros.clear();
    }

    /// What clock `index` says.
    #[must_use]
    pub fn clock(&self, index: usize) -> Option<&ClockState> {
        self.clocks.get(index)
    }

    /// A timeline that follows clock `index`.
    #[must_use]
    pub fn following(&self, index: usize, scale: Scale) -> TimelineState {
        let Some(&ClockState { lines, status, disruptions, .. }) = self.clocks.get(index) else {
            return TimelineState { lines: None, status: ClockStatus::Unknown, disruptions: 0 };
        };
        let Some(lines) = lines else { return TimelineState { lines: None, status, disruptions } };
        match (scale, self.tai_offset) {
            (Scale::Tai, _) => {
                let lines = Some(lines.shifted(Duration::ZERO));
                TimelineState { lines, status, disruptions }
            }
            // A leap second is a step, so the offset is part of what counts steps.
            (Scale::Utc, Some(offset)) => TimelineState {
                lines: Some(lines.shifted(-Duration::from_secs(i64::from(offset)))),
                status,
                disruptions: (disruptions << 16) | u64::from(offset.cast_unsigned()),
            },
            (Scale::Utc, None) => TimelineState {
                lines: None,
                status: ClockStatus::Unreliable,
                disruptions: disruptions << 16,
            },
        }
    }

    /// A local timeline: exactly what the counter says since its start.
    #[must_use]
    pub fn local(&self, life: u64) -> TimelineState {
        let lines = self.zeros.get(&life).map(|zero| {
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
        });
        TimelineState::unreferenced(lines, life)
    }
}
