//! What the host's kernel skips of our programs: counted as dropped, or said to be unknown.
//!
//! The kernel runs no BPF program of a kprobe while another one, or a change of a map, is under way
//! on that processor (kernel/trace/bpf_trace.c, `trace_call_bpf`). With a preemptible kernel, a vCPU
//! comes to a processor in the middle of a change. Linux 6.7 and later count that.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::command;
use crate::interrupt;
use crate::introspection::nested::{PREFIX, VM, attach, detach, host_with_guest_booted, row};
use crate::nested::{NestedHost, PERIODIC};
use crate::programs;
use crate::scenario::Context;
use crate::tests::introspection::kvm::PATIENCE;

/// A vCPU comes to a processor in the middle of a change of a map only if the kernel lets it.
const PREEMPTIBLE: &str = "preempt=full";
/// Calls of the guest's program, and how many a second it makes where it has the processor.
const CALLS: u64 = 20_000;
const RATE_HZ: u64 = 1000;
/// Calls of a run beside which no map is changed.
const QUIET: u64 = 2000;
/// The load begins after this many calls: whatever precedes the program's calls is over.
const FIRST: u64 = 100;
/// The load ends when this many calls were seen since it began: it must be over when the program
/// ends, because a skipped call of any other program would be counted, too.
const LOADED: u64 = CALLS / 5;
/// Runs until no other process starts in the guest meanwhile.
const TRIES: u32 = 5;
/// After this time without a change, all events have arrived: timevisord asks the kernel every
/// 500 ms for what it has skipped.
const SETTLED: Duration = Duration::from_secs(3);

const TRACING: &str = "/sys/kernel/tracing";
/// Other kprobes, each with its name: first where our program is, then in what our program calls,
/// and where the guest and the load pass.
const OTHERS: &[(&str, &str)] = &[
    ("ud", "handle_ud"),
    ("read", "copy_from_kernel_nofault"),
    ("emulate", "x86_emulate_instruction"),
    ("change", "array_map_update_elem"),
];

pub(crate) fn newest(ctx: &Context) -> anyhow::Result<String> {
    on_host(ctx, "trixie-backports", true)
}

pub(crate) fn bookworm(ctx: &Context) -> anyhow::Result<String> {
    on_host(ctx, "bookworm", false)
}

