//! A program whose every call is known, watched through QEMU's plugin.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use timevisor_introspection::backend::tcg::codec::{Decoder, Message};
use timevisor_introspection::tasks::event::{Event, Kind, Policy};

use crate::command::{self, Tethered};
use crate::guest::Guest;
use crate::interrupt;
use crate::introspection::{Watcher, memory, memory_base, probe};
use crate::scenario::Context;

const MIB: u32 = 256;
const JOBS: usize = 20;
const YIELDS: usize = 1000;
/// More events than all buffers hold.
const FLOOD: usize = 30_000;
/// The exit status of lab-calls.
const STATUS: u32 = 3 << 8;

pub(crate) fn tcg(ctx: &Context) -> anyhow::Result<String> {
    let kernel = ctx.kernel("trixie-backports")?;
    let image = ctx.image(&kernel)?.program(&ctx.program("timevisor-lab-guest", "lab-calls")?);
    let plugin = ctx.introspection_plugin()?;
    let directory = crate::scratch::directory()?;
    let socket = directory.path().join("introspect");
    let mut guest = ctx
        .guest(&ctx.qemu_10()?, &kernel, &image)?
        .cpus(2)
        .memory_mib(MIB)
        .args(["-plugin".into(), format!("{},socket={}", plugin.display(), socket.display())])
        .start()?;
    guest.wait_ready()?;

    let base = memory_base(&mut guest)?;
    let guest_os = probe(&memory(guest.pid(), base, u64::from(MIB))?)?;
    let mut told = vec![guest_os.name()];
    let mut watcher = Watcher::connect(&socket, guest_os)?;
    watcher.attach(&mut guest)?;
    exact(&mut guest, &mut watcher).context("the first run")?;
    told.push(format!("{} events exact", watcher.events.len()));

    cycles(&mut guest, &mut watcher).context("attached and detached under load")?;
    exact(&mut guest, &mut watcher).context("after the cycles")?;

    watcher.detach(&mut guest)?;
    let last = watcher.sequence();
    guest.sh(&format!("lab-calls 1 {YIELDS} || [ $? = 3 ]"))?;
    drop(watcher);
    let (next, _) = hello(&socket)?;
    ensure!(next == last, "{} events after the detachment", next - last);

    told.push(flood(&mut guest, &socket, base).context("a flood")?);
    killed(ctx, &mut guest, &socket, base).context("its reader is killed -9")?;
    let mut watcher =
        Watcher::connect(&socket, probe(&memory(guest.pid(), base, u64::from(MIB))?)?)?;
    watcher.attach(&mut guest)?;
    exact(&mut guest, &mut watcher).context("after the kill")?;
    told.push("and again after kill -9".to_owned());

    let trouble = "WARNING:|BUG:|Oops|Call Trace|stall|general protection|segfault";
    let said = guest.sh(&format!("dmesg | grep -E '{trouble}' || true"))?;
    ensure!(said.is_empty(), "the guest's kernel complains: {said}");
    Ok(told.join(", "))
}

/// Runs lab-calls and finds each of its calls in order, with its arguments, and no other events of
/// it.
fn exact(guest: &mut Guest, watcher: &mut Watcher) -> anyhow::Result<()> {
    let first = watcher.events.len();
    ensure!(watcher.dropped == 0, "{} dropped before", watcher.dropped);
    let said = guest.sh(&format!("lab-calls {JOBS} {YIELDS}; [ $? = 3 ]"))?;
    let said: serde_json::Value = serde_json::from_str(said.trim())?;
    let pid = u32::try_from(said["pid"].as_u64().context("no pid")?)?;
    let of = |event: &&Event| event.thread.tid == pid;
    let over = |this: &Watcher| {
        this.events[first..].iter().filter(of).any(|e| matches!(e.kind, Kind::Exit { .. }))
    };
    watcher.until("at its end", guest, over)?;
    ensure!(watcher.dropped == 0, "{} dropped", watcher.dropped);
    let events: Vec<&Event> = watcher.events[first..].iter().filter(of).collect();
    let strange = events.iter().find(|e| e.thread.pid != pid || e.thread.comm != "lab-calls");
    ensure!(strange.is_none(), "another thread: {strange:?}");
    ensure!(events.is_sorted_by_key(|e| (e.sequence, e.counter)), "not in order");

    let mut left = events.iter().map(|e| (e.thread.policy, &e.kind));
    let mut expect = |what: &str, found: &dyn Fn(Policy, &Kind) -> bool| {
        let next = left.next().with_context(|| format!("no {what}"))?;
        ensure!(found(next.0, next.1), "not {what}: {next:?}");
        Ok(())
    };
    let set = |kind: &Kind, wanted: [u64; 5]| {
        let Kind::SetScheduler { target, attributes: a } = kind else { return false };
        let priority = u64::from(a.priority);
        let policy =
            if a.policy == Policy::Deadline { 6 } else { u64::from(a.policy == Policy::Fifo) };
        target.tid == pid && [policy, priority, a.runtime_ns, a.deadline_ns, a.period_ns] == wanted
    };
    expect("sched_setattr to SCHED_DEADLINE", &|policy, kind| {
        policy == Policy::Normal && set(kind, [6, 0, 2_000_000, 10_000_000, 20_000_000])
    })?;
    for _ in 0..JOBS {
        expect("end of a job", &|policy, kind| policy == Policy::Deadline && *kind == Kind::Yield)?;
    }
    for ms in 1..=3 {
        let ns = ms * 1_000_000;
        expect("sleep", &|policy, kind| {
            policy == Policy::Deadline
                && matches!(kind, Kind::Sleep { absolute: false, ns: n, .. } if *n == ns)
        })?;
    }
    expect("sched_setattr to SCHED_FIFO", &|policy, kind| {
        policy == Policy::Deadline && set(kind, [1, 7, 0, 0, 0])
    })?;
    for _ in 0..YIELDS {
        expect("yield", &|policy, kind| policy == Policy::Fifo && *kind == Kind::Yield)?;
    }
    expect("exit", &|policy, kind| {
        policy == Policy::Fifo && *kind == Kind::Exit { status: STATUS }
    })?;
    ensure!(left.next().is_none(), "more than it did");
    let known = watcher.guest_os().tasks().iter().any(|task| task.thread.tid == pid);
    ensure!(!known, "it is still known as a task");
    Ok(())
}

