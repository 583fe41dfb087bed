//! How much each task may grow: the greatest cost with which all tasks still meet their deadlines.
//!
//! It does not bisect over the whole test, which would take as long as thirty tests per task. With
//! fixed priorities, a task delays itself and those below it, so the room that each of these has,
//! and when, is computed once. Under EDF one pass downwards over the intervals is enough: where too
//! much is due, costs are lowered to what just fits, and intervals checked before stay satisfied
//! (Zhang, Burns, Baruah, "Sensitivity analysis for EDF scheduled arbitrary deadline real-time
//! systems", RTCSA 2010).

use crate::edf::{self, Demand, MOST_STEPS, Prepared};
use crate::fixed_priority::{finished, finished_from};
use crate::horizon::{Horizon, Totals};
use crate::moments::moments;
use crate::search::last_that_fits;
use crate::staircase::{Flight, Released, Staircase, Step};
use crate::supply::{Line, Supply};
use crate::task::{Policy, Task, TaskSet};

/// The greatest cost of each task, ns, with the others unchanged; `None` if deadlines are not met
/// now.
#[must_use]
pub fn greatest_costs(set: &TaskSet, supply: &impl Supply) -> Option<Vec<u64>> {
    if set.policy() == Policy::Edf { under_edf(set, supply) } else { by_priority(set, supply) }
}

fn by_priority(set: &TaskSet, supply: &impl Supply) -> Option<Vec<u64>> {
    let Some(moments) = moments(set) else { return one_by_one(set, supply) };
    // The times at which each task has room for more work, its own or that of the tasks above it.
    let rooms: Option<Vec<_>> = moments.iter().map(|of| of.rooms(supply)).collect();
    let mut rooms: Vec<_> = rooms?.into_iter().enumerate().collect();
    // Tasks with the least room first, so that it is soon clear that the others have more.
    rooms.sort_by_key(|(_, rooms)| rooms.last().map(|(_, room)| *room));
    let greatest = |(index, task): (usize, &Task)| {
        let released = Released::new(task);
        let mut more = task.deadline - task.cost;
        for (_, rooms) in rooms.iter().filter(|(below, _)| *below >= index) {
            // The best of its moments; we may stop once it is no less than that of another task.
            let mut best = 0;
            for (by, room) in rooms.iter().rev() {
                best = best.max(room / released.jobs_within(*by));
                if best >= more {
                    break;
                }
            }
            more = more.min(best);
        }
        task.cost + more
    };
    Some(set.tasks().iter().enumerate().map(greatest).collect())
}

/// The same, if there are too many moments to keep.
fn one_by_one(set: &TaskSet, supply: &impl Supply) -> Option<Vec<u64>> {
    let all = 0..set.tasks().len();
    // The work after which each is done; it only grows with the cost.
    let base: Option<Vec<u64>> = all.clone().map(|index| finished(set, index, supply)).collect();
    let base = base?;
    let mut tasks = set.clone();
    let room = |index: usize| {
        let task = &set.tasks()[index];
        task.deadline - task.jitter - supply.time_for(base[index])
    };
    let mut nearly_late: Vec<usize> = all.clone().collect();
    nearly_late.sort_by_key(|index| room(*index));
    let mut greatest = Vec::with_capacity(base.len());
    for index in all {
        let cost = set.tasks()[index].cost;
        let mut most = set.tasks()[index].deadline;
        for below in nearly_late.iter().copied().filter(|below| *below >= index) {
            let mut fits = |cost_of: u64| {
                tasks.set_cost(index, cost_of);
                let from = base[below].saturating_add(cost_of - cost);
                finished_from(&tasks, below, supply, from).is_some()
            };
            if !fits(most) {
                most = last_that_fits(cost, most, fits);
            }
        }
        tasks.set_cost(index, cost);
        greatest.push(most);
    }
    Some(greatest)
}

fn under_edf(set: &TaskSet, supply: &impl Supply) -> Option<Vec<u64>> {
    let prepared = Prepared::new(set);
    if prepared.test(supply) != Demand::Supplied {
        return None;
    }
    let line = supply.line();
    let mut all: Vec<Grown> =
        set.tasks().iter().map(|task| Grown::new(task, &prepared.totals, &line)).collect();
    let near = prepared.near();
    let known = downwards(&mut all, &prepared.staircase, supply, near, 0);
    let far = all.iter_mut().map(|grown| grown.see(&line)).max()?;
    let known = known.and_then(|()| downwards(&mut all, &prepared.staircase, supply, far, near));
    if known.is_some() {
        return Some(all.iter().map(|grown| grown.most).collect());
    }
    // There are too many steps for all at once, so handle each task separately.
    let greatest = |(index, grown): (usize, &Grown)| {
        let mut tasks = set.clone();
        last_that_fits(grown.task.cost, grown.most + 1, |cost| {
            tasks.set_cost(index, cost);
            edf::test(&tasks, supply) == Demand::Supplied
        })
    };
    Some(all.iter().enumerate().map(greatest).collect())
}

/// A task whose cost grows.
struct Grown<'a> {
    task: &'a Task,
    flight: Flight,
    /// The totals without it.
    others: Totals,
    /// Upper limit of its cost.
    most: u64,
}

impl<'a> Grown<'a> {
    fn new(task: &'a Task, totals: &Totals, line: &Line) -> Self {
        let others = totals.without(task);
        let most = others.room(task, line);
        Self { task, flight: Flight::new(task), others, most }
    }

    /// The maximum additional work due within `t`.
    fn more(&self, t: u64) -> u64 {
        self.flight.jobs_by(t).saturating_mul(self.most - self.task.cost)
    }

    /// Limits the cost to what has room there.
    fn limit(&mut self, t: u64, room: u64) {
        if self.more(t) > room {
            self.most = self.task.cost + room / self.flight.jobs_by(t);
        }
    }

    /// Limits the cost so that the interval to check stays finite, and returns how far to check.
    fn see(&mut self, line: &Line) -> u64 {
        let end = |cost| match self.others.with(self.task, cost).horizon(line) {
            Horizon::End(end) => Some(end),
            _ => None,
        };
        if end(self.most).is_none() {
            self.most = last_that_fits(self.task.cost, self.most, |cost| end(cost).is_some());
        }
        end(self.most).unwrap_or(0)
    }
}

/// QPA with falling costs, for all tasks at once: the demand is that with the growth of the one
/// task that adds most. `None` if there are too many steps.
fn downwards(
    all: &mut [Grown<'_>],
    staircase: &Staircase,
    supply: &impl Supply,
    from: u64,
    to: u64,
) -> Option<()> {
    let mut step = staircase.by(from);
    for _ in 0..MOST_STEPS {
        let Some(Step { at, due }) = step.filter(|step| step.at > to) else { return Some(()) };
        let with_most = |all: &[Grown<'_>]| {
            let more = all.iter().map(|grown| grown.more(at)).max();
            supply.time_for(due.saturating_add(more.unwrap_or(0)))
        };
        let mut supplied = with_most(all);
        if supplied > at {
            let room = supply.within(at).saturating_sub(due);
            all.iter_mut().for_each(|grown| grown.limit(at, room));
            supplied = with_most(all);
        }
        step = staircase.by(supplied.min(at - 1));
    }
    None
}
