//! timevisor: read the clock, see the daemon's state, serve VMs.
//!
//! | file | command |
//! | --- | --- |
//! | `now.rs` | `timevisor now`: from the page, without the daemon |
//! | `wait_sync.rs` | `timevisor wait-sync`: until the time is known well enough |
//! | `status.rs` | `timevisor status` |
//! | `sources/` | `timevisor sources, reload`: the references, and changes while the daemon runs |
//! | `tracking.rs` | `timevisor tracking` |
//! | `cluster/` | `timevisor cluster`: one clock for a cluster of hosts |
//! | `group.rs` | `timevisor group`: members that act together at a time |
//! | `clients.rs` | `timevisor clients`: of the NTP server |
//! | `bind.rs` | `timevisor timelines, bind, watch` |
//! | `oscillator.rs` | `timevisor oscillator`: a survey, and what to state in the configuration |
//! | `elapsed.rs` | `timevisor elapsed` |
//! | `cpu_time.rs` | `timevisor cpu-time`: inside a VM |
//! | `audit.rs` | `timevisor audit`: whether the audit log is whole, and what it proves; without the daemon |
//! | `record.rs` | `timevisor record`: a timeline's past into a file |
//! | `convert.rs` | `timevisor convert`: stamps and spans from such a file; without the daemon |
//! | `reserve/` | `timevisor reserve plan`: tasks in, reservation out; without the daemon |
//! | `vm.rs` | `timevisor vm list, add, remove, args` |
//! | `replay.rs` | `timevisor replay`: recorded exchanges, scored; without the daemon |
//! | `simulate.rs` | `timevisor simulate`: scenario files through simulated worlds |
//! | `plot.rs` | lines as SVG |
//! | `again.rs` | what is shown again and again |
//! | `exit.rs` | exit statuses |
//! | `spans.rs` | spans of time and amounts of memory, as people write them |
//! | `connection.rs` | the control socket |
#![forbid(unsafe_code)]

mod again;
mod audit;
mod bind;
mod bound;
mod clients;
mod cluster;
mod connection;
mod convert;
mod cpu_time;
mod elapsed;
mod exit;
mod group;
mod introspect;
mod now;
mod oscillator;
mod plot;
mod record;
mod replay;
mod reserve;
mod simulate;
mod sources;
mod spans;
mod status;
mod tracking;
mod vm;
mod wait_sync;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use self::exit::Found;

const EXIT_STATUSES: &str = "Exit status: 0 done, and what is shown is vouched for; 1 failed, or not vouched for, or a \
requirement is not met; 2 wrong usage; 3 nobody is there to ask (timevisord does not run, no clock page)";

/// Trustworthy time for this host and its virtual machines.
#[derive(Parser)]
#[command(name = "timevisor", version = timevisor_manual::version!(), after_help = EXIT_STATUSES)]
struct Arguments {
    /// The daemon's run directory
    #[arg(long, global = true, value_name = "DIR", default_value = "/run/timevisor")]
    run_directory: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the time as an interval that contains true time, read from the clock page
    Now(now::Options),
    /// Wait until the time is known well enough: on a host, in a guest or a container
    WaitSync(wait_sync::Options),
    /// Show the state of the daemon, its clock and its references
    Status(status::Options),
    /// Show the references: all of them, or one in detail; add, remove and ask them
    Sources(sources::Options),
    /// Show how well this host knows the time, and from whom
    Tracking(tracking::Options),
    /// Show who asks the NTP server
    Clients(clients::Options),
    /// Read the configuration again; what needs a restart is named
    Reload,
    /// Watch this machine's oscillator for hours, and suggest what to state of it
    Oscillator(oscillator::Options),
    /// List the timelines that can be bound to
    Timelines(bind::ListOptions),
    /// Bind to a timeline with a requirement, and read it
    Bind(bind::BindOptionsOfShell),
    /// Print how long this host, or inside a VM that VM, has been running; with bounds, over
    /// migrations
    Elapsed(elapsed::Options),
    /// Inside a VM: print how much processor time the host has given each vCPU, with bounds
    CpuTime(cpu_time::Options),
    /// Print what happens to a requirement: met, violated, holdover, disrupted
    Watch(bind::WatchOptions),
    /// Record what a timeline says, so that counter stamps can be converted later
    Record(record::Options),
    /// Convert counter stamps, or measure the time between two, from a recording; needs no daemon
    Convert(convert::Options),
    /// Verify the audit log, and report how long the clock was within a bound; needs no daemon
    #[command(subcommand)]
    Audit(audit::Command),
    /// Run recorded exchanges through the production clock, and score it against the truth
    Replay(replay::Options),
    /// Run scenarios in simulated worlds, and judge them by their limits; needs no daemon
    Simulate(simulate::Options),
    /// One clock for a cluster of hosts
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Members of a group on this host or several: messages with their time, acting together
    #[command(subcommand)]
    Group(group::Command),
    /// Plan, make and audit reservations of processor time
    #[command(subcommand)]
    Reserve(reserve::Command),
    /// Learn what the real-time tasks of VMs do, without touching the guest
    #[command(subcommand)]
    Introspect(introspect::Command),
    /// List, serve and migrate virtual machines
    #[command(subcommand)]
    Vm(vm::Command),
    /// Write the manual pages and completions that packages contain
    #[command(hide = true)]
    WriteManual {
        /// A folder
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    exit::say_when_nothing_can_be_printed();
    let arguments = Arguments::parse();
    let directory = &arguments.run_directory;
    let found = match &arguments.command {
        Command::WriteManual { folder } => {
            done(timevisor_manual::write(Arguments::command(), 1, folder).map_err(Into::into))
        }
        Command::Simulate(options) => return exit(simulate::run(options)),
        Command::Cluster(command) => return exit(cluster::run(directory, command)),
        Command::Reserve(command) => return exit(reserve::run(&arguments.run_directory, command)),
        Command::Vm(command) => return exit(vm::run(directory, command)),
        Command::Now(options) => now::run(directory, options),
        Command::WaitSync(options) => done(wait_sync::run(directory, options)),
        Command::Status(options) => status::run(directory, options),
        Command::Sources(options) => sources::run(directory, options),
        Command::Tracking(options) => tracking::run(directory, options),
        Command::Clients(options) => done(clients::run(directory, options)),
        Command::Reload => done(sources::reload(directory)),
        Command::Oscillator(options) => done(oscillator::run(directory, options)),
        Command::Timelines(options) => bind::list(directory, options),
        Command::Bind(options) => bind::bind(directory, options),
        Command::Elapsed(options) => elapsed::run(directory, options),
        Command::CpuTime(options) => done(cpu_time::run(directory, options)),
        Command::Audit(command) => audit::run(command),
        Command::Watch(options) => done(bind::watch(directory, options)),
        Command::Record(options) => done(record::run(directory, options)),
        Command::Convert(options) => done(convert::run(options)),
        Command::Replay(options) => done(replay::run(options)),
        Command::Group(command) => done(group::run(directory, command)),
        Command::Introspect(command) => done(introspect::run(directory, command)),
    };
    exit(found.map(Into::into))
}

/// Of a command that shows nothing to vouch for.
fn done(done: anyhow::Result<()>) -> anyhow::Result<Found> {
    done.map(|()| Found::Good)
}

fn exit(done: anyhow::Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| exit::failed(&error))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    /// What release builds do not look for: options and groups of options that are there twice.
    #[test]
    fn every_command_can_be_parsed() {
        super::Arguments::command().debug_assert();
    }
}
