//! `timevisor-experiments`: repeats published evaluations with Timevisor in place of the evaluated
//! systems: QuartzV (D'Souza and Rajkumar), section V, and the parts of four further papers that
//! can be measured on one machine.
//!
//! | file | owns |
//! | --- | --- |
//! | `catalog.rs` | every experiment: name, time, smoke test |
//! | `table1.rs` | read latency, table I |
//! | `accuracy.rs` | errors and bounds against the truth, figures 8 to 10 |
//! | `scale_cpu.rs`, `scale_net.rs` | errors and bounds beside loaded guests, figures 11 to 14 |
//! | `members.rs` | members of a group in many guests: scalability |
//! | `scale_read.rs` | read latency of many guests simultaneously, figure 15 |
//! | `subject.rs` | the measured guest: page, chronyd and timevisord inside |
//! | `fleet.rs` | further guests with a page each |
//! | `watch.rs`, `steps.rs` | samples over time, and under one load after another |
//! | `latency.rs` | runs lab-latency |
//! | `statistics.rs`, `report.rs`, `pictures.rs` | statistics, tables and files, clock pictures |
//! | `arms/` | section III: two arms, beside clocks without bounds; the plant is in experiments/arms |
//! | `paper.rs` | QuartzV's published results |
//! | `spread.rs` | quartiles and percentiles |
//! | `job.rs` | a program in a guest that prints one line of JSON |
//! | `vebt/` | Broomhead and others, "Virtualize everything but time" |
//! | `rtvm/` | Cucinotta and others, "Real-time virtual machines" |
//! | `kairos/` | Burns and others, "KairosVM": the cost of a trapped call |
//! | `rvec/` | Dutra and others, "A highly effective system clock" (RVEC) |
//!
//! It does not judge: an experiment fails if it cannot be carried out, not if its outcome is bad.
//! Verdicts are the tests' task. Two experiments have a smoke test, which judges what must hold on
//! any machine; the lab's tests start it. Guests, hosts, servers and truth come from the lab.

#![forbid(unsafe_code)]

mod accuracy;
mod arms;
mod catalog;
mod fleet;
mod job;
mod kairos;
mod latency;
mod members;
mod paper;
mod pictures;
mod report;
mod rtvm;
mod rvec;
mod scale_cpu;
mod scale_net;
mod scale_read;
mod spread;
mod statistics;
mod steps;
mod subject;
mod table1;
mod vebt;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use timevisor_lab::runner::{Outcome, Verdict};
use timevisor_lab::scenario::Context;
use timevisor_lab::{interrupt, netns, packages, programs, scratch};

/// Repeats published evaluations with Timevisor.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The lab's directory: logs, fetched packages, guest programs [default: target/lab of the
    /// workspace]
    #[arg(long, global = true)]
    dir: Option<PathBuf>,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show every experiment and how long it measures
    List,
    /// Repeat a published evaluation
    Run {
        /// The experiment
        name: String,
        /// How long it measures, without the boots [default: 2 to 8, see `list`]
        #[arg(long)]
        minutes: Option<u32>,
    },
    /// Run an experiment for some seconds and judge what must hold on any machine: part of a test
    #[command(hide = true)]
    Smoke {
        /// The experiment
        name: String,
        /// Where its logs go; the directory is emptied [default: NAME-smoke in the lab's]
        #[arg(long)]
        logs: Option<PathBuf>,
        /// KVM works here
        #[arg(long)]
        kvm: bool,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("timevisor-experiments: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<bool> {
    let dir = match arguments.dir {
        Some(dir) => std::path::absolute(dir)?,
        None => programs::workspace()?.join("target/lab"),
    };
    interrupt::install()?;
    match arguments.action {
        Action::List => {
            for experiment in catalog::ALL {
                println!(
                    "{:<28} {} min  {}",
                    experiment.name, experiment.minutes, experiment.about
                );
            }
            Ok(true)
        }
        Action::Run { name, minutes } => {
            let experiment = catalog::find(&name)?;
            make(&dir)?;
            packages::install(&packages::all())?;
            timevisor_lab::runner::check_undivided()?;
            scratch::remove_stale();
            netns::remove_stale();
            experiment.run(&dir, minutes)?;
            Ok(true)
        }
        Action::Smoke { name, logs, kvm } => {
            let experiment = catalog::find(&name)?;
            make(&dir)?;
            let logs = logs.unwrap_or_else(|| dir.join(format!("{name}-smoke")));
            let context = Context::with_logs(&dir, &std::path::absolute(logs)?, kvm)?;
            let outcome = Outcome::of(&experiment.smoke(&context));
            println!("{}", outcome.line());
            Ok(outcome.verdict == Verdict::Ok)
        }
    }
}

fn make(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}
