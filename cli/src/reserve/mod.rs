//! `timevisor reserve plan`: the least reservation in which tasks meet their deadlines, and why.
//!
//! | file | owns |
//! | --- | --- |
//! | `file.rs` | the task file |
//! | `plan.rs` | from tasks to a [`plan::Plan`] |
//! | `text.rs` | a plan in words |

mod file;
mod plan;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum Command {
    /// The least budget in which the tasks of a file meet their deadlines, with slack, and why; nothing is applied
    Plan(PlanOptions),
}

#[derive(Args)]
pub struct PlanOptions {
    /// Tasks in TOML (docs/reservations.md)
    file: PathBuf,
    /// The reservation's period, for example 50ms; by default the one that costs least
    #[arg(long, value_name = "SPAN", value_parser = span)]
    period: Option<Duration>,
    /// Judge this budget instead of looking for the least one
    #[arg(long, value_name = "SPAN", value_parser = span, requires = "period")]
    budget: Option<Duration>,
    /// No other reservation will be on the core, or before this one
    #[arg(long)]
    alone: bool,
    /// The host's timer tick, which enforces budgets (1 / CONFIG_HZ)
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "4ms")]
    tick: Duration,
    /// What a switch into the reservation takes, for choosing the period
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "50us")]
    switch: Duration,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Exit status 1 where the tasks do not fit.
pub fn run(command: &Command) -> Result<ExitCode> {
    let Command::Plan(options) = command;
    let set = file::read(&options.file)?;
    let plan = plan::make(&set, &options.question())?;
    if options.json {
        println!("{}", text::json(&set, &plan));
    } else {
        print!("{}", text::words(&set, &plan));
    }
    Ok(if plan.fits() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl PlanOptions {
    fn question(&self) -> plan::Question {
        plan::Question {
            period: self.period.map(ns),
            budget: self.budget.map(ns),
            alone: self.alone,
            tick: ns(self.tick),
            switch: ns(self.switch),
        }
    }
}

fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn span(text: &str) -> Result<Duration> {
    Ok(humantime_serde::re::humantime::parse_duration(text)?)
}
