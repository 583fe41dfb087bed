//! ntpd-rs as an NTP server with NTS, in a network namespace: an implementation other than chronyd.
//!
//! It is Debian trixie's package with that suite's C library, unpacked and not installed. It has no
//! sources, so it serves the system clock without setting it; CAP_SYS_TIME is dropped to make sure
//! that it cannot. The keys of its cookies are only in memory: after a restart it cannot decrypt
//! older cookies.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::authority::ServerFiles;
use crate::command::Tethered;
use crate::interrupt;
use crate::netns::Namespace;
use crate::scratch;

/// A running server; dropping it stops it and removes its namespace.
#[derive(Debug)]
pub struct NtpdRs {
    // Dropped in this order: process, files, namespace.
    process: Tethered,
    _dir: TempDir,
    namespace: Namespace,
}

impl NtpdRs {
    /// Starts one from the unpacked packages in `root` and waits until it serves keys.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(
        root: &Path,
        namespace: Namespace,
        files: &ServerFiles,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let dir = scratch::directory()?;
        let config = dir.path().join("ntp.toml");
        fs::write(&config, configuration(namespace.address().into(), files))?;
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let mut command = namespace.command("setpriv");
        command
            .args(["--bounding-set=-sys_time", "--inh-caps=-sys_time", "--"])
            .arg(libraries.join("ld-linux-x86-64.so.2"))
            .arg("--library-path")
            .arg(&libraries)
            .arg(root.join("usr/bin/ntp-daemon"))
            .arg("-c")
            .arg(&config);
        let process = Tethered::spawn(&mut command, "ntp-daemon", log)?;
        let mut server = Self { process, _dir: dir, namespace };
        let keys = SocketAddr::from((server.namespace.address(), 4460));
        interrupt::poll_until(Duration::from_secs(10), || {
            server.process.check_alive()?;
            Ok(TcpStream::connect(keys).ok())
        })?
        .with_context(|| format!("ntp-daemon does not listen: {}", log.display()))?;
        Ok(server)
    }

    /// Stops it and returns its namespace.
    pub fn stop(self) -> Namespace {
        let Self { mut process, namespace, .. } = self;
        process.kill();
        namespace
    }
}

fn configuration(address: IpAddr, files: &ServerFiles) -> String {
    format!(
        "[[server]]\nlisten = \"{address}:123\"\n\
         [[nts-ke-server]]\nlisten = \"{address}:4460\"\n\
         certificate-chain-path = \"{}\"\nprivate-key-path = \"{}\"\n\
         [synchronization]\nlocal-stratum = 1\n",
        files.certificate.display(),
        files.key.display()
    )
}
