//! Earliest deadline first on any supply: checks that the demand of every interval is supplied in
//! it.
//!
//! QPA on a supply works downwards from the end of the interval to check. The demand at `t` is
//! supplied by `time_for(demand)`. In between, nothing can be missed, because demand only falls
//! below `t` and supply only grows above `time_for(demand)`.

use crate::demand::due_within;
use crate::horizon::{Horizon, Totals};
use crate::staircase::{Staircase, Step};
use crate::supply::Supply;
use crate::task::TaskSet;

/// Maximum number of intervals checked; more would take seconds.
pub(crate) const MOST_STEPS: u64 = 1_000_000;

/// What the test found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// Everything is supplied in time.
    Supplied,
    /// In an interval of this length, ns, more is due than is supplied.
    Missed(u64),
    /// The tasks want the entire average supply, and their pattern repeats too rarely to check
    /// everything.
    NotKnown,
}

/// Whether every job finishes in time.
#[must_use]
pub fn test(set: &TaskSet, supply: &impl Supply) -> Demand {
    Prepared::new(set).test(supply)
}

/// Tasks prepared for many tests: everything that does not depend on the supply.
pub(crate) struct Prepared<'a> {
    set: &'a TaskSet,
    pub(crate) staircase: Staircase,
    pub(crate) totals: Totals,
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(set: &'a TaskSet) -> Self {
        Self { set, staircase: Staircase::new(set), totals: Totals::new(set) }
    }

    /// Most misses occur within this interval. It is worth checking first, because the full
    /// interval to check grows with a smaller budget or larger costs.
    pub(crate) fn near(&self) -> u64 {
        let deadlines = self.set.tasks().iter().map(|task| task.deadline);
        deadlines.max().unwrap_or(0).saturating_mul(2)
    }

    /// As [`test`]; a miss is reported for the longest missed interval among those that must be
    /// checked.
    pub(crate) fn test(&self, supply: &impl Supply) -> Demand {
        let end = match self.totals.horizon(&supply.line()) {
            Horizon::End(end) => end,
            Horizon::TooMuch => return self.first_miss(supply),
            Horizon::NotKnown => return Demand::NotKnown,
        };
        let mut step = self.staircase.by(end);
        for _ in 0..MOST_STEPS {
            let Some(Step { at, due }) = step else { return Demand::Supplied };
            let supplied = supply.time_for(due);
            if supplied > at {
                return Demand::Missed(at);
            }
            step = self.staircase.by(supplied.min(at - 1));
        }
        Demand::NotKnown
    }

    /// For demand above the supply: finds a missed interval by doubling from the longest deadline.
    fn first_miss(&self, supply: &impl Supply) -> Demand {
        let mut t = self.set.tasks().iter().map(|task| task.deadline).max().unwrap_or(1);
        while t < 1 << 62 {
            if supply.time_for(due_within(self.set, t)) > t {
                return Demand::Missed(t);
            }
            t *= 2;
        }
        Demand::NotKnown
    }
}
