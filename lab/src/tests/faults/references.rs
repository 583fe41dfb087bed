//! Addresses, names and routes of servers that change, and what is said of them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_protocols::ntp::Packet;
use timevisor_time::Duration as Span;

use crate::chronyd::Chronyd;
use crate::command::{self, Tethered};
use crate::host::{Host, mentions, ntp_reference};
use crate::interrupt;
use crate::netns::Namespace;
use crate::ntp_impostor::{Impostor, shifted};
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{
    self, honest_reading, reading_holds, reference, reference_row, refusal,
};

/// A hosts file that only the daemon sees, and no name server.
pub(crate) struct Names {
    hosts: PathBuf,
    resolv: PathBuf,
}

impl Names {
    pub(crate) fn new(ctx: &Context, lines: &str) -> anyhow::Result<Self> {
        let names = Self { hosts: ctx.path("hosts"), resolv: ctx.path("resolv.conf") };
        fs::write(&names.resolv, "nameserver 127.0.0.98\noptions timeout:1 attempts:1\n")?;
        names.are(lines)?;
        Ok(names)
    }

    /// Replaces the content; the file stays the same, for it is mounted.
    pub(crate) fn are(&self, lines: &str) -> anyhow::Result<()> {
        fs::write(&self.hosts, format!("127.0.0.1 localhost\n{lines}")).context("the hosts file")
    }

    pub(crate) fn start(
        &self,
        ctx: &Context,
        host: &Host,
        lines: &str,
    ) -> anyhow::Result<Tethered> {
        let mount = format!(
            "mount --bind {} /etc/hosts && mount --bind {} /etc/resolv.conf && exec \"$@\"",
            self.hosts.display(),
            self.resolv.display()
        );
        common::start_through(ctx, host, &["unshare", "--mount", "sh", "-c", &mount, "sh"], lines)
    }
}

fn honest(answer: Packet) -> Vec<Vec<u8>> {
    vec![answer.to_bytes().to_vec()]
}

fn at(last: u8, port: u16) -> SocketAddr {
    (Ipv4Addr::new(127, 0, 0, last), port).into()
}

/// How many datagrams wait at a socket that nobody reads.
fn waiting(socket: &UdpSocket) -> anyhow::Result<usize> {
    socket.set_nonblocking(true)?;
    let mut buffer = [0; 64];
    Ok(std::iter::from_fn(|| socket.recv_from(&mut buffer).ok()).count())
}

pub(crate) fn moves(ctx: &Context) -> anyhow::Result<String> {
    let dead_first = dead_first_then_moved(ctx).context("a name with several addresses")?;
    one_server_twice(ctx).context("one server under two names")?;
    let rerouted = another_route(ctx).context("a route that moves")?;
    Ok(format!("{dead_first}; two names of one server have one vote; {rerouted}"))
}

fn dead_first_then_moved(ctx: &Context) -> anyhow::Result<String> {
    let host = Host::further(ctx, "moves")?;
    let second = Impostor::at(at(31, 0), honest)?;
    let port = second.port();
    // The first address (RFC 6724, rule 9) takes requests and never answers.
    let dead = UdpSocket::bind(at(1, port))?;
    let names = Names::new(ctx, "127.0.0.31 time.test\n127.0.0.1 time.test\n")?;
    let name = format!("time.test:{port}");
    let lines = format!("[[reference]]\ntype = \"ntp\"\naddress = \"{name}\"\npoll = \"2s\"\n");
    let started = Instant::now();
    let mut daemon = names.start(ctx, &host, &lines)?;
    mentions(
        &host.cli(&["wait-sync", "--within", "50ms", "--timeout", "30s"])?,
        &["synchronized, -"],
    )?;
    let took = started.elapsed();
    let narrow = common::complaint(&host, &["wait-sync", "--within", "1ns", "--timeout", "200ms"])?;
    mentions(&narrow, &["not within 200ms", "synchronized"])?;
    let asked = waiting(&dead)?;
    ensure!(asked == 1, "{asked} requests to the dead address before the next one was tried");
    let page = HostPage::open(host.directory())?;
    let before = honest_reading(&page)?;

    // The server moves: the old address falls silent when the name has the new one.
    let moved = Impostor::at(at(32, port), honest)?;
    drop(second);
    let old = UdpSocket::bind(at(31, port))?;
    names.are("127.0.0.32 time.test\n")?;
    host.wait_until("the new address to be asked", |_| Ok(moved.asked() > 0))?;
    let polls = waiting(&old)?;
    ensure!(polls <= 2, "{polls} requests to the old address");
    let accepted = reference_row(&host, &name)?["accepted"].as_u64();
    host.wait_until("its answers", |h| {
        Ok(reference_row(h, &name)?["accepted"].as_u64() > accepted)
    })?;
    let after = honest_reading(&page)?;
    ensure!(before.disruption == after.disruption, "a server that moves is no disruption");
    daemon.check_alive()?;
    Ok(format!(
        "dead first address: synchronized {:.1} s after the start, after {asked} lost request; moved after {polls}",
        took.as_secs_f64()
    ))
}

