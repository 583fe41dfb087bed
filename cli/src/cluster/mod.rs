//! `timevisor cluster`: one clock for a cluster of hosts.
//!
//! | file | command |
//! | --- | --- |
//! | `status.rs` | `timevisor cluster status, watch`: the clusters of this host |
//! | `walk.rs` | `timevisor cluster nodes, tree`: all hosts, by asking them |
//! | `bootstrap.rs` | `timevisor cluster bootstrap`: asks a server once, for a host without a network; without the daemon |
//! | `key.rs` | `timevisor cluster key`: makes the secret that its hosts have in common; without the daemon |
//! | `simulate.rs` | `timevisor cluster simulate`: how long a cold start takes, and what it reaches; without the daemon |

mod bootstrap;
mod key;
mod simulate;
mod status;
mod walk;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Subcommand;
use timevisor_cluster::wire::Random;

#[derive(Subcommand)]
pub enum Command {
    /// Show the clusters that this host belongs to: its role, its bounds, whom it has heard
    Status(status::Options),
    /// Print the same again and again, and plot the width over time
    Watch(status::WatchOptions),
    /// List all hosts of a cluster, by asking each whom else it answers
    Nodes(walk::Options),
    /// Show who is answered by whom
    Tree(walk::Options),
    /// Ask a host until UTC is known well enough, and keep that for a time without a network; needs
    /// no daemon
    Bootstrap(bootstrap::Options),
    /// Make the secret that a cluster's hosts have in common; needs no daemon
    Key(key::Options),
    /// Start simulated clusters with the code that real nodes run; needs no daemon
    Simulate(simulate::Options),
}

pub fn run(directory: &Path, command: &Command) -> Result<ExitCode> {
    let done = match command {
        Command::Status(options) => return status::status(directory, options).map(Into::into),
        Command::Watch(options) => status::watch(directory, options),
        Command::Nodes(options) => walk::nodes(directory, options),
        Command::Tree(options) => walk::tree(directory, options),
        Command::Key(options) => key::make(options),
        Command::Bootstrap(options) => return bootstrap::run(options),
        Command::Simulate(options) => return simulate::run(options),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// What nobody can foresee who has not seen the question.
fn random() -> Result<Random> {
    let mut random = Random([0; Random::LEN]);
    getrandom::fill(&mut random.0)
        .map_err(|error| anyhow!("the kernel returns no random numbers: {error}"))?;
    Ok(random)
}
