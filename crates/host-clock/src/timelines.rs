//! Timelines as lines on the host's counter: a clock shifted to TAI or UTC, or a local count.

use std::collections::BTreeMap;

use timevisor_clock_page::{ClockStatus, Line, Lines};
use timevisor_time::{Duration, Instant, Local, Period};

use crate::leap::LeapState;
use crate::publication::ClockState;

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
    leap: LeapState,
    counter_trusted: bool,
}

impl TimelineClocks {
    /// No clocks yet. `nominal` is the counter's period.
    #[must_use]
    pub fn new(nominal: Period) -> Self {
        Self {
            clocks: Vec::new(),
            zeros: BTreeMap::new(),
            now: 0,
            nominal,
            expiry: 0,
            leap: LeapState::default(),
            counter_trusted: true,
        }
    }

    /// Whether the counter is trusted. While it is not, every timeline is unreliable: all of them
    /// count it.
    pub fn trust_counter(&mut self, trusted: bool) {
        self.counter_trusted = trusted;
    }

    /// Takes in a publication at counter value `now`: what each clock says, the host's first. Lines
    /// of local timelines expire at `expiry`.
    pub fn update(&mut self, clocks: Vec<ClockState>, now: u64, expiry: u64, leap: LeapState) {
        (self.clocks, self.now, self.expiry, self.leap) = (clocks, now, expiry, leap);
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
        self.leap.tai_offset
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

    /// A timeline that follows no reference: it is known, or it is not.
    #[must_use]
    pub fn unreferenced(&self, lines: Option<Lines<Local>>, disruptions: u64) -> TimelineState {
        let status = if lines.is_some() { ClockStatus::Synchronized } else { ClockStatus::Unknown };
        TimelineState { lines, status: self.allowed(status), disruptions }
    }

    fn allowed(&self, status: ClockStatus) -> ClockStatus {
        if self.counter_trusted { status } else { ClockStatus::Unreliable }
    }

    /// A timeline that follows clock `index`.
    #[must_use]
    pub fn following(&self, index: usize, scale: Scale) -> TimelineState {
        let Some(&ClockState { lines, status, disruptions, .. }) = self.clocks.get(index) else {
            return self.unreferenced(None, 0);
        };
        let status = self.allowed(status);
        match scale {
            Scale::Tai => {
                let lines = lines.map(|lines| lines.shifted(Duration::ZERO));
                TimelineState { lines, status, disruptions }
            }
            Scale::Utc => {
                let utc = self.leap.utc(lines.as_ref().ok_or(status), disruptions, self.now);
                let status = utc.lines.err().unwrap_or(status);
                TimelineState { lines: utc.lines.ok(), status, disruptions: utc.disruptions }
            }
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
        self.unreferenced(lines, life)
    }
}
