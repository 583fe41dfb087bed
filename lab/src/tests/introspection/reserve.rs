//! The whole of it: an unmodified guest starts real-time tasks, their reservation is there before their first job, and a busy host makes none
//! of them late; the same tasks are late when nobody looks.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::client::Client;
use crate::host::Host;
use crate::interrupt::in_time;
use crate::real_time::{self, Load, Responses, Restore, run_tasks, text};
use crate::scenario::Context;
use crate::tests::introspection::calls::{emulated, row};

/// Cost, period and runtime under SCHED_DEADLINE, ms. The guest's kernel counts the time in which its vCPU waits as the task's own: the
/// runtimes have the reservation's longest pause in them.
const TASKS: [&str; 2] = ["25/150/65", "35/200/80"];
/// Under SCHED_FIFO, and what their operator says of them: a quarter more, because costs vary with this machine.
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

    let turns = real_time::calibrate_loaded(&host, &mut guest, "web")?;
    let mut told = Vec::new();
    for (policy, tasks, more) in [("deadline", TASKS, &[][..]), ("FIFO", FIXED, &DECLARED)] {
        let without = loaded(&mut guest, turns, &tasks)?;
        told.push(format!("{policy}, nobody looks: {}", text(&without)));
        // The more urgent one may be in time with the little that there is.
        let late = without.iter().any(|task| task.misses() * 2 > task.ms.len());
        in_time(late, || format!("the host was not loaded; {told:?}"))?;

        let attach = ["introspect", "attach", "web", "--reserve", "--alone"];
        host.cli(&[&attach, more].concat())?;
        host.wait_until("the trap points", |host| Ok(row(host)?["state"] == "attached"))?;
        ensure!(held(&host)?.is_empty(), "reserved for nothing: {:?}", held(&host)?);
        let with = loaded(&mut guest, turns, &tasks)?;
        told.push(format!("introspected: {}", text(&with)));
        // It went with the tasks.
        host.wait_until("nothing to be reserved", |host| Ok(held(host)?.is_empty()))?;
        let row = row(&host)?;
        ensure!(row["dropped"] == 0 && row["reserved"]["refused"].is_null(), "{row}");
        in_time(missed(&with) == 0, || format!("{told:?}, {row}"))?;
        host.cli(&["introspect", "detach", "web"])?;
    }
    Ok(told.join("; "))
}

fn loaded(guest: &mut Client, turns: u64, tasks: &[&str]) -> anyhow::Result<Vec<Responses>> {
    let _load = Load::start()?;
    let tasks: Vec<String> = tasks.iter().map(|task| (*task).to_owned()).collect();
    run_tasks(guest, (turns, SECONDS), false, 0, &tasks)
}

fn missed(run: &[Responses]) -> usize {
    run.iter().map(Responses::misses).sum()
}

fn held(host: &Host) -> anyhow::Result<Vec<Value>> {
    host.json(&["reserve", "list"])?.as_array().cloned().context("no list")
}
