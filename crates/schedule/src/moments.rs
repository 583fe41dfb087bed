//! [`Moments`]: the response times of one task under fixed priorities on many supplies. The times
//! by which work must be supplied do not depend on the supply.
//!
//! What it does not do: compute when the job is done; [`fixed_priority`](crate::fixed_priority)
//! does.

use crate::demand::requested;
use crate::search::least_for;
use crate::supply::Supply;
use crate::task::{Task, TaskSet};

/// At most this many moments are kept; with more, every test starts from the beginning.
const MOST: usize = 1_000_000;

/// Pairs of time and work of a task and those above it: the task is in time if at least one of
/// these amounts is supplied by its time.
#[derive(Debug)]
pub(crate) struct Moments {
    /// Time and work, ascending in both.
    all: Vec<(u64, u64)>,
    /// The index that was sufficient last time.
    hint: usize,
}

impl Moments {
    /// Whether the task meets its deadline.
    pub(crate) fn in_time(&mut self, supply: &impl Supply) -> bool {
        if self.all.get(self.hint).is_some_and(|(by, work)| supply.time_for(*work) <= *by) {
            return true;
        }
        let found = self.first_from(0, supply);
        self.hint = found.unwrap_or_default();
        found.is_some()
    }

    /// The minimum budget up to `most` with which it meets its deadline; `not` is too little.
    pub(crate) fn least<S: Supply>(
        &mut self,
        not: u64,
        most: u64,
        supply: &impl Fn(u64) -> Option<S>,
    ) -> Option<u64> {
        let (mut least, mut from, mut below) = (None, 0, most);
        // A moment that was not sufficient with a larger budget is not with a smaller one, so each
        // is checked once.
        while let Some(index) = supply(below).and_then(|supply| self.first_from(from, &supply)) {
            let (by, work) = self.all[index];
            let Some(enough) = least_for(work, by, not, below, supply) else { break };
            self.hint = index;
            (least, from, below) = (Some(enough), index + 1, enough - 1);
            if below == not {
                break;
            }
        }
        least
    }

    /// The times by which there is room for additional work, and how much; a later time is listed
    /// only if its room is larger than all before. `None` if the task is late.
    pub(crate) fn rooms(&self, supply: &impl Supply) -> Option<Vec<(u64, u64)>> {
        let mut rooms: Vec<(u64, u64)> = Vec::new();
        for (by, work) in &self.all {
            let room = supply.within(*by).checked_sub(*work);
            rooms.extend(
                room.filter(|room| rooms.last().is_none_or(|(_, had)| room > had))
                    .map(|room| (*by, room)),
            );
        }
        (!rooms.is_empty()).then_some(rooms)
    }

    /// The first moment from `index` on by which its work is supplied.
    fn first_from(&self, mut index: usize, supply: &impl Supply) -> Option<usize> {
        loop {
            let (by, work) = *self.all.get(index)?;
            let done = supply.time_for(work);
            if done <= by {
                return Some(index);
            }
            // Later moments have more work, so those before `done` are useless.
            let later = &self.all[index + 1..];
            index += 1 + later.partition_point(|(by, _)| *by < done);
        }
    }
}

/// For each task, the ends of the intervals in which no higher-priority job is released; `None` if
/// there are too many.
///
/// No supply is faster than time: if the work between two moments is no less than the time between
/// them, the later one is useless.
pub(crate) fn moments(set: &TaskSet) -> Option<Vec<Moments>> {
    let releases = releases(set)?;
    let mut left = MOST;
    // At 1 ns, the first jobs of all higher priorities are released; after each end, one more job
    // of the task that is released there.
    let mut first = 0u128;
    let mut of_each = Vec::with_capacity(set.tasks().len());
    for (index, task) in set.tasks().iter().enumerate() {
        let mut work =
            u64::try_from(first).ok()?.checked_add(task.cost)?.checked_add(task.blocking)?;
        let mut all: Vec<(u64, u64)> = Vec::new();
        let mut keep = |end: u64, work: u64| {
            if all.last().is_none_or(|(by, had)| end - by > work - had) {
                all.push((end, work));
            }
        };
        let before = &releases[..releases.partition_point(|(at, ..)| *at < limit(task))];
        left = left.checked_sub(before.len())?;
        for (at, _, more) in before.iter().filter(|(_, above, _)| *above < index) {
            keep(*at, work);
            work = work.checked_add(*more)?;
        }
        keep(limit(task), work);
        of_each.push(Moments { all, hint: 0 });
        first += requested(task, 1);
    }
    Some(of_each)
}

/// Releases after the first: time, task and cost, ascending, as far as they can delay another task.
fn releases(set: &TaskSet) -> Option<Vec<(u64, usize, u64)>> {
    let tasks = set.tasks();
    let mut all = Vec::new();
    for (index, task) in tasks.iter().enumerate() {
        let longest = tasks[index + 1..].iter().map(limit).max().unwrap_or(0);
        if longest / task.period > (MOST - all.len()) as u64 {
            return None;
        }
        let next = (1..).map(|n| n * task.period - task.jitter).take_while(|at| *at < longest);
        all.extend(next.map(|at| (at, index, task.cost)));
        if all.len() > MOST {
            return None;
        }
    }
    all.sort_unstable();
    Some(all)
}

/// The time after the simultaneous release by which a job must be done.
fn limit(task: &Task) -> u64 {
    task.deadline - task.jitter
}
