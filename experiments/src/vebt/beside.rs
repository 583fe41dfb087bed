//! A chronyd on the host itself, in place of the paper's ntpd on Dom0.
//!
//! It may not steer this machine's clock, which is the truth here (`-x`). chronyd then keeps its
//! own clock as CLOCK_REALTIME plus a correction, and `chronyc tracking` tells the correction, so
//! that is exactly its clock's error. It has an easier task than timevisord: the clock that it
//! corrects has no error of rate against the truth, the TSC has one.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;
use timevisor_lab::command::{self, Tethered, tethered};
use timevisor_lab::{interrupt, scratch};

/// How long it may take to synchronize.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running chronyd.
#[derive(Debug)]
pub(super) struct Beside {
    // Dropped in this order: process, files.
    _process: Tethered,
    dir: TempDir,
}

impl Beside {
    /// Starts one that asks `server` once a second, as the lab's timevisord does, and waits until
    /// it is synchronized.
    pub(super) fn following(server: IpAddr, log: &Path) -> anyhow::Result<Self> {
        let dir = scratch::directory()?;
        // chronyd opens no socket in a directory that others may enter.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700))?;
        // A copy, because a distribution's AppArmor profile for /usr/sbin/chronyd forbids our
        // directory.
        let program = dir.path().join("chronyd");
        fs::copy("/usr/sbin/chronyd", &program)
            .context("cannot copy /usr/sbin/chronyd; install the package chrony")?;
        let (config, path) = (dir.path().join("chrony.conf"), dir.path().display());
        let text = format!(
            "server {server} iburst minpoll 0 maxpoll 0\nport 0\ncmdport 0\nbindcmdaddress {path}/socket\npidfile {path}/pid\n"
        );
        fs::write(&config, text)?;
        let mut command = tethered(&program);
        command.args(["-x", "-d", "-u", "root", "-f"]).arg(&config);
        let process = Tethered::spawn(&mut command, "chronyd", log)?;
        let beside = Self { _process: process, dir };
        interrupt::poll_until(PATIENCE, || Ok(beside.error_us().ok()))?
            .with_context(|| format!("chronyd does not synchronize: {}", log.display()))?;
        Ok(beside)
    }

    /// Its clock minus the truth.
    pub(super) fn error_us(&self) -> anyhow::Result<f64> {
        let socket = self.dir.path().join("socket").display().to_string();
        let said = command::run("chronyc", &["-h", &socket, "-c", "-n", "tracking"])?;
        correction_us(said.trim()).with_context(|| format!("chronyc says {said:?}"))
    }
}

/// `None` if it is not synchronized.
fn correction_us(tracking: &str) -> Option<f64> {
    let fields: Vec<&str> = tracking.split(',').collect();
    // chrony's client.c, command tracking: field 2 is the stratum, field 4 the system time's offset
    // in s, negative if it is fast: what chronyd adds to CLOCK_REALTIME.
    let stratum: u8 = fields.get(2)?.parse().ok()?;
    let seconds: f64 = fields.get(4)?.parse().ok()?;
    (stratum > 0).then_some(seconds * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_correction_of_a_tracking_line() {
        // chronyc without -c called this "0.000002290 seconds fast of NTP time".
        let line = "0AD60902,10.214.9.2,2,1796028972.181636489,-0.000002287,0.000000165,0.000000488,-0.132,0.009,0.186,\
                    0.000009825,0.000001879,1.0,Normal";
        assert!((correction_us(line).unwrap() + 2.287).abs() < 1e-9);
        assert_eq!(correction_us(&line.replace(",2,1796", ",0,1796")), None);
        assert_eq!(correction_us("506 Cannot talk to daemon"), None);
    }
}
