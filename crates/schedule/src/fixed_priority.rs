//! Response times under fixed priorities, on any supply: exact for deadlines that are not beyond the period.

use crate::demand::requested;
use crate::supply::Supply;
use crate::task::TaskSet;

/// How long after its release the job of task `index` is done at the latest, ns; `None` when that is after its deadline.
///
/// The least `w` with `w = C + B + sum over higher priorities of ceil((time_for(w) + J) / T) C`; the response is the jitter and
/// `time_for(w)`.
#[must_use]
pub fn response(set: &TaskSet, index: usize, supply: &impl Supply) -> Option<u64> {
    let (above, below) = set.tasks().split_at_checked(index)?;
    let task = below.first()?;
    let limit = task.deadline - task.jitter;
    let own = u128::from(task.cost) + u128::from(task.blocking);
    let mut work = task.cost.checked_add(task.blocking)?;
    loop {
        let t = supply.time_for(work);
        if t > limit {
            return None;
        }
        let wanted = own + above.iter().map(|task| requested(task, t)).sum::<u128>();
        let wanted = u64::try_from(wanted).ok()?;
        if wanted <= work {
            return Some(task.jitter + t);
        }
        work = wanted;
    }
}
