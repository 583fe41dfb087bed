//! The whole of it: an unmodified guest starts real-time tasks, their reservation is there before their first job, and a busy host makes none
//! of them late; the same tasks are late when nobody looks.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::introspect_calls::{emulated, row};
use crate::client::Client;
use crate::host::Host;
use crate::interrupt::in_time;
use crate::real_time::{self, Load, Responses, Restore, run_tasks, text};
use crate::scenario::Context;

/// Cost, period and runtime under SCHED_DEADLINE, ms. The guest's kernel counts the time in which its vCPU waits as the task's own: the
/// runtimes have the reservation's longest pause in them.
const TASKS: [&str; 2] = ["20/150/65", "25/200/80"];
const SECONDS: u64 = 12;

pub(super) fn reserve(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let programs =
        [ctx.program("timevisor-lab-guest", "lab-rt")?, ctx.program("timevisor", "timevisor")?];
    let mut guest = emulated(ctx, &host, &programs, &[])?;

    let turns = real_time::calibrate_loaded(&host, &mut guest, "web")?;
    let without = loaded(&mut guest, turns)?;
    let told = format!("nobody looks: {}", text(&without));
    in_time(missed(&without) * 2 > jobs(&without), || format!("the host was not loaded; {told}"))?;

    host.cli(&["introspect", "attach", "web", "--reserve", "--alone"])?;
    host.wait_until("the trap points", |host| Ok(row(host)?["state"] == "attached"))?;
    ensure!(held(&host)?.is_empty(), "reserved for nothing: {:?}", held(&host)?);
    let with = loaded(&mut guest, turns)?;
    // It went with the tasks.
    host.wait_until("nothing to be reserved", |host| Ok(held(host)?.is_empty()))?;
    let told = format!("{told}; introspected: {}", text(&with));
    in_time(missed(&with) == 0, || told.clone())?;
    let row = row(&host)?;
    ensure!(row["dropped"] == 0 && row["reserved"]["refused"].is_null(), "{row}");
    Ok(told)
}

fn loaded(guest: &mut Client, turns: u64) -> anyhow::Result<Vec<Responses>> {
    let _load = Load::start()?;
    run_tasks(guest, (turns, SECONDS), false, 0, &TASKS.map(str::to_owned))
}

fn missed(run: &[Responses]) -> usize {
    run.iter().map(Responses::misses).sum()
}

fn jobs(run: &[Responses]) -> usize {
    run.iter().map(|task| task.ms.len()).sum()
}

fn held(host: &Host) -> anyhow::Result<Vec<Value>> {
    host.json(&["reserve", "list"])?.as_array().cloned().context("no list")
}
