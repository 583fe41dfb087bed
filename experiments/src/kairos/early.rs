//! What jobs that complete early leave of a reservation: the host's scheduler gives it to others at
//! once. Two tasks of a guest take from all to a quarter of the costs for which their budget is meant,
//! and an ordinary program on the same core, without any priority, has what they leave.
//!
//! Differences from the paper: nobody has to say that a job is complete. The guest's processor halts, so
//! its thread sleeps, and SCHED_DEADLINE comes before others only while a thread wants to run.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::json;
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::real_time::costs::{declared_ns, period_ns, vcpu};
use timevisor_lab::real_time::{self, Responses, Restore};
use timevisor_lab::scenario::Context;
use timevisor_linux::affinity;
use timevisor_linux::scheduling::schedstat;

use super::super::report;

const NAME: &str = "kairos-early";
/// Of the costs that the tasks declare, per cent.
const SHARES: [u64; 4] = [100, 75, 50, 25];
const REPEATS: u64 = 3;
/// The paper's reservation for these tasks (Real-time virtual machines), ms.
const BUDGET_MS: u64 = 28;
const PERIOD_MS: u64 = 50;

/// A program that computes on one core, until dropped.
struct Busy(Child);

impl Busy {
    fn on(core: usize) -> anyhow::Result<Self> {
        let mut command = Command::new("sh");
        let child = command.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn()?;
        let busy = Self(child);
        affinity::allow(busy.0.id(), &[core])?;
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let seconds = (span.as_secs() / (SHARES.len() as u64 * REPEATS)).max(5);
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let mut guest = real_time::guest(ctx, &host, "guest")?;
    let turns = real_time::calibrate_loaded(&host, &mut guest, "guest")?;
    let pid = guest.guest.pid();
    let vcpu = vcpu(pid)?;
    let budget = format!("{BUDGET_MS}ms/{PERIOD_MS}ms");
    let reserved = 100.0 * BUDGET_MS as f64 / PERIOD_MS as f64;
    host.cli(&["reserve", "apply", "guest", "--alone", "--budget", &budget])?;
    host.wait_until("the reservation", |host| Ok(the_core(host)?.is_some()))?;
    let core = the_core(&host)?.context("no core")?;
    let busy = Busy::on(core)?;
    println!("  {REPEATS} times {seconds} s each; a budget of {budget}; per cent of the core\n");
    println!(
        "jobs take, of what they declare  reserved  the guest's vCPU ran  the program beside it ran  others, or nobody    jobs  missed"
    );
    let mut rows = Vec::new();
    for share in SHARES {
        let (mut jobs, mut missed) = (0, 0);
        let (mut lasted, mut ran) = (Duration::ZERO, [0; 2]);
        for _ in 0..REPEATS {
            interrupt::check()?;
            let tasks: Vec<String> = (0..real_time::TASKS.len())
                .map(|task| {
                    let us = declared_ns(task) * share / 100_000;
                    format!("{}.{:03}/{}", us / 1000, us % 1000, period_ns(task) / 1_000_000)
                })
                .collect();
            let count = || {
                anyhow::Ok([schedstat(pid, vcpu)?.ran, schedstat(busy.0.id(), busy.0.id())?.ran])
            };
            let (began, before) = (Instant::now(), count()?);
            let found = real_time::run_tasks(&mut guest, (turns, seconds), false, 0, &tasks)?;
            let after = count()?;
            lasted += began.elapsed();
            ran = [0, 1].map(|who| ran[who] + after[who] - before[who]);
            jobs += found.iter().map(|task| task.ms.len()).sum::<usize>();
            missed += found.iter().map(Responses::misses).sum::<usize>();
        }
        let [guests, programs] = ran.map(|ns| 100.0 * ns as f64 / lasted.as_nanos() as f64);
        let rest = 100.0 - guests - programs;
        println!(
            "{share:>29} %  {reserved:>7.1} %  {guests:>18.1} %  {programs:>23.1} %  {rest:>15.1} %  {jobs:>6}  {missed:>6}"
        );
        rows.push(json!({
            "share_percent": share, "reserved_percent": reserved, "guest_percent": guests,
            "program_percent": programs, "rest_percent": rest, "jobs": jobs, "missed": missed,
        }));
    }
    drop(busy);
    host.cli(&["reserve", "release", "guest"])?;
    guest.guest.kill();
    report::write(NAME, rows)
}

/// The core that the guest's vCPU has, once the reservation is in force.
fn the_core(host: &Host) -> anyhow::Result<Option<usize>> {
    let row = &host.json(&["reserve", "list"])?[0];
    let core = row["core"].as_u64().filter(|_| row["problem"].is_null());
    Ok(core.map(usize::try_from).transpose()?)
}
