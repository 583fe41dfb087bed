//! timevisord's introspection of a guest under real KVM, on a host that is itself a guest.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use crate::host::mentions;
use crate::introspection::nested::{
    PORT, PREFIX, SWITCH, VM, attach, attached, detach, host_with_guest, in_place, row, switch,
};
use crate::nested::NestedHost;
use crate::scenario::Context;
use crate::tests::introspection::calls::{exact, line, of_program};

/// How often it is attached and detached while the guest works.
const CYCLES: usize = 10;
/// Timeout for one program in the inner guest.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Bandwidth, in bytes per second, of a migration that must be observed in progress.
const SLOWLY: u32 = 1_000_000;

/// What a kernel logs when something is wrong.
const TROUBLE: &str =
    "WARNING:|BUG:|Oops|Call Trace|stall|general protection|segfault|invalid opcode";

pub(crate) fn kvm(ctx: &Context) -> anyhow::Result<String> {
    on_host(ctx, "trixie-backports", PREFIX)
}

pub(crate) fn kvm_bookworm(ctx: &Context) -> anyhow::Result<String> {
    on_host(ctx, "bookworm", PREFIX)
}

pub(crate) fn port(ctx: &Context) -> anyhow::Result<String> {
    on_host(ctx, "trixie-backports", PORT)
}

fn on_host(ctx: &Context, suite: &str, way: &str) -> anyhow::Result<String> {
    let mut host = host_with_guest(ctx, suite, Ok)?;
    let before = switch(&mut host)?;
    ensure!(!before, "{SWITCH} is on at the beginning");

    let refused = host.sh("timevisor introspect attach web 2>&1; [ $? != 0 ]")?;
    mentions(&refused, &["runs under KVM", "--backend port", "--backend kvm"])?;
    attach(&mut host, way)?;
    ensure!(in_place(&mut host)? == 1, "what is in place is not on disk");
    let needed = way == PREFIX;
    let is = switch(&mut host)?;
    ensure!(is == needed, "{SWITCH} while trap points are in place: {is}");
    let first = calls(&mut host)?;

    // Nobody observes the guest now, and it keeps running.
    host.sh("kill -9 $(pidof timevisord)")?;
    run_calls(&mut host)?;
    let is = switch(&mut host)?;
    ensure!(is == needed, "{SWITCH} while nobody sees what the guest does: {is}");
    // The next daemon's configuration says what the first one was told.
    let choice = if needed { "prefix" } else { PORT };
    let lines = format!("[introspection]\\nkvm = \"{choice}\"\\n");
    host.sh(&format!("printf '{lines}' >>/etc/timevisord.toml"))?;
    host.start_daemon()?;
    ensure!(!switch(&mut host)?, "the next timevisord left {SWITCH} on");
    ensure!(in_place(&mut host)? == 0, "the next timevisord left trap points in the guest");
    run_calls(&mut host)?;
    host.wait("the VM to be found again", |host| Ok(host.vm(VM).is_ok()))?;
    host.sh(&format!("timevisor introspect attach {VM}"))?;
    attached(&mut host)?;
    let by = row(&mut host)?;
    let reason = by["reason"].as_str().unwrap_or_default();
    ensure!(by["backend"] == way && reason.contains("introspection.kvm"), "{by}");
    let second = calls(&mut host)?;
    ensure!(first == second, "{first} events, then {second}");
    detach(&mut host)?;

    keep_busy(&mut host)?;
    for _ in 0..CYCLES {
        attach(&mut host, way)?;
        detach(&mut host)?;
    }
    no_trouble(&mut host)?;

    // Somebody migrates the guest without asking us; at the destination nobody would handle its
    // trap points.
    attach(&mut host, way)?;
    host.execute(VM, "migrate-set-parameters", &json!({"max-bandwidth": SLOWLY}))?;
    host.execute(VM, "migrate", &json!({"uri": "exec:cat >/dev/null"}))?;
    host.wait("the migration to be cancelled", |host| {
        let said = host.qmp(VM, "query-migrate")?;
        ensure!(said["status"] != "completed", "the guest has left: {said}");
        Ok(said["status"] == "cancelled")
    })?;
    let by = row(&mut host)?;
    ensure!(by["state"] == "attached", "after a migration that was cancelled: {by}");
    let stayed = calls(&mut host)?;
    ensure!(first == stayed, "{first} events, then {stayed} after a migration was cancelled");

    // After a reset, the guest boots a kernel again, at another address.
    host.qmp(VM, "system_reset")?;
    host.wait_ready(VM, 2)?;
    host.wait("the trap points after a reset", |host| Ok(row(host)?["state"] == "attached"))?;
    let third = calls(&mut host)?;
    ensure!(first == third, "{first} events, then {third} after a reset");
    // A daemon that exits removes everything.
    host.sh("kill $(pidof timevisord); while pidof timevisord >/dev/null; do sleep 0.1; done")?;
    ensure!(!switch(&mut host)?, "timevisord left {SWITCH} on at its end");
    ensure!(in_place(&mut host)? == 0, "timevisord left trap points in the guest at its end");
    run_calls(&mut host)?;
    not_reset(&mut host, 2)?;
    Ok(format!(
        "{first} events of a program, four times, each with its time; {CYCLES} cycles under load; a migration cancelled"
    ))
}

