//! How many events are seen: all of them below the limit; beyond it, each one is seen or counted as dropped.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::introspect_calls::emulated;
use crate::client::Client;
use crate::host::Host;
use crate::scenario::Context;

/// As the issue asks for.
const YIELDS: u64 = 100_000;
const RATE_HZ: u64 = 10_000;
/// As fast as the guest can: a multiple of what the reader takes in a second and of what waits in QEMU.
const FAST: u64 = 300_000;

pub(super) fn flood(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let mut guest = emulated(ctx, &host, &[ctx.program("timevisor-lab-guest", "lab-calls")?])?;
    host.cli(&["introspect", "attach", "web"])?;
    let attached = |host: &Host| Ok(Seen::of(host)?.row["state"] == "attached");
    host.wait_until("the trap points", attached)?;

    let (made, slow) = run(&host, &mut guest, YIELDS, RATE_HZ)?;
    ensure!(slow.dropped == 0, "{} of {made} were dropped", slow.dropped);
    let (fast_made, fast) = run(&host, &mut guest, FAST, 0)?;
    ensure!(fast.dropped > 0, "{fast_made} events are not beyond the limit");
    // It is as good as before.
    let (_, after) = run(&host, &mut guest, RATE_HZ, RATE_HZ)?;
    ensure!(after.dropped == 0, "{} were dropped after the flood", after.dropped);
    let trouble = "WARNING:|BUG:|Oops|Call Trace|stall|general protection|segfault";
    let said = guest.guest.sh(&format!("dmesg | grep -E '{trouble}' || true"))?;
    ensure!(said.is_empty(), "the guest's kernel complains: {said}");
    Ok(format!(
        "{made} events at {RATE_HZ}/s, none lost; of {fast_made} at once {} were seen and {} counted as dropped",
        fast.events, fast.dropped
    ))
}

/// What a run made by its own count, and what was told of it: no more and no less.
fn run(host: &Host, guest: &mut Client, yields: u64, rate: u64) -> anyhow::Result<(u64, Seen)> {
    let before = Seen::of(host)?;
    let said = guest.guest.sh(&format!("lab-calls paced {yields} {rate}; [ $? = 3 ]"))?;
    let said: Value = serde_json::from_str(said.trim())?;
    let made = said["made"].as_u64().context("the program does not say what it made")?;
    let since = |now: Seen| Seen {
        events: now.events - before.events,
        dropped: now.dropped - before.dropped,
        row: now.row,
    };
    host.wait_until("all of it", |host| {
        let seen = since(Seen::of(host)?);
        Ok(seen.events + seen.dropped >= made)
    })?;
    let seen = since(Seen::of(host)?);
    ensure!(
        seen.events + seen.dropped == made && seen.row["senseless"] == 0,
        "{made} were made: {}",
        seen.row
    );
    ensure!(seen.row["tasks"] == Value::Array(Vec::new()) || seen.dropped > 0, "{}", seen.row);
    Ok((made, seen))
}

/// What timevisord has seen so far.
struct Seen {
    events: u64,
    dropped: u64,
    row: Value,
}

impl Seen {
    fn of(host: &Host) -> anyhow::Result<Self> {
        let row = host.json(&["introspect", "list"])?;
        let row = row.get(0).cloned().context("nothing is introspected")?;
        let count = |key: &str| row[key].as_u64().with_context(|| format!("no {key}: {row}"));
        Ok(Self { events: count("events")?, dropped: count("dropped")?, row })
    }
}
