//! [`Staircase`]: the results of [`due_within`](crate::demand::due_within), prepared for many
//! queries: a query processes all tasks, and a search for a budget or a period makes many thousand
//! of them.
//!
//! What it does not do: support changes. A task with a different cost adds [`Flight::jobs_by`]
//! times the difference.

use crate::task::{Task, TaskSet};

/// `n / divisor` by multiplication, because a division takes several times as long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divisor {
    divisor: u64,
    /// `(2^64 - 1) / divisor`, rounded down.
    inverse: u64,
}

impl Divisor {
    /// `divisor` must not be 0.
    pub(crate) fn new(divisor: u64) -> Self {
        Self { divisor, inverse: u64::MAX / divisor.max(1) }
    }

    /// The inverse's rounding error amounts to less than 1 for any `n`, so the quotient is this or
    /// one more.
    pub(crate) fn divide(self, n: u64) -> u64 {
        let quotient = ((u128::from(n) * u128::from(self.inverse)) >> 64) as u64;
        quotient + u64::from(n - quotient * self.divisor >= self.divisor)
    }
}

/// The earliest deadlines of one task's jobs, counted from the release of the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// A late release is due as if it had been on time: deadlines come `jitter` earlier.
    first: u64,
    period: Divisor,
    cost: u64,
    /// The longest blocking of this task and of those that are due before it.
    blocking: u64,
}

impl Flight {
    pub(crate) fn new(task: &Task) -> Self {
        let Task { cost, blocking, .. } = *task;
        Self {
            first: task.deadline - task.jitter,
            period: Divisor::new(task.period),
            cost,
            blocking,
        }
    }

    /// Number of jobs that are released and due within `t`.
    pub(crate) fn jobs_by(&self, t: u64) -> u64 {
        t.checked_sub(self.first).map_or(0, |after| self.period.divide(after) + 1)
    }
}

/// The earliest release times of one task's jobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    jitter: u64,
    period: Divisor,
}

impl Released {
    pub(crate) fn new(task: &Task) -> Self {
        Self { jitter: task.jitter, period: Divisor::new(task.period) }
    }

    /// Maximum number of jobs released in an interval of `t` ns, which must be above 0.
    pub(crate) fn jobs_within(&self, t: u64) -> u64 {
        self.period.divide((t - 1).saturating_add(self.jitter)) + 1
    }
}

/// A deadline, and the work that is due by it (with blocking).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) at: u64,
    pub(crate) due: u64,
}

/// The demand bound function.
#[derive(Clone, Debug)]
pub(crate) struct Staircase {
    /// Sorted by their first deadlines.
    flights: Vec<Flight>,
}

impl Staircase {
    pub(crate) fn new(set: &TaskSet) -> Self {
        let mut flights: Vec<Flight> = set.tasks().iter().map(Flight::new).collect();
        flights.sort_by_key(|flight| flight.first);
        let mut blocking = 0;
        for flight in &mut flights {
            blocking = flight.blocking.max(blocking);
            flight.blocking = blocking;
        }
        Self { flights }
    }

    /// The last step that is not after `t`; `None` before the first.
    pub(crate) fn by(&self, t: u64) -> Option<Step> {
        let (mut at, mut sum, mut blocking) = (0, 0u128, None);
        for flight in &self.flights {
            let Some(after) = t.checked_sub(flight.first) else { break };
            let periods = flight.period.divide(after);
            at = at.max(flight.first + periods * flight.period.divisor);
            sum += u128::from(periods + 1) * u128::from(flight.cost);
            blocking = Some(flight.blocking);
        }
        let due = sum + u128::from(blocking?);
        Some(Step { at, due: u64::try_from(due).unwrap_or(u64::MAX) })
    }

    /// The first deadline of each task, ascending.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = Step> {
        self.flights.iter().filter_map(|flight| self.by(flight.first))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::demand::due_within;
    use crate::task::Policy;

    proptest! {
        #[test]
        fn a_quotient_is_a_quotient(n: u64, small in 0..1000u64, divisor in 1..=u64::MAX, shift in 0..64u32) {
            let divisor = (divisor >> shift).max(1);
            for n in [n, n >> shift, small, u64::MAX - small, (n / divisor * divisor).wrapping_sub(small % 2)] {
                prop_assert_eq!(Divisor::new(divisor).divide(n), n / divisor);
            }
        }

        #[test]
        fn a_step_is_what_is_due(tasks in prop::collection::vec((1..20u64, 1..50u64, 0..9u64, 0..9u64), 1..6), t in 0..500u64) {
            let task = |(cost, more, jitter, blocking): (u64, u64, u64, u64)| {
                let deadline = cost + more / 2;
                let task = Task::new("", cost, cost + more);
                Task { deadline, jitter: jitter.min(deadline - 1), blocking: blocking.min(deadline - 1), ..task }
            };
            let set = TaskSet::new(tasks.into_iter().map(task).collect(), Policy::Edf).unwrap();
            match Staircase::new(&set).by(t) {
                None => prop_assert_eq!(due_within(&set, t), 0),
                Some(Step { at, due }) => {
                    prop_assert_eq!((due_within(&set, t), due_within(&set, at)), (due, due));
                    prop_assert!(at <= t && due_within(&set, at - 1) < due);
                }
            }
            let jobs = |task: &Task| Flight::new(task).jobs_by(t) * task.cost;
            let blocking = set.tasks().iter().filter(|task| task.deadline - task.jitter <= t).map(|task| task.blocking).max();
            prop_assert_eq!(set.tasks().iter().map(jobs).sum::<u64>() + blocking.unwrap_or(0), due_within(&set, t));
        }
    }
}
