//! Response times under earliest deadline first, on any supply: Spuri's analysis ("Analysis of
//! deadline scheduled real-time systems", INRIA RR-2772, 1996), with jitter and blocking, and a
//! supply in place of the processor.
//!
//! A job that is due at `d`, counted from the start of its busy period, waits for all work that is
//! due by `d` and is released before the job finishes. This work is greatest if all tasks start
//! together, as late as their jitter allows. The finishing time, `Busy::done`, depends only on `d`,
//! not on the task of the job: the worst response of a task is its deadline plus the greatest
//! lateness over all `d` at which one of its jobs can be due.
//!
//! What it does not do: determine whether deadlines are met ([`edf`](crate::edf) does this faster).

use crate::staircase::{Flight, Released, Staircase};
use crate::supply::Supply;
use crate::task::{Task, TaskSet};

/// Maximum number of deadlines checked, and of steps towards the end of the longest busy period.
const MOST: u64 = 1_000_000;

/// The worst-case response time of each task, ns, if all deadlines are met. It is exact, or the
/// task's deadline if a busy period has too many deadlines to check.
#[must_use]
pub fn responses(set: &TaskSet, supply: &impl Supply) -> Vec<u64> {
    let bound = || set.tasks().iter().map(|task| task.deadline).collect();
    match Busy::new(set, supply) {
        Some(busy) => busy.responses().unwrap_or_else(bound),
        None => bound(),
    }
}

/// The longest busy period: all tasks released together.
struct Busy<'a, S> {
    set: &'a TaskSet,
    released: Vec<Released>,
    flights: Vec<Flight>,
    staircase: Staircase,
    supply: &'a S,
    end: u64,
}

impl<'a, S: Supply> Busy<'a, S> {
    fn new(set: &'a TaskSet, supply: &'a S) -> Option<Self> {
        let blocking = set.tasks().iter().map(|task| task.blocking).max().unwrap_or(0);
        let released: Vec<Released> = set.tasks().iter().map(Released::new).collect();
        let mut end = 1;
        for _ in 0..MOST {
            let work = released.iter().zip(set.tasks()).map(|(released, task)| {
                u128::from(released.jobs_within(end)) * u128::from(task.cost)
            });
            let work = work.sum::<u128>() + u128::from(blocking);
            let next = supply.time_for(u64::try_from(work).ok()?);
            if next <= end {
                let flights = set.tasks().iter().map(Flight::new).collect();
                let staircase = Staircase::new(set);
                return Some(Self { set, released, flights, staircase, supply, end });
            }
            end = next;
        }
        None
    }

    /// Works downwards from the last deadline of a job that is released in the busy period.
    fn responses(&self) -> Option<Vec<u64>> {
        let tasks = self.set.tasks();
        let last = self.end.checked_add(tasks.iter().map(|task| task.deadline).max()?)?;
        if tasks.iter().map(|task| last / task.period + 1).sum::<u64>() > MOST {
            return None;
        }
        let mut firsts: Vec<(u64, usize)> =
            tasks.iter().enumerate().map(|(index, task)| (first_due(task), index)).collect();
        firsts.sort_unstable_by(|a, b| b.cmp(a));
        let mut worst = vec![0; tasks.len()];
        let (mut latest, mut before) = (i64::MIN, last);
        for (first, index) in firsts {
            // The worst case is mostly near the start. Once it is known, a single check suffices
            // for most of the other deadlines.
            self.look(first, &mut latest)?;
            while let Some(due) = self.staircase.by(before - 1).filter(|due| due.at > first) {
                before = self.look(due.at, &mut latest)?.max(first + 1);
            }
            before = first;
            worst[index] = tasks[index].deadline.saturating_add_signed(latest);
        }
        Some(worst)
    }

