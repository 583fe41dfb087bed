//! `timevisor reserve`: the least reservation in which tasks meet their deadlines, and why;
//! reservations for running VMs.
//!
//! | file | owns |
//! | --- | --- |
//! | `file.rs` | the task file |
//! | `plan.rs` | from tasks to a [`plan::Plan`] |
//! | `asked.rs` | its analysis: on one vCPU, on any of several |
//! | `because.rs` | what of a host makes it fail |
//! | `candidates.rs` | `plan --host`: asking timevisord which cores could serve a vCPU |
//! | `several.rs` | a guest with several vCPUs |
//! | `fleet.rs`, `fleet_text.rs` | several VMs on a host |
//! | `overheads.rs` | what the host takes from reservations |
//! | `costs.rs` | costs that were measured on another host |
//! | `measure.rs` | measuring that |
//! | `text.rs` | a plan in words |
//! | `plot.rs` | its supply and demand as a picture |
//! | `held.rs` | asking timevisord: apply, move, list, release |
//! | `travel.rs` | reservations as a file that goes with a VM: export |
//! | `top.rs` | the same: what each reservation uses now |
//! | `missed.rs` | the same: why a job was late |

mod asked;
mod because;
mod candidates;
mod costs;
mod file;
mod fleet;
mod fleet_text;
mod held;
mod measure;
mod missed;
pub mod overheads;
mod plan;
mod plot;
mod several;
#[cfg(test)]
mod tests;
mod text;
mod top;
pub mod travel;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use timevisor_schedule::synthesis::Sharing;

use crate::spans::span;

#[derive(Subcommand)]
pub enum Command {
    /// Compute the least budget in which the tasks of a file meet their deadlines; changes nothing
    Plan(PlanOptions),
    /// Measure what this host takes from reservations: its tick, late timers, interrupts
    Measure(measure::Options),
    /// Reserve processor time for a VM's vCPU, or change what it has
    Apply(held::Apply),
    /// Move a reservation to another core, without a moment without it
    Move(held::Move),
    /// List reservations
    List(held::List),
    /// Print a VM's reservations for the host to which it moves: `vm add --reserve` reads them there
    Export(travel::Export),
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
    #[arg(required_unless_present_any = ["vms", "host_cores"], conflicts_with = "vms")]
    file: Option<PathBuf>,
    #[command(flatten)]
    cores: candidates::Options,
    /// The reservation's period, for example 50ms; by default the one that costs least
    #[arg(long, value_name = "SPAN", value_parser = span)]
    period: Option<Duration>,
    #[command(flatten)]
    several: several::Options,
    #[command(flatten)]
    fleet: fleet::Options,
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
    #[command(flatten)]
    costs: costs::CostsFrom,
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
        Command::Plan(options) if options.cores.is_given() => {
            candidates::run(directory, options)?;
        }
        Command::Plan(options) => return make_plan(options),
        Command::Measure(options) => measure::run(options)?,
        Command::Apply(options) => held::apply(directory, options)?,
        Command::Move(options) => held::relocate(directory, options)?,
        Command::List(options) => return held::list(directory, options).map(Into::into),
        Command::Export(options) => travel::export(directory, options)?,
        Command::Top(options) => top::run(directory, options)?,
        Command::Missed(options) => missed::run(directory, options)?,
        Command::Audit(options) => return held::audit(directory, options).map(Into::into),
        Command::Release(options) => return held::release(directory, options),
    }
    Ok(ExitCode::SUCCESS)
}

fn make_plan(options: &PlanOptions) -> Result<ExitCode> {
    let host = options.host.known()?;
    if let Some(vms) = options.fleet.file()? {
        return fleet::run(vms, options, &host);
    }
    let file = options.file.as_deref().context("no file of tasks is given")?;
    let costs::Scaled { tasks, slowdown } = options.costs.read(file, &host)?;
    if let Some(line) = options.costs.words(slowdown.as_ref()).filter(|_| !options.json) {
        println!("{line}");
    }
    let on = options.several.on(&tasks);
    if on == plan::On::One && (!tasks.stated.is_empty() || options.several.vcpus > 1) {
        return several::run(&tasks, options, &host, slowdown.as_ref());
    }
    let set = tasks.set;
    let plan = plan::make(&set, &plan::Question { on, ..options.question(&host) })?;
    if let Some(path) = &options.plot
        && let Some(svg) = plot::svg(&set, &plan, options.sharing())
    {
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.json {
        let mut plan = text::json(&set, &plan, &host);
        plan["costs_ppm"] = slowdown.map(|slowdown| slowdown.ppm()).into();
        println!("{plan}");
    } else {
        print!("{}", text::words(&set, &plan, &host));
    }
    Ok(if plan.fits() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
            on: plan::On::One,
        }
    }
}

/// A switch into a reservation.
const SWITCH: Duration = Duration::from_micros(50);

fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
