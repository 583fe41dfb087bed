//! Costs that were measured on another host: what they are on this one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use timevisor_schedule::speed::Slowdown;

use super::file::{self, Tasks};
use super::overheads::{Known, measured};

#[derive(Args, Clone, Debug, Default)]
pub struct CostsFrom {
    /// The costs were measured on the host of which `reserve measure --write` has written this file: they are
    /// scaled by the two hosts' speeds
    #[arg(long, value_name = "FILE")]
    pub costs_from: Option<PathBuf>,
}

/// Tasks as they are on the host that is planned for.
pub struct Scaled {
    pub tasks: Tasks,
    /// What was done to the costs; `None` if they are this host's.
    pub slowdown: Option<Slowdown>,
}

impl CostsFrom {
    /// The tasks of a file, on the host `here`.
    pub fn read(&self, tasks: &Path, here: &Known) -> Result<Scaled> {
        self.scaled(file::read(tasks)?, here)
    }

    /// These tasks, on the host `here`.
    pub fn scaled(&self, tasks: Tasks, here: &Known) -> Result<Scaled> {
        let Some(from) = &self.costs_from else { return Ok(Scaled { tasks, slowdown: None }) };
        let there = measured(from)?;
        let speed = |known: &Known| {
            known.speed.with_context(|| {
                format!(
                    "{}: how fast that host works is not known; `timevisor reserve measure --write FILE` there",
                    known.from
                )
            })
        };
        let slowdown = Slowdown::between(&speed(&there)?, &speed(here)?, tasks.work);
        let set = slowdown.of(&tasks.set).with_context(|| {
            format!("with costs that are {} of those on the other host", factor(&slowdown))
        })?;
        Ok(Scaled { tasks: Tasks { set, ..tasks }, slowdown: Some(slowdown) })
    }

    /// A line about it, where there is something to say.
    pub fn words(&self, slowdown: Option<&Slowdown>) -> Option<String> {
        let (from, slowdown) = (self.costs_from.as_ref()?, slowdown?);
        Some(format!(
            "costs         {} of those on the host of {}",
            factor(slowdown),
            from.display()
        ))
    }
}

/// `125.0 %`; rounded up.
pub fn factor(slowdown: &Slowdown) -> String {
    let per_mille = slowdown.ppm().div_ceil(1000);
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}

#[cfg(test)]
mod tests {
    use timevisor_schedule::Overheads;
    use timevisor_schedule::speed::{Pace, Speed};

    use super::super::overheads;
    use super::*;

    #[test]
    fn costs_of_a_faster_host_are_scaled_up_here() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = dir.path().join("tasks.toml");
        let write = |work: &str| {
            let task = "[[task]]\nname = \"a\"\ncost = \"30ms\"\nperiod = \"150ms\"\n";
            std::fs::write(&tasks, format!("policy = \"edf\"\n{work}{task}")).unwrap();
        };
        let pace = |typical| Pace { typical, slow: typical };
        let host = |name: &str, compute, memory| {
            let speed = Speed { compute: pace(compute), memory: pace(memory) };
            let path = dir.path().join(name);
            let text = overheads::text(&Overheads::UNMEASURED, Some(&speed)).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let there = host("there.toml", 1000, 100);
        let here = measured(&host("here.toml", 800, 200)).unwrap();
        let options = CostsFrom { costs_from: Some(there) };
        let cost = |work: &str| {
            write(work);
            let scaled = options.read(&tasks, &here).unwrap();
            let said = options.words(scaled.slowdown.as_ref()).unwrap();
            assert!(said.contains("there.toml"), "{said}");
            (scaled.tasks.set.tasks()[0].cost, factor(&scaled.slowdown.unwrap()))
        };
        assert_eq!(cost(""), (37_500_000, "125.0 %".to_owned()));
        assert_eq!(cost("work = \"memory\"\n"), (15_000_000, "50.0 %".to_owned()));
        assert_eq!(cost("work = \"compute\"\n").0, 37_500_000);
        let own = CostsFrom::default().read(&tasks, &here).unwrap();
        assert!(own.tasks.set.tasks()[0].cost == 30_000_000 && own.slowdown.is_none());

        let error = options.read(&tasks, &overheads::unmeasured()).err().unwrap();
        assert!(format!("{error:#}").contains("reserve measure --write"), "{error:#}");
        write("work = \"disk\"\n");
        assert!(options.read(&tasks, &here).is_err());
    }
}
