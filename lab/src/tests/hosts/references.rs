//! A real chronyd as a reference, over its command sockets.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use timevisor_time::Duration as Span;

use crate::command::{Tethered, tethered};
use crate::host::{Host, mentions};
use crate::ntp_impostor::Impostor;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::reference_row;
use crate::tests::hosts::watch::watch;

/// A chronyd that follows `server`, does not touch the clock (`-x`), and answers on a Unix and a
/// UDP socket.
struct Follower {
    process: Tethered,
    dir: TempDir,
    port: u16,
}

impl Follower {
    fn start(ctx: &Context, server: &str) -> anyhow::Result<Self> {
        let dir = scratch::directory()?;
        let program = dir.path().join("chronyd");
        fs::copy("/usr/sbin/chronyd", &program).context("install the package chrony")?;
        // chronyd requires that nobody else has access to its socket's directory.
        fs::create_dir(dir.path().join("run"))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o770);
        fs::set_permissions(dir.path().join("run"), mode)?;
        let (address, server_port) = server.rsplit_once(':').context("no port")?;
        let port = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
        let text = format!(
            "server {address} port {server_port} minpoll 0 maxpoll 0 iburst\nport 0\ncmdport {port}\n\
             bindcmdaddress 127.0.0.1\nbindcmdaddress {0}/run/chronyd.sock\npidfile {0}/pid\n",
            dir.path().display()
        );
        let config = dir.path().join("chrony.conf");
        fs::write(&config, text)?;
        let mut command = tethered(&program);
        command.args(["-x", "-d", "-u", "root", "-f"]).arg(&config);
        let process = Tethered::spawn(&mut command, "chronyd", &ctx.path("follower.chronyd.log"))?;
        Ok(Self { process, dir, port })
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("run/chronyd.sock")
    }

    fn reference(address: &str) -> String {
        format!("[[reference]]\ntype = \"chrony\"\naddress = \"{address}\"\npoll = \"200ms\"\n")
    }
}

/// chronyd follows a server that is 300 ms ahead. With -x it cannot slew the clock, so its
/// correction is those 300 ms: if we applied it with the wrong sign or not at all, the truth would
/// be far outside.
pub(crate) fn chrony(ctx: &Context) -> anyhow::Result<String> {
    let ahead = Span::from_millis(300);
    let server = Impostor::ahead(ahead)?;
    let mut follower = Follower::start(ctx, &server.address())?;
    let mut host = Host::new(ctx)?;
    host.start(&Follower::reference(&follower.socket().display().to_string()))?;
    let unix = watch(&host, ahead, 2_000_000)?;
    let row = reference_row(&host, "chrony")?;
    ensure!(row["stratum"] == 2 && row["status"] == "selected", "{row}");
    // The same over UDP, which any user may query.
    host.terminate()?;
    host.start(&Follower::reference(&format!("127.0.0.1:{}", follower.port)))?;
    let udp = watch(&host, ahead, 2_000_000)?;
    // When chronyd ends, the status names it, and the clock runs on alone.
    follower.process.kill();
    host.wait_until("chronyd's end is noticed", |h| {
        Ok(reference_row(h, "chrony")?["status"] == "unreachable")
    })?;
    let left = fs::read_dir(follower.dir.path().join("run"))?
        .filter_map(Result::ok)
        .filter(|e| e.file_name().to_string_lossy().starts_with("timevisord"))
        .count();
    ensure!(left == 0, "the daemon left a socket behind");
    // A chronyd that is not synchronized is refused, with the reason.
    drop(server);
    let lost = Follower::start(ctx, "127.0.0.1:9")?;
    host.terminate()?;
    host.start(&Follower::reference(&format!("127.0.0.1:{}", lost.port)))?;
    host.wait_until("unsynchronized", |h| {
        Ok(reference_row(h, "chrony")?["status"] == "unsynchronized")
    })?;
    mentions(&host.cli(&["status"])?, &["chronyc sources"])?;
    Ok(format!(
        "truth inside {} times over the Unix socket (half-width {} us), {} over UDP; correction 300 ms ahead",
        unix.readings,
        unix.last_width_ns / 2000,
        udp.readings
    ))
}
