//! Response times under fixed priorities, on any supply: exact for deadlines no longer than the
//! period.

use crate::demand::requested;
use crate::supply::Supply;
use crate::task::TaskSet;

/// The worst-case response time of task `index`, ns; `None` if it exceeds the deadline.
///
/// The least `w` with `w = C + B + sum over higher priorities of ceil((time_for(w) + J) / T) C`;
/// the response time is the jitter plus `time_for(w)`.
#[must_use]
pub fn response(set: &TaskSet, index: usize, supply: &impl Supply) -> Option<u64> {
    let work = finished(set, index, supply)?;
    Some(set.tasks()[index].jitter + supply.time_for(work))
}

/// The work requested by a job of task `index` and all higher-priority tasks within `t` ns of a
/// simultaneous release (the request bound function). The job is done when this work is supplied.
#[must_use]
pub fn requested_by(set: &TaskSet, index: usize, t: u64) -> Option<u64> {
    let (above, below) = set.tasks().split_at_checked(index)?;
    let task = below.first()?;
    let above = above.iter().map(|task| requested(task, t)).sum::<u128>();
    u64::try_from(above + u128::from(task.cost) + u128::from(task.blocking)).ok()
}

/// The amount of work, its own and that of higher priorities, after which the job is done.
pub(crate) fn finished(set: &TaskSet, index: usize, supply: &impl Supply) -> Option<u64> {
    finished_from(set, index, supply, 0)
}

/// As [`finished`], starting from a known lower bound.
pub(crate) fn finished_from(
    set: &TaskSet,
    index: usize,
    supply: &impl Supply,
    from: u64,
) -> Option<u64> {
    let task = set.tasks().get(index)?;
    let limit = task.deadline - task.jitter;
    let mut work = task.cost.checked_add(task.blocking)?.max(from);
    loop {
        let t = supply.time_for(work);
        if t > limit {
            return None;
        }
        let wanted = requested_by(set, index, t)?;
        if wanted <= work {
            return Some(work);
        }
        work = wanted;
    }
}
