//! A test's own timevisord: its binary, run directory, configuration and log, and the CLI that
//! talks to it.
//!
//! These are the binaries that users get, built from this workspace. The daemon is killed when the
//! value is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::command::{self, Tethered, tail};
use crate::interrupt::{self, Late};
use crate::netns::Namespace;
use crate::oscillator::Oscillator;
use crate::programs;
use crate::scenario::Context;
use crate::scratch;

/// How long a test waits for anything the daemon does.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host with a timevisord.
#[derive(Debug)]
pub struct Host {
    daemon: Option<Tethered>,
    programs: (PathBuf, PathBuf),
    directory: TempDir,
    log: PathBuf,
    starts: u32,
    oscillator: Option<Oscillator>,
    /// Where its daemon runs, if not in the lab's own network.
    network: Option<Namespace>,
    /// Its daemon sees this machine's /sys there, with cgroups.
    has_sys: bool,
}

impl Host {
    /// A host whose daemon is not started yet.
    ///
    /// # Errors
    /// When the programs do not build.
    pub fn new(ctx: &Context) -> anyhow::Result<Self> {
        let programs =
            (ctx.program("timevisord", "timevisord")?, ctx.program("timevisor", "timevisor")?);
        Self::of(ctx, programs, None)
    }

    /// A host whose run directory is in memory, as /run is: its daemon waits for no disk. (Not below
    /// libvirt, whose QEMUs have a /dev of their own.)
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn in_memory(ctx: &Context) -> anyhow::Result<Self> {
        Ok(Self { directory: scratch::in_memory()?, ..Self::new(ctx)? })
    }

