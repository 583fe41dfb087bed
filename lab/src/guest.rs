//! A running guest: its process, QMP, serial log and lab port. Dropping it ends the guest.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use tempfile::TempDir;

use crate::builder::GuestBuilder;
use crate::command::{Tethered, tail};
use crate::interrupt::{self, Late, rephrased};
use crate::qmp::Qmp;
use crate::scratch;
use crate::shell;

/// A boot takes 4 s under software emulation; a loaded machine may need many times as long.
pub const BOOT: Duration = Duration::from_secs(120);

/// A guest whose QEMU runs; dropping it kills QEMU.
#[derive(Debug)]
pub struct Guest {
    // Dropped first, so that QEMU ends before its sockets are removed.
    process: Tethered,
    qmp: Qmp,
    lab: UnixStream,
    serial_log: PathBuf,
    sockets: TempDir,
    started: Instant,
}

impl Guest {
    pub(crate) fn start(builder: &GuestBuilder) -> anyhow::Result<Self> {
        let sockets = scratch::directory()?;
        let serial_log = builder.serial_log();
        // A line of an earlier run must not satisfy a wait in this one.
        let _ = fs::remove_file(&serial_log);
        let log = builder.log_dir.join(format!("{}.qemu.log", builder.name));
        let started = Instant::now();
        let mut process = Tethered::spawn(&mut builder.command(sockets.path()), "QEMU", &log)?;
        let qmp = connect(&mut process, &sockets.path().join("qmp"))
            .with_context(|| format!("QEMU did not start, see {}", log.display()))?;
        let lab = UnixStream::connect(sockets.path().join("lab")).context("no lab port")?;
        Ok(Self { process, qmp, lab, serial_log, sockets, started })
    }

    /// The process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// When QEMU was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The QMP connection.
    pub fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// A directory for further sockets of this guest; removed together with the guest.
    pub fn sockets(&self) -> &Path {
        self.sockets.path()
    }

    /// Starts or resumes the CPUs.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn cont(&mut self) -> anyhow::Result<()> {
        self.qmp.run("cont").map(drop)
    }

    /// Stops the CPUs.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.qmp.run("stop").map(drop)
    }

    /// Everything that the guest has printed so far.
    pub fn serial_text(&self) -> String {
        fs::read(&self.serial_log)
            .map(|b| String::from_utf8_lossy(&b).replace('\r', ""))
            .unwrap_or_default()
    }

    /// Waits until the serial console shows a line that contains `needle`, and returns that line.
    ///
    /// # Errors
    /// After `timeout`, or when QEMU ends; the message contains the end of the serial log.
    pub fn wait_for_line(&mut self, needle: &str, timeout: Duration) -> anyhow::Result<String> {
        let found = interrupt::poll_until(timeout, || {
            // The process is checked before the log is read: otherwise the last line of a guest
            // that prints it and powers off could be missed.
            let ended = self.process.has_ended()?;
            let text = self.serial_text();
            let complete = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
            if let Some(line) = complete.lines().find(|line| line.contains(needle)) {
                return Ok(Some(line.to_owned()));
            }
            if ended {
                self.process.check_alive()?;
            }
            Ok(None)
        });
        let reason = match found {
            Ok(Some(line)) => return Ok(line),
            Ok(None) => anyhow!(Late).context(format!("not within {timeout:?}")),
            Err(error) => error,
        };
        let end = tail(&self.serial_text(), 10);
        let said = anyhow!(
            "waiting for {needle:?} on the serial console: {reason:#}; it ends with:\n{end}"
        );
        Err(rephrased(&reason, said))
    }

    /// Waits until the guest has booted and returns the time since QEMU was started.
    ///
    /// # Errors
    /// As [`Guest::wait_for_line`], or when a module did not load.
    pub fn wait_ready(&mut self) -> anyhow::Result<Duration> {
        self.wait_for_line("LAB-READY", BOOT)?;
        let took = self.started.elapsed();
        if let Some(line) = self.serial_text().lines().find(|l| l.contains("LAB-INSMOD-FAILED")) {
            bail!("a module did not load: {line}");
        }
        Ok(took)
    }

    /// Runs one line of shell in a guest whose image serves the lab port, and returns its output.
    ///
    /// # Errors
    /// When it fails, or does not answer within two minutes; the message contains its output.
    pub fn sh(&mut self, line: &str) -> anyhow::Result<String> {
        self.sh_within(line, BOOT)
    }

    /// Like [`Self::sh`], for a command that may take `patience`.
    ///
    /// # Errors
    /// As [`Self::sh`].
    pub fn sh_within(&mut self, line: &str, patience: Duration) -> anyhow::Result<String> {
        if line.contains('\n') {
            bail!("the guest takes one line at a time; use Image::file or ; between commands");
        }
        let (status, output) = shell::exchange(&mut self.lab, line, patience).map_err(|error| {
            let end = tail(&self.serial_text(), 10);
            let said =
                anyhow!("guest did not answer `{line}`: {error:#}; its console ends with:\n{end}");
            rephrased(&error, said)
        })?;
        if status != 0 {
            bail!("guest: `{line}` failed with status {status}: {}", tail(&output, 12));
        }
        Ok(output)
    }

    /// The lab port as a byte stream, for a guest program that opens
    /// `/dev/virtio-ports/org.timevisor.lab` itself (with an image that does not serve the port).
    pub fn lab_port(&self) -> &UnixStream {
        &self.lab
    }

    /// Waits until the guest has powered off.
    ///
    /// # Errors
    /// After `timeout`.
    pub fn wait_power_off(&mut self, timeout: Duration) -> anyhow::Result<()> {
        interrupt::poll_until(timeout, || Ok(self.process.has_ended()?.then_some(())))?
            .context(Late)
            .with_context(|| format!("the guest did not switch off within {timeout:?}"))
    }

    /// Kills QEMU now.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

fn connect(process: &mut Tethered, socket: &Path) -> anyhow::Result<Qmp> {
    let stream = interrupt::poll_until(Duration::from_secs(20), || {
        process.check_alive()?;
        // The socket exists a moment before QEMU listens on it.
        Ok(UnixStream::connect(socket).ok())
    })?
    .context("it opened no QMP socket within 20 s")?;
    Qmp::new(stream).or_else(|error| {
        // QEMU listens before it checks its devices, and its own message says more than a lost
        // connection.
        interrupt::poll_until(Duration::from_secs(2), || {
            process.check_alive()?;
            Ok(None::<()>)
        })?;
        Err(error)
    })
}
