//! References in detail and changed while the daemon runs: what an operator of chronyd would do with
//! chronyc.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_protocols::ntp::{NtpTimestamp, Packet};

use crate::command::{self, Tethered};
use crate::host::{Host, mentions, ntp_reference};
use crate::interrupt;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::{complaint, honest_reading};
use crate::tests::hosts::ntp_server;

/// The two are asked for one after the other, while the estimate moves.
const OVERLAP_NS: i64 = 100_000;
/// Readings while references come and go.
const READINGS: usize = 20;

pub(crate) fn sources(ctx: &Context) -> anyhow::Result<String> {
    let servers = [ctx.chronyd("a")?, ctx.chronyd("b")?];
    let [a, b] = servers.each_ref().map(|server| server.address().ip().to_string());
    let mut host = Host::new(ctx)?;
    let lines = [&a, &b].map(|server| ntp_reference(server)).concat();
    host.start(&lines)?;
    host.wait_synchronized(5_000)?;
    let told = beside_chronyc(ctx, &host, [&a, &b]).context("beside chronyc")?;
    come_and_go(&host, [&a, &b]).context("add, remove, offline, online, burst")?;
    reloaded(&mut host, [&a, &b]).context("reload")?;
    clients(&host).context("clients")?;
    host.check_alive()?;
    Ok(told)
}

fn source(host: &Host, name: &str) -> anyhow::Result<Option<Value>> {
    let all = host.json(&["sources"])?;
    let rows = all["sources"].as_array().into_iter().flatten();
    Ok(rows.into_iter().find(|row| row["name"] == name).cloned())
}

/// Both tables, of the same servers at the same time.
fn beside_chronyc(ctx: &Context, host: &Host, servers: [&str; 2]) -> anyhow::Result<String> {
    let dir = scratch::directory()?;
    let program = dir.path().join("chronyd");
    fs::copy("/usr/sbin/chronyd", &program).context("install the package chrony")?;
    // In this test's own network, from which both servers can be reached.
    let mut chronyd = command::tethered(&program);
    chronyd.args(["-x", "-d", "-u", "root"]);
    for server in servers {
        chronyd.arg(format!("server {server} iburst minpoll 0 maxpoll 0"));
    }
    chronyd.args(["cmdport 323", "bindcmdaddress 127.0.0.1", "bindcmdaddress /"]);
    chronyd.arg(format!("pidfile {}", dir.path().join("pid").display()));
    let _chronyd = Tethered::spawn(&mut chronyd, "chronyd", &ctx.path("client.chronyd.log"))?;
    let chronyc = |words: &[&str]| {
        let arguments = [&["-h", "127.0.0.1", "-n"], words].concat();
        command::run("chronyc", &arguments)
    };
    host.wait_until("eight answers of each, there and here", |h| {
        let there = chronyc(&["-c", "sources"]).unwrap_or_default();
        let full = there.lines().filter(|line| line.split(',').nth(5) == Some("377")).count();
        let here = h.json(&["sources"])?;
        let rows = here["sources"].as_array().into_iter().flatten();
        Ok(full == 2 && rows.filter(|row| row["reach"] == "377").count() == 2)
    })?;
    let theirs = chronyc(&["-c", "sources"])?;
    for server in servers {
        let there: Vec<&str> = theirs
            .lines()
            .map(|line| line.split(',').collect::<Vec<_>>())
            .find(|fields| fields.get(2) == Some(&server))
            .with_context(|| format!("{server} is not in {theirs}"))?;
        let here = source(host, server)?.context("no such source")?;
        ensure!(there[3].parse().ok() == here["stratum"].as_u64(), "stratum: {there:?} {here}");
        let mark = here["selection"]["mark"].as_str().unwrap_or_default();
        ensure!(["selected", "combined"].contains(&mark), "{here}");
        // Both clocks follow this machine's: what they say overlaps with our bounds. Our estimate,
        // which moves slowly, may be outside of one's.
        let clock = &host.json(&["status"])?["clock"];
        let ours = |side: &str| clock[side].as_i64().unwrap_or(0) + OVERLAP_NS;
        let statistics = &here["statistics"];
        let (earliest, latest) =
            (statistics["earliest_ns"].as_i64(), statistics["latest_ns"].as_i64());
        ensure!(
            earliest <= Some(ours("above_ns")) && latest >= Some(-ours("below_ns")),
            "{statistics} beside {clock}"
        );
        ensure!(here["ntp"]["stamps"][0] == "kernel", "{here}");
        ensure!(here["ntp"]["remote"] == format!("{server}:123"), "{here}");
    }
    let weights: f64 = servers
        .iter()
        .filter_map(|name| source(host, name).ok()??["selection"]["weight"].as_f64())
        .sum();
    ensure!((0.99..1.01).contains(&weights), "the weights' sum is {weights}");
    let detail = host.cli(&["sources", servers[0]])?;
    mentions(&detail, &["reference id", "root dispersion", "skew", "requests", "frequency"])?;
    let tracking = host.json(&["tracking"])?;
    let theirs = chronyc(&["-c", "tracking"])?;
    // 127.127.1.1, the local clock of a server of stratum 1, is nobody's address: we show the
    // server's.
    ensure!(tracking["stratum"] == 2 && tracking["leap"] == "normal", "{tracking}");
    ensure!(theirs.split(',').nth(2) == Some("2"), "{theirs}");
    let system = tracking["system_offset_ns"].as_i64().context("no offset of CLOCK_REALTIME")?;
    let (below, above) = (tracking["below_ns"].as_i64(), tracking["above_ns"].as_i64());
    ensure!(
        Some(-system) <= below && Some(system) <= above,
        "CLOCK_REALTIME, which is the truth here, is outside the bounds: {tracking}"
    );
    let both = format!(
        "chronyc sources:\n{}\ntimevisor sources:\n{}\ntimevisor sources {}:\n{detail}\nchronyc tracking:\n{}\ntimevisor tracking:\n{}",
        chronyc(&["sources"])?,
        host.cli(&["sources"])?,
        servers[0],
        chronyc(&["tracking"])?,
        host.cli(&["tracking"])?
    );
    fs::write(ctx.path("tables.txt"), &both)?;
    let bound = format!("-{} +{} ns", below.unwrap_or(0), above.unwrap_or(0));
    Ok(format!("as chronyc's; CLOCK_REALTIME is {system} ns off, within {bound}"))
}

