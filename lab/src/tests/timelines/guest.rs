//! Timelines in guests: through the port alone, through timevisor-guest, and against a hostile
//! guest.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor::Requirement;

use crate::client::{Client, Launch, Way};
use crate::host::Host;
use crate::interrupt;
use crate::scenario::Context;
use crate::tests::timelines::host::{connect, row};

const PORT: &str = "/dev/virtio-ports/org.timevisor.0";
pub(crate) const AGENT_IS_UP: &str = "n=0; until [ -S /run/timevisor/timelines ] || [ $n -gt 600 ]; do n=$((n+1)); sleep 0.05; done; [ -S /run/timevisor/timelines ]";

fn guest(ctx: &Context, host: &Host, name: &str, programs: &[PathBuf]) -> anyhow::Result<Client> {
    let qemu = ctx.qemu_10()?;
    let mut client =
        Launch::new(ctx, host, &qemu, Way::Vmclock, name).programs(programs).start()?;
    client.guest.wait_ready()?;
    client.reader.ask("read")?;
    host.wait_vm(name, "synchronized")?;
    Ok(client)
}

fn members(host: &Host, timeline: &str) -> anyhow::Result<u64> {
    Ok(row(host, timeline)?["members"].as_u64().unwrap_or(0))
}

fn waits(host: &Host, what: &str, count: u64) -> anyhow::Result<()> {
    host.wait_until(what, |host| Ok(members(host, "tai")? == count))
}

/// One program through the port, then several through timevisor-guest; killed programs and a killed
/// agent leave nothing behind.
pub(crate) fn agent(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let programs = [
        ctx.program("timevisor", "timevisor")?,
        ctx.program("timevisor-guest", "timevisor-guest")?,
        ctx.program("timevisor-lab-guest", "lab-bind")?,
    ];
    let mut client = guest(ctx, &host, "guest", &programs)?;
    let sh = |client: &mut Client, line: &str| client.guest.sh(line);

    // Directly through the port.
    let once = sh(&mut client, "timevisor bind tai --within 10ms --json")?;
    let reading: Value = serde_json::from_str(&once).with_context(|| once.clone())?;
    ensure!(reading["met"] == true && reading["status"] == "synchronized", "{reading}");
    let refused = sh(&mut client, "! timevisor bind tai --within 5ns 2>&1")?;
    ensure!(refused.contains("what can be had"), "{refused}");
    waits(&host, "the program's lease to end", 0)?;
    let took = sh(&mut client, "lab-bind 20")?;
    waits(&host, "the bindings to end", 0)?;

    let waited = sh(&mut client, "timevisor-guest wait-sync --within 10ms --timeout 30s")?;
    ensure!(waited.contains("/dev/vmclock0: synchronized within"), "{waited}");
    let late = sh(&mut client, "! timevisor-guest wait-sync --within 5ns --timeout 200ms 2>&1")?;
    ensure!(late.contains("not 5ns, after 200ms"), "{late}");

    // Several programs through the agent.
    sh(&mut client, "timevisor-guest >/run/agent.log 2>&1 & echo $! >/run/agent.pid")?;
    // A program that finds no agent opens the port itself; then no other program can use it.
    sh(&mut client, AGENT_IS_UP)?;
    for _ in 0..3 {
        sh(
            &mut client,
            "timevisor bind tai --within 1ms --every 1 >/run/app.log 2>&1 & echo $! >>/run/apps",
        )?;
    }
    waits(&host, "three programs' bindings", 3)?;
    ensure!(row(&host, "tai")?["required"]["below_ns"] == 1_000_000, "{}", row(&host, "tai")?);
    let made = sh(&mut client, "timevisor bind cell --create local --json")?;
    let cell: Value = serde_json::from_str(&made).with_context(|| made.clone())?;
    ensure!(
        cell["timescale"] == "local" && cell["estimate_ns"].as_i64() < Some(5_000_000_000),
        "{cell}"
    );
    ensure!(row(&host, "cell")?.is_null(), "the host's users see a guest's own timeline");
    sh(&mut client, "kill -9 $(head -n 1 /run/apps)")?;
    waits(&host, "the killed program's lease to end", 2)?;
    sh(&mut client, "kill -9 $(cat /run/agent.pid)")?;
    // Nobody informs the host; the next hello does, or the lease expires.
    sh(&mut client, "timevisor-guest >>/run/agent.log 2>&1 & echo $! >/run/agent.pid")?;
    waits(&host, "the programs to bind again or to be forgotten", 2)
        .or_else(|_| waits(&host, "the agent's leases to end", 0))?;
    let after = sh(&mut client, "timevisor bind tai --within 10ms --json")?;
    ensure!(after.contains("\"met\":true"), "{after}");
    Ok(format!("port alone: {}; until the first qualified reading: {}", once.trim(), took.trim()))
}

