//! [`Guest`]: what runs inside a reservation: jobs by fixed priorities or deadlines, and optionally
//! a program that takes the rest.
//!
//! What it does not do: decide when it has the processor.

use timevisor_schedule::{Policy, TaskSet};

use super::releases::Plan;

/// A guest's scheduler with its jobs.
#[derive(Clone, Debug)]
pub struct Guest<'a> {
    set: &'a TaskSet,
    plan: &'a Plan,
    released: usize,
    jobs: Vec<Job>,
    hog: bool,
    /// The outcome so far.
    pub outcome: Outcome,
}

/// The outcome of the jobs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// The worst response of each task, from the job's arrival, ns.
    pub worst: Vec<u64>,
    /// The first task seen to be late.
    pub missed: Option<usize>,
    /// Processor time that was used, ns.
    pub delivered: u64,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    /// The job with the lowest value runs.
    urgency: (u64, bool, bool, u64),
    task: usize,
    arrival: u64,
    left: u64,
    blocks: bool,
}

impl<'a> Guest<'a> {
    /// Creates a guest; if `hog`, with a program at the lowest priority that never sleeps.
    #[must_use]
    pub fn new(set: &'a TaskSet, plan: &'a Plan, hog: bool) -> Self {
        let outcome = Outcome { worst: vec![0; set.tasks().len()], ..Outcome::default() };
        Self { set, plan, released: 0, jobs: Vec::with_capacity(8), hog, outcome }
    }

    /// When the next job is released.
    #[must_use]
    pub fn next_release(&self) -> Option<u64> {
        self.plan.releases.get(self.released).map(|release| release.at)
    }

    /// Accepts the jobs that are released by now.
    pub fn release(&mut self, now: u64) {
        while let Some(release) = self.plan.releases.get(self.released).filter(|r| r.at <= now) {
            self.released += 1;
            let task = &self.set.tasks()[release.task];
            let first = match self.set.policy() {
                Policy::Edf => release.arrival + task.deadline,
                _ => release.task as u64,
            };
            self.jobs.push(Job {
                // A blocking section precedes the job that it delays, and anything equally urgent.
                urgency: (
                    first,
                    !release.blocks,
                    self.plan.last == Some(release.task),
                    release.arrival,
                ),
                task: release.task,
                arrival: release.arrival,
                left: release.cost,
                blocks: release.blocks,
            });
        }
        self.jobs.sort_unstable_by_key(|job| core::cmp::Reverse(job.urgency));
    }

    /// Whether it would use the processor.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.hog || !self.jobs.is_empty()
    }

    /// Whether all jobs are done.
    #[must_use]
    pub fn done(&self) -> bool {
        self.jobs.is_empty() && self.released == self.plan.releases.len()
    }

    /// How long the most urgent job still runs; `None` if only the hog does.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        self.jobs.last().map(|job| job.left)
    }

    /// Runs for `span` from `now` on; no longer than [`Self::left`].
    pub fn run(&mut self, now: u64, span: u64) {
        self.outcome.delivered += span;
        let Some(job) = self.jobs.last_mut() else { return };
        job.left -= span;
        if job.left > 0 {
            return;
        }
        let done = *job;
        self.jobs.pop();
        if done.blocks || done.task >= self.plan.judged {
            return;
        }
        let response = now + span - done.arrival;
        let worst = &mut self.outcome.worst[done.task];
        *worst = response.max(*worst);
        if response > self.set.tasks()[done.task].deadline {
            self.outcome.missed.get_or_insert(done.task);
        }
    }
}
