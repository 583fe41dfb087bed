//! timevisord: one daemon per host. It synchronizes once and publishes a clock page for the host and for every VM.
//!
//! | file | owns |
//! | --- | --- |
//! | `config.rs` | the TOML file |
//! | `daemon.rs` | the event loop: one thread, one poll(2) |
//! | `clock.rs` | counter, ensemble, the host's page |
//! | `references/` | what to ask, and exchanges from the answers |
//! | `leap.rs` | TAI - UTC |
//! | `journal.rs` | what a restart needs so that time does not go back |
//! | `vms.rs` | VMs: discovery, attachment, publication |
//! | `control.rs` | the control socket |
//! | `report.rs` | answers to `status`, `now`, `vm list` |
//!
//! It wires and decides nothing: algorithms are in crates/.
#![forbid(unsafe_code)]

mod clock;
mod config;
mod control;
mod daemon;
mod journal;
mod leap;
mod references;
mod report;
mod vms;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Trustworthy time for this host and its virtual machines.
#[derive(Parser)]
#[command(name = "timevisord", version)]
struct Arguments {
    /// Configuration file [default: /etc/timevisor/timevisord.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
    /// More words in the log (RUST_LOG has the last one)
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_log(arguments.verbose);
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (config, source) = config::Config::load(arguments.config.as_deref())?;
    if arguments.check {
        println!("{source}: ok, {} reference(s)", config.references.len());
        return Ok(());
    }
    tracing::info!("timevisord {} with {source}", env!("CARGO_PKG_VERSION"));
    daemon::Daemon::start(config)?.run()
}

/// The journal adds time and severity itself; a terminal gets them from us.
fn start_log(verbose: bool) {
    let level = if verbose { "debug" } else { "info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_writer(std::io::stderr);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().with_ansi(false).init();
    } else {
        log.with_ansi(false).init();
    }
}
