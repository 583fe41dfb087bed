//! `timevisor cluster`: one clock for a cluster of hosts.
//!
//! | file | command |
//! | --- | --- |
//! | `simulate.rs` | `timevisor cluster simulate`: how long a cold start takes, and what it reaches; without the daemon |

mod simulate;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

#[derive(Subcommand)]
pub enum Command {
    /// Start simulated clusters with the code that real nodes run; needs no daemon
    Simulate(simulate::Options),
}

pub fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Simulate(options) => simulate::run(options),
    }
}
