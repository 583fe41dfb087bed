//! What a member's page says: the only source of time here.

use timevisor_time::{Duration, Instant, Interval, Local};

/// The present, as one member sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Time since some moment on this machine. Only retries and waits for answers use it.
    pub elapsed: Duration,
    /// What the page says; `None` if its status is unknown or unreliable.
    pub reading: Option<Reading>,
}

/// A reading of the group's timeline whose bounds can be relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Holds the timeline's time.
    pub interval: Interval<Local>,
    /// The best guess; inside of the interval.
    pub estimate: Instant<Local>,
    /// Which clock the timeline is. Readings of different origins have no order.
    pub origin: u64,
    /// Whether it meets the member's requirement.
    pub met: bool,
}

impl Reading {
    /// Time is not before this.
    #[must_use]
    pub fn earliest(&self) -> Instant<Local> {
        self.interval.earliest()
    }

    /// Time is not after this.
    #[must_use]
    pub fn latest(&self) -> Instant<Local> {
        self.interval.latest()
    }
}

impl Now {
    /// The reading, if it is of this origin and meets the member's requirement.
    #[must_use]
    pub fn fit(&self, origin: u64) -> Option<Reading> {
        self.reading.filter(|reading| reading.origin == origin && reading.met)
    }
}

/// When a message was sent, as its sender saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Held the timeline's time when the message was stamped.
    pub interval: Interval<Local>,
    /// Which clock the timeline was.
    pub origin: u64,
}

/// When a state machine wants to be called next: at the first of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Next {
    /// When [`Now::elapsed`] reaches this.
    pub elapsed: Option<Duration>,
    /// When the estimate reaches this.
    pub at: Option<Instant<Local>>,
}

impl Next {
    /// The first of both, each.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let first = |a: Option<Instant<Local>>, b: Option<Instant<Local>>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self {
            elapsed: self.elapsed.into_iter().chain(other.elapsed).min(),
            at: first(self.at, other.at),
        }
    }
}
