//! timevisord: one daemon per host. It synchronizes once and publishes a clock page for the host
//! and for every VM.
//!
//! | file | owns |
//! | --- | --- |
//! | `config/` | the TOML file; the lowest layer, which imports no other part of the daemon |
//! | `daemon.rs` | the event loop: one thread, one poll(2) |
//! | `csv.rs` | `--csv`: a printed clock instead of a served one, also for network simulators |
//! | `clock/` | the host's clock on this machine: counter, page file, journal, saved estimates |
//! | `discipline/` | optional: CLOCK_REALTIME follows the estimate |
//! | `references/` | whom to query, and exchanges from the replies |
//! | `leap.rs` | TAI - UTC |
//! | `audit/` | the audit log, in a thread |
//! | `ages/` | ages of threads, where the counter is not invariant |
//! | `notices.rs` | what guests are told of disruptions to come |
//! | `vms/` | VMs: discovery, attachment, publication |
//! | `control.rs` | the control socket |
//! | `observers/` | the read-only socket, in a thread |
//! | `grid.rs` | moments that what is regular shares |
//! | `listening.rs` | a socket that pauses when descriptors run out |
//! | `server/` | the clock served over NTP, in a separate thread |
//! | `clockbound.rs` | the clock for clients of AWS ClockBound, in a separate thread |
//! | `panics.rs` | which panics end the daemon |
//! | `parser.rs` | threads without rights, in which foreign bytes are parsed |
//! | `report.rs` | answers to `status`, `now`, `vm list` |
//!
//! It only wires components together: crates/host-clock decides what to publish and when, and the
//! other algorithms are in crates/ as well.
#![forbid(unsafe_code)]

mod ages;
mod announce;
mod audit;
mod clock;
mod clockbound;
mod config;
mod control;
mod csv;
mod daemon;
mod discipline;
mod grid;
mod introspection;
mod leap;
mod listening;
#[cfg(test)]
mod mutation;
mod notices;
mod observers;
mod panics;
mod parser;
mod references;
mod report;
mod reservations;
mod server;
mod state_log;
mod timelines;
mod vms;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory as _, Parser};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, CounterChoice, ReferenceConfig};

/// Trustworthy time for this host and its virtual machines.
#[derive(Clone, Parser)]
#[command(name = "timevisord", version = timevisor_manual::version!())]
struct Arguments {
    /// Configuration file [default: /etc/timevisor/timevisord.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The counter to use, instead of the configured one
    #[arg(long, value_enum, value_name = "COUNTER")]
    counter: Option<CounterChoice>,
    /// An NTP server, instead of all configured references; may be repeated
    #[arg(long = "server", value_name = "ADDRESS")]
    servers: Vec<String>,
    /// Serve nothing; print `time,estimate,earliest,latest` once a second: CLOCK_REALTIME and this
    /// clock, in UTC seconds since 1970. Works under a network simulator in LD_PRELOAD
    #[arg(long)]
    csv: bool,
    /// Examine VMs for the timevisord at the other end of standard input, without its rights
    #[arg(long, hide = true)]
    helper: bool,
    /// Introspect VMs for the timevisord at the other end of standard input
    #[arg(long, hide = true)]
    introspector: bool,
    /// Speak QMP for the timevisord at the other end of standard input, without its rights
    #[arg(long, hide = true)]
    qmp_helper: bool,
    /// Write the manual page and completions that packages contain into a folder
    #[arg(long, hide = true, value_name = "DIR")]
    write_manual: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
    /// More words in the log (RUST_LOG has the last one)
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    panics::abort_unless_contained();
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
    if let Some(folder) = &arguments.write_manual {
        return Ok(timevisor_manual::write(Arguments::command(), 8, folder)?);
    }
    if arguments.helper {
        return until_the_parent_ends(vms::be_helper());
    }
    if arguments.introspector {
        return until_the_parent_ends(introspection::be_introspector());
    }
    if arguments.qmp_helper {
        return until_the_parent_ends(vms::be_qmp_helper());
    }
    let (config, source) = arguments.load()?;
    if arguments.check {
        println!("{source}: ok, {} reference(s)", config.references.len());
        println!("{}", config.guests.discover.trusts());
        return Ok(());
    }
    tracing::info!("timevisord {} with {source}", timevisor_manual::version!());
    if arguments.csv {
        return csv::run(&config, &mut std::io::stdout().lock());
    }
    let arguments = arguments.clone();
    daemon::Daemon::start(config, Box::new(move || arguments.load()))?.run()
}

/// A helper that was about to report when its timevisord ended has done its work.
fn until_the_parent_ends(done: anyhow::Result<()>) -> anyhow::Result<()> {
    done.or_else(|error| {
        let io = error.downcast_ref::<std::io::Error>();
        let ended = io.is_some_and(|io| io.kind() == std::io::ErrorKind::UnexpectedEof);
        if ended { Ok(()) } else { Err(error) }
    })
}

impl Arguments {
    /// Reads the configuration, and says where it is from.
    fn load(&self) -> anyhow::Result<(Config, String)> {
        let (mut config, source) = Config::load(self.config.as_deref())?;
        self.override_in(&mut config)?;
        Ok((config, source))
    }

    /// Applies the command line, which takes precedence over the file.
    fn override_in(&self, config: &mut Config) -> anyhow::Result<()> {
        config.counter = self.counter.unwrap_or(config.counter);
        if !self.servers.is_empty() {
            config.references = self.servers.iter().cloned().map(ReferenceConfig::ntp).collect();
        }
        config.validate().context("the command line is not usable")
    }
}

/// Under systemd, the journal adds time and severity; on a terminal, we print them.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn overridden(words: &[&str]) -> anyhow::Result<Config> {
        let mut config = Config::default();
        Arguments::parse_from([&["timevisord"], words].concat()).override_in(&mut config)?;
        Ok(config)
    }

    #[test]
    fn the_command_line_has_the_last_word_where_it_says_something() {
        let config =
            overridden(&["--counter", "monotonic-raw", "--server", "a", "--server", "b:1123"]);
        let config = config.unwrap();
        assert!(matches!(config.counter, CounterChoice::MonotonicRaw));
        let names: Vec<_> = config.references.iter().map(ReferenceConfig::name).collect();
        assert_eq!(names, ["a", "b:1123"]);
        let silent = overridden(&["--csv"]).unwrap();
        assert_eq!(format!("{silent:?}"), format!("{:?}", Config::default()));
    }

    #[test]
    fn a_server_given_twice_is_refused_like_in_the_file() {
        let error = overridden(&["--server", "a", "--server", "a"]).unwrap_err();
        assert!(format!("{error:#}").contains("twice"), "{error:#}");
    }
}
