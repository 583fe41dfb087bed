//! A real chronyd that follows a server and never touches the system clock (`-x`): it keeps its correction to
//! itself, and serves the corrected time to whoever asks.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use timevisor_linux::clock::realtime;
use timevisor_protocols::ntp::{NtpTimestamp, Packet};
use timevisor_time::{Duration as Span, Instant, Utc};

use crate::chronyd::bound_ns;
use crate::command::{self, Tethered};
use crate::interrupt;
use crate::scenario::Context;
use crate::scratch;

/// A running client; dropping it ends it.
#[derive(Debug)]
pub(crate) struct ChronyClient {
    process: Tethered,
    port: u16,
    socket: PathBuf,
    _directory: TempDir,
}

/// What it serves at a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served {
    /// Its time minus CLOCK_REALTIME, in the middle of the fastest of several exchanges.
    pub(crate) ahead: Span,
    /// Half the round trip of that exchange: how wrong `ahead` can be.
    pub(crate) uncertainty: Span,
    /// CLOCK_REALTIME then.
    pub(crate) at: Instant<Utc>,
}

impl ChronyClient {
    /// Starts it with a `server` line without that word; its log is named after `name`, and it serves at
    /// `port` of the loopback interface.
    pub(crate) fn start(
        ctx: &Context,
        name: &str,
        server: &str,
        port: u16,
    ) -> anyhow::Result<Self> {
        let directory = scratch::directory()?;
        // A copy, because a distribution's AppArmor profile for /usr/sbin/chronyd forbids our directory.
        let program = directory.path().join("chronyd");
        fs::copy("/usr/sbin/chronyd", &program).context("install the package chrony")?;
        // chronyd puts its socket only where nobody else comes.
        let private = directory.path().join("chrony");
        fs::DirBuilder::new().mode(0o700).create(&private)?;
        let socket = private.join("command");
        let mut chronyd = command::tethered(&program);
        chronyd.args(["-x", "-d", "-u", "root", "cmdport 0", "allow 127.0.0.1"]);
        chronyd.arg("bindaddress 127.0.0.1").arg(format!("port {port}"));
        chronyd.arg(format!("server {server}"));
        chronyd.arg(format!("bindcmdaddress {}", socket.display()));
        chronyd.arg(format!("pidfile {}", directory.path().join("pid").display()));
        let log = ctx.path(&format!("{name}.chronyd.log"));
        let process = Tethered::spawn(&mut chronyd, "chronyd", &log)?;
        Ok(Self { process, port, socket, _directory: directory })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Runs chronyc against it.
    pub(crate) fn chronyc(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let socket = self.socket.to_str().context("a path of UTF-8")?;
        command::run("chronyc", &[&["-h", socket], arguments].concat())
    }

    /// Waits until it says that it is synchronized.
    pub(crate) fn wait(&mut self, patience: Duration) -> anyhow::Result<()> {
        let synchronized = interrupt::poll_until(patience, || {
            self.process.check_alive()?;
            // Ten looks, 100 ms apart; any correction and any skew will do. Its socket may not be there yet.
            Ok(self.chronyc(&["waitsync", "10", "0", "0", "0.1"]).ok())
        })?;
        synchronized
            .map(drop)
            .with_context(|| format!("chronyd is not synchronized after {patience:?}"))
    }

    /// The bound that it claims for its time, ns.
    pub(crate) fn claim(&self) -> anyhow::Result<i64> {
        let tracking = self.chronyc(&["-c", "tracking"])?;
        bound_ns(&tracking).with_context(|| format!("chronyc's tracking: {tracking}"))
    }

    /// How many questions it has sent.
    pub(crate) fn questions(&self) -> anyhow::Result<u64> {
        let told = self.chronyc(&["ntpdata"])?;
        let sent = told.lines().find_map(|line| line.strip_prefix("Total TX")?.split(':').nth(1));
        let sent = sent.and_then(|text| text.trim().parse().ok());
        sent.with_context(|| format!("no `Total TX` in chronyc's ntpdata: {told}"))
    }

    /// Asks it for the time, twenty times.
    pub(crate) fn served(&self) -> anyhow::Result<Served> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect((Ipv4Addr::LOCALHOST, self.port))?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut best: Option<Served> = None;
        for _ in 0..20 {
            let sent = realtime();
            socket.send(&Packet::request(NtpTimestamp::from_instant(sent), 0).to_bytes())?;
            let mut buffer = [0; 512];
            let len = socket.recv(&mut buffer).context("chronyd does not answer")?;
            let received = realtime();
            let Ok((answer, _)) = Packet::parse(&buffer[..len]) else { bail!("no packet of NTP") };
            let [arrived, left] = [answer.receive, answer.transmit].map(|t| t.to_instant(sent));
            let ahead = ((arrived - sent) + (left - received)).half();
            let uncertainty = (received - sent).half();
            if best.is_none_or(|best| uncertainty < best.uncertainty) {
                best = Some(Served { ahead, uncertainty, at: sent + uncertainty });
            }
        }
        best.context("no answer")
    }
}
