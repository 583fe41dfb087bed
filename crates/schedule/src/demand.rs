//! What tasks ask for in an interval.

use crate::task::{Task, TaskSet};

/// Jobs of a task that are released in an interval of `t` ns at most, and run at its higher priority.
pub(crate) fn requested(task: &Task, t: u64) -> u128 {
    u128::from(t.saturating_add(task.jitter).div_ceil(task.period)) * u128::from(task.cost)
}

/// Work of all tasks that is released and due within any interval of `t` ns (the demand bound function), with the longest blocking of
/// those that are due.
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

/// The last moment before `t` at which some job is due; `None` when there is none.
pub(crate) fn last_deadline_before(set: &TaskSet, t: u64) -> Option<u64> {
    let last = |task: &Task| {
        // A late release is due as if it had been on time: deadlines come by `jitter` early.
        let first = task.deadline - task.jitter;
        let after = t.checked_sub(first + 1)?;
        Some(first + after / task.period * task.period)
    };
    set.tasks().iter().filter_map(last).max()
}
