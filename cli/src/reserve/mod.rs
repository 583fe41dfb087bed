//! `timevisor reserve`: the least reservation in which tasks meet their deadlines, and why;
//! reservations for running VMs.
//!
//! | file | owns |
//! | --- | --- |
//! | `file.rs` | the task file |
//! | `plan.rs` | from tasks to a [`plan::Plan`] |
//! | `overheads.rs` | what the host takes from reservations |
//! | `measure.rs` | measuring that |
//! | `text.rs` | a plan in words |
//! | `plot.rs` | its supply and demand as a picture |
//! | `held.rs` | asking timevisord: apply, list, release |
//! | `top.rs` | the same: what each reservation uses now |
//! | `missed.rs` | the same: why a job was late |

mod file;
mod held;
mod measure;
mod missed;
pub mod overheads;
mod plan;
mod plot;
#[cfg(test)]
mod tests;
mod text;
mod top;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Subcommand};
use timevisor_schedule::TaskSet;
use timevisor_schedule::partition::partition;
use timevisor_schedule::synthesis::{Search, Sharing};

#[derive(Subcommand)]
pub enum Command {
    /// Compute the least budget in which the tasks of a file meet their deadlines; changes nothing
    Plan(PlanOptions),
    /// Measure what this host takes from reservations: its tick, late timers, interrupts
    Measure(measure::Options),
    /// Reserve processor time for a VM's vCPU, or change what it has
    Apply(held::Apply),
    /// List reservations
    List(held::List),
    /// Show what each reservation uses now, again and again
    Top(top::Options),
    /// Print whether each reservation got what was promised
    Audit(held::List),
    /// Print why a job of a guest missed its deadline: the host, or the guest
    Missed(missed::Missed),
    /// Release reservations and restore every setting
    Release(held::Release),
}

#[derive(Args)]
pub struct PlanOptions {
    /// Tasks in TOML (docs/reference/reservations.md)
    file: PathBuf,
    /// The reservation's period, for example 50ms; by default the one that costs least
    #[arg(long, value_name = "SPAN", value_parser = span)]
    period: Option<Duration>,
    /// Divide the tasks among this many vCPUs, each with its own reservation
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), conflicts_with_all = ["budget", "plot"])]
    vcpus: u16,
    /// Judge this budget instead of searching for the least one
    #[arg(long, value_name = "SPAN", value_parser = span, requires = "period")]
    budget: Option<Duration>,
    /// No other reservation will be on the core, or before this one
    #[arg(long)]
    alone: bool,
    /// The same, and every release is at a replenishment: nothing else ever wakes the vCPU
    /// (docs/explanation/real-time.md)
    #[arg(long, conflicts_with = "alone")]
    aligned: bool,
    #[command(flatten)]
    host: overheads::Options,
    /// What a switch into the reservation takes, for choosing the period
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "50us")]
    switch: Duration,
    /// Draw supply and demand as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Exit status 1 where the tasks do not fit.
pub fn run(directory: &Path, command: &Command) -> Result<ExitCode> {
    match command {
        Command::Plan(options) => return make_plan(options),
        Command::Measure(options) => measure::run(options)?,
        Command::Apply(options) => held::apply(directory, options)?,
        Command::List(options) => held::list(directory, options)?,
        Command::Top(options) => top::run(directory, options)?,
        Command::Missed(options) => missed::run(directory, options)?,
        Command::Audit(options) => held::audit(directory, options)?,
        Command::Release(options) => return held::release(directory, options),
    }
    Ok(ExitCode::SUCCESS)
}

fn make_plan(options: &PlanOptions) -> Result<ExitCode> {
    let set = file::read(&options.file)?;
    if options.vcpus > 1 {
        return make_plans(&set, options);
    }
    let host = options.host.known()?;
    let plan = plan::make(&set, &options.question(&host))?;
    if let Some(path) = &options.plot
        && let Some(svg) = plot::svg(&set, &plan, options.sharing())
    {
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.json {
        println!("{}", text::json(&set, &plan, &host));
    } else {
        print!("{}", text::words(&set, &plan, &host));
    }
    Ok(if plan.fits() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One for each vCPU.
fn make_plans(set: &TaskSet, options: &PlanOptions) -> Result<ExitCode> {
    let period = options.period.map(ns).context("--vcpus needs --period")?;
    let host = options.host.known()?;
    let search = Search::new(options.sharing()).on_host(host.overheads);
    let shares = partition(set.tasks(), set.policy(), options.vcpus.into(), period, &search, MOST)
        .map_err(|task| {
            let vcpus = options.vcpus;
            anyhow!("no division among {vcpus} vCPUs was found: {task} fits on none; take more vCPUs, or another period")
        })?;
    let plans: Vec<_> = shares
        .iter()
        .map(|share| Ok((&share.set, plan::make(&share.set, &options.question(&host))?)))
        .collect::<Result<_>>()?;
    let fit = plans.iter().all(|(_, plan)| plan.fits());
    if options.json {
        let rows: Vec<_> = plans.iter().map(|(set, plan)| text::json(set, plan, &host)).collect();
        println!("{}", serde_json::json!({"schedulable": fit, "vcpus": rows}));
    } else {
        for (vcpu, (set, plan)) in plans.iter().enumerate() {
            print!("vCPU {vcpu}: {}", text::words(set, plan, &host));
        }
    }
    Ok(if fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl PlanOptions {
    fn sharing(&self) -> Sharing {
        match (self.aligned, self.alone) {
            (true, _) => Sharing::Aligned,
            (false, true) => Sharing::Alone,
            (false, false) => Sharing::Shared,
        }
    }

    fn question(&self, host: &overheads::Known) -> plan::Question {
        plan::Question {
            period: self.period.map(ns),
            budget: self.budget.map(ns),
            sharing: self.sharing(),
            overheads: host.overheads,
            switch: ns(self.switch),
        }
    }
}

/// No vCPU is filled above this, 1/1000: the kernel keeps 50 for everything else, and the
/// recommended budget is above the least one.
const MOST: u64 = 900;

/// A switch into a reservation.
const SWITCH: Duration = Duration::from_micros(50);

fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn span(text: &str) -> Result<Duration> {
    Ok(humantime_serde::re::humantime::parse_duration(text)?)
}
