//! Tasks of a guest onto its vCPUs, one reservation each.
//!
//! Why not one budget for all vCPUs (the multiprocessor periodic resource): SCHED_DEADLINE reserves
//! for a thread, so that a shared budget could not be enforced; and its analysis needs more
//! bandwidth than partitions do for the few tasks that a guest pins.

use crate::reservation::Reservation;
use crate::synthesis::Search;
use crate::task::{Policy, Task, TaskSet};

/// One vCPU's.
#[derive(Clone, PartialEq, Debug)]
pub struct Share {
    /// Its tasks.
    pub set: TaskSet,
    /// What they need.
    pub reservation: Reservation,
}

/// Puts the tasks onto at most `vcpus` processors: the largest first, each where it raises the
/// bandwidth least. `most`: no reservation above this part of its period, in 1/1000. `Err`: the
/// task that fits nowhere.
///
/// # Errors
/// A heuristic: another partition might fit where this finds none.
pub fn partition(
    tasks: &[Task],
    policy: Policy,
    vcpus: usize,
    period: u64,
    search: &Search,
    most: u64,
) -> Result<Vec<Share>, String> {
    let mut order: Vec<&Task> = tasks.iter().collect();
    // By their part of a processor: a / b > c / d.
    order.sort_by(|a, b| {
        let (left, right) =
            (u128::from(b.cost) * u128::from(a.period), u128::from(a.cost) * u128::from(b.period));
        left.cmp(&right)
    });
    let mut places: Vec<Vec<Task>> = vec![Vec::new(); vcpus];
    let mut shares: Vec<Option<Share>> = vec![None; vcpus];
    for task in order {
        let fitting = places.iter().enumerate().filter_map(|(place, there)| {
            // As listed is an order of all tasks: they stay in it.
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
            Some((budget - before.min(budget), place, Share { set, reservation }))
        });
        let best = fitting.min_by_key(|(more, place, _)| (*more, *place));
        let (_, place, share) = best.ok_or_else(|| task.name.clone())?;
        places[place] = share.set.tasks().to_vec();
        shares[place] = Some(share);
    }
    Ok(shares.into_iter().flatten().collect())
}
