//! References other than NTP servers, with the real programs: chronyd's command socket, ptp4l's
//! management socket, and a guest that reads its host's page and keeps its own CLOCK_REALTIME.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use timevisor_linux::clock::bracket;
use timevisor_time::Duration as Span;

use crate::command::{Tethered, tethered};
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::netns::Namespace;
use crate::ntp_impostor::Impostor;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::reference_row;

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

#[derive(Debug, Default)]
struct Watched {
    readings: u64,
    last_width_ns: i64,
    worst_ns: i64,
}

/// For some seconds after the clock is synchronized, checks that every interval contains
/// CLOCK_REALTIME + `ahead`.
fn watch(host: &Host, ahead: Span, width_ns: i64) -> anyhow::Result<Watched> {
    host.wait_synchronized(width_ns / 1000)?;
    let page = HostPage::open(host.directory())?;
    let mut seen = Watched::default();
    let end = Instant::now() + Duration::from_secs(8);
    while Instant::now() < end {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(2));
        let moment = bracket(page.counter(), 3);
        let (before, after) = (page.convert(moment.before)?, page.convert(moment.after)?);
        ensure!(before.has_estimate(), "the clock was lost: {before:?}");
        let offset = i64::from(before.tai_offset().unwrap_or(0)) * 1_000_000_000;
        let truth = (moment.realtime + ahead).floor_nanos() + offset;
        let (earliest, latest) = (before.earliest.floor_nanos(), after.latest.ceil_nanos());
        ensure!(
            earliest <= truth && truth <= latest + 1,
            "truth {truth} is not in {earliest}..{latest}: {} ns outside; {before:?}",
            (earliest - truth).max(truth - latest)
        );
        seen.readings += 1;
        seen.last_width_ns = latest - earliest;
        seen.worst_ns = seen.worst_ns.max((before.estimate.floor_nanos() - truth).abs());
    }
    ensure!(seen.readings > 100, "too few readings: {seen:?}");
    Ok(seen)
}

/// One real ptp4l in a namespace is the master and another the slave, both with software timestamps
/// and `free_running`: they measure and never touch the clock. Both read this machine's
/// CLOCK_REALTIME, so the truth is at hand.
pub(crate) fn ptp(ctx: &Context) -> anyhow::Result<String> {
    let namespace = Namespace::create()?;
    let inner = interface_of(&namespace)?;
    let outer = inner.strip_suffix('n').context("an odd interface name")?.to_owned();
    let dir = scratch::directory()?;
    let master_config =
        ptp_config(dir.path(), "master", "clockClass 6\nclockAccuracy 0x23\nmasterOnly 1\n")?;
    let mut command = namespace.command("/usr/sbin/ptp4l");
    command.args(["-i", &inner, "-m", "-f"]).arg(&master_config);
    let mut master = Tethered::spawn(&mut command, "ptp4l", &ctx.path("master.ptp4l.log"))?;
    let slave_config = ptp_config(dir.path(), "slave", "slaveOnly 1\n")?;
    let mut command = tethered("/usr/sbin/ptp4l");
    command.args(["-i", &outer, "-m", "-f"]).arg(&slave_config);
    let _slave = Tethered::spawn(&mut command, "ptp4l", &ctx.path("slave.ptp4l.log"))?;
    let socket = dir.path().join("slave.sock");
    interrupt::poll_until(Duration::from_secs(10), || Ok(socket.exists().then_some(())))?
        .context("ptp4l made no socket")?;
    let reference = format!(
        "[[reference]]\ntype = \"ptp\"\ndevice = \"realtime\"\nsocket = \"{}\"\npoll = \"200ms\"\n",
        socket.display()
    );
    // The master's timestamps are UTC on an arbitrary timescale, which is refused until the
    // operator declares it.
    let mut host = Host::new(ctx)?;
    host.start(&reference)?;
    let name = "ptp realtime";
    host.wait_until("an arbitrary timescale is refused", |h| {
        Ok(reference_row(h, name)?["status"] == "arbitrary_timescale")
    })?;
    mentions(&host.cli(&["status"])?, &["timescale = \"utc\""])?;
    host.terminate()?;
    host.start(&format!("{reference}timescale = \"utc\"\n"))?;
    let seen = watch(&host, Span::ZERO, 20_000_000)?;
    let detail = reference_row(&host, name)?["detail"].as_str().unwrap_or_default().to_owned();
    mentions(&detail, &["CLOCK_REALTIME", "UNCALIBRATED", "path delay"])?;
    // Without its master, the slave says so within a few announce intervals, and so does the
    // reference.
    master.kill();
    host.wait_until("the master's end is noticed", |h| {
        Ok(["not_following", "no_grandmaster", "stale"]
            .contains(&reference_row(h, name)?["status"].as_str().unwrap_or_default()))
    })?;
    Ok(format!(
        "truth inside {} times, half-width {} us, worst error {} us; {detail}",
        seen.readings,
        seen.last_width_ns / 2000,
        seen.worst_ns / 1000
    ))
}

fn ptp_config(dir: &Path, name: &str, lines: &str) -> anyhow::Result<PathBuf> {
    let path = dir.join(format!("{name}.conf"));
    let socket = dir.join(format!("{name}.sock"));
    let text = format!(
        "[global]\nnetwork_transport L2\ntime_stamping software\nfree_running 1\nuds_address {}\n\
         logAnnounceInterval -1\nlogSyncInterval -3\nlogMinDelayReqInterval -3\n{lines}",
        socket.display()
    );
    fs::write(&path, text)?;
    Ok(path)
}

/// The inner interface of the pair: tvlabNn for 10.213.N.0/24.
fn interface_of(namespace: &Namespace) -> anyhow::Result<String> {
    Ok(format!("tvlab{}n", namespace.address().octets()[2]))
}