/// `counts`: whether this host's kernel counts what it skips.
fn on_host(ctx: &Context, suite: &str, counts: bool) -> anyhow::Result<String> {
    let program = ctx.path("map_updates");
    let source = programs::workspace()?.join("lab/kernel-load/map_updates.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    command::output(compiler.arg(&program).arg(source))?;

    let append = format!("{PERIODIC} {PREEMPTIBLE}");
    let mut host =
        host_with_guest_booted(ctx, suite, &append, |image| Ok(image.program(&program)))?;
    let release = host.sh("uname -r")?.trim().to_owned();
    let said = host.sh("dmesg | grep -i 'dynamic preempt' || true")?;
    ensure!(said.contains("full"), "{release} is not preemptible: {said}");
    // The reader sleeps every 20 ms. That is no real-time program's call, so it is not reported; but
    // if the kernel skips it, it counts as dropped.
    host.inner_sh(VM, "kill $(pidof lab-reader); mkfifo /run/paced", PATIENCE)?;
    attach(&mut host, PREFIX)?;
    told(&mut host, counts)?;

    other_kprobes(&mut host)?;
    let quiet = run(&mut host, QUIET, false)?;
    ensure!(quiet.seen == QUIET && quiet.dropped == 0, "beside other kprobes only: {quiet:?}");

    let mut busy = run(&mut host, CALLS, true)?;
    for _ in 1..TRIES {
        if busy.began > 0 {
            ctx.log(&format!("something else began in the guest: {busy:?}"));
            busy = run(&mut host, CALLS, true)?;
        }
    }
    ctx.log(&format!("{release}: {busy:?}"));
    ensure!(busy.began == 0, "something begins in the guest all the time: {busy:?}");
    ensure!(busy.updates > 0, "no map was changed: {busy:?}");
    let profile = profile(&mut host)?;
    let Run { updates, arrived, .. } = busy;
    let said = format!(
        "{arrived} calls of all programs came to KVM, {updates} changes of a map, other kprobes: {profile:?}"
    );
    for (name, hits, _) in &profile {
        ensure!(*hits > 0, "the kprobe {name} was never reached: {profile:?}");
    }
    ensure!(busy.seen < CALLS, "the load made the kernel skip nothing: {busy:?}; {said}");
    told(&mut host, counts)?;
    let lost = CALLS - busy.seen;
    let found = if counts {
        ensure!(busy.seen + busy.dropped == CALLS, "of {CALLS} calls: {busy:?}; {said}");
        format!("{lost} skipped, each counted as dropped")
    } else {
        ensure!(busy.seen + busy.dropped < CALLS, "of {CALLS} calls: {busy:?}; {said}");
        format!("{lost} skipped, {} counted, and list says \"losses not counted\"", busy.dropped)
    };

    let after = run(&mut host, QUIET, false)?;
    ensure!(after.seen == QUIET && after.dropped == 0, "after the load: {after:?}");
    detach(&mut host)?;
    Ok(format!(
        "{release}: of {CALLS} calls {} seen, {found} ({said}); all {QUIET} before it, and after",
        busy.seen
    ))
}

/// `introspect list` says whether losses are counted.
fn told(host: &mut NestedHost, counts: bool) -> anyhow::Result<()> {
    let said = host.sh("timevisor introspect list")?;
    ensure!(said.contains("losses not counted") != counts, "counted: {counts}, but: {said}");
    let row = row(host)?;
    ensure!((row["losses_not_counted"] == true) != counts, "counted: {counts}, but: {row}");
    Ok(())
}

/// What became of a program's calls.
#[derive(Debug)]
struct Run {
    /// Events of the program's own calls.
    seen: u64,
    /// Calls of any process that were not seen, by timevisord's count.
    dropped: u64,
    /// Processes and kernel threads that began in the guest meanwhile: their calls could be among
    /// the dropped ones.
    began: u64,
    /// How often the load changed a map.
    updates: u64,
    /// Calls of any process that came to KVM, by the count of another kprobe at the function of
    /// our program.
    arrived: u64,
}

/// Has the guest make this many calls, the first ones beside a load if one is wanted.
fn run(host: &mut NestedHost, calls: u64, is_loaded: bool) -> anyhow::Result<Run> {
    let (before, arrived_before) = (dropped(&row(host)?)?, arrived(host)?);
    let line = format!(
        "lab-calls paced {calls} {RATE_HZ} >/run/paced & read said </run/paced; echo $said"
    );
    // `read` is a shell builtin, so no other process begins; and while the shell has a line to run,
    // it does not look for the next one, which would be calls of its own.
    host.sh(&format!(
        "rm -f /run/calls*; (lab-compare sh /run/{VM}.lab '{line}' >/run/calls 2>&1; echo $? >/run/calls.end) &"
    ))?;
    let mut updates = 0;
    if is_loaded {
        let seen = seen_at_least(host, FIRST)?;
        let count = dropped(&row(host)?)? - before;
        ensure!(count == 0, "{count} calls dropped beside no load");
        host.sh("map_updates 0 >/run/updates 2>&1 & echo $! >/run/updates.pid")?;
        seen_at_least(host, seen + LOADED)?;
        host.sh("kill $(cat /run/updates.pid)")?;
        host.wait("the load's end", |host| {
            let said = host.sh("cat /run/updates")?;
            updates = said.trim().parse().with_context(|| said.clone())?;
            Ok(true)
        })?;
        let ended = host.sh("cat /run/calls.end 2>/dev/null || true")?;
        ensure!(ended.is_empty(), "the program has ended beside the load");
    }
    host.wait("the program's calls", |host| {
        Ok(!host.sh("cat /run/calls.end 2>/dev/null || true")?.is_empty())
    })?;
    let said = host.sh("cat /run/calls")?;
    let said: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    ensure!(said["made"] == calls, "{said}");
    let (seen, dropped) = settled(host)?;
    let by = row(host)?;
    ensure!(by["senseless"] == 0 && by["state"] == "attached", "{by}");
    let arrived = arrived(host)? - arrived_before;
    ensure!(arrived >= calls, "{arrived} of {calls} calls came to KVM");
    let began = said["began"].as_u64().context("no count")?;
    host.inner_sh(VM, &format!("kill {}", said["pid"]), PATIENCE)?;
    host.wait("its end", |host| Ok(own(&row(host)?).is_none()))?;
    Ok(Run { seen, dropped: dropped - before, began, updates, arrived })
}

/// Waits until so many calls of the program were seen; returns how many.
fn seen_at_least(host: &mut NestedHost, wanted: u64) -> anyhow::Result<u64> {
    let mut seen = 0;
    host.wait("the program's calls to be seen", |host| {
        seen = own(&row(host)?).unwrap_or(0);
        Ok(seen >= wanted)
    })?;
    Ok(seen)
}

/// The program's calls that were seen, and all that were dropped, once neither changes.
fn settled(host: &mut NestedHost) -> anyhow::Result<(u64, u64)> {
    let mut last = None;
    host.wait("the last event", |host| {
        let row = row(host)?;
        let now = (own(&row).context("the program's task is not listed")?, dropped(&row)?);
        let is_same = last.replace(now) == Some(now);
        if !is_same {
            interrupt::sleep(SETTLED)?;
        }
        Ok(is_same)
    })?;
    last.context("nothing was seen")
}

/// Calls that were seen of the program, if it is known.
fn own(row: &Value) -> Option<u64> {
    let tasks = row["tasks"].as_array()?;
    let own = tasks.iter().find(|task| task["thread"]["comm"] == "lab-calls")?;
    own["jobs"].as_u64()
}

fn dropped(row: &Value) -> anyhow::Result<u64> {
    row["dropped"].as_u64().with_context(|| format!("no count: {row}"))
}

/// Places [`OTHERS`], which write to the kernel's trace.
fn other_kprobes(host: &mut NestedHost) -> anyhow::Result<()> {
    host.sh(&format!("mount -t tracefs none {TRACING} 2>/dev/null || true"))?;
    for (name, function) in OTHERS {
        host.sh(&format!("echo 'p:lab/{name} {function}' >>{TRACING}/kprobe_events"))?;
    }
    host.sh(&format!("echo 1 >{TRACING}/events/lab/enable")).map(drop)
}

/// How often the function of our program began.
fn arrived(host: &mut NestedHost) -> anyhow::Result<u64> {
    let all = profile(host)?;
    let found = all.iter().find(|(name, ..)| name == OTHERS[0].0);
    Ok(found.with_context(|| format!("{all:?}"))?.1)
}

/// Of each of [`OTHERS`]: how often it was reached, and how often the kernel skipped it.
fn profile(host: &mut NestedHost) -> anyhow::Result<Vec<(String, u64, u64)>> {
    let said = host.sh(&format!("cat {TRACING}/kprobe_profile"))?;
    let all: Option<Vec<_>> = said
        .lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?.to_owned();
            Some((name, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        })
        .collect();
    let all = all.with_context(|| said.clone())?;
    ensure!(all.len() == OTHERS.len(), "{said}");
    Ok(all)
}
