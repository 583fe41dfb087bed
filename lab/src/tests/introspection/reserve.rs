//! End to end: an unmodified guest starts real-time tasks, their reservation comes by itself, and from then
//! on a busy host makes none of them late. Without introspection, the same tasks are late.
//!
//! The reservation usually comes before the first job. Where this machine is busy, it may take some hundred ms, and
//! what began before it is counted apart, but never more than one job in twenty.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use serde_json::Value;
use timevisor_linux::clock::monotonic;
use timevisor_schedule::Reservation;

use crate::client::Client;
use crate::host::Host;
use crate::introspection::emulated::{emulated, row};
use crate::real_time::costs::{self, Run};
use crate::real_time::judge::{self, Declared, Judgement, Promise};
use crate::real_time::witness::Witness;
use crate::real_time::{Load, Restore, text};
use crate::scenario::Context;

/// Cost, period and runtime under SCHED_DEADLINE, ms. The guest's kernel charges the time in which
/// its vCPU waits to the task, so the runtimes include the reservation's longest pause.
const TASKS: [&str; 2] = ["25/150/65", "35/200/80"];
/// Under SCHED_FIFO, and what their operator declares: a quarter more, because costs vary with this
/// machine.
const FIXED: [&str; 2] = ["30/150", "50/200"];
const DECLARED: [&str; 4] = ["--task", "lab-rt@60=38ms/150ms", "--task", "lab-rt@59=62ms/200ms"];
const SECONDS: u64 = 12;

pub(crate) fn reserve(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let programs =
        [ctx.program("timevisor-lab-guest", "lab-rt")?, ctx.program("timevisor", "timevisor")?];
    let mut guest = emulated(ctx, &host, &programs, &[])?;

    let turns = costs::calibrate(&host, &mut guest, "web")?;
    let mut told = Vec::new();
    for (policy, tasks, more) in [("deadline", TASKS, &[][..]), ("FIFO", FIXED, &DECLARED)] {
        // The more urgent task may meet its deadlines with the little processor time that is left.
        let without = {
            let _load = Load::starving()?;
            costs::run_tasks(&mut guest, (turns, SECONDS / 3), false, 0, &words(&tasks))?
        };
        let supply = judge::is_starved(&without, &needed(&tasks))?;
        told.push(format!("{policy}, nobody looks: {} ({supply})", text(&without.found)));

        let attach = ["introspect", "attach", "web", "--reserve", "--alone"];
        host.cli(&[&attach, more].concat())?;
        host.wait_until("the trap points", |host| Ok(row(host)?["state"] == "attached"))?;
        ensure!(held(&host)?.is_empty(), "reserved for nothing: {:?}", held(&host)?);
        let (with, judged) = reserved(&host, &mut guest, turns, &tasks)?;
        told.push(format!("introspected: {}; {judged}", text(&with.found)));
        // The reservation disappeared with the tasks.
        host.wait_until("nothing to be reserved", |host| Ok(held(host)?.is_empty()))?;
        let row = row(&host)?;
        ensure!(row["dropped"] == 0 && row["reserved"]["refused"].is_null(), "{row}");
        judged.check().with_context(|| format!("{told:?}, {row}"))?;
        host.cli(&["introspect", "detach", "web"])?;
    }
    Ok(told.join("; "))
}

/// What was seen of the reservation while the tasks ran.
struct Seen {
    row: Value,
    /// When this budget and core were first seen, by CLOCK_MONOTONIC, ns.
    since: i64,
    witness: Witness,
}

/// Runs the tasks beside a busy host. Their reservation appears when they start; a thread waits for
/// it and watches its core from then on. The judgement uses the greatest reservation, which is there when
/// the second task has started.
fn reserved(
    host: &Host,
    guest: &mut Client,
    turns: u64,
    tasks: &[&str],
) -> anyhow::Result<(Run, Judgement)> {
    let _load = Load::start()?;
    let ended = AtomicBool::new(false);
    let (run, watched) = std::thread::scope(|scope| {
        let watched = scope.spawn(|| -> anyhow::Result<Option<Seen>> {
            let mut last: Option<Seen> = None;
            while !ended.load(Ordering::Relaxed) {
                let row = held(host)?.into_iter().find(|row| row["problem"].is_null());
                let since = monotonic().floor_nanos();
                last = match (row, last) {
                    (Some(row), None) => {
                        let core = usize::try_from(row["core"].as_u64().context("no core")?)?;
                        Some(Seen { row, since, witness: Witness::start(core) })
                    }
                    (Some(row), Some(seen)) => {
                        // It grows when a task starts, and shrinks when one has ended: what was promised to
                        // the jobs is the greatest one.
                        let grew = row["budget_ns"].as_u64() > seen.row["budget_ns"].as_u64();
                        let moved = row["core"] != seen.row["core"];
                        Some(if grew || moved { Seen { row, since, ..seen } } else { seen })
                    }
                    (None, last) => last,
                };
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(last)
        });
        let run = costs::run_tasks(guest, (turns, SECONDS), false, 0, &words(tasks));
        ended.store(true, Ordering::Relaxed);
        (run, watched.join())
    });
    let run = run?;
    let watched = watched.map_err(|_| anyhow!("the thread that waits for it panicked"))??;
    let Seen { row, since, witness } =
        watched.context("nothing was reserved while the tasks ran")?;
    let stalls = witness.end(&run.on)?;
    let ns = |name: &str| row[name].as_u64().with_context(|| format!("no {name} in {row}"));
    let reservation = Reservation::alone(ns("budget_ns")?, ns("period_ns")?)?;
    let promise = Promise::unmeasured(reservation, needed(tasks));
    let judged = Judgement::since(since, &run, &promise, &stalls)?;
    Ok((run, judged))
}

fn words(tasks: &[&str]) -> Vec<String> {
    tasks.iter().map(|task| (*task).to_owned()).collect()
}

/// The tasks' cost and deadline, as they declare them.
fn needed(tasks: &[&str]) -> Vec<Declared> {
    let ns = |task: &str, part| {
        let ms = task.split('/').nth(part).and_then(|ms| ms.parse::<u64>().ok());
        ms.unwrap_or_default() * 1_000_000
    };
    tasks.iter().map(|task| Declared { cost: ns(task, 0), deadline: ns(task, 1) }).collect()
}

fn held(host: &Host) -> anyhow::Result<Vec<Value>> {
    host.json(&["reserve", "list"])?.as_array().cloned().context("no list")
}
