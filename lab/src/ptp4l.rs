//! A real ptp4l with software time stamps, and pmc to tell a master what to announce.
//!
//! A slave on this machine measures only (`free_running 1`): the clock it would steer is everybody's.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::command::{self, Tethered, tethered};
use crate::interrupt;
use crate::netns::Namespace;
use crate::scenario::Context;

/// Where Debian's package puts it.
pub const PTP4L: &str = "/usr/sbin/ptp4l";
const PMC: &str = "/usr/sbin/pmc";

/// What all have in common: half a second between Announces, eight Syncs and Delay_Reqs a second.
pub const COMMON: &str = "[global]\nnetwork_transport L2\ntime_stamping software\nlogAnnounceInterval -1\n\
                          logSyncInterval -3\nlogMinDelayReqInterval -3\n";

/// A running ptp4l; dropping it ends it.
#[derive(Debug)]
pub struct Ptp4l {
    process: Tethered,
    /// Its management socket.
    pub socket: PathBuf,
}

impl Ptp4l {
    /// Starts one on `interfaces`, in a namespace or on the host, with further configuration
    /// `lines`; its files are `dir`/`name`.*.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(
        ctx: &Context,
        namespace: Option<&Namespace>,
        dir: &Path,
        name: &str,
        interfaces: &[&str],
        lines: &str,
    ) -> anyhow::Result<Self> {
        let (config, socket) = (dir.join(format!("{name}.conf")), dir.join(format!("{name}.sock")));
        let _ = fs::remove_file(&socket);
        let own = format!("free_running 1\nuds_address {}\n", socket.display());
        fs::write(&config, format!("{COMMON}{own}{lines}"))?;
        let mut command = match namespace {
            Some(namespace) => namespace.command(PTP4L),
            None => tethered(PTP4L),
        };
        for interface in interfaces {
            command.args(["-i", interface]);
        }
        command.args(["-m", "-f"]).arg(&config);
        let log = ctx.path(&format!("{name}.ptp4l.log"));
        let mut process = Tethered::spawn(&mut command, "ptp4l", &log)?;
        interrupt::poll_until(Duration::from_secs(10), || {
            process.check_alive()?;
            Ok(socket.exists().then_some(()))
        })?
        .with_context(|| format!("ptp4l made no socket, see {}", log.display()))?;
        Ok(Self { process, socket })
    }

    /// A master in a namespace that claims to be right to a microsecond.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn master(
        ctx: &Context,
        namespace: &Namespace,
        dir: &Path,
        name: &str,
        lines: &str,
    ) -> anyhow::Result<Self> {
        let lines = format!("clockClass 6\nclockAccuracy 0x23\nmasterOnly 1\n{lines}");
        Self::start(ctx, Some(namespace), dir, name, &[&inner(namespace)], &lines)
    }

    /// Makes a master announce PTP time with this TAI - UTC, which it vouches for or not. Its stamps
    /// stay those of CLOCK_REALTIME, so PTP time is then this machine's CLOCK_REALTIME.
    ///
    /// # Errors
    /// When it does not take it.
    pub fn announce_ptp_time(&self, utc_offset: i16, valid: bool) -> anyhow::Result<()> {
        let valid = u8::from(valid);
        let request = format!(
            "SET GRANDMASTER_SETTINGS_NP clockClass 6 clockAccuracy 0x23 offsetScaledLogVariance 0xffff \
             currentUtcOffset {utc_offset} leap61 0 leap59 0 currentUtcOffsetValid {valid} ptpTimescale 1 \
             timeTraceable {valid} frequencyTraceable 0 timeSource 0x20"
        );
        let own = self.socket.with_extension("pmc");
        let text = |path: &Path| path.display().to_string();
        let answer = command::run(
            PMC,
            &["-u", "-b", "0", "-i", &text(&own), "-s", &text(&self.socket), &request],
        )?;
        ensure!(
            answer.contains("RESPONSE MANAGEMENT GRANDMASTER_SETTINGS_NP"),
            "pmc says {answer}"
        );
        Ok(())
    }

    /// Ends it now.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// The inner interface of a namespace's pair.
pub fn inner(namespace: &Namespace) -> String {
    format!("{}n", namespace.interface())
}