/// References change under a clock that is read all the time.
fn come_and_go(host: &Host, [a, b]: [&str; 2]) -> anyhow::Result<()> {
    let page = HostPage::open(host.directory())?;
    let before = page.read()?.disruption;
    let honest = |what: &str| -> anyhow::Result<()> {
        for _ in 0..READINGS {
            let reading = honest_reading(&page).with_context(|| what.to_owned())?;
            ensure!(reading.disruption == before, "{what}: a disruption");
            interrupt::sleep(Duration::from_millis(20))?;
        }
        Ok(())
    };
    mentions(&host.cli(&["sources", "remove", b])?, &["was removed, with what it said"])?;
    ensure!(source(host, b)?.is_none(), "{b} is still there");
    honest("one of two removed")?;
    ensure!(page.read()?.status().name() == "synchronized", "{:?}", page.read()?.status());

    // Two that do not answer are no reason to forget the time.
    host.cli(&["sources", "add", "192.0.2.1", "poll=1s"])?;
    host.cli(&["sources", "add", "192.0.2.2"])?;
    host.wait_until("free running, for want of a majority", |_| {
        Ok(page.read()?.status().name() == "freerunning")
    })?;
    honest("two more that do not answer")?;
    mentions(&host.cli(&["status"])?, &["what was known before still holds"])?;
    let added = host.cli(&["sources", "add", b, "poll=1s", "burst_spacing=1s"])?;
    mentions(&added, &["goes with the next restart or reload"])?;
    host.wait_until("synchronized again", |_| Ok(page.read()?.status().name() == "synchronized"))?;
    honest("the majority is back")?;
    host.cli(&["sources", "remove", "192.0.2.1", "192.0.2.2"])?;

    mentions(&host.cli(&["sources", "offline"])?, &[a, b, "is offline"])?;
    let asked = |h: &Host| -> anyhow::Result<u64> {
        source(h, a)?.context("no such source")?["ntp"]["sent"].as_u64().context("no count")
    };
    interrupt::sleep(Duration::from_millis(200))?;
    let sent = asked(host)?;
    interrupt::sleep(Duration::from_millis(2_500))?;
    ensure!(asked(host)? == sent, "an offline server is asked");
    ensure!(source(host, a)?.context("no such source")?["status"] == "offline", "not offline");
    honest("nobody is asked")?;
    host.cli(&["sources", "online", a])?;
    host.wait_until("asked again", |h| Ok(asked(h)? > sent))?;
    host.cli(&["sources", "online"])?;
    let sent = asked(host)?;
    host.cli(&["sources", "burst", a])?;
    host.wait_until("asked several times", |h| Ok(asked(h)? >= sent + 3))?;

    // Whatever is wrong changes nothing.
    for (words, said) in [
        (&["sources", "add", a][..], "listed twice"),
        (&["sources", "add", "192.0.2.9", "pol=1s"], "pol"),
        (&["sources", "add", "192.0.2.9", "poll=0s"], "poll"),
        (&["sources", "remove", "nobody"], "there are:"),
        (&["sources", "remove", a, b], "without references"),
        (&["sources", "nobody"], "no reference is called nobody"),
    ] {
        mentions(&complaint(host, words)?, &[said])?;
    }
    honest("after mistakes")
}

