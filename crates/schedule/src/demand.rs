//! The demand of tasks in an interval.

use crate::task::{Task, TaskSet};

/// The maximum work of a higher-priority task whose jobs are released in an interval of `t` ns.
pub(crate) fn requested(task: &Task, t: u64) -> u128 {
    u128::from(t.saturating_add(task.jitter).div_ceil(task.period)) * u128::from(task.cost)
}

/// Work of all tasks that is released and due within any interval of `t` ns (the demand bound
/// function), with the longest blocking of those that are due.
#[must_use]
pub fn due_within(set: &TaskSet, t: u64) -> u64 {
    let mut sum = 0u128;
    let mut blocking = 0;
    for task in set.tasks() {
        let Some(after) = (t + task.jitter).checked_sub(task.deadline) else { continue };
        sum += u128::from(after / task.period + 1) * u128::from(task.cost);
        blocking = blocking.max(task.blocking);
    }
    u64::try_from(sum + u128::from(blocking)).unwrap_or(u64::MAX)
}
