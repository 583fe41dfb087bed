//! Precise bounds between timevisords, and that nobody else minds the field: chronyd and ntpd-rs as
//! servers, without and with NTS, and chronyd as a client.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use timevisor_linux::clock::realtime;
use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::{Client, Config, Outcome, Response};
use timevisor_time::Duration as Span;

use crate::host::Host;
use crate::netns::Namespace;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, reference, reference_row};
use crate::tests::hosts::ntp_server;
use crate::tests::hosts::nts::{Bench, FOREVER, accepted};

/// What the field must save of what the server states: 2^-16 s and half of it for fields that may
/// be truncated (22.9 us), less what the server's own bound moves between two requests.
const SAVED: Span = Span::from_micros(20);
/// Requests without and with the field, in turn.
const PAIRS: usize = 25;
/// Readings of either client.
const READINGS: usize = 400;

pub(crate) fn precise(ctx: &Context) -> anyhow::Result<String> {
    let saved = between_timevisords(ctx).context("between timevisords")?;
    let others = other_servers(ctx).context("servers that do not know the field")?;
    Ok(format!("{saved}; {others}"))
}

/// Two clients of one server at the same time, with the field and without.
fn between_timevisords(ctx: &Context) -> anyhow::Result<String> {
    let at = free_address()?;
    let mut server = Host::new(ctx)?;
    server.start(&format!(
        "[[reference]]\ntype = \"system\"\nassumed_max_error = \"20us\"\n\
         [server]\nlisten = [\"{at}\"]\nrate_interval = \"0s\"\n"
    ))?;
    server.wait_synchronized(1_000)?;
    let name = at.to_string();
    let (mut with, mut without) = (Host::further(ctx, "with")?, Host::further(ctx, "without")?);
    // Asking is the default for an address like this.
    with.start(&reference(&name))?;
    without.start(&(reference(&name) + "precise = false\n"))?;
    for host in [&with, &without] {
        host.wait_synchronized(1_000)?;
        host.wait_until("forty exchanges", |h| Ok(accepted(h, &name)? > 40))?;
    }
    let pages = [HostPage::open(with.directory())?, HostPage::open(without.directory())?];
    let mut widths = [Vec::new(), Vec::new()];
    for _ in 0..READINGS {
        std::thread::sleep(Duration::from_millis(10));
        for (page, widths) in pages.iter().zip(&mut widths) {
            let reading = honest_reading(page)?;
            widths.push((reading.latest - reading.earliest).half());
        }
    }
    // Half-widths contain round trips, which differ from one client to the other on a busy machine;
    // what the server states does not.
    let [narrow, wide] = widths.map(median);
    let mut saved = Vec::new();
    for _ in 0..PAIRS {
        let stated = |precise| Ok::<_, anyhow::Error>(asked(at, precise)?.error_budget());
        saved.push(stated(false)? - stated(true)?);
    }
    let saved = median(saved);
    ensure!(saved >= SAVED, "the field saves {saved} of what the server states");
    let detail = |host: &Host| Ok::<_, anyhow::Error>(reference_row(host, &name)?.to_string());
    ensure!(detail(&with)?.contains("(precise bounds)"), "{}", detail(&with)?);
    ensure!(!detail(&without)?.contains("precise bounds"), "{}", detail(&without)?);
    for host in [&with, &without] {
        let row = reference_row(host, &name)?;
        ensure!(row["rejected"].as_object().is_some_and(serde_json::Map::is_empty), "{row}");
    }
    let requests = &server.json(&["status"])?["server"]["requests"];
    let (told, answered) = (requests["precise"].as_u64(), requests["answered"].as_u64());
    ensure!(told > Some(40) && told < answered, "{requests}");
    // A plain request gets a plain answer, and one with the field gets it.
    ensure!(asked(at, false)?.precise.is_none() && asked(at, true)?.precise.is_some(), "{at}");
    Ok(format!(
        "the server states {saved} less; half-width {narrow} with the field, {wide} without"
    ))
}

fn other_servers(ctx: &Context) -> anyhow::Result<String> {
    let bench = Bench::new(ctx)?;
    let mut said = Vec::new();
    let at = Namespace::create()?;
    let address = SocketAddr::from((at.address(), 123));
    let lines = bench.lines(&at, FOREVER, "server")?;
    let chronyd = bench.chronyd(at, 123, "server", &lines)?;
    said.push(ignored(ctx, &bench, "chronyd", address)?);
    drop(chronyd);
    let at = Namespace::create()?;
    let address = SocketAddr::from((at.address(), 123));
    let ntpd_rs = bench.ntpd_rs_in(at, "ntpd-rs")?;
    said.push(ignored(ctx, &bench, "ntpd-rs", address)?);
    drop(ntpd_rs);
    Ok(said.join(", "))
}

/// A server that ignores the field serves a timevisord that asks with it, without and with NTS.
fn ignored(ctx: &Context, bench: &Bench<'_>, what: &str, at: SocketAddr) -> anyhow::Result<String> {
    ensure!(asked(at, true)?.precise.is_none(), "{what} knows the field");
    let name = at.ip().to_string();
    let mut counts = Vec::new();
    for (mode, lines) in [("plain", reference(&name)), ("NTS", bench.reference(&name))] {
        let mut host = Host::further(ctx, &format!("{what}-{mode}"))?;
        host.start(&(lines + "precise = true\n"))?;
        host.wait_synchronized(10_000)?;
        host.wait_until("twenty exchanges", |h| Ok(accepted(h, &name)? > 20))?;
        let row = reference_row(&host, &name)?;
        // The last eight requests were answered, and none before was refused.
        ensure!(row["reach"] == "377", "{what}, {mode}: {row}");
        let rejected = row["rejected"].as_object().is_some_and(serde_json::Map::is_empty);
        ensure!(rejected, "{what}, {mode}: {row}");
        honest_reading(&HostPage::open(host.directory())?)?;
        counts.push(format!("{} {mode}", row["accepted"]));
    }
    Ok(format!("{what} answers {}", counts.join(" and ")))
}

/// The answer to one request, with the field or without.
fn asked(server: SocketAddr, precise: bool) -> anyhow::Result<Response> {
    let socket = ntp_server::socket_to(server)?;
    let config = Config { precise, ..Config::default() };
    for attempt in 0..10 {
        let mut client = Client::new(config, Span::ZERO)?;
        let request = client.on_timer(Span::ZERO, 0x1234_5678 + attempt).context("no request")?;
        ensure!((request.bytes.len() > HEADER_LEN) == precise, "{request:?}");
        client.sent(request.id);
        socket.send(&request.bytes)?;
        let mut buffer = [0; 512];
        let Ok(len) = socket.recv(&mut buffer) else { continue };
        ensure!(len <= request.bytes.len(), "the answer is longer than the request");
        let outcome = client.on_datagram(Span::ZERO, &buffer[..len], realtime(), |id| (id, id + 1));
        match outcome {
            Outcome::Exchange(exchange) => return Ok(exchange.response),
            other => anyhow::bail!("{server}: {other:?}"),
        }
    }
    anyhow::bail!("{server} answered none of ten requests (precise: {precise})")
}

fn median(mut widths: Vec<Span>) -> Span {
    widths.sort_unstable();
    widths[widths.len() / 2]
}

/// A port on the loopback that was free a moment ago.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(UdpSocket::bind("127.0.0.1:0")?.local_addr()?)
}