/// The configuration is read again: by command and by SIGHUP.
fn reloaded(host: &mut Host, [a, b]: [&str; 2]) -> anyhow::Result<()> {
    let page = HostPage::open(host.directory())?;
    let before = page.read()?.disruption;
    let at = format!("127.0.0.1:{}", free_port()?);
    let server = format!("[server]\nlisten = [\"{at}\"]\n");
    let lines = ntp_reference(a) + &ntp_reference(b).replace("poll = \"1s\"", "poll = \"2s\"");
    host.rewrite(&(lines.clone() + &server + "[oscillator]\nwander = \"tcxo\"\n"))?;
    let told = host.cli(&["reload"])?;
    mentions(
        &told,
        &["[[reference]] is in force", "[server] is in force", "[oscillator] differs"],
    )?;
    host.wait_until("its NTP server", |h| Ok(h.json(&["status"])?["server"].is_object()))?;
    let kept = source(host, b)?.context("no such source")?;
    ensure!(kept["statistics"]["samples"].as_u64() > Some(5), "what {b} said is forgotten: {kept}");
    // A file with a mistake changes nothing, and is named.
    host.rewrite("[clock]\npublish_intervall = \"1s\"\n")?;
    mentions(&complaint(host, &["reload"])?, &["publish_intervall", "nothing has changed"])?;
    // The server moves to another port, one reference goes.
    let other = format!("127.0.0.1:{}", free_port()?);
    host.rewrite(&(ntp_reference(a) + &server.replace(&at, &other)))?;
    command::run("kill", &["-HUP", &host.pid()?.to_string()])?;
    host.wait_until("the other port", |h| {
        Ok(h.json(&["status"])?["server"]["listen"][0] == other.as_str())
    })?;
    ensure!(source(host, b)?.is_none(), "{b} is still there");
    mentions(&host.log_text(), &["was read again", "[oscillator] differs"])?;
    ensure!(honest_reading(&page)?.disruption == before, "a reload is no disruption");
    Ok(())
}

fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Who asks the server is listed.
fn clients(host: &Host) -> anyhow::Result<()> {
    let listen = host.json(&["status"])?["server"]["listen"][0].clone();
    let listen = listen.as_str().context("no server")?;
    let socket = ntp_server::socket_to(listen.parse()?)?;
    let request = Packet::request(NtpTimestamp::from_bits(7), 0);
    for _ in 0..3 {
        socket.send(&request.to_bytes())?;
        let _ = socket.recv(&mut [0; 64]);
    }
    let list = host.json(&["clients"])?;
    let row = &list["clients"][0];
    ensure!(row["address"] == "127.0.0.1" && row["requests"] == 3, "{list}");
    mentions(&host.cli(&["clients"])?, &["127.0.0.1", "remembered at most"])
}
