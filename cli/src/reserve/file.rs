//! The task file: TOML, spans as `30ms` or `1ms 500us`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use timevisor_schedule::speed::Work;
use timevisor_schedule::{Overhead, Policy, Task, TaskSet};

use super::ns;

/// The file's tables; a VM's in a fleet has the same.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub policy: PolicyName,
    /// What the tasks do most, which decides how their costs change with the host.
    #[serde(default)]
    pub work: WorkName,
    #[serde(default)]
    pub overhead: OverheadTable,
    #[serde(rename = "task")]
    pub tasks: Vec<TaskTable>,
}

/// What a file says.
#[derive(Clone, Debug)]
pub struct Tasks {
    /// With their overhead.
    pub set: TaskSet,
    /// On which vCPU the guest keeps a task, by its name.
    pub stated: BTreeMap<String, u16>,
    /// What they do most.
    pub work: Work,
}

/// The greatest number of a vCPU.
const MOST_VCPU: u16 = 1023;

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    Listed,
    RateMonotonic,
    DeadlineMonotonic,
    Edf,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkName {
    Compute,
    Memory,
    #[default]
    Any,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OverheadTable {
    cost_ppm: u32,
    #[serde(with = "humantime_serde")]
    switch: Duration,
    #[serde(with = "humantime_serde")]
    interrupts: Duration,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskTable {
    name: String,
    #[serde(with = "humantime_serde")]
    cost: Duration,
    #[serde(with = "humantime_serde")]
    period: Duration,
    #[serde(with = "humantime_serde", default)]
    deadline: Option<Duration>,
    #[serde(with = "humantime_serde", default)]
    jitter: Duration,
    #[serde(with = "humantime_serde", default)]
    blocking: Duration,
    #[serde(default)]
    vcpu: Option<u16>,
}

pub fn read(path: &Path) -> Result<Tasks> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{}", path.display()))
}

pub fn parse(text: &str) -> Result<Tasks> {
    toml::from_str::<File>(text)?.tasks()
}

impl File {
    pub fn tasks(&self) -> Result<Tasks> {
        let tasks = self.tasks.iter().map(|task| Task {
            name: task.name.clone(),
            cost: ns(task.cost),
            period: ns(task.period),
            deadline: ns(task.deadline.unwrap_or(task.period)),
            jitter: ns(task.jitter),
            blocking: ns(task.blocking),
        });
        let policy = match self.policy {
            PolicyName::Listed => Policy::Listed,
            PolicyName::RateMonotonic => Policy::RateMonotonic,
            PolicyName::DeadlineMonotonic => Policy::DeadlineMonotonic,
            PolicyName::Edf => Policy::Edf,
        };
        let overhead = Overhead {
            cost_ppm: self.overhead.cost_ppm,
            switch: ns(self.overhead.switch),
            interrupts: ns(self.overhead.interrupts),
        };
        let set = TaskSet::new(tasks.collect(), policy)?;
        let set = set.inflated(&overhead).context("with the overhead")?;
        let work = match self.work {
            WorkName::Compute => Work::Compute,
            WorkName::Memory => Work::Memory,
            WorkName::Any => Work::Any,
        };
        Ok(Tasks { set, stated: self.stated()?, work })
    }

    fn stated(&self) -> Result<BTreeMap<String, u16>> {
        let mut stated = BTreeMap::new();
        for task in &self.tasks {
            let Some(vcpu) = task.vcpu else { continue };
            ensure!(vcpu <= MOST_VCPU, "task {}: vcpu is at most {MOST_VCPU}", task.name);
            let same = self.tasks.iter().filter(|other| other.name == task.name).count();
            ensure!(same == 1, "task {}: with vcpu, every task needs a name of its own", task.name);
            stated.insert(task.name.clone(), vcpu);
        }
        Ok(stated)
    }
}

impl Tasks {
    /// Those of one vCPU: all, if none is stated.
    pub fn on_vcpu(self, vcpu: u32) -> Result<TaskSet> {
        if self.stated.is_empty() {
            return Ok(self.set);
        }
        let on = |task: &Task| self.stated.get(&task.name).map(|stated| u32::from(*stated));
        if let Some(task) = self.set.tasks().iter().find(|task| on(task).is_none()) {
            bail!(
                "task {} has no vcpu, others have: state it for each, or none; `timevisor reserve plan` divides them",
                task.name
            );
        }
        let here = self.set.tasks().iter().filter(|task| on(task) == Some(vcpu)).cloned();
        let here: Vec<Task> = here.collect();
        ensure!(!here.is_empty(), "no task is on vCPU {vcpu}");
        Ok(TaskSet::new(here, self.set.policy())?)
    }
}