/// Trap points come and go while a program runs through them, and beside one that never lets its
/// vCPU idle.
fn cycles(guest: &mut Guest, watcher: &mut Watcher) -> anyhow::Result<()> {
    for busy in ["lab-calls 1000000 0", "(while :; do :; done)"] {
        guest.sh(&format!("{busy} >/dev/null 2>&1 & echo $! >>/run/busy"))?;
    }
    for _ in 0..50 {
        watcher.detach(guest)?;
        watcher.attach(guest)?;
    }
    guest.sh("kill $(cat /run/busy)").map(drop)
}

/// A reader that reads nothing: no vCPU waits for it, and every event that it misses is counted.
fn flood(guest: &mut Guest, socket: &Path, base: u64) -> anyhow::Result<String> {
    let (first, dropped_before) = hello(socket)?;
    let mut watcher =
        Watcher::connect(socket, probe(&memory(guest.pid(), base, u64::from(MIB))?)?)?;
    watcher.attach(guest)?;
    guest.sh(&format!("lab-calls 1 {FLOOD}; [ $? = 3 ]"))?;
    // 2 calls of sched_setattr, the end of a job, 3 sleeps, the exit.
    let made = FLOOD as u64 + 7;
    let sum = |this: &Watcher| this.events.len() as u64 + this.dropped;
    watcher.until("all there", guest, |this| sum(this) >= made)?;
    watcher.detach(guest)?;
    let (own, events, dropped) = (sum(&watcher), watcher.events.len(), watcher.dropped);
    ensure!(dropped > 0, "the buffers hold {events} events");
    drop(watcher);
    let (next, dropped_after) = hello(socket)?;
    ensure!(next - first == events as u64, "{events} events by {first} to {next}");
    ensure!(dropped_after - dropped_before == dropped, "{dropped} are not all that were dropped");
    Ok(format!("{dropped} of {own} dropped and counted in a flood"))
}

/// The reader's process is killed in the middle of the program, which continues and ends as usual.
fn killed(ctx: &Context, guest: &mut Guest, socket: &Path, base: u64) -> anyhow::Result<()> {
    let lab: PathBuf = std::env::current_exe()?;
    let mut command = command::tethered(lab);
    command.arg("watch").arg(socket);
    command.args([guest.pid().to_string(), base.to_string(), MIB.to_string()]);
    let mut reader = Tethered::spawn(&mut command, "the reader", &ctx.path("watch.log"))?;
    let wait = |reader: &mut Tethered, needle: &str| -> anyhow::Result<()> {
        interrupt::poll_until(Duration::from_secs(120), || {
            reader.check_alive()?;
            Ok(reader.log_text().contains(needle).then_some(()))
        })?
        .with_context(|| format!("the reader never said {needle}"))
    };
    wait(&mut reader, "\nattached")?;
    guest.sh("(lab-calls 5 200000 >/dev/null 2>&1; echo $? >/run/ended) >/dev/null 2>&1 &")?;
    wait(&mut reader, "\"kind\":\"yield\"")?;
    // This sends SIGKILL.
    reader.kill();
    let ended = guest.sh("while [ ! -s /run/ended ]; do sleep 0.1; done; cat /run/ended")?;
    ensure!(ended.trim() == "3", "the program ended with {ended}");
    Ok(())
}

/// What the plugin tells a new connection: the next event's sequence number, and how many events
/// were dropped.
fn hello(socket: &Path) -> anyhow::Result<(u64, u64)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let (mut decoder, mut buffer) = (Decoder::default(), [0; 256]);
    loop {
        let len = stream.read(&mut buffer)?;
        ensure!(len > 0, "the plugin has closed the connection");
        decoder.push(&buffer[..len]);
        if let Some(Message::Hello { next, dropped, .. }) = decoder.message()? {
            return Ok((next, dropped));
        }
    }
}