    /// Another host of the same test, with its own configuration and log.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn further(ctx: &Context, name: &str) -> anyhow::Result<Self> {
        Self::new(&ctx.further(name)?)
    }

    /// Another host of the same test, whose daemon has a network stack of its own.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn inside(ctx: &Context, name: &str, network: Namespace) -> anyhow::Result<Self> {
        Ok(Self { network: Some(network), ..Self::further(ctx, name)? })
    }

    /// As [`Self::inside`], for a daemon that reserves processor time.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn inside_with_sys(ctx: &Context, name: &str, network: Namespace) -> anyhow::Result<Self> {
        Ok(Self { has_sys: true, ..Self::inside(ctx, name, network)? })
    }

    /// A host whose processes use another oscillator as their counter.
    ///
    /// # Errors
    /// When the programs do not build.
    pub fn with_oscillator(ctx: &Context, oscillator: Oscillator) -> anyhow::Result<Self> {
        let host = Self::preloadable(ctx)?;
        Ok(Self { oscillator: Some(oscillator), ..host })
    }

    /// A host whose processes a library in LD_PRELOAD affects: it has no effect on a static
    /// program.
    ///
    /// # Errors
    /// When the programs do not build.
    pub fn preloadable(ctx: &Context) -> anyhow::Result<Self> {
        let dynamic = |name| programs::binary(name, name);
        Self::of(ctx, (dynamic("timevisord")?, dynamic("timevisor")?), None)
    }

    fn of(
        ctx: &Context,
        programs: (PathBuf, PathBuf),
        oscillator: Option<Oscillator>,
    ) -> anyhow::Result<Self> {
        let (directory, log) = (scratch::directory()?, ctx.path("timevisord"));
        Ok(Self {
            daemon: None,
            programs,
            directory,
            log,
            starts: 0,
            oscillator,
            network: None,
            has_sys: false,
        })
    }

    /// The counter of its processes, if it is not the machine's TSC.
    pub fn oscillator(&self) -> Option<&Oscillator> {
        self.oscillator.as_ref()
    }

    /// A host that polls an NTP server every second.
    ///
    /// # Errors
    /// When the daemon does not start.
    pub fn following(ctx: &Context, server: &str) -> anyhow::Result<Self> {
        let mut host = Self::new(ctx)?;
        host.start(&ntp_reference(server))?;
        Ok(host)
    }

    /// The run directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The configuration's path. It is outside the run directory, which belongs to the daemon.
    fn config_path(&self) -> PathBuf {
        self.log.with_extension("toml")
    }

    /// The CLI's program.
    pub fn cli_program(&self) -> &Path {
        &self.programs.1
    }

    /// The daemon's program.
    pub fn daemon_program(&self) -> &Path {
        &self.programs.0
    }

    /// Starts the daemon with these configuration lines; `run_directory` is added.
    ///
    /// # Errors
    /// When it ends immediately.
    pub fn start(&mut self, lines: &str) -> anyhow::Result<()> {
        self.rewrite(lines)?;
        self.restart()
    }

    /// Changes the configuration under the running daemon, which does not read it by itself.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn rewrite(&self, lines: &str) -> anyhow::Result<()> {
        let lines = discovering_roots(lines);
        let text = format!("run_directory = \"{}\"\n{lines}", self.directory().display());
        Ok(fs::write(self.config_path(), text)?)
    }

    /// Starts the daemon again with the same configuration; it must have ended.
    ///
    /// # Errors
    /// When it ends immediately.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.starts += 1;
        let log = PathBuf::from(format!("{}-{}.log", self.log.display(), self.starts));
        let mut command = match (&self.oscillator, &self.network) {
            (Some(oscillator), _) => oscillator.tethered(&self.programs.0),
            (None, Some(network)) if self.has_sys => network.command_with_sys(&self.programs.0),
            (None, Some(network)) => network.command(&self.programs.0),
            // Under the shipped unit, say (lab/systemd): a program that starts the daemon in its way.
            (None, None) => match std::env::var_os("LAB_DAEMON") {
                Some(starter) => {
                    let mut command = command::tethered(starter);
                    command.arg(&self.programs.0);
                    command
                }
                None => command::tethered(&self.programs.0),
            },
        };
        command.arg("--config").arg(self.config_path());
        let mut daemon = Tethered::spawn(&mut command, "timevisord", &log)?;
        let control = self.directory().join("control");
        let up = interrupt::poll_until(PATIENCE, || {
            daemon.check_alive()?;
            Ok((control.exists() && self.cli(&["status", "--json"]).is_ok()).then_some(()))
        })?;
        up.context(Late)
            .with_context(|| format!("timevisord does not answer: {}", log.display()))?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// A new key, of a cluster or of a group, in the run directory.
    ///
    /// # Errors
    /// When the CLI fails.
    pub fn make_key(&self, name: &str) -> anyhow::Result<PathBuf> {
        let file = self.directory().join(name);
        self.cli(&["cluster", "key", file.to_str().context("a path of UTF-8")?])?;
        Ok(file)
    }

    /// The log of the running daemon, or of the last one.
    pub fn log_text(&self) -> String {
        fs::read_to_string(format!("{}-{}.log", self.log.display(), self.starts))
            .unwrap_or_default()
    }

    /// The daemon's process id.
    ///
    /// # Errors
    /// When it is not running.
    pub fn pid(&self) -> anyhow::Result<u32> {
        Ok(self.daemon.as_ref().context("timevisord does not run")?.pid())
    }

    /// Returns an error with the end of the log if the daemon has ended.
    ///
    /// # Errors
    /// When it has ended or was never started.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        self.daemon.as_mut().context("timevisord does not run")?.check_alive()
    }

    /// Kills the daemon (kill -9).
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    /// Sends SIGTERM and waits until the daemon has ended.
    ///
    /// # Errors
    /// When it does not end.
    pub fn terminate(&mut self) -> anyhow::Result<()> {
        let mut daemon = self.daemon.take().context("timevisord does not run")?;
        command::run("kill", &["-TERM", &daemon.pid().to_string()])?;
        interrupt::poll_until(PATIENCE, || Ok(daemon.has_ended()?.then_some(())))?
            .context(Late)
            .context("timevisord does not end on SIGTERM")
    }

    /// A program that will be started in this host's network; it does not outlive the lab.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match &self.network {
            Some(network) => network.command(program),
            None => command::tethered(program),
        }
    }

    /// Runs `timevisor ARGUMENTS` against this daemon.
    ///
    /// # Errors
    /// When it fails; the message is the CLI's.
    pub fn cli(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let out = self.cli_output(arguments)?;
        // Exit status 1 and no error: what it shows is not vouched for.
        let is_shown = out.status.code() == Some(1) && out.stderr.is_empty();
        if !out.status.success() && !is_shown {
            bail!(
                "timevisor {}: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Like [`Self::cli`], but returns the whole output, for tests of failures.
    ///
    /// # Errors
    /// When it cannot be run at all.
    pub fn cli_output(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.programs.1);
        command.arg("--run-directory").arg(self.directory()).args(arguments);
        command.output().context("cannot run timevisor")
    }

    /// `timevisor ... --json`, parsed.
    ///
    /// # Errors
    /// When it fails or prints anything else.
    pub fn json(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let mut arguments = arguments.to_vec();
        arguments.push("--json");
        let out = self.cli_output(&arguments)?;
        let text = String::from_utf8_lossy(&out.stdout);
        // Exit status 1 with an object says that what it shows is not vouched for.
        match serde_json::from_str(&text) {
            Ok(value) if matches!(out.status.code(), Some(0 | 1)) => Ok(value),
            _ => bail!(
                "timevisor {}: {text}{}",
                arguments.join(" "),
                String::from_utf8_lossy(&out.stderr).trim()
            ),
        }
    }

    /// A VM's row in `vm list`.
    ///
    /// # Errors
    /// When there is no such row.
    pub fn vm(&self, name: &str) -> anyhow::Result<Value> {
        let list = self.json(&["vm", "list"])?;
        let row = list.as_array().into_iter().flatten().find(|row| row["name"] == name);
        row.cloned().with_context(|| format!("no VM {name} in {list}"))
    }

    /// Waits until `done` returns true.
    ///
    /// # Errors
    /// After half a minute; the message contains the end of the daemon's log.
    pub fn wait_until(
        &self,
        what: &str,
        mut done: impl FnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let reached = interrupt::poll_until(PATIENCE, || Ok(done(self)?.then_some(())))?;
        reached.context(Late).with_context(|| {
            format!(
                "{what}: not within {PATIENCE:?}; timevisord's log ends:\n{}",
                tail(&self.log_text(), 8)
            )
        })
    }

    /// Waits until the clock is synchronized with at most this half-width.
    ///
    /// # Errors
    /// As [`Self::wait_until`].
    pub fn wait_synchronized(&self, half_width_us: i64) -> anyhow::Result<()> {
        self.wait_until(&format!("synchronized to +-{half_width_us} us"), |host| {
            let clock = &host.json(&["status"])?["clock"];
            let width = clock["half_width_ns"].as_i64().unwrap_or(i64::MAX);
            Ok(clock["status"] == "synchronized" && width <= half_width_us * 1000)
        })
    }

    /// Waits until a VM has this status.
    ///
    /// # Errors
    /// As [`Self::wait_until`].
    pub fn wait_vm(&self, name: &str, status: &str) -> anyhow::Result<()> {
        self.wait_until(&format!("VM {name} {status}"), |host| {
            Ok(host.vm(name).is_ok_and(|row| row["status"] == status))
        })
    }
}

/// The same lines with root's VMs discovered, unless they say whose are: the lab runs its VMs as root
/// and prepares few of them.
pub fn discovering_roots(lines: &str) -> String {
    const TABLE: &str = "[guests]\n";
    const KEY: &str = "discover = \"root\"\n";
    if lines.contains("discover =") {
        return lines.to_owned();
    }
    match lines.split_once(TABLE) {
        Some((before, after)) => format!("{before}{TABLE}{KEY}{after}"),
        None => format!("{}\n{TABLE}{KEY}", lines.trim_end()),
    }
}

/// Configuration lines for one NTP server that is polled every second.
pub fn ntp_reference(server: &str) -> String {
    format!(
        "[[reference]]\ntype = \"ntp\"\naddress = \"{server}\"\npoll = \"1s\"\nburst_spacing = \"1s\"\n"
    )
}

/// Fails unless `text` contains all of `parts`.
///
/// # Errors
/// With the missing part.
pub fn mentions(text: &str, parts: &[&str]) -> anyhow::Result<()> {
    for part in parts {
        ensure!(text.contains(part), "{part:?} is missing in: {}", text.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_says_whose_vms_are_found_is_left_alone() {
        for said in ["[guests]\ndiscover = false\n", "[guests]\ndiscover = [4001]\n"] {
            assert_eq!(discovering_roots(said), said);
        }
        assert_eq!(discovering_roots("a = 1\n"), "a = 1\n[guests]\ndiscover = \"root\"\n");
        let slow = discovering_roots("[guests]\ndiscover_interval = \"2s\"\n[clock]\n");
        assert_eq!(slow, "[guests]\ndiscover = \"root\"\ndiscover_interval = \"2s\"\n[clock]\n");
    }
}
