//! timevisord as an NTP server, with real chronyds as its clients and as its own server: both modes
//! and the rate limit.
//!
//! Every clock here ultimately follows this machine's CLOCK_REALTIME, so each can be compared with
//! it.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use timevisor_linux::clock::realtime;
use timevisor_protocols::ntp::{KissCode, LeapIndicator, NtpTimestamp, Packet};
use timevisor_time::Duration as Span;

use crate::chronyd::Chronyd;
use crate::command;
use crate::host::{Host, ntp_reference};
use crate::interrupt;
use crate::netns::Namespace;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::honest_reading;

const PORT: u16 = 123;
const PATIENCE: Duration = Duration::from_secs(40);

/// chronyd <- timevisord <- chronyd: everything that a client is told is compared with the page and
/// the truth.
pub(crate) fn served(ctx: &Context) -> anyhow::Result<String> {
    let upstream = ctx.chronyd("upstream")?;
    let network = Namespace::create()?;
    let address = SocketAddr::from((network.host(), PORT));
    let mut host = Host::new(ctx)?;
    host.start(&format!(
        "{}[server]\nlisten = [\"{address}\"]\nrate_interval = \"20ms\"\n",
        ntp_reference(&upstream.address().ip().to_string())
    ))?;
    host.wait_synchronized(5_000)?;
    let ours = true_answers(&host, address)?;
    let one_shot = one_shot(&network, address, &ours)?;

    // A chronyd that follows us serves time only once it is synchronized; start_in waits for that.
    let logs = ctx.path("client");
    fs::create_dir_all(&logs)?;
    let lines = format!(
        "server {} port {PORT} iburst minpoll 0 maxpoll 0 xleave\nlogdir {}\nlog measurements\n",
        address.ip(),
        logs.display()
    );
    let client = Chronyd::start_in(network, PORT, "client", ctx.log_dir(), &lines)?;
    let theirs = ask(client.address())?.0;
    ensure!(theirs.stratum == ours.stratum + 1, "the client's stratum: {theirs:?}");
    ensure!(theirs.reference_id == octets(address), "the client does not follow us: {theirs:?}");
    // The client's last exchange with us is at most one poll interval (1 s) old, so its claim must
    // cover the least that we claimed since.
    let page = HostPage::open(host.directory())?;
    let mut least = page.read()?.half_width();
    for _ in 0..60 {
        std::thread::sleep(Duration::from_millis(25));
        least = least.min(page.read()?.half_width());
    }
    let (theirs, _) = ask(client.address())?;
    ensure!(distance(&theirs) >= least, "the client claims {}, we {least}", distance(&theirs));
    let measurements = logs.join("measurements.log");
    let interleaved = interrupt::poll_until(PATIENCE, || {
        let text = fs::read_to_string(&measurements).unwrap_or_default();
        let count = text.lines().filter(|line| line.contains(" 4I ")).count();
        Ok((count >= 5).then_some(count))
    })?
    .with_context(|| format!("no interleaved measurements in {}", measurements.display()))?;
    let requests = &host.json(&["status"])?["server"]["requests"];
    ensure!(requests["interleaved"].as_u64() >= Some(5), "{requests}");
    ensure!(requests["malformed"] == 0 && requests["denied"] == 0, "{requests}");
    let true_now = truth_of(client.address())?;
    Ok(format!(
        "root distance {} over a half-width of {least}; chronyd -Q sees {one_shot}; a chronyd follows with {}, \
         {true_now} off; {interleaved} interleaved answers",
        distance(&ours),
        distance(&theirs)
    ))
}

/// timevisord as an interleaved client of a real chronyd: the bounds contain the truth.
pub(crate) fn interleaved_client(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::new(ctx)?;
    let reference = ntp_reference(&server.address().ip().to_string());
    host.start(&format!("{reference}interleaved = true\n"))?;
    host.wait_until("interleaved answers", |host| {
        let row = &host.json(&["status"])?["references"][0];
        Ok(row["accepted"].as_u64() > Some(6)
            && row["detail"].as_str().is_some_and(|detail| detail.contains("interleaved")))
    })?;
    let status = host.json(&["status"])?;
    let row = &status["references"][0];
    ensure!(row["rejected"].as_object().is_some_and(serde_json::Map::is_empty), "{row}");
    ensure!(status["clock"]["contradictions"] == 0, "{status}");
    let page = HostPage::open(host.directory())?;
    for _ in 0..2000 {
        std::thread::sleep(Duration::from_millis(1));
        honest_reading(&page)?;
    }
    Ok(format!(
        "{} answers, half-width {} ns, truth inside every time",
        row["accepted"], status["clock"]["half_width_ns"]
    ))
}

