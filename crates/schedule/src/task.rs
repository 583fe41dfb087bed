//! [`Task`]: recurring work, with its cost, period and deadline.

use crate::reservation::LONGEST;

/// A sporadic task; ns. Released at most once in a period, each time up to `jitter` late.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// A name for display.
    pub name: String,
    /// Maximum processor time of a job.
    pub cost: u64,
    /// Minimum time from one release to the next.
    pub period: u64,
    /// The time after its release by which a job must be done; at most the period.
    pub deadline: u64,
    /// Maximum delay of a job's release.
    pub jitter: u64,
    /// How long a less urgent task may keep it waiting (critical sections, code that cannot be
    /// preempted).
    pub blocking: u64,
}

/// How a guest schedules its tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Fixed priorities, as listed, the highest first (SCHED_FIFO).
    Listed,
    /// Fixed priorities, the shortest period first.
    RateMonotonic,
    /// Fixed priorities, the shortest deadline first.
    DeadlineMonotonic,
    /// Earliest deadline first (SCHED_DEADLINE).
    Edf,
}

/// Tasks of one processor, the highest priority first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskSet {
    tasks: Vec<Task>,
    policy: Policy,
}

/// The overhead of switches and interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overhead {
    /// Costs may exceed the measured ones by up to this many parts per million.
    pub cost_ppm: u32,
    /// One context switch in the guest, ns; a job has two.
    pub switch: u64,
    /// Interrupts during a job, ns.
    pub interrupts: u64,
}

/// A task that no processor could run, or that the analysis does not cover.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidTask {
    /// Nothing to run.
    #[error("there are no tasks")]
    None,
    /// The task's numbers are not in the required order.
    #[error(
        "task {0}: 0 < cost <= deadline <= period <= a day is needed; deadlines beyond the period are not analysed"
    )]
    Order(String),
    /// Jitter or blocking exceeds the deadline.
    #[error("task {0}: jitter and blocking must be less than the deadline")]
    Late(String),
}

impl Task {
    /// A task whose deadline equals its period.
    #[must_use]
    pub fn new(name: &str, cost: u64, period: u64) -> Self {
        Self { name: name.to_owned(), cost, period, deadline: period, jitter: 0, blocking: 0 }
    }

    /// The utilization: the fraction of a processor.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        self.cost as f64 / self.period as f64
    }

    /// The task with overhead included in its cost.
    #[must_use]
    pub fn inflated(&self, overhead: &Overhead) -> Self {
        let more = u128::from(self.cost) * u128::from(overhead.cost_ppm);
        let more = u64::try_from(more.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        let cost = self.cost.saturating_add(more).saturating_add(overhead.interrupts);
        Self { cost: cost.saturating_add(overhead.switch.saturating_mul(2)), ..self.clone() }
    }

    fn validate(&self) -> Result<(), InvalidTask> {
        let ordered = 0 < self.cost
            && self.cost <= self.deadline
            && self.deadline <= self.period
            && self.period <= LONGEST;
        if !ordered {
            return Err(InvalidTask::Order(self.name.clone()));
        }
        let early = self.jitter < self.deadline && self.blocking < self.deadline;
        if early { Ok(()) } else { Err(InvalidTask::Late(self.name.clone())) }
    }
}

impl TaskSet {
    /// A set of these tasks, in the order of the policy.
    ///
    /// # Errors
    /// When there is no task, or one is [invalid](InvalidTask).
    pub fn new(mut tasks: Vec<Task>, policy: Policy) -> Result<Self, InvalidTask> {
        if tasks.is_empty() {
            return Err(InvalidTask::None);
        }
        tasks.iter().try_for_each(Task::validate)?;
        match policy {
            Policy::Listed => {}
            Policy::RateMonotonic => tasks.sort_by_key(|task| task.period),
            Policy::DeadlineMonotonic | Policy::Edf => tasks.sort_by_key(|task| task.deadline),
        }
        Ok(Self { tasks, policy })
    }

    /// The highest priority, or the shortest deadline, first.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The scheduling policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The utilization: the fraction of a processor.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        self.tasks.iter().map(Task::utilization).sum()
    }

    /// All tasks with overhead included in their costs.
    ///
    /// # Errors
    /// When this makes a task longer than its deadline.
    pub fn inflated(&self, overhead: &Overhead) -> Result<Self, InvalidTask> {
        let tasks = self.tasks.iter().map(|task| task.inflated(overhead)).collect();
        // The order of fixed priorities does not change.
        Self::new(tasks, self.policy)
    }

    /// Sets the cost of one task, at most its deadline; no order depends on costs.
    pub(crate) fn set_cost(&mut self, index: usize, cost: u64) {
        if let Some(task) = self.tasks.get_mut(index) {
            task.cost = cost.min(task.deadline);
        }
    }
}
