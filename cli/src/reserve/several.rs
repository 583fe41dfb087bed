//! A guest with several vCPUs: its tasks divided among them, each with a reservation, or on any of
//! them (`--global`, of which `plan.rs` and `text.rs` make one plan).

use std::fmt;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::json;
use timevisor_schedule::partition::partition;
use timevisor_schedule::speed::Slowdown;
use timevisor_schedule::synthesis::Search;
use timevisor_schedule::{Policy, TaskSet};

use super::file::Tasks;
use super::overheads::Known;
use super::plan::{self, On, Plan, Question};
use super::{PlanOptions, text};

#[derive(Args)]
#[group(id = "several")]
pub struct Options {
    /// Divide the tasks among this many vCPUs, each with its own reservation; those with a `vcpu` in
    /// the file stay there
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub vcpus: u16,
    /// The guest divides them by itself: any task runs on any of the vCPUs; needs --alone
    #[arg(long, requires = "vcpus", conflicts_with = "plot")]
    pub global: bool,
}

impl Options {
    pub fn on(&self, tasks: &Tasks) -> On {
        if self.global && tasks.stated.is_empty() { On::AnyOf(self.vcpus) } else { On::One }
    }
}

/// The tasks of one vCPU, and their plan.
#[derive(Debug)]
pub struct Part {
    pub vcpu: u16,
    pub set: TaskSet,
    pub plan: Plan,
}

/// No vCPU is filled above this, 1/1000: the kernel keeps 50 for everything else, and the
/// recommended budget is above the least one.
const MOST: u64 = 900;

/// No division of a guest's tasks was found.
#[derive(Debug)]
pub struct Undivided {
    vcpus: u16,
    /// The task that fits nowhere.
    task: String,
}

impl fmt::Display for Undivided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vcpus, task } = self;
        write!(
            f,
            "no division among {vcpus} vCPUs was found: {task} fits on none; take more vCPUs, or another period"
        )
    }
}

impl std::error::Error for Undivided {}

/// Divides the tasks among so many vCPUs, or as many as the file states, and plans each.
///
/// # Errors
/// [`Undivided`], or what is wrong with the question.
pub fn divided(tasks: &Tasks, vcpus: u16, question: &Question) -> Result<Vec<Part>> {
    let set = &tasks.set;
    let stated = tasks.stated.values().max().map_or(0, |most| most + 1);
    ensure!(
        vcpus == 1 || stated <= vcpus,
        "a task is on vCPU {} of {vcpus}: they count from 0",
        stated.saturating_sub(1)
    );
    let vcpus = vcpus.max(stated);
    let on = |name: &str| tasks.stated.get(name).copied();
    let sets: Vec<(u16, TaskSet)> = if tasks.stated.len() == set.tasks().len() {
        (0..vcpus)
            .filter_map(|vcpu| {
                let here = set.tasks().iter().filter(|task| on(&task.name) == Some(vcpu));
                Some((vcpu, TaskSet::new(here.cloned().collect(), set.policy()).ok()?))
            })
            .collect()
    } else {
        let period = question
            .period
            .context("tasks are divided for one period of all reservations: give --period")?;
        let search = Search::new(question.sharing).on_host(question.overheads);
        let place = |task: &timevisor_schedule::Task| on(&task.name).map(usize::from);
        let shares =
            partition(set.tasks(), set.policy(), vcpus.into(), place, period, &search, MOST);
        let shares = shares.map_err(|task| Undivided { vcpus, task })?;
        shares
            .into_iter()
            .map(|share| Ok((u16::try_from(share.vcpu)?, share.set)))
            .collect::<Result<_>>()?
    };
    sets.into_iter()
        .map(|(vcpu, set)| {
            let plan = plan::make(&set, &Question { on: On::Vcpu(vcpu), ..*question })?;
            Ok(Part { vcpu, set, plan })
        })
        .collect()
}

/// One plan for each vCPU.
pub fn run(
    tasks: &Tasks,
    options: &PlanOptions,
    host: &Known,
    slowdown: Option<&Slowdown>,
) -> Result<ExitCode> {
    ensure!(
        !options.several.global,
        "the file states vCPUs (vcpu), and --global leaves that to the guest: one of the two"
    );
    ensure!(options.plot.is_none(), "--plot draws one vCPU's plan, and there are several");
    ensure!(options.budget.is_none(), "--budget is judged for one vCPU, and there are several");
    let parts = divided(tasks, options.several.vcpus, &options.question(host))?;
    let fit = parts.iter().all(|part| part.plan.fits());
    if options.json {
        let rows = parts.iter().map(|part| {
            let mut row = text::json(&part.set, &part.plan, host);
            row["vcpu"] = part.vcpu.into();
            row["in_the_guest"] = pinned(part).into();
            row
        });
        println!(
            "{}",
            json!({
                "schedulable": fit, "vcpus": rows.collect::<Vec<_>>(), "costs_ppm": slowdown.map(Slowdown::ppm),
            })
        );
    } else {
        for part in &parts {
            print!("vCPU {}: {}", part.vcpu, text::words(&part.set, &part.plan, host));
            println!("in the guest  {}", pinned(part));
        }
    }
    Ok(if fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How the guest keeps the tasks there.
pub fn pinned(part: &Part) -> String {
    let names: Vec<&str> = part.set.tasks().iter().map(|task| task.name.as_str()).collect();
    let (names, vcpu) = (names.join(", "), part.vcpu);
    if part.set.policy() == Policy::Edf {
        // sched_setattr(2), EPERM: the affinity of a deadline task is its root domain.
        format!(
            "a cpuset partition of CPU {vcpu} for {names} (SCHED_DEADLINE refuses taskset; docs/how-to/reserve.md)"
        )
    } else {
        format!("taskset -acp {vcpu} PID, of {names}")
    }
}
