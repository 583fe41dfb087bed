//! A guest's late jobs and their causes, without a question: introspection sees that a job ended too late, and the
//! host's samples say why.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use serde_json::Value;
use timevisor_linux::scheduling::Attributes;

use crate::host::{Host, mentions};
use crate::introspection::emulated::{emulated, row};
use crate::real_time::{Load, Restore, costs, text};
use crate::scenario::Context;

/// Cost, period and runtime under SCHED_DEADLINE, ms. A job that is late by little still sleeps before the next
/// one, and only a sleep or a yield says that it has ended.
const TASKS: [&str; 1] = ["30/60/50"];
const SECONDS: u64 = 6;
/// Enough.
const ENOUGH: &str = "45ms/50ms";
/// Of what the jobs cost on average: enough in the long run, but too little for a job whose release comes just
/// after a budget that others have used. Per cent.
const LITTLE: u64 = 115;
/// What the vCPU is left with now and then, behind timevisord's back, and for how long.
const TAKEN: u64 = 2_000_000;
const FOR: Duration = Duration::from_millis(150);

pub(crate) fn late(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let programs =
        [ctx.program("timevisor-lab-guest", "lab-rt")?, ctx.program("timevisor", "timevisor")?];
    let mut guest = emulated(ctx, &host, &programs, &[])?;
    let turns = costs::calibrate(&host, &mut guest, "web")?;
    host.cli(&["introspect", "attach", "web"])?;
    host.wait_until("the trap points", |host| Ok(row(host)?["state"] == "attached"))?;
    let _load = Load::start()?;
    let tasks = TASKS.map(str::to_owned);
    let enough = ENOUGH;

    host.cli(&["reserve", "apply", "web", "--alone", "--budget", enough])?;
    let run = costs::run_tasks(&mut guest, (turns, SECONDS), false, 0, &tasks)?;
    let in_time = run.found[0].misses();
    let mut told = vec![format!("{enough}: {}", text(&run.found))];
    let before = counts(&host)?;
    ensure!(
        before.iter().sum::<u64>() <= u64::try_from(in_time)?,
        "{before:?} jobs were called late, and {in_time} were"
    );

    // The guest wants more than it has, now and then.
    let jobs = u64::try_from(run.jobs[0].len())?.max(1);
    let cost = (0..run.jobs[0].len()).map(|job| run.cost(0, job)).sum::<u64>() / jobs;
    let little = cost * 50 / 60 * LITTLE / 100 / 1000;
    let little = format!("{little}us/50ms");
    host.cli(&["reserve", "apply", "web", "--alone", "--budget", &little])?;
    // A busy thread beside them uses up what is there before a job is released.
    let run = costs::run_tasks(&mut guest, (turns, SECONDS), true, 0, &tasks)?;
    let late = run.found[0].misses();
    told.push(format!("{little}: {}", text(&run.found)));
    ensure!(late > 5, "in time in {little}: {told:?}");
    host.wait_until("late jobs with a cause", |host| {
        Ok(counts(host)?[UNDER_DECLARED] > before[UNDER_DECLARED])
    })?;
    let found = counts(&host)?;
    ensure!(found[HOST_BROKE] == before[HOST_BROKE], "the host is blamed: {found:?}");

    // Somebody takes the reservation away for a moment, again and again: now it is the host.
    host.cli(&["reserve", "apply", "web", "--alone", "--budget", enough])?;
    let tid = u32::try_from(held(&host)?["tid"].as_u64().context("no tid")?)?;
    let ended = AtomicBool::new(false);
    let run = std::thread::scope(|scope| -> anyhow::Result<_> {
        let taking = scope.spawn(|| -> anyhow::Result<()> {
            let ours = Attributes::of(tid)?;
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(FOR * 6);
                Attributes { runtime: TAKEN, ..ours }.set(tid)?;
                std::thread::sleep(FOR);
                ours.set(tid)?;
            }
            Ok(())
        });
        let run = costs::run_tasks(&mut guest, (turns, SECONDS), false, 0, &tasks);
        ended.store(true, Ordering::Relaxed);
        taking.join().map_err(|_| anyhow!("the thread that takes it away panicked"))??;
        run
    })?;
    told.push(format!("{enough}, taken away: {}", text(&run.found)));
    host.wait_until("the host to be blamed", |host| {
        Ok(counts(host)?[HOST_BROKE] > found[HOST_BROKE])
    })?;
    let found = counts(&host)?;
    let said = held(&host)?["late"].clone();
    ensure!(said["last_task"].as_str().is_some_and(|task| task.ends_with("lab-rt")), "{said}");
    let top = host.cli(&["reserve", "top", "--count", "1"])?;
    mentions(&top, &["late (by host)", &format!("({})", found[HOST_BROKE])])?;
    Ok(format!("{}; {said}", told.join("; ")))
}

const HOST_BROKE: usize = 0;
const UNDER_DECLARED: usize = 1;

/// The late jobs by cause.
fn counts(host: &Host) -> anyhow::Result<[u64; 4]> {
    let late = &held(host)?["late"];
    let of = |name: &str| late[name].as_u64().unwrap_or(0);
    Ok(["host_broke", "guest_under_declared", "guest_policy", "unclear"].map(of))
}

fn held(host: &Host) -> anyhow::Result<Value> {
    let rows = host.json(&["reserve", "list"])?;
    rows.get(0).cloned().context("nothing is reserved")
}
