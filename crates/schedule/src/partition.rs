//! Assigns a guest's tasks to its vCPUs, with one reservation each. The guest pins them there; a
//! guest that does not is [`global`](crate::global)'s.
//!
//! Why not one budget for all vCPUs (the multiprocessor periodic resource): SCHED_DEADLINE reserves
//! per thread, so a shared budget could not be enforced.

use crate::reservation::Reservation;
use crate::synthesis::Search;
use crate::task::{Policy, Task, TaskSet};

/// The share of one vCPU.
#[derive(Clone, PartialEq, Debug)]
pub struct Share {
    /// Which vCPU.
    pub vcpu: usize,
    /// Its tasks.
    pub set: TaskSet,
    /// What they need.
    pub reservation: Reservation,
}

/// Assigns the tasks to at most `vcpus` processors: those with a `stated` place first, then the
/// others by decreasing utilization, each where it raises the bandwidth least. `most` is the maximum
/// budget of a reservation as a part of its period, in 1/1000. `Err` contains the task that fits
/// nowhere.
///
/// # Errors
/// When no partition is found. This is a heuristic, so another partition might still fit.
pub fn partition(
    tasks: &[Task],
    policy: Policy,
    vcpus: usize,
    stated: impl Fn(&Task) -> Option<usize>,
    period: u64,
    search: &Search,
    most: u64,
) -> Result<Vec<Share>, String> {
    let mut order: Vec<&Task> = tasks.iter().collect();
    // By utilization: a / b > c / d.
    order.sort_by(|a, b| {
        let (left, right) =
            (u128::from(b.cost) * u128::from(a.period), u128::from(a.cost) * u128::from(b.period));
        stated(b).is_some().cmp(&stated(a).is_some()).then(left.cmp(&right))
    });
    let mut places: Vec<Vec<Task>> = vec![Vec::new(); vcpus];
    let mut shares: Vec<Option<Share>> = vec![None; vcpus];
    for task in order {
        let fitting = places.iter().enumerate().filter_map(|(place, there)| {
            if stated(task).is_some_and(|stated| stated != place) {
                return None;
            }
            // The listed order covers all tasks, so keep it.
            let mut with = there.clone();
            with.push(task.clone());
            if policy == Policy::Listed {
                with.sort_by_key(|task| tasks.iter().position(|other| other == task));
            }
            let set = TaskSet::new(with, policy).ok()?;
            let budget = search.least_budget(&set, period)?;
            let within = u128::from(budget) * 1000 <= u128::from(most) * u128::from(period);
            let reservation = search.reservation(budget, period).filter(|_| within)?;
            let before = shares[place].as_ref().map_or(0, |share| share.reservation.budget());
            Some((budget - before.min(budget), place, Share { vcpu: place, set, reservation }))
        });
        let best = fitting.min_by_key(|(more, place, _)| (*more, *place));
        let (_, place, share) = best.ok_or_else(|| task.name.clone())?;
        places[place] = share.set.tasks().to_vec();
        shares[place] = Some(share);
    }
    Ok(shares.into_iter().flatten().collect())
}