/// Two names of one server that lies must not outvote an honest one.
fn one_server_twice(ctx: &Context) -> anyhow::Result<()> {
    let host = Host::further(ctx, "twice")?;
    let (liar, truth) = (Impostor::ahead(Span::from_secs(3))?, Impostor::honest()?);
    let names = Names::new(ctx, "127.0.0.1 a.test\n127.0.0.1 b.test\n127.0.0.1 honest.test\n")?;
    let [a, b] = ["a.test", "b.test"].map(|name| format!("{name}:{}", liar.port()));
    let right = format!("honest.test:{}", truth.port());
    let lines = reference(&a) + &reference(&b) + &reference(&right);
    let mut daemon = names.start(ctx, &host, &lines)?;
    host.wait_until("the second name is noticed", |h| {
        let rows = [reference_row(h, &a)?, reference_row(h, &b)?];
        Ok(rows.iter().any(|row| row["status"] == "duplicate"))
    })?;
    host.wait_until("both are heard", |h| {
        Ok(h.json(&["status"])?["clock"]["status"] == "unreliable")
    })?;
    let page = HostPage::open(host.directory())?;
    for _ in 0..20 {
        ensure!(page.read()?.status().name() == "unreliable", "one of two servers is believed");
        honest_reading(&page)?;
        reading_holds(&page, Span::from_secs(3))?;
        interrupt::sleep(Duration::from_millis(100))?;
    }
    mentions(&host.cli(&["status"])?, &["one server is one witness", "remove one of the two"])?;
    daemon.check_alive()?;
    // Two spellings of one address are seen before the start.
    let refused = refusal(ctx, &host, &(reference("10.0.0.1") + &reference("10.0.0.1:123")))?;
    mentions(&refused, &["10.0.0.1:123 is the same server as 10.0.0.1", "remove one of them"])
}

/// The way to the server leads over another interface from now on, with another source address;
/// answers to the old one are lost.
fn another_route(ctx: &Context) -> anyhow::Result<String> {
    let mut host = Host::further(ctx, "route")?;
    let server = Ipv4Addr::new(10, 214, 0, 1);
    let servers = [ctx.chronyd("first")?, ctx.chronyd("second")?];
    let [first, second] = servers.each_ref().map(Chronyd::namespace);
    for namespace in [first, second] {
        namespace.run("ip", &["address", "add", &format!("{server}/32"), "dev", "lo"])?;
    }
    let route = |namespace: &Namespace| {
        let (to, via) = (server.to_string(), namespace.address().to_string());
        command::run("ip", &["route", "replace", &to, "via", &via])
    };
    route(first)?;
    let name = server.to_string();
    host.start(&reference(&name))?;
    host.wait_synchronized(10_000)?;
    // The old way: the link stays up, and nothing comes through.
    first.run("ip", &["address", "delete", &format!("{server}/32"), "dev", "lo"])?;
    let accepted = |h: &Host| -> anyhow::Result<u64> {
        reference_row(h, &name)?["accepted"].as_u64().context("no count")
    };
    let before = accepted(&host)?;
    route(second)?;
    host.wait_until("answers over the other way", |h| Ok(accepted(h)? > before + 3))?;
    let sent_in_vain = reference_row(&host, &name)?["reach"].to_string();
    honest_reading(&HostPage::open(host.directory())?)?;
    ensure!(
        reference_row(&host, &name)?["status"] == "selected",
        "the server is not used: {sent_in_vain}"
    );
    Ok("a route that moved was followed with a new socket".to_owned())
}