/// A guest's requirement takes effect on the host at once, and vice versa.
pub(crate) fn visible(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let programs = [ctx.program("timevisor", "timevisor")?];
    let mut guests = [guest(ctx, &host, "a", &programs)?, guest(ctx, &host, "b", &programs)?];
    let here = connect(&host)?;
    let began = Instant::now();
    let binding = here.bind("tai", &Requirement::within(Duration::from_millis(7)))?;
    let mut slowest = began.elapsed();
    for micros in (1..=20).map(|step| 7_000 - step * 100) {
        let began = Instant::now();
        binding.update(&Requirement::within(Duration::from_micros(micros)))?;
        slowest = slowest.max(began.elapsed());
        // However soon after the answer a guest looks, the page already reflects it.
        for client in &mut guests {
            let reading = client.reader.ask("read")?;
            ensure!(reading["required_ns"] == micros * 1000, "{}: {reading}", client.name);
        }
    }
    Ok(format!(
        "20 changes of a requirement on the host, each on both guests' pages before its answer; the slowest answer took \
         {:.1} ms",
        slowest.as_secs_f64() * 1e3
    ))
}

/// Garbage, partial frames, floods, replay, a thousand binds, another VM's names, answers never
/// read. Another guest and the host are not affected.
pub(crate) fn hostile(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let attacker = [ctx.program("timevisor-lab-guest", "lab-hostile")?];
    let victim = [ctx.program("timevisor", "timevisor")?];
    let mut bad = guest(ctx, &host, "bad", &attacker)?;
    let mut good = guest(ctx, &host, "good", &victim)?;
    good.guest.sh("timevisor bind private --create local --every 1 >/run/app.log 2>&1 &")?;
    let here = connect(&host)?;
    let honest = here.bind("tai", &Requirement::within(Duration::from_millis(10)))?;
    let memory = rss_kib(host.pid()?)?;
    let mut log = Vec::new();
    let attacks =
        ["garbage", "half", "flood", "replay", "binds", "names=private", "unread", "garbage"];
    for attack in attacks {
        interrupt::check()?;
        let text = bad.guest.sh(&format!("lab-hostile {PORT} {attack}"))?;
        ctx.log(&text);
        let line: Value = serde_json::from_str(text.trim()).with_context(|| text.clone())?;
        judge(&line)?;
        log.push(format!("{} {}", line["attack"].as_str().unwrap_or_default(), line["result"]));
        host.check_alive()?;
        ensure!(honest.now()?.met(), "{attack}: the host's own binding is not met any more");
        let reading = good.reader.ask("read")?;
        ensure!(reading["status"] == "synchronized", "{attack}: the other guest: {reading}");
        ensure!(members(&host, "tai")? <= 1 + 256, "{attack}: {}", row(&host, "tai")?);
    }
    let grown = rss_kib(host.pid()?)?.saturating_sub(memory);
    ensure!(grown < 16 << 10, "timevisord has grown by {grown} KiB");
    let still = good.guest.sh("tail -n 1 /run/app.log")?;
    ensure!(
        still.contains("private") && still.contains("synchronized"),
        "the other guest's program: {still}"
    );
    Ok(format!("timevisord grew by {grown} KiB; {}", log.join("; ")))
}

fn judge(line: &Value) -> anyhow::Result<()> {
    let result = &line["result"];
    let fine = match line["attack"].as_str().unwrap_or_default() {
        "garbage" | "half" => *result == "welcomed",
        // At most the burst plus the rate is answered, and so is an honest request afterwards.
        "flood" => {
            let seconds = result["seconds"].as_f64().unwrap_or(0.0);
            let answered = result["answered"].as_f64().unwrap_or(f64::MAX);
            answered <= 200.0 + 100.0 * (seconds + 2.0) && result["after"] == true
        }
        "replay" => result["bound"] == 1 && result["members"].as_u64() <= Some(2),
        "binds" => result["bound"] == 256 && result["code"] == "quota" && result["again"] == true,
        "names" => {
            let unbound = result["unbind"]
                .as_array()
                .is_some_and(|codes| codes.iter().all(|c| c == "not_found"));
            result["listed"] == false
                && result["bind"] == "not_found"
                && unbound
                && result["own"] == "bound"
                && result["members"] == 1
        }
        "unread" => result["written"].as_u64() > Some(0),
        _ => false,
    };
    ensure!(fine, "{line}");
    Ok(())
}

fn rss_kib(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
