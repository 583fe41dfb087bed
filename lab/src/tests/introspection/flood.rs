//! How many events are seen: all of them below the limit; beyond it, each one is either seen or
//! counted as dropped.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::client::Client;
use crate::host::Host;
use crate::introspection::emulated::{emulated, row};
use crate::scenario::Context;

/// As the issue requires.
const YIELDS: u64 = 100_000;
const RATE_HZ: u64 = 10_000;
/// As fast as the guest can: several times what the reader takes in a second and what QEMU buffers.
const FAST: u64 = 300_000;

/// Attempts until no other process starts in the guest during the run: its event could be among the
/// dropped ones.
const TRIES: u32 = 5;

pub(crate) fn flood(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let mut guest = emulated(ctx, &host, &[ctx.program("timevisor-lab-guest", "lab-calls")?], &[])?;
    guest.guest.sh("mkfifo /run/paced")?;
    host.cli(&["introspect", "attach", "web"])?;
    host.wait_until("the trap points", |host| Ok(row(host)?["state"] == "attached"))?;

    let slow = run(&host, &mut guest, YIELDS, RATE_HZ)?;
    ensure!(slow.seen == YIELDS && slow.dropped == 0, "of {YIELDS}: {slow:?}");
    let mut fast = run(&host, &mut guest, FAST, 0)?;
    for _ in 1..TRIES {
        if fast.began > 0 {
            fast = run(&host, &mut guest, FAST, 0)?;
        }
    }
    ensure!(fast.began == 0, "something begins in the guest all the time: {fast:?}");
    ensure!(fast.dropped > 0, "{FAST} events are not beyond the limit");
    ensure!(fast.seen + fast.dropped == FAST, "of {FAST}: {fast:?}");
    // Afterwards, it works as well as before.
    let after = run(&host, &mut guest, RATE_HZ, RATE_HZ)?;
    ensure!(after.seen == RATE_HZ && after.dropped == 0, "after the flood: {after:?}");
    let trouble = "WARNING:|BUG:|Oops|Call Trace|stall|general protection|segfault";
    let said = guest.guest.sh(&format!("dmesg | grep -E '{trouble}' || true"))?;
    ensure!(said.is_empty(), "the guest's kernel complains: {said}");
    Ok(format!(
        "{YIELDS} events at {RATE_HZ}/s, none lost; of {FAST} at once {} were seen and {} counted as dropped",
        fast.seen, fast.dropped
    ))
}

/// What was reported of a run.
#[derive(Debug)]
struct Run {
    /// Events of the program's own yields.
    seen: u64,
    /// Events of any process.
    dropped: u64,
    /// Processes and kernel threads that started in the guest, by its own count.
    began: u64,
}

fn run(host: &Host, guest: &mut Client, yields: u64, rate: u64) -> anyhow::Result<Run> {
    let count =
        |row: &Value, key: &str| row[key].as_u64().with_context(|| format!("no {key}: {row}"));
    let before = count(&row(host)?, "dropped")?;
    // `read` is a shell builtin, so no other process starts.
    let line =
        format!("lab-calls paced {yields} {rate} >/run/paced & read said </run/paced; echo $said");
    let said = guest.guest.sh(&line)?;
    let said: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    ensure!(said["made"] == yields, "{said}");
    let mut run = Run { seen: 0, dropped: 0, began: count(&said, "began")? };
    let all = host.wait_until("all of it", |host| {
        let row = row(host)?;
        let tasks = row["tasks"].as_array().context("no tasks")?;
        let own = tasks.iter().find(|task| task["thread"]["tid"] == said["pid"]);
        run.seen = own.map_or(Ok(0), |task| count(task, "jobs"))?;
        run.dropped = count(&row, "dropped")? - before;
        ensure!(row["senseless"] == 0, "{row}");
        Ok(run.seen + run.dropped >= yields)
    });
    all.with_context(|| format!("{run:?}"))?;
    guest.guest.sh(&format!("kill {}", said["pid"]))?;
    let pid = &said["pid"];
    host.wait_until("its end", |host| {
        let row = row(host)?;
        let tasks = row["tasks"].as_array().context("no tasks")?;
        Ok(tasks.iter().all(|task| task["thread"]["tid"] != *pid))
    })?;
    Ok(run)
}
