//! Earliest deadline first on any supply: the demand of every interval is supplied in it.
//!
//! QPA on supply: from the end of what must be looked at downwards, the demand at `t` is supplied
//! by `time_for(demand)`; in between nothing can be missed, as demand only falls and supply only
//! grows with the interval's length seen from there.

use crate::demand::due_within;
use crate::horizon::{Horizon, Totals};
use crate::staircase::{Staircase, Step};
use crate::supply::Supply;
use crate::task::TaskSet;

/// So many intervals are looked at; more would be seconds.
pub(crate) const MOST_STEPS: u64 = 1_000_000;

/// What the test found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// Everything is supplied in time.
    Supplied,
    /// In an interval of this length, ns, more is due than is supplied.
    Missed(u64),
    /// The tasks want all that the supply has on average, and repeat themselves too rarely to look
    /// at everything.
    NotKnown,
}

/// Whether every job is done in time.
#[must_use]
pub fn test(set: &TaskSet, supply: &impl Supply) -> Demand {
    Prepared::new(set).test(supply)
}

/// Tasks for many tests: what does not depend on the supply.
pub(crate) struct Prepared<'a> {
    set: &'a TaskSet,
    pub(crate) staircase: Staircase,
    pub(crate) totals: Totals,
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(set: &'a TaskSet) -> Self {
        Self { set, staircase: Staircase::new(set), totals: Totals::new(set) }
    }

    /// What is missed is mostly missed within this: worth a look before all that must be looked at,
    /// as with less budget, or greater costs, that is more.
    pub(crate) fn near(&self) -> u64 {
        let deadlines = self.set.tasks().iter().map(|task| task.deadline);
        deadlines.max().unwrap_or(0).saturating_mul(2)
    }

    /// As [`test`]; what is missed is the longest interval that is and must be looked at.
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

    /// For more than there is: where it is missed, found by doubling from the longest deadline.
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
