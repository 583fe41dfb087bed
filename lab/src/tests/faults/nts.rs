//! NTS servers that must not be trusted, and an attacker on the path to one that may be trusted.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, ensure};
use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::{LeapIndicator, Packet};
use timevisor_protocols::nts::field::{self, AUTHENTICATOR, UNIQUE_IDENTIFIER};
use timevisor_time::Duration as Span;

use crate::authority::Authority;
use crate::chronyd::Chronyd;
use crate::host::{Host, mentions};
use crate::netns::Namespace;
use crate::ntp_impostor::shifted;
use crate::ntp_relay::Relay;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, reference_row};
use crate::tests::hosts::nts::{Bench, FOREVER, accepted, keyed, nts_reference, refused};

/// What is wrong with the server, what is reported about it, and how to set it up.
struct Fault {
    what: &'static str,
    said: &'static [&'static str],
    lines: String,
    name: String,
    _server: Chronyd,
}

pub(crate) fn refused_servers(ctx: &Context) -> anyhow::Result<String> {
    let bench = Bench::new(ctx)?;
    let faults = [
        unknown_authority(&bench)?,
        expired(&bench)?,
        wrong_name(&bench)?,
        without_nts(&bench)?,
        not_an_authority(&bench)?,
    ];
    for fault in &faults {
        let mut host = Host::further(ctx, &fault.what.replace(' ', "-"))?;
        host.start(&fault.lines)?;
        let said =
            |h: &Host| Ok::<_, anyhow::Error>(reference_row(h, &fault.name)?["detail"].to_string());
        host.wait_until(fault.what, |h| {
            let said = said(h)?;
            Ok(fault.said.iter().all(|part| said.contains(part)))
        })
        .with_context(|| said(&host).unwrap_or_default())?;
        mentions(&said(&host)?, &["next attempt at"])?;
        let row = reference_row(&host, &fault.name)?;
        ensure!(row["status"] == "no-keys" && row["accepted"] == 0, "{}: {row}", fault.what);
        // The plain-text status shows it too, and the page has no estimate.
        mentions(&host.cli(&["status"])?, fault.said)?;
        host.wait_until("the log has it", |h| {
            Ok(h.log_text().contains("is no-keys")
                && fault.said.iter().all(|part| h.log_text().contains(part)))
        })?;
        let page = HostPage::open(host.directory())?;
        ensure!(!page.read()?.has_estimate(), "{}: a clock without authentication", fault.what);
    }
    Ok(format!("{} kinds of bad servers refused by name", faults.len()))
}

fn unknown_authority(bench: &Bench<'_>) -> anyhow::Result<Fault> {
    let at = Namespace::create()?;
    let (lines, name) = (bench.lines(&at, FOREVER, "unknown")?, at.address().to_string());
    let server = bench.chronyd(at, 123, "unknown", &lines)?;
    let other = bench.ctx.path("other-authority.pem");
    Authority::new()?.write(&other)?;
    Ok(Fault {
        what: "unknown authority",
        said: &["unknown authority", "set ca_file"],
        lines: nts_reference(&name, &other),
        name,
        _server: server,
    })
}

fn expired(bench: &Bench<'_>) -> anyhow::Result<Fault> {
    let at = Namespace::create()?;
    let (lines, name) = (bench.lines(&at, 2021, "expired")?, at.address().to_string());
    let server = bench.chronyd(at, 123, "expired", &lines)?;
    Ok(Fault {
        what: "expired certificate",
        said: &["expired at 2021-12-31", "renew it"],
        lines: bench.reference(&name),
        name,
        _server: server,
    })
}

fn wrong_name(bench: &Bench<'_>) -> anyhow::Result<Fault> {
    let (at, elsewhere) = (Namespace::create()?, Namespace::create()?);
    let (lines, name) = (bench.lines(&elsewhere, FOREVER, "wrong")?, at.address().to_string());
    let server = bench.chronyd(at, 123, "wrong", &lines)?;
    Ok(Fault {
        what: "wrong name",
        said: &["not for", "use a name that it is for"],
        lines: bench.reference(&name),
        name,
        _server: server,
    })
}

fn without_nts(bench: &Bench<'_>) -> anyhow::Result<Fault> {
    let server = bench.ctx.chronyd("plain")?;
    let name = server.address().ip().to_string();
    Ok(Fault {
        what: "no key server",
        said: &["cannot connect to", "TCP port 4460"],
        lines: bench.reference(&name),
        name,
        _server: server,
    })
}

fn not_an_authority(bench: &Bench<'_>) -> anyhow::Result<Fault> {
    let at = Namespace::create()?;
    let (lines, name) = (bench.lines(&at, FOREVER, "key")?, at.address().to_string());
    let server = bench.chronyd(at, 123, "key", &lines)?;
    Ok(Fault {
        what: "a key as ca_file",
        said: &["key.key", "holds no certificate"],
        lines: nts_reference(&name, &bench.ctx.path("key.key")),
        name,
        _server: server,
    })
}

