//! NTP servers that do not answer, or that answer with something unusable.

use std::fs;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_protocols::ntp::{LeapIndicator, Mode, NtpShort, NtpTimestamp, Packet};
use timevisor_time::Duration as Span;

use crate::host::{Host, mentions};
use crate::ntp_impostor::{Impostor, shifted};
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{self, honest_reading, reference, reference_row};

pub(crate) fn unreachable(ctx: &Context) -> anyhow::Result<String> {
    nobody_answers(ctx).context("nobody answers")?;
    one_of_two(ctx).context("one of two answers")?;
    two_of_three(ctx).context("three servers")?;
    let took = dead_name_server(ctx).context("dead name server")?;
    Ok(format!(
        "advice named; majority of the configured needed; status in {took:.0?} while DNS is dead"
    ))
}

/// A port on which nothing listens.
fn closed_port() -> anyhow::Result<String> {
    Ok(UdpSocket::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

fn nobody_answers(ctx: &Context) -> anyhow::Result<()> {
    let mut host = Host::further(ctx, "nobody")?;
    let (closed, silent) = (closed_port()?, Impostor::silent()?);
    let both = reference(&closed) + &reference(&silent.address());
    host.start(&format!("[clock]\nstale_after = \"1s\"\n{both}"))?;
    let text = host.cli(&["now"])?;
    mentions(&text, &["the time is not known", "timevisor status"])?;
    for name in [&closed, &silent.address()] {
        host.wait_until("unreachable", |h| Ok(reference_row(h, name)?["status"] == "unreachable"))?;
        let detail = reference_row(&host, name)?["detail"].to_string();
        mentions(&detail, &["no answer for", "check the address", "UDP port 123"])?;
    }
    host.wait_until("unknown", |h| Ok(h.json(&["status"])?["clock"]["status"] == "unknown"))?;
    let status = host.json(&["status"])?;
    ensure!(status["clock"]["half_width_ns"].is_null(), "bounds of nothing: {}", status["clock"]);
    let reason = status["clock"]["reason"].to_string();
    mentions(&reason, &["no reference has answered yet", &closed, "check the address"])?;
    mentions(&host.cli(&["status"])?, &["unknown", "unreachable", "check the address"])?;
    // The network comes back for both servers.
    silent.lie(Span::ZERO);
    host.wait_synchronized(10_000)?;
    honest_reading(&HostPage::open(host.directory())?).map(drop)
}

fn one_of_two(ctx: &Context) -> anyhow::Result<()> {
    let mut host = Host::further(ctx, "two")?;
    let (real, closed) = (ctx.chronyd("real")?, closed_port()?);
    let address = real.address().to_string();
    let both = reference(&closed) + &reference(&address);
    host.start(&format!("[clock]\nstale_after = \"1s\"\n{both}"))?;
    host.wait_until("the dead one is named", |h| {
        Ok(reference_row(h, &closed)?["status"] == "unreachable")
    })?;
    host.wait_synchronized(10_000)?;
    ensure!(reference_row(&host, &address)?["status"] == "selected", "chronyd is not used");
    let page = HostPage::open(host.directory())?;
    let before = honest_reading(&page)?;
    drop(real);
    host.wait_until("free running", |h| {
        Ok(h.json(&["status"])?["clock"]["status"] == "freerunning")
    })?;
    let reason = host.json(&["status"])?["clock"]["reason"].to_string();
    mentions(&reason, &["no exchange with a reference for"])?;
    let after = honest_reading(&page)?;
    let width = |r: timevisor_clock_page::Reading| r.latest - r.earliest;
    ensure!(width(after) > width(before), "the bounds do not grow");
    ensure!(after.disruption == before.disruption, "a loss is no disruption");
    Ok(())
}

fn two_of_three(ctx: &Context) -> anyhow::Result<()> {
    let mut host = Host::further(ctx, "three")?;
    let servers = [Impostor::ahead(Span::from_secs(1))?, Impostor::silent()?, Impostor::silent()?];
    let lines: String = servers.iter().map(|s| reference(&s.address())).collect();
    host.start(&lines)?;
    let liar = servers[0].address();
    host.wait_until("the liar is heard", |h| {
        Ok(reference_row(h, &liar)?["accepted"].as_u64() > Some(8))
    })?;
    // A single server that answers may be the one that lies.
    let status = host.json(&["status"])?;
    ensure!(status["clock"]["status"] != "synchronized", "one of three sufficed: {status}");
    let page = HostPage::open(host.directory())?;
    ensure!(!page.read()?.has_estimate(), "one of three made a clock");
    mentions(&status["clock"]["reason"].to_string(), &["1 of 3 references", "2 are needed"])?;
    // With a majority, the clock is synchronized; where two servers disagree, neither is believed.
    servers[1].lie(Span::ZERO);
    host.wait_until("unreliable", |h| Ok(h.json(&["status"])?["clock"]["status"] == "unreliable"))?;
    honest_reading(&page)?;
    servers[2].lie(Span::ZERO);
    host.wait_synchronized(10_000)?;
    honest_reading(&page)?;
    ensure!(reference_row(&host, &liar)?["status"] == "falseticker", "the liar is not named");
    Ok(())
}

/// getaddrinfo waits many seconds for a silent name server; the daemon must not wait.
fn dead_name_server(ctx: &Context) -> anyhow::Result<Duration> {
    let _silent = UdpSocket::bind("127.0.0.99:53")?;
    let file = ctx.path("resolv.conf");
    fs::write(&file, "nameserver 127.0.0.99\n")?;
    let mount = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", file.display());
    let wrapper = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
    let server = Impostor::honest()?;
    let host = Host::further(ctx, "dns")?;
    let lines = reference("time.example.net") + &reference(&server.address());
    let mut daemon = common::start_through(ctx, &host, &wrapper, &lines)?;
    host.wait_synchronized(10_000)?;
    let page = HostPage::open(host.directory())?;
    let (mut slowest, mut answers) = (Duration::ZERO, 0);
    // Both attempts of the resolver take 5 s each; then the failure is reported.
    host.wait_until("the name does not resolve", |h| {
        let asked = Instant::now();
        let row = reference_row(h, "time.example.net")?;
        slowest = slowest.max(asked.elapsed());
        answers += 1;
        honest_reading(&page)?;
        ensure!(row["accepted"] == 0, "somebody answered: {row}");
        Ok(row["detail"].to_string().contains("cannot resolve time.example.net"))
    })?;
    // If a status request waited for the name server, it would take 5 s and only two or three would
    // fit. Delays of this machine do not explain so few.
    ensure!(
        answers >= 20,
        "{answers} answers while the name server was asked, the slowest after {slowest:?}"
    );
    ensure!(page.read()?.status().name() == "synchronized", "the page lapsed");
    daemon.check_alive()?;
    Ok(slowest)
}

type Change = fn(Packet) -> Vec<u8>;

/// What a server may send, and the rejection reason under which it must be counted.
const ANSWERS: &[(&str, &str, Change)] = &[
    ("noise", "mode", |_| vec![0xff; 48]),
    ("a short packet", "too_short", |p| p.to_bytes()[..47].to_vec()),
    ("nothing", "too_short", |_| Vec::new()),
    ("a long packet", "malformed_tail", |p| [&p.to_bytes()[..], &[0x5a; 700]].concat()),
    ("a wrong origin", "bogus_origin", |p| {
        packet(Packet { origin: NtpTimestamp::from_bits(!p.origin.to_bits()), ..p })
    }),
    ("no origin", "bogus_origin", |p| packet(Packet { origin: NtpTimestamp::ZERO, ..p })),
    ("a client's packet", "mode", |p| packet(Packet { mode: Mode::Client, ..p })),
    ("NTP version 2", "version", |p| packet(Packet { version: 2, ..p })),
    ("stratum 16", "stratum", |p| packet(Packet { stratum: 16, ..p })),
    ("leap indicator 3", "unsynchronized", |p| {
        packet(Packet { leap: LeapIndicator::Unsynchronized, ..p })
    }),
    ("no time", "zero_timestamp", |p| packet(Packet { transmit: NtpTimestamp::ZERO, ..p })),
    ("reversed time", "time_reversed", |p| {
        let earlier = shifted(p, Span::from_millis(-5));
        packet(Packet { transmit: earlier.transmit, ..p })
    }),
    ("a distant server", "distance", |p| {
        packet(Packet { root_dispersion: NtpShort::from_bits(2 << 16), ..p })
    }),
    ("longer than the round trip", "impossible_residence", |p| {
        let later = shifted(p, Span::from_secs(1));
        packet(Packet { transmit: later.transmit, ..p })
    }),
    ("kiss RATE", "kiss_of_death", |p| kiss(p, *b"RATE")),
    ("kiss DENY", "kiss_of_death", |p| kiss(p, *b"DENY")),
    ("kiss INIT", "kiss_of_death", |p| kiss(p, *b"INIT")),
    ("an answer too late", "late", |p| {
        std::thread::sleep(Duration::from_millis(130));
        packet(p)
    }),
];

fn packet(packet: Packet) -> Vec<u8> {
    packet.to_bytes().to_vec()
}

fn kiss(answer: Packet, code: [u8; 4]) -> Vec<u8> {
    packet(Packet { stratum: 0, reference_id: code, ..answer })
}

pub(crate) fn impostors(ctx: &Context) -> anyhow::Result<String> {
    let mut host = Host::new(ctx)?;
    let mut servers = Vec::new();
    let mut lines = "[clock]\nstale_after = \"1s\"\n".to_owned();
    for (_, _, change) in ANSWERS {
        let server = Impostor::new(|p| vec![change(p)])?;
        lines += &reference(&server.address());
        servers.push(server);
    }
    host.start(&lines)?;
    let page = HostPage::open(host.directory())?;
    for ((what, reason, _), server) in ANSWERS.iter().zip(&servers) {
        let name = server.address();
        host.wait_until(&format!("{what} is counted as {reason}"), |h| {
            let row = reference_row(h, &name)?;
            ensure!(!page.read()?.has_estimate(), "{what} made a clock: {row}");
            Ok(row["rejected"][reason].as_u64() > Some(0))
        })?;
        let row = reference_row(&host, &name)?;
        let others = row["rejected"].as_object().map_or(0, |all| all.len() - 1);
        // On a busy machine, a late answer may still arrive in time; then it is counted as a
        // duplicate or used.
        ensure!(others == 0, "{what} is counted as more than {reason}: {}", row["rejected"]);
        ensure!(row["status"] != "selected", "{what} was selected: {row}");
        if *reason != "impossible_residence" {
            ensure!(row["accepted"] == 0, "{what} was accepted: {row}");
        }
    }
    for (what, advice) in [
        ("kiss RATE", "asked us to slow down"),
        ("kiss DENY", "ask its operator"),
        ("kiss INIT", "kiss code INIT"),
        ("stratum 16", "check the server or use another"),
        ("reversed time", "went backwards"),
    ] {
        let index = ANSWERS.iter().position(|(name, ..)| *name == what).context("no such case")?;
        let row = reference_row(&host, &servers[index].address())?;
        mentions(&row["detail"].to_string(), &[advice])?;
    }
    ensure!(servers[15].asked() <= 2, "DENY was asked {} times", servers[15].asked());
    host.wait_until("unknown", |h| Ok(h.json(&["status"])?["clock"]["status"] == "unknown"))?;
    ensure!(!page.read()?.has_estimate(), "synchronized by nobody");
    drop(host);
    noisy(ctx)?;
    Ok(format!("{} kinds of answers counted by reason, none used", ANSWERS.len()))
}

/// The true answer among noise: a forged one before it, a duplicate after it.
fn noisy(ctx: &Context) -> anyhow::Result<()> {
    let mut host = Host::further(ctx, "noisy")?;
    let server = Impostor::new(|p| {
        let forged = shifted(p, Span::from_secs(5));
        let forged = Packet { origin: NtpTimestamp::from_bits(1), ..forged };
        vec![packet(forged), vec![0; 3], packet(p), packet(shifted(p, Span::from_secs(5)))]
    })?;
    host.start(&reference(&server.address()))?;
    host.wait_until("noise is counted", |h| {
        let rejected = &reference_row(h, &server.address())?["rejected"];
        let all = ["bogus_origin", "too_short", "duplicate"];
        Ok(all.iter().all(|reason| rejected[reason].as_u64() > Some(10)))
    })?;
    host.wait_synchronized(10_000)?;
    let page = HostPage::open(host.directory())?;
    honest_reading(&page)?;
    let contradictions = &host.json(&["status"])?["clock"]["contradictions"];
    ensure!(*contradictions == 0, "{contradictions} contradictions by noise");
    Ok(())
}
