//! Several reservations on one core: each is a task of its period, deadline and budget, picked by its deadline (SCHED_DEADLINE).

use crate::edf::{Demand, test};
use crate::reservation::Reservation;
use crate::supply::Dedicated;
use crate::task::{Policy, Task, TaskSet};

/// Whether a core can keep all of them.
///
/// `switch`: what a switch into a reservation takes, ns. `blocking`: for how long the kernel may not preempt, ns.
#[must_use]
pub fn core_keeps(all: &[Reservation], switch: u64, blocking: u64) -> Demand {
    let tasks = all.iter().map(|of| Task {
        name: String::new(),
        cost: of.budget() + switch,
        period: of.period(),
        deadline: of.deadline(),
        jitter: 0,
        blocking,
    });
    // A reservation whose deadline is its budget has no room for a switch: the set is refused below.
    let tasks: Vec<Task> = tasks.collect();
    if tasks.is_empty() {
        return Demand::Supplied;
    }
    match TaskSet::new(tasks, Policy::Edf) {
        Ok(set) => test(&set, &Dedicated),
        Err(_) => Demand::Missed(0),
    }
}
