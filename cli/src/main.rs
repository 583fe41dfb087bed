//! timevisor: read the clock, see the daemon's state, serve VMs.
//!
//! | file | command |
//! | --- | --- |
//! | `now.rs` | `timevisor now`: from the page, without the daemon |
//! | `status.rs` | `timevisor status` |
//! | `vm.rs` | `timevisor vm list, add, remove, args` |
//! | `replay.rs` | `timevisor replay`: recorded exchanges, scored; without the daemon |
//! | `simulate.rs` | `timevisor simulate`: scenario files through simulated worlds |
//! | `connection.rs` | the control socket |
#![forbid(unsafe_code)]

mod connection;
mod now;
mod replay;
mod simulate;
mod status;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Trustworthy time for this host and its virtual machines.
#[derive(Parser)]
#[command(name = "timevisor", version)]
struct Arguments {
    /// The daemon's run directory
    #[arg(long, global = true, value_name = "DIR", default_value = "/run/timevisor")]
    run_directory: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The time as an interval that holds the truth, read from the clock page
    Now(now::Options),
    /// The state of the daemon, its clock and its references
    Status(status::Options),
    /// Recorded exchanges through the production clock, scored against the truth
    Replay(replay::Options),
    /// Scenarios in simulated worlds, judged by their limits; without the daemon
    Simulate(simulate::Options),
    /// Virtual machines
    #[command(subcommand)]
    Vm(vm::Command),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let directory = &arguments.run_directory;
    let done = match &arguments.command {
        Command::Simulate(options) => return exit(simulate::run(options)),
        Command::Now(options) => now::run(directory, options),
        Command::Status(options) => status::run(directory, options),
        Command::Replay(options) => replay::run(options),
        Command::Vm(command) => vm::run(directory, command),
    };
    exit(done.map(|()| ExitCode::SUCCESS))
}

fn exit(done: anyhow::Result<ExitCode>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("timevisor: {error:#}");
            ExitCode::FAILURE
        }
    }
}
