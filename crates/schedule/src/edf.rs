//! Earliest deadline first on any supply: the demand of every interval is supplied in it.
//!
//! QPA on supply: from the end of what must be looked at downwards, the demand at `t` is supplied by `time_for(demand)`; in between
//! nothing can be missed, as demand only falls and supply only grows with the interval's length seen from there.

use crate::demand::{due_within, last_deadline_before};
use crate::supply::{Line, Supply};
use crate::task::{Task, TaskSet};

/// So many intervals are looked at; more would be millions of tasks' worth, and is answered with "not known".
const MOST_STEPS: u64 = 10_000_000;

/// What the test found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// Everything is supplied in time.
    Supplied,
    /// In an interval of this length, ns, more is due than is supplied.
    Missed(u64),
    /// The tasks want all that the supply has on average, and repeat themselves too rarely to look at everything.
    NotKnown,
}

/// Whether every job is done in time.
#[must_use]
pub fn test(set: &TaskSet, supply: &impl Supply) -> Demand {
    let end = match horizon(set, &supply.line()) {
        Horizon::End(end) => end,
        Horizon::TooMuch => return first_miss(set, supply),
        Horizon::NotKnown => return Demand::NotKnown,
    };
    let Some(mut t) = last_deadline_before(set, end.saturating_add(1)) else {
        return Demand::Supplied;
    };
    for _ in 0..MOST_STEPS {
        let due = due_within(set, t);
        if due == 0 {
            return Demand::Supplied;
        }
        let supplied = supply.time_for(due);
        if supplied > t {
            return Demand::Missed(t);
        }
        if supplied < t {
            t = supplied;
        } else {
            match last_deadline_before(set, t) {
                Some(before) => t = before,
                None => return Demand::Supplied,
            }
        }
    }
    Demand::NotKnown
}

enum Horizon {
    End(u64),
    /// They want more than there is.
    TooMuch,
    NotKnown,
}

/// A fraction of a processor, in 2^-64, rounded up and down.
fn fraction(numerator: u64, denominator: u64) -> (u128, u128) {
    let scaled = u128::from(numerator) << 64;
    let denominator = u128::from(denominator);
    (scaled / denominator, scaled.div_ceil(denominator))
}

/// Beyond this nothing can be missed for the first time.
///
/// Demand is below `U t + K`, supply above `rate (t - delay)`; the lines meet at `(K + rate delay) / (rate - U)`. Where the rates are
/// the same (or nearly), both repeat themselves after a common multiple of all periods.
fn horizon(set: &TaskSet, line: &Line) -> Horizon {
    let (mut least, mut most, mut constant) = (0u128, 0u128, 0u128);
    for task in set.tasks() {
        let (down, up) = fraction(task.cost, task.period);
        (least, most) = (least + down, most + up);
        let early = u128::from(task.period - task.deadline + task.jitter);
        constant += (u128::from(task.cost) * early).div_ceil(u128::from(task.period));
    }
    constant += set.tasks().iter().map(|task| u128::from(task.blocking)).max().unwrap_or(0);
    let (rate_down, rate_up) = fraction(line.numerator, line.denominator);
    if least > rate_up {
        return Horizon::TooMuch;
    }
    let meet = rate_down.checked_sub(most).filter(|gap| *gap > 0).and_then(|gap| {
        let delayed = u128::from(line.delay) * u128::from(line.numerator);
        let delayed = delayed.div_ceil(u128::from(line.denominator));
        // (constant + delayed) / gap, in ns: both sides times 2^64.
        let above = (constant + delayed).checked_shl(64).filter(|a| a >> 64 == constant + delayed);
        u64::try_from(above?.div_ceil(gap)).ok()
    });
    let repeat = common_multiple(set, line.denominator)
        .and_then(|multiple| multiple.checked_add(set.tasks().iter().map(|t| t.deadline).max()?))
        .and_then(|end| end.checked_add(line.delay)?.checked_add(line.denominator));
    match meet.into_iter().chain(repeat).min() {
        Some(end) => Horizon::End(end),
        None => Horizon::NotKnown,
    }
}

fn common_multiple(set: &TaskSet, period: u64) -> Option<u64> {
    fn divisor(mut a: u64, mut b: u64) -> u64 {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    }
    set.tasks().iter().try_fold(period, |multiple, task: &Task| {
        (multiple / divisor(multiple, task.period)).checked_mul(task.period)
    })
}

/// For more than there is: where it is missed, found by doubling from the first deadline.
fn first_miss(set: &TaskSet, supply: &impl Supply) -> Demand {
    let mut t = set.tasks().iter().map(|task| task.deadline).max().unwrap_or(1);
    while t < 1 << 62 {
        if supply.time_for(due_within(set, t)) > t {
            return Demand::Missed(t);
        }
        t *= 2;
    }
    Demand::NotKnown
}
