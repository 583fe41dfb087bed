//! A real chronyd as an NTP server in its own network namespace, with its own copy of the clock.
//!
//! It never touches the system clock (`-x`), opens no command socket, and reads no system
//! configuration.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::command::Tethered;
use crate::interrupt::{self, Late};
use crate::netns::Namespace;
use crate::scratch;

/// A running server; dropping it stops it and removes its namespace.
#[derive(Debug)]
pub struct Chronyd {
    // Dropped in this order: process, files, namespace.
    process: Tethered,
    _dir: TempDir,
    namespace: Namespace,
    port: u16,
}

impl Chronyd {
    /// Starts a stratum 1 server and waits until it answers; its log in `log_dir` is named after
    /// `name`.
    ///
    /// # Errors
    /// When not root, or when chronyd is missing or does not answer.
    pub fn start(name: &str, log_dir: &Path) -> anyhow::Result<Self> {
        Self::start_with(name, log_dir, "local stratum 1\n")
    }

    /// Like [`Chronyd::start`], with configuration lines that set what it serves.
    ///
    /// # Errors
    /// As [`Chronyd::start`].
    pub fn start_with(name: &str, log_dir: &Path, lines: &str) -> anyhow::Result<Self> {
        Self::start_in(Namespace::create()?, 123, name, log_dir, lines)
    }

    /// Like [`Chronyd::start_with`], but in an existing namespace and on another port.
    ///
    /// # Errors
    /// As [`Chronyd::start`].
    pub fn start_in(
        namespace: Namespace,
        port: u16,
        name: &str,
        log_dir: &Path,
        lines: &str,
    ) -> anyhow::Result<Self> {
        let dir = scratch::directory()?;
        // A copy, because a distribution's AppArmor profile for /usr/sbin/chronyd forbids our
        // directory.
        let program = dir.path().join("chronyd");
        fs::copy("/usr/sbin/chronyd", &program)
            .context("cannot copy /usr/sbin/chronyd; install the package chrony")?;
        let config = dir.path().join("chrony.conf");
        let text = format!(
            // A test may give its namespace more addresses.
            "{lines}allow\nport {port}\nbindaddress 0.0.0.0\ncmdport 0\nbindcmdaddress /\npidfile {}\n",
            dir.path().join("pid").display(),
        );
        fs::write(&config, text)?;
        let mut command = namespace.command(&program);
        // It needs no separate user: it neither sets the clock nor outlives the test.
        command.args(["-x", "-d", "-u", "root", "-f"]).arg(&config);
        fs::create_dir_all(log_dir)?;
        let log = log_dir.join(format!("{name}.chronyd.log"));
        let process = Tethered::spawn(&mut command, "chronyd", &log)?;
        let mut server = Self { process, _dir: dir, namespace, port };
        server.wait_answer().with_context(|| format!("chronyd's log: {}", log.display()))?;
        Ok(server)
    }

    /// The address at which it serves.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((self.namespace.address(), self.port))
    }

    /// The namespace it runs in.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Stops it and returns its namespace, so that another server can use the same address.
    pub fn stop(self) -> Namespace {
        let Self { mut process, namespace, .. } = self;
        process.kill();
        namespace
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn wait_answer(&mut self) -> anyhow::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        // A connected socket reports an error if nothing listens there, instead of staying silent.
        socket.connect(self.address())?;
        let answered = interrupt::poll_until(Duration::from_secs(10), || {
            self.process.check_alive()?;
            let mut request = [0_u8; 48];
            request[0] = 4 << 3 | 3; // version 4, client
            let mut answer = [0_u8; 128];
            let sent = socket.send(&request);
            match sent.and_then(|_| socket.recv(&mut answer)) {
                // Server mode, a usable stratum, and a leap indicator other than "unsynchronized".
                Ok(n) if n >= 48 && answer[0] & 7 == 4 && answer[0] >> 6 != 3 && answer[1] != 0 => {
                    Ok(Some(()))
                }
                _ => Ok(None),
            }
        })?;
        if answered.is_none() {
            return Err(anyhow::Error::new(Late)
                .context(format!("{} did not answer within 10 s", self.address())));
        }
        Ok(())
    }
}

/// The bound on the error of CLOCK_REALTIME, ns, as documented in chronyc(1) under `tracking`:
/// |system time offset| + root dispersion + root delay / 2.
#[must_use]
pub fn bound_ns(tracking: &str) -> Option<i64> {
    let fields: Vec<&str> = tracking.split(',').collect();
    let seconds = |index: usize| fields.get(index)?.parse::<f64>().ok();
    // chrony's client.c, command tracking: field 4 is the system time's offset, 10 the root delay,
    // 11 the root dispersion.
    let bound = seconds(4)?.abs() + seconds(11)? + seconds(10)? / 2.0;
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and is rounded up")]
    (fields.len() >= 14).then_some((bound * 1e9).ceil() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_bound_of_a_tracking_line() {
        let line = "0AD50102,10.213.1.2,2,1700000000.123,-0.000002000,0.000001,0.000003,5.1,0.0,0.1,0.000100000,\
                    0.000030000,1.0,Normal";
        assert_eq!(bound_ns(line), Some(82_000));
        assert_eq!(bound_ns("0AD50102,10.213.1.2,2"), None);
        assert_eq!(bound_ns(&line.replace("0.000030000", "x")), None);
    }
}
