//! One answer for either policy.

use crate::edf::{self, Demand};
use crate::edf_response;
use crate::fixed_priority;
use crate::supply::Supply;
use crate::task::{Policy, TaskSet};

/// Whether all tasks meet their deadlines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// They do; contains the worst response time of each, ns.
    Schedulable(Vec<u64>),
    /// The task of this index (in the set's order) does not, as far as can be shown.
    Late(usize),
    /// Under EDF: more is due in an interval of this length, ns, than is supplied.
    Short(u64),
    /// The answer is not known.
    NotKnown,
}

impl Verdict {
    /// Whether it is certain that they meet their deadlines.
    #[must_use]
    pub fn is_schedulable(&self) -> bool {
        matches!(self, Self::Schedulable(_))
    }
}

/// Judges tasks on a supply.
#[must_use]
pub fn judge(set: &TaskSet, supply: &impl Supply) -> Verdict {
    if set.policy() == Policy::Edf {
        return match edf::test(set, supply) {
            Demand::Supplied => Verdict::Schedulable(edf_response::responses(set, supply)),
            Demand::Missed(t) => Verdict::Short(t),
            Demand::NotKnown => Verdict::NotKnown,
        };
    }
    let mut worst = Vec::with_capacity(set.tasks().len());
    for index in 0..set.tasks().len() {
        match fixed_priority::response(set, index, supply) {
            Some(response) => worst.push(response),
            None => return Verdict::Late(index),
        }
    }
    Verdict::Schedulable(worst)
}

/// Whether [`judge`] would find them schedulable; this does not compute response times.
#[must_use]
pub fn fits(set: &TaskSet, supply: &impl Supply) -> bool {
    if set.policy() == Policy::Edf {
        return edf::test(set, supply) == Demand::Supplied;
    }
    (0..set.tasks().len()).all(|index| fixed_priority::response(set, index, supply).is_some())
}