/// Makes the guest issue trapped calls on both vCPUs until [`no_trouble`].
pub(crate) fn keep_busy(host: &mut NestedHost) -> anyhow::Result<()> {
    let work = "touch /run/busy; for n in 1 2; do (while [ -e /run/busy ]; do lab-calls 50 50; done >/dev/null 2>&1 &) ; done";
    host.inner_sh(VM, work, PATIENCE).map(drop)
}

/// The guest has had no trouble so far; stops its work.
pub(crate) fn no_trouble(host: &mut NestedHost) -> anyhow::Result<()> {
    not_reset(host, 1)?;
    host.inner_sh(VM, "rm /run/busy", PATIENCE)?;
    let said = host.inner_sh(VM, &format!("dmesg | grep -E \"{TROUBLE}\" || true"), PATIENCE)?;
    ensure!(said.trim().is_empty(), "the guest's kernel complains: {said}");
    not_reset(host, 1)
}

/// The inner guest has booted exactly this many times.
fn not_reset(host: &mut NestedHost, boots: usize) -> anyhow::Result<()> {
    let booted = host.sh(&format!("grep -c LAB-READY /run/{VM}-serial.log"))?;
    if booted.trim() != boots.to_string() {
        // QEMU writes both logs, so they outlive the guest.
        let said = host.sh(&format!("tail -n 60 /run/{VM}-serial.log /run/{VM}-cpu.log"))?;
        bail!("the inner guest has booted {booted} times; its logs end:\n{said}");
    }
    Ok(())
}

fn run_calls(host: &mut NestedHost) -> anyhow::Result<Value> {
    let said = host.inner_sh(VM, &line(), PATIENCE)?;
    serde_json::from_str(said.trim()).with_context(|| said.clone())
}

/// Runs lab-calls and returns the number of its events; every event's time lies between two
/// readings of the host's clock.
pub(crate) fn calls(host: &mut NestedHost) -> anyhow::Result<usize> {
    let from = row(host)?["events"].as_u64().context("no count")?;
    let now = |host: &mut NestedHost, bound: &str| -> anyhow::Result<i64> {
        host.json("timevisor now --json")?[bound]
            .as_i64()
            .context("the host does not know the time")
    };
    let before = now(host, "earliest_ns")?;
    let said = run_calls(host)?;
    let after = now(host, "latest_ns")?;
    let mut events: Vec<Value> = Vec::new();
    host.wait("the program's end", |host| {
        let told =
            host.sh(&format!("timevisor introspect trace {VM} --once --json --from {from}"))?;
        let found = of_program(&told, &said)?;
        let ended = found.is_some();
        events = found.unwrap_or_default();
        Ok(ended)
    })?;
    let count = exact(&events, before, after)?;
    let row = row(host)?;
    ensure!(row["dropped"] == 0 && row["senseless"] == 0, "{row}");
    Ok(count)
}
