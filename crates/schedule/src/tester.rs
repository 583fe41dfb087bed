//! [`Tester`]: tests the same tasks on many supplies, as needed by a search for a budget. It
//! returns the same results as [`fits`](crate::verdict::fits), but faster, because what does not
//! depend on the supply is computed once.
//!
//! With fixed priorities that is the demand at all [moments](crate::moments) that matter; under EDF
//! the demand bound function, and [intervals](crate::missed) in which too much was due before. What
//! it does not do: compute response times.

use crate::missed::Intervals;
use crate::moments::{Moments, moments};
use crate::search::last_that_fits;
use crate::supply::Supply;
use crate::task::{Policy, TaskSet};
use crate::verdict::fits;

/// Tasks to be tested.
pub(crate) enum Tester<'a> {
    /// The moments of each task; those that failed most recently come first.
    Priorities(Vec<Moments>),
    Edf(Intervals<'a>),
    /// Nothing could be precomputed.
    Plain(&'a TaskSet),
}

impl<'a> Tester<'a> {
    pub(crate) fn new(set: &'a TaskSet) -> Self {
        if set.policy() == Policy::Edf {
            return Self::Edf(Intervals::new(set));
        }
        match moments(set) {
            Some(moments) => Self::Priorities(moments.into_iter().rev().collect()),
            None => Self::Plain(set),
        }
    }

    pub(crate) fn fits(&mut self, supply: &impl Supply) -> bool {
        match self {
            Self::Priorities(of_each) => {
                let late = of_each.iter_mut().position(|of| !of.in_time(supply));
                if let Some(late) = late {
                    of_each[..=late].rotate_right(1);
                }
                late.is_none()
            }
            Self::Edf(intervals) => intervals.fits(supply),
            Self::Plain(set) => fits(set, supply),
        }
    }

    /// The minimum budget from `from`, which must be above 0, to `most` with which they fit. Supply
    /// grows with the budget. `None` as a supply means that nothing fits.
    pub(crate) fn least<S: Supply>(
        &mut self,
        from: u64,
        most: u64,
        supply: &impl Fn(u64) -> Option<S>,
    ) -> Option<u64> {
        if from > most {
            return None;
        }
        match self {
            Self::Priorities(of_each) => of_each.iter_mut().try_fold(from, |budget, of| {
                let enough = supply(budget).is_some_and(|supply| of.in_time(&supply));
                if enough { Some(budget) } else { of.least(budget, most, supply) }
            }),
            Self::Edf(intervals) => intervals.least(from, most, supply),
            Self::Plain(set) => {
                let fits = |budget| supply(budget).is_some_and(|supply| fits(set, &supply));
                fits(most).then(|| last_that_fits(most, from - 1, fits))
            }
        }
    }
}