pub(crate) fn log(ctx: &Context) -> anyhow::Result<String> {
    what_arrives(ctx).context("what arrives")?;
    let lines = alternating(ctx).context("a server with two clocks")?;
    Ok(format!(
        "reasons named; {lines} lines in 40 s of a server that alternates between two clocks"
    ))
}

fn what_arrives(ctx: &Context) -> anyhow::Result<()> {
    let mut host = Host::further(ctx, "arrives")?;
    let old = Impostor::new(|answer| honest(Packet { version: 3, ..answer }))?;
    let late = Impostor::new(|answer| {
        std::thread::sleep(Duration::from_millis(400));
        honest(answer)
    })?;
    let patient = Impostor::new(|answer| {
        std::thread::sleep(Duration::from_millis(400));
        honest(answer)
    })?;
    let elsewhere = Elsewhere::start()?;
    let (late, patient) = (late.address(), patient.address());
    // Slow servers answer one request after the other, so they are asked once a second.
    let lines = reference(&old.address())
        + &ntp_reference(&late)
        + "request_timeout = \"200ms\"\n"
        + &ntp_reference(&patient)
        + "request_timeout = \"2s\"\n"
        + &reference(&elsewhere.address);
    host.start(&lines)?;
    host.wait_until("version 3 is taken", |h| {
        Ok(reference_row(h, &old.address())?["accepted"].as_u64() > Some(3))
    })?;
    host.wait_until("a long timeout takes late answers", |h| {
        Ok(reference_row(h, &patient)?["accepted"].as_u64() > Some(3))
    })?;
    for (name, parts) in [
        (&late, ["after the request timeout", "raise request_timeout"]),
        (&elsewhere.address, ["another address or port", "NAT"]),
    ] {
        host.wait_until(&format!("{name} is said"), |h| {
            let row = reference_row(h, name)?;
            let detail = row["detail"].to_string();
            Ok(row["status"] == "unusable" && parts.iter().all(|part| detail.contains(part)))
        })?;
    }
    Ok(())
}

/// A server whose answers come from another port than the one that is asked.
struct Elsewhere {
    address: String,
    ended: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Elsewhere {
    fn start() -> anyhow::Result<Self> {
        use std::sync::atomic::Ordering::Relaxed;
        let socket = UdpSocket::bind(at(1, 0))?;
        let other = UdpSocket::bind(at(1, 0))?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let address = socket.local_addr()?.to_string();
        let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = std::sync::Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 256];
            while !flag.load(Relaxed) {
                if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                    let _ = other.send_to(&buffer[..len], from);
                }
            }
        });
        Ok(Self { address, ended, thread: Some(thread) })
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.ended.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Every second answer is of a clock that is 50 ms ahead. At ten polls a second, 40 s are as many
/// changes as two hours at the usual rate; the limits of the log are by time, so the rest of a day
/// adds nothing (daemon/src/state_log.rs has a day in its tests).
fn alternating(ctx: &Context) -> anyhow::Result<usize> {
    let mut host = Host::further(ctx, "alternates")?;
    let mut odd = false;
    let server = Impostor::new(move |answer| {
        odd = !odd;
        let ahead = Span::from_millis(if odd { 50 } else { 0 });
        vec![shifted(answer, ahead).to_bytes().to_vec()]
    })?;
    host.start(&reference(&server.address()))?;
    interrupt::sleep(Duration::from_secs(5))?;
    let begun = host.log_text().lines().count();
    interrupt::sleep(Duration::from_secs(35))?;
    let log = host.log_text();
    let lines = log.lines().filter(|line| line.contains(" INFO ") || line.contains(" WARN "));
    let since_start =
        lines.filter(|line| line.contains("reference ") || line.contains("clock ")).count();
    ensure!(since_start <= 10, "{since_start} lines:\n{log}");
    ensure!(
        log.lines().count() <= begun + 3,
        "the log goes on: {begun} lines, then\n{}",
        log.lines().skip(begun).collect::<Vec<_>>().join("\n")
    );
    ensure!(server.asked() > 100, "the server was asked {} times only", server.asked());
    Ok(since_start)
}
