//! [`Plan`]: when the jobs of a set are released, in the worst conceivable ways.
//!
//! What it does not do: choose which job runs, or supply anything.

use timevisor_schedule::{Policy, Task, TaskSet};

use super::sets::{below, one_of};
use crate::random::Random;

/// One job, or the section of a less urgent task that blocks one.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// When it may run.
    pub at: u64,
    /// When it should have been released: responses and deadlines are counted from here.
    pub arrival: u64,
    /// Index in the set: its own, or that of the task that it blocks.
    pub task: usize,
    /// ns of processor time.
    pub cost: u64,
    /// Whether it is not a job, but a blocking section.
    pub blocks: bool,
}

/// All releases, the earliest first.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The releases of jobs that are due by the end.
    pub releases: Vec<Release>,
    /// Only this many of the first tasks are judged, because a section that blocks one of them
    /// counts as its work for those below.
    pub judged: usize,
    /// Under EDF, the task that runs last among those that are due at the same moment.
    pub last: Option<usize>,
}

/// Start and end of a plan, ns.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The critical instant.
    pub origin: u64,
    /// No job is due later.
    pub end: u64,
}

/// Everything at once: each task's first job as late as its jitter allows, all others on time, as
/// early as they may.
#[must_use]
pub fn together(set: &TaskSet, span: Span) -> Plan {
    apart(set, span, |_| 0)
}

/// The same, each task later by `after(index)`.
#[must_use]
pub fn apart(set: &TaskSet, span: Span, mut after: impl FnMut(usize) -> u64) -> Plan {
    let mut plan = Plan { releases: Vec::new(), judged: set.tasks().len(), last: None };
    for (index, task) in set.tasks().iter().enumerate() {
        let first = span.origin + after(index) - task.jitter;
        let mut late = task.jitter;
        plan.add_jobs(set, index, first, span.end, || (std::mem::take(&mut late), task.period));
    }
    plan.sorted()
}

/// Everything together, and the job of `target` is blocked for as long as possible: with fixed
/// priorities each time, under EDF once in a busy period (the section began before it).
#[must_use]
pub fn blocked(set: &TaskSet, span: Span, target: usize) -> Plan {
    let mut plan = together(set, span);
    let cost = set.tasks()[target].blocking;
    let of_target = plan.releases.iter().filter(|release| release.task == target);
    let mut blocking: Vec<Release> =
        of_target.map(|release| Release { cost, blocks: true, ..*release }).collect();
    if set.policy() == Policy::Edf {
        blocking.truncate(1);
    } else {
        plan.judged = target + 1;
    }
    plan.releases.extend(blocking);
    plan.sorted()
}

/// Under EDF a job waits longest for others that are due with it: the first job of `target` is due
/// with one of another's.
#[must_use]
pub fn due_together(set: &TaskSet, span: Span, target: usize, random: &mut Random) -> Plan {
    let others: Vec<&Task> = set.tasks().iter().collect();
    let other = one_of(random, &others);
    let task = &set.tasks()[target];
    let due = other.deadline + below(random, 3) * other.period;
    let after = (due + task.jitter).saturating_sub(task.deadline + other.jitter) % task.period;
    shifted(set, span, target, after)
}

/// Everything together, but `target` later by `after`; it runs last among those that are due at the
/// same moment.
#[must_use]
pub fn shifted(set: &TaskSet, span: Span, target: usize, after: u64) -> Plan {
    let plan = apart(set, span, |index| if index == target { after } else { 0 });
    Plan { last: Some(target), ..plan }
}

/// Random: any offsets, any lateness up to the jitter, and sometimes longer gaps between releases
/// than necessary.
#[must_use]
pub fn anyhow(set: &TaskSet, span: Span, random: &mut Random) -> Plan {
    let mut plan = Plan { releases: Vec::new(), judged: set.tasks().len(), last: None };
    let sporadic = random.chance(0.5);
    for (index, task) in set.tasks().iter().enumerate() {
        let first = span.origin - task.jitter + below(random, task.period);
        plan.add_jobs(set, index, first, span.end, || {
            let more = if sporadic { below(random, task.period / 2 + 1) } else { 0 };
            (below(random, task.jitter + 1), task.period + more)
        });
    }
    plan.sorted()
}

impl Plan {
    /// `next` returns a job's lateness, and the time from its arrival to the next one.
    fn add_jobs(
        &mut self,
        set: &TaskSet,
        index: usize,
        first: u64,
        end: u64,
        mut next: impl FnMut() -> (u64, u64),
    ) {
        let task = &set.tasks()[index];
        let mut arrival = first;
        while arrival + task.deadline <= end {
            let (late, apart) = next();
            let at = arrival + late;
            self.releases.push(Release {
                at,
                arrival,
                task: index,
                cost: task.cost,
                blocks: false,
            });
            arrival += apart;
        }
    }

    fn sorted(mut self) -> Self {
        self.releases.sort_by_key(|release| release.at);
        self
    }
}