/// How an attacker on the path changes an answer, and the reasons under which it may be counted.
type Attack = fn(&[u8], usize) -> Vec<u8>;
const ATTACKS: &[(&str, Attack)] = &[
    ("nts_forged", |answer, n| flipped(answer, n % HEADER_LEN * 8)),
    ("nts_unknown_identifier", |answer, n| flipped(answer, (HEADER_LEN + 4 + n % 32) * 8)),
    ("nts_forged", |answer, n| flipped(answer, (answer.len() - 1 - n % 64) * 8)),
    ("nts_forged", |answer, _| a_second_ahead(answer)),
    ("nts_unauthenticated", |answer, _| stripped(&a_second_ahead(answer), AUTHENTICATOR)),
    ("nts_unauthenticated", |answer, _| stripped(answer, UNIQUE_IDENTIFIER)),
    ("nts_unauthenticated", |answer, _| a_second_ahead(answer)[..HEADER_LEN].to_vec()),
    ("nts_malformed", |answer, _| answer[..answer.len() - 4].to_vec()),
    ("nts_unauthenticated", |answer, _| kiss(answer, *b"DENY")),
];

fn flipped(answer: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = answer.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

fn a_second_ahead(answer: &[u8]) -> Vec<u8> {
    match Packet::parse(answer) {
        Ok((packet, fields)) => {
            [&shifted(packet, Span::from_secs(1)).to_bytes()[..], fields].concat()
        }
        Err(_) => Vec::new(),
    }
}

/// The answer without extension fields of this kind.
fn stripped(answer: &[u8], kind: u16) -> Vec<u8> {
    let mut bytes = answer[..HEADER_LEN].to_vec();
    for found in field::split_all(&answer[HEADER_LEN..]).unwrap_or_default() {
        if found.kind != kind {
            field::write(&mut bytes, found.kind, found.body);
        }
    }
    bytes
}

/// A kiss of death with the unique identifier and without an authenticator.
fn kiss(answer: &[u8], code: [u8; 4]) -> Vec<u8> {
    let Ok((packet, fields)) = Packet::parse(answer) else { return Vec::new() };
    let packet =
        Packet { leap: LeapIndicator::Unsynchronized, stratum: 0, reference_id: code, ..packet };
    stripped(&[&packet.to_bytes()[..], fields].concat(), AUTHENTICATOR)
}

pub(crate) fn altered(ctx: &Context) -> anyhow::Result<String> {
    let bench = Bench::new(ctx)?;
    let at = Namespace::create()?;
    // The key server directs us to the relay, which stands on the path to the NTP server.
    let near = UdpSocket::bind("127.0.0.1:0")?;
    let port = near.local_addr()?.port();
    let lines = bench.lines(&at, FOREVER, "server")? + "ntsntpserver 127.0.0.1\n";
    let name = at.address().to_string();
    let server = bench.chronyd(at, port, "server", &lines)?;
    let relay = Relay::start(near, SocketAddr::from((server.namespace().address(), port)))?;
    let mut host = Host::new(ctx)?;
    host.start(&bench.reference(&name))?;
    host.wait_synchronized(10_000)?;
    mentions(&host.log_text(), &[&format!("NTP at 127.0.0.1:{port}")])?;
    let page = HostPage::open(host.directory())?;
    let before = honest_reading(&page)?;

    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    relay.attack(move |answer| {
        let n = counted.fetch_add(1, Ordering::Relaxed);
        (ATTACKS[n % ATTACKS.len()].1)(answer, n)
    });
    // An answer that passed the relay before the attack may still be on its way to the daemon.
    host.wait_until("the attack has begun", |_| Ok(count.load(Ordering::Relaxed) > 1))?;
    let accepted_before = accepted(&host, &name)?;
    host.wait_until("every attack was made", |_| {
        honest_reading(&page)?;
        Ok(count.load(Ordering::Relaxed) > 2 * ATTACKS.len() - 3)
    })?;
    let attacks = count.load(Ordering::Relaxed);
    ensure!(accepted(&host, &name)? == accepted_before, "an altered answer was accepted");
    for reason in ATTACKS.iter().map(|(reason, _)| reason) {
        ensure!(
            refused(&host, &name, reason)? > 0,
            "{reason} was not counted: {}",
            reference_row(&host, &name)?
        );
    }
    mentions(&host.log_text(), &["a packet is refused", "altered on the way or forged"])?;

    // A forged NAK replaces every answer: the daemon requests new keys at a polite rate and accepts
    // nothing.
    relay.attack(|answer| kiss(answer, *b"NTSN"));
    host.wait_until("the forged NAK is counted", |h| Ok(refused(h, &name, "nts_nak")? > 0))?;
    ensure!(accepted(&host, &name)? == accepted_before, "a NAK was accepted");
    let exchanges = keyed(&host);
    relay.relent();
    host.wait_until(
        "the path is honest again",
        |h| Ok(accepted(h, &name)? > accepted_before + 10),
    )?;
    let after = honest_reading(&page)?;
    ensure!(after.disruption == before.disruption, "the attack disrupted the clock");
    Ok(format!(
        "{attacks} altered answers, none accepted; keys established {exchanges} times meanwhile"
    ))
}
