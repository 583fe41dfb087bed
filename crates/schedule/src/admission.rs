//! Several reservations on one core, scheduled by deadline (SCHED_DEADLINE).
//!
//! A reservation is not a task that runs its budget and finishes: a vCPU may sleep in the middle of
//! it, and continue later with what its deadline allows. By the server's wakeup rule, that is at
//! most `budget / deadline` of the time left until the deadline (for deadlines below the period:
//! Abeni, Lipari, Lelli, "Constant bandwidth server revisited", EWiLi 2014), so work may be due
//! even in an interval shorter than the deadline. The demand bound function of sporadic tasks is
//! zero there, and would admit reservations that then miss their deadlines.
//!
//! What it does not do: know what the kernel's own admission control leaves free, or charge for
//! more than one switch per period.

use crate::edf::{Demand, MOST_STEPS};
use crate::horizon::{Horizon, Totals};
use crate::reservation::Reservation;
use crate::supply::{Dedicated, Supply};
use crate::task::{Policy, Task, TaskSet};

/// The host's overheads on reservations; ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// Cost of a switch into a reservation.
    pub switch: u64,
    /// How long the kernel may run non-preemptibly.
    pub blocking: u64,
    /// 1 / HZ if budgets are enforced by the tick, else 0. Each of the other reservations may
    /// overrun its budget by this much, once until it has paid it back.
    pub tick: u64,
}

impl Host {
    /// Generous figures for Linux without PREEMPT_RT. It enforces budgets at its tick, 250 times a
    /// second in most distributions.
    pub const LINUX: Self = Self { switch: 20_000, blocking: 50_000, tick: 4_000_000 };
}

/// Whether a core can guarantee all of them, whenever each of them sleeps and wakes. With a tick,
/// the guarantee is that of [`Ticked`](crate::Ticked).
///
/// The budget that a reservation has left when it wakes may miss its deadline by blocking and
/// ticks; its full budgets do not.
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
    // A reservation whose deadline equals its budget has no room for a switch; the set is refused
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

/// Works downwards from the end of the interval to check, as in QPA, because demand only falls.
/// Demand is linear between two corners, so the next corner below is the next point to check.
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

/// The demand due within `t`: full budgets, plus the part allowed by the density of one that is not
/// yet due in full; rounded up.
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

/// The last corner of any reservation's demand before `t`; `None` at the first.
fn corner_before(set: &TaskSet, t: u64) -> Option<u64> {
    let before = t.checked_sub(1).filter(|before| *before > 0)?;
    let last = |task: &Task| {
        let start = before / task.period * task.period;
        if before - start >= task.deadline { start + task.deadline } else { start }
    };
    set.tasks().iter().map(last).max().filter(|corner| *corner > 0)
}