    /// Raises `latest`, the greatest lateness so far (negative if in time), to that of the work due
    /// by `due`. Returns the earliest of the deadlines that need no check after this one: as in
    /// QPA, less is due by earlier ones.
    fn look(&self, due: u64, latest: &mut i64) -> Option<u64> {
        let jobs = self.jobs_by(due);
        // If the work released by `then` is supplied by then, everything is done.
        let then = due.checked_add_signed(*latest).filter(|then| *then > 0);
        let then = then.map(|then| then.min(self.end));
        let soon = then.and_then(|then| self.supplied(&jobs, then).filter(|soon| *soon <= then));
        if let Some(soon) = soon {
            return Some(soon.saturating_sub_signed(*latest));
        }
        let late = i64::try_from(self.done(&jobs)?).ok()? - i64::try_from(due).ok()?;
        *latest = late.max(*latest);
        Some(due)
    }

    /// The jobs of each task that are due by `due`, and how long work that is due later can block
    /// them.
    fn jobs_by(&self, due: u64) -> Jobs {
        let waiting = self.set.tasks().iter().filter(|task| first_due(task) <= due);
        Jobs {
            most: self.flights.iter().map(|flight| flight.jobs_by(due)).collect(),
            blocking: waiting.map(|task| task.blocking).max().unwrap_or(0),
        }
    }

    /// When the work of these jobs that is released within `t` is supplied.
    fn supplied(&self, jobs: &Jobs, t: u64) -> Option<u64> {
        let each = self.set.tasks().iter().zip(&jobs.most).zip(&self.released);
        let work = each.map(|((task, most), released)| {
            u128::from(released.jobs_within(t).min(*most)) * u128::from(task.cost)
        });
        let work = work.sum::<u128>() + u128::from(jobs.blocking);
        Some(self.supply.time_for(u64::try_from(work).ok()?))
    }

    /// When all of these are done.
    fn done(&self, jobs: &Jobs) -> Option<u64> {
        let mut t = 1;
        loop {
            let next = self.supplied(jobs, t)?;
            if next <= t {
                return Some(t);
            }
            t = next;
        }
    }
}

/// The jobs that are due by some deadline.
struct Jobs {
    /// Maximum number of jobs of each task.
    most: Vec<u64>,
    blocking: u64,
}

/// A late release is due as if it had been on time.
fn first_due(task: &Task) -> u64 {
    task.deadline - task.jitter
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::edf::{Demand, test};
    use crate::reservation::Reservation;
    use crate::supply::Worst;
    use crate::task::Policy;

    /// The definition: checks all deadlines of the task's jobs in the busy period one by one.
    fn one_by_one(busy: &Busy<'_, Worst>, task: &Task) -> u64 {
        let all = (first_due(task)..busy.end + task.deadline)
            .step_by(usize::try_from(task.period).unwrap());
        let others = busy.set.tasks().iter().flat_map(|other| {
            let all =
                (first_due(other)..busy.end + 1000).step_by(usize::try_from(other.period).unwrap());
            all.filter(|due| *due >= first_due(task))
        });
        let late = |due| busy.done(&busy.jobs_by(due)).unwrap() as i64 - due as i64;
        task.deadline.saturating_add_signed(all.chain(others).map(late).max().unwrap())
    }

    proptest! {
        #[test]
        fn what_is_left_out_is_not_the_worst(
            tasks in prop::collection::vec((1..30u64, 0..60u64, 0..60u64, 0..9u64, 0..9u64), 1..7),
            budget in 1..60u64,
            idle in 0..30u64,
        ) {
            let task = |(cost, more, early, jitter, blocking): (u64, u64, u64, u64, u64)| {
                let (cost, period) = (cost, cost * 6 + more);
                let deadline = cost + 5 + (period - cost - 5).saturating_sub(early);
                Task { deadline, jitter: jitter.min(deadline - 1), blocking: blocking.min(deadline - 1), ..Task::new("", cost, period) }
            };
            let set = TaskSet::new(tasks.into_iter().map(task).collect(), Policy::Edf).unwrap();
            let supply = Worst(Reservation::shared(budget, budget + idle).unwrap());
            prop_assume!(test(&set, &supply) == Demand::Supplied);
            let busy = Busy::new(&set, &supply).unwrap();
            let plain: Vec<u64> = set.tasks().iter().map(|task| one_by_one(&busy, task)).collect();
            prop_assert_eq!(responses(&set, &supply), plain);
        }
    }
}
