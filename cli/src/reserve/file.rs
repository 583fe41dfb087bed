//! The task file: TOML, spans as `30ms` or `1ms 500us`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use timevisor_schedule::{Overhead, Policy, Task, TaskSet};

use super::ns;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    policy: PolicyName,
    #[serde(default)]
    overhead: OverheadTable,
    #[serde(rename = "task")]
    tasks: Vec<TaskTable>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PolicyName {
    Listed,
    RateMonotonic,
    DeadlineMonotonic,
    Edf,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OverheadTable {
    cost_ppm: u32,
    #[serde(with = "humantime_serde")]
    switch: Duration,
    #[serde(with = "humantime_serde")]
    interrupts: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskTable {
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
}

pub fn read(path: &Path) -> Result<TaskSet> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{}", path.display()))
}

/// Tasks with their overhead.
pub fn parse(text: &str) -> Result<TaskSet> {
    let file: File = toml::from_str(text)?;
    let tasks = file.tasks.iter().map(|task| Task {
        name: task.name.clone(),
        cost: ns(task.cost),
        period: ns(task.period),
        deadline: ns(task.deadline.unwrap_or(task.period)),
        jitter: ns(task.jitter),
        blocking: ns(task.blocking),
    });
    let policy = match file.policy {
        PolicyName::Listed => Policy::Listed,
        PolicyName::RateMonotonic => Policy::RateMonotonic,
        PolicyName::DeadlineMonotonic => Policy::DeadlineMonotonic,
        PolicyName::Edf => Policy::Edf,
    };
    let overhead = Overhead {
        cost_ppm: file.overhead.cost_ppm,
        switch: ns(file.overhead.switch),
        interrupts: ns(file.overhead.interrupts),
    };
    let set = TaskSet::new(tasks.collect(), policy)?;
    set.inflated(&overhead).context("with the overhead")
}