/// A chronyd that asks too often is told so and slows down. A client that does not slow down is
/// ignored, and other clients are served.
pub(crate) fn limited(ctx: &Context) -> anyhow::Result<String> {
    let network = Namespace::create()?;
    let address = SocketAddr::from((network.host(), PORT));
    let mut host = Host::new(ctx)?;
    host.start(&format!(
        "[[reference]]\ntype = \"system\"\nassumed_max_error = \"10ms\"\n\
         [server]\nlisten = [\"{address}\"]\nrate_interval = \"4s\"\nrate_burst = 6\n"
    ))?;
    host.wait_synchronized(100_000)?;
    let socket = socket_to(address)?;
    let mut seen = [0; 3];
    for _ in 0..30 {
        match exchange(&socket)? {
            Some((packet, _)) if packet.stratum > 0 => seen[0] += 1,
            Some((packet, _)) => {
                let code = KissCode::from_reference_id(packet.reference_id);
                ensure!(code == KissCode::Rate, "{packet:?}");
                seen[1] += 1;
            }
            None => seen[2] += 1,
        }
    }
    let [answers, kisses, silent] = seen;
    ensure!((6..12).contains(&answers) && kisses == 1, "{seen:?}");

    // The chronyd has another address, which is not limited yet.
    let lines = format!("server {} port {PORT} iburst minpoll 0 maxpoll 0\n", address.ip());
    let client = Chronyd::start_in(network, PORT, "client", ctx.log_dir(), &lines)?;
    let log = ctx.path("client.chronyd.log");
    interrupt::poll_until(PATIENCE, || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        Ok(text.contains("KoD RATE").then_some(()))
    })?
    .with_context(|| format!("chronyd saw no RATE kiss: {}", log.display()))?;
    let packet = ask(client.address())?.0;
    ensure!(packet.leap != LeapIndicator::Unsynchronized, "it lost its source: {packet:?}");
    Ok(format!(
        "{answers} of 30 at once answered, {kisses} kiss, {silent} ignored; chronyd obeys the kiss"
    ))
}

fn octets(address: SocketAddr) -> [u8; 4] {
    match address {
        SocketAddr::V4(address) => address.ip().octets(),
        SocketAddr::V6(_) => [0; 4],
    }
}

fn distance(packet: &Packet) -> Span {
    packet.root_delay.to_duration().half() + packet.root_dispersion.to_duration()
}

pub(crate) fn socket_to(server: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    socket.connect(server)?;
    Ok(socket)
}

/// An answer, and the true time when it was requested.
pub(crate) type Answer = (Packet, timevisor_time::Instant<timevisor_time::Utc>);

fn exchange(socket: &UdpSocket) -> anyhow::Result<Option<Answer>> {
    let asked = realtime();
    let cookie = NtpTimestamp::from_bits(asked.to_words().1 | 1);
    socket.send(&Packet::request(cookie, 0).to_bytes())?;
    let mut buffer = [0; 256];
    let Ok(len) = socket.recv(&mut buffer) else { return Ok(None) };
    let (packet, _) = Packet::parse(&buffer[..len])?;
    ensure!(packet.origin == cookie, "an answer to something else: {packet:?}");
    Ok(Some((packet, asked)))
}

pub(crate) fn ask(server: SocketAddr) -> anyhow::Result<Answer> {
    let socket = socket_to(server)?;
    let answered = interrupt::poll_until(PATIENCE, || exchange(&socket))?;
    answered.with_context(|| format!("{server} does not answer"))
}

/// Queries the server many times: the root distance covers the page's half-width, and the
/// timestamps are true within it. Returns one answer.
fn true_answers(host: &Host, server: SocketAddr) -> anyhow::Result<Packet> {
    let page = HostPage::open(host.directory())?;
    let mut last = None;
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(25));
        let before = page.read()?;
        let (packet, asked) = ask(server)?;
        let here = realtime();
        let after = page.read()?;
        let (arrival, departure) =
            (packet.receive.to_instant(here), packet.transmit.to_instant(here));
        let e = distance(&packet);
        // If the page was written in between, the narrower of the two is still the least that the
        // server may claim.
        let least = before.half_width().min(after.half_width());
        ensure!(e >= least, "root distance {e}, half-width {least}: {packet:?}");
        ensure!(asked <= arrival + e && departure - e <= here, "{packet:?}: {asked:?} to {here:?}");
        ensure!(asked - e <= arrival && departure <= here + e, "{packet:?}: {asked:?} to {here:?}");
        last = Some(packet);
    }
    let packet = last.context("no answer")?;
    ensure!(packet.stratum == 2 && packet.leap == LeapIndicator::NoWarning, "{packet:?}");
    Ok(packet)
}

/// How far a server's clock is from the truth; the difference must be within what the server
/// claims.
fn truth_of(server: SocketAddr) -> anyhow::Result<Span> {
    let (packet, asked) = ask(server)?;
    let here = realtime();
    let middle = asked + (here - asked).half();
    let off = (packet.transmit.to_instant(here) - middle).abs();
    let claimed = distance(&packet) + (here - asked).half();
    ensure!(off <= claimed, "{server} is {off} off, but claims {claimed}");
    Ok(off)
}

/// `chronyd -Q` reads the time once and exits. Returns the offset that it found.
fn one_shot(network: &Namespace, server: SocketAddr, ours: &Packet) -> anyhow::Result<Span> {
    let line = format!("server {} port {} iburst maxsamples 4", server.ip(), server.port());
    let mut chronyd = network.command("chronyd");
    chronyd.args(["-Q", "-t", "20", "-u", "root", &line, "cmdport 0", "bindcmdaddress /"]);
    let out = chronyd.output().context("cannot run chronyd")?;
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    let (_, rest) = text
        .split_once("System clock wrong by ")
        .with_context(|| format!("chronyd -Q found no time:\n{}", command::tail(&text, 8)))?;
    let seconds: f64 = rest.split_whitespace().next().context("no number")?.parse()?;
    let off = Span::from_secs_f64(seconds);
    // Allows a millisecond for its own exchanges on a busy machine.
    ensure!(off.abs() <= distance(ours) + Span::from_millis(1), "chronyd -Q: {off} off");
    Ok(off)
}
