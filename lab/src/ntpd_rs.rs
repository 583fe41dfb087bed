//! ntpd-rs as an NTP server and as a client with NTS, in a network namespace: an implementation
//! beside chronyd.
//!
//! It is Debian trixie's package with that suite's C library, unpacked and not installed. It has no
//! sources, so it serves the system clock without setting it; CAP_SYS_TIME is dropped to make sure
//! that it cannot. The keys of its cookies are only in memory: after a restart it cannot decrypt
//! older cookies. As a client it insists on a clock that it can steer, and gets one that only seems
//! to obey (lab/kernel-clock/read_only.c).

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::authority::ServerFiles;
use crate::command::{self, Tethered};
use crate::interrupt;
use crate::netns::Namespace;
use crate::programs;
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
        let mut command = program(root, &namespace, None, &config);
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

/// A client, which serves what it has learned at a port of its own; dropping it stops it.
#[derive(Debug)]
pub struct NtpdRsClient {
    // Dropped in this order: process, files.
    process: Tethered,
    _dir: TempDir,
    address: SocketAddr,
}

impl NtpdRsClient {
    /// Starts one that asks `server` every second, with keys from its port 4460, and trusts the
    /// authority in `ca_file`. Its own server is at `port` in the namespace.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(
        root: &Path,
        namespace: &Namespace,
        port: u16,
        server: IpAddr,
        ca_file: &Path,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let dir = scratch::directory()?;
        let config = dir.path().join("ntp.toml");
        let address = SocketAddr::from((namespace.address(), port));
        fs::write(
            &config,
            format!(
                "[[source]]\nmode = \"nts\"\naddress = \"{server}:4460\"\n\
                 certificate-authority = \"{}\"\n\
                 [source-defaults]\npoll-interval-limits = {{ min = 0, max = 0 }}\ninitial-poll-interval = 0\n\
                 [synchronization]\nminimum-agreeing-sources = 1\n\
                 [[server]]\nlisten = \"{address}\"\n",
                ca_file.display()
            ),
        )?;
        let library = dir.path().join("read_only.so");
        let source = programs::workspace()?.join("lab/kernel-clock/read_only.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
        command::output(compiler.arg(&library).arg(source))?;
        let mut command = program(root, namespace, Some(&library), &config);
        let process = Tethered::spawn(&mut command, "ntp-daemon", log)?;
        Ok(Self { process, _dir: dir, address })
    }

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Fails if it has ended.
    ///
    /// # Errors
    /// With the end of its log.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        self.process.check_alive()
    }
}

/// ntp-daemon in a namespace, with its own libraries, perhaps one in front of them, and without the
/// right to set the clock.
fn program(root: &Path, namespace: &Namespace, preload: Option<&Path>, config: &Path) -> Command {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let mut command = namespace.command("setpriv");
    command
        .args(["--bounding-set=-sys_time", "--inh-caps=-sys_time", "--"])
        .arg(libraries.join("ld-linux-x86-64.so.2"))
        .arg("--library-path")
        .arg(&libraries);
    if let Some(library) = preload {
        command.arg("--preload").arg(library);
    }
    command.arg(root.join("usr/bin/ntp-daemon")).arg("-c").arg(config);
    command
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
