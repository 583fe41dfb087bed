//! Several reservations on one core, picked by their deadlines (SCHED_DEADLINE).
//!
//! A reservation is not a task that runs its budget and is done: a vCPU sleeps in the middle of
//! one, and goes on later with what its deadline allows. By the server's wakeup rule that is at
//! most `budget / deadline` of what is left until the deadline (for deadlines below the period:
//! Abeni, Lipari, Lelli, "Constant bandwidth server revisited", EWiLi 2014), so that already in an
//! interval shorter than the deadline something may be due. The demand bound function of sporadic
//! tasks has nothing there, and finds room for reservations that then are late.
//!
//! What it does not do: know what the kernel's own admission leaves free, or charge for more than
//! one switch in a period.

use crate::edf::{Demand, MOST_STEPS};
use crate::horizon::{Horizon, Totals};
use crate::reservation::Reservation;
use crate::supply::{Dedicated, Supply};
use crate::task::{Policy, Task, TaskSet};

/// What the host takes from reservations; ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// What a switch into a reservation takes.
    pub switch: u64,
    /// For how long the kernel may not preempt.
    pub blocking: u64,
    /// 1 / HZ where budgets are enforced by the tick, else 0. Each of the others may run on for
    /// this long without a budget, once until it has paid that back.
    pub tick: u64,
}

/// Whether a core can keep all of them, whenever each of them sleeps and wakes. With a tick: each
/// of them as [`Ticked`](crate::Ticked) says.
///
/// What a reservation has left when it wakes may be later than its deadline by blocking and ticks;
/// its whole budgets are not.
#[must_use]
pub fn core_keeps(all: &[Reservation], host: &Host) -> Demand {
    let others = all.len().saturating_sub(1) as u64;
    let tasks = all.iter().map(|of| Task {
        name: String::new(),
        cost: of.budget() + host.switch,
        period: of.period(),
        deadline: of.deadline(),
        jitter: 0,
        blocking: host.blocking.saturating_add(host.tick.saturating_mul(others)),
    });
    // A reservation whose deadline is its budget has no room for a switch: the set is refused
    // below.
    let tasks: Vec<Task> = tasks.collect();
    if tasks.is_empty() {
        return Demand::Supplied;
    }
    match TaskSet::new(tasks, Policy::Edf) {
        Ok(set) => test(&set),
        Err(_) => Demand::Missed(0),
    }
}

/// Downwards from the end of what must be looked at, as QPA: demand only falls. It is straight
/// between two corners, so that the next corner below is the nearest moment that needs a look.
fn test(set: &TaskSet) -> Demand {
    let longest = set.tasks().iter().map(|task| task.period).max().unwrap_or(1);
    let mut t = match Totals::new(set).horizon(&Dedicated.line()) {
        // Each demand has a corner in every period.
        Horizon::End(end) => corner_before(set, end.saturating_add(longest + 1)).unwrap_or(end),
        Horizon::TooMuch => {
            let mut t = longest;
            while t < 1 << 62 && due_within(set, t) <= u128::from(t) {
                t *= 2;
            }
            return Demand::Missed(t);
        }
        Horizon::NotKnown => return Demand::NotKnown,
    };
    for _ in 0..MOST_STEPS {
        let due = due_within(set, t);
        if due > u128::from(t) {
            return Demand::Missed(t);
        }
        let Some(corner) = corner_before(set, t) else { return Demand::Supplied };
        t = u64::try_from(due).unwrap_or(u64::MAX).min(corner);
    }
    Demand::NotKnown
}

/// What can be due within `t`: whole budgets, and of one that is not yet due whole what its density
/// allows; rounded up.
fn due_within(set: &TaskSet, t: u64) -> u128 {
    let of = |task: &Task| {
        let part = u128::from((t % task.period).min(task.deadline)) * u128::from(task.cost);
        u128::from(t / task.period) * u128::from(task.cost)
            + part.div_ceil(u128::from(task.deadline))
    };
    let whole = set.tasks().iter().filter(|task| task.deadline <= t);
    let blocking = whole.map(|task| task.blocking).max().unwrap_or(0);
    set.tasks().iter().map(of).sum::<u128>() + u128::from(blocking)
}

/// The last moment before `t` at which the demand of some reservation bends; `None` at the first.
fn corner_before(set: &TaskSet, t: u64) -> Option<u64> {
    let before = t.checked_sub(1).filter(|before| *before > 0)?;
    let last = |task: &Task| {
        let start = before / task.period * task.period;
        if before - start >= task.deadline { start + task.deadline } else { start }
    };
    set.tasks().iter().map(last).max().filter(|corner| *corner > 0)
}
