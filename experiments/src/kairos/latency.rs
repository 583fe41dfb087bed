//! The cost of a call in an emulated guest, depending on how it is introspected.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};
use timevisor_lab::client::Client;
use timevisor_lab::host::Host;
use timevisor_lab::image::Image;
use timevisor_lab::introspection::emulated::{booted, emulated};
use timevisor_lab::scenario::Context;

use super::super::{job, report};
use super::WAYS;
use super::attached::Attached;
use super::table::{self, Row};

const NAME: &str = "kairos-latency";
const KERNEL: &str = "trixie-backports";
/// Number of calls of each kind in a run, as in the paper.
const TIMES: &str = "1000";
/// Number of calls in the run of a program that only makes calls; one in a hundred is trapped.
const WORK: u64 = 50_000;
const TRAPPED: u64 = WORK / 100;

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let program = ctx.program("timevisor-lab-guest", "lab-call-costs")?;
    let programs = [program.clone()];
    let socket = format!("unix:{},server=on,wait=off", host.directory().join("web.gdb").display());
    let mut guest = emulated(ctx, &host, &programs, &["-gdb".to_owned(), socket])?;

    let (mut native, mut rows) = (Row::new("this machine"), WAYS.map(|(name, _)| Row::new(name)));
    let mut least = [f64::MAX; WAYS.len()];
    let end = Instant::now() + span;
    // All of them take turns, so that a temporary slowdown of the machine affects all equally.
    while native.said.len() < 3 || Instant::now() < end {
        native.said.push(job::native(Path::new(&program), &[TIMES])?);
        for (index, (_, words)) in WAYS.iter().enumerate() {
            let attached = Attached::new(&host, words)?;
            rows[index].said.push(inside(&mut guest, TIMES)?);
            // With a gdb stub this would take minutes.
            if index < 3 {
                let said = inside(&mut guest, &format!("work {WORK}"))?;
                let ticks = said["ticks"].as_f64().with_context(|| said.to_string())?;
                least[index] = least[index].min(ticks);
            }
            attached.end()?;
        }
    }
    guest.guest.kill();
    println!("  {} runs of {TIMES} calls of each kind\n", native.said.len());
    let [none, ours, every, gdb] = &rows;
    let mut told = table::print(&[&native, none, ours, every, gdb], none)?;
    table::print_spread(&[&native, none, ours, every, gdb])?;
    let [low, high] = table::untrapped(ours, none)?;
    println!("\nnot trapped, introspected / not: {low:.3} to {high:.3}");
    let (trap, stub) = (table::trap(ours, none)?, table::trap(gdb, none)?);
    println!(
        "a trap adds {trap:.0} ticks to sched_yield, gdb's {stub:.0}: {:.0} times as much",
        stub / trap
    );
    let [base, with, all, _] = least;
    let more = |ticks: f64| (ticks / base - 1.0) * 100.0;
    // Our overhead on all of these calls is less than their variation, so it is computed from the
    // count.
    let counted = TRAPPED as f64 * trap;
    println!(
        "{WORK} calls, {TRAPPED} of them trapped: {base:.0} ticks at least; introspected {:.2} % more, with every call trapped {:.1} %.\n\
         By what a trap adds, {TRAPPED} add {:.2} %: every call trapped is {:.0} times that",
        more(with),
        more(all),
        counted / base * 100.0,
        (all - base) / counted
    );
    told.push(json!({
        "untrapped": [low, high], "trap_ticks": trap, "gdb_ticks": stub, "work_ticks": [base, with, all], "counted_ticks": counted,
        "every_getppid": every.median("getppid")? / none.median("getppid")?,
    }));
    drop(host);
    told.extend(instructions(ctx, &server.address().ip().to_string(), program)?);
    println!(
        "\nThe paper, on hardware (figure 6 and its text): calls that KairosVM traps take 7 to 10 times as long as under KVM alone, others the same."
    );
    report::write(NAME, told)
}

/// In this guest, time counts instructions: one per tick.
fn instructions(ctx: &Context, server: &str, program: PathBuf) -> anyhow::Result<Vec<Value>> {
    let host = Host::following(ctx, server)?;
    host.wait_synchronized(500)?;
    let counting = ["-icount".to_owned(), "shift=0,sleep=off".to_owned()];
    // Its page has no valid time, because its counter is not the host's.
    let image = move |image: Image| Ok(image.program(&program));
    let mut guest = booted(ctx, &host, KERNEL, image, &counting)?;
    let mut rows = [Row::new("guest"), Row::new("guest, introspected")];
    for _ in 0..3 {
        for (index, row) in rows.iter_mut().enumerate() {
            let attached = Attached::new(&host, WAYS[index].1)?;
            row.said.push(inside(&mut guest, TIMES)?);
            attached.end()?;
        }
    }
    guest.guest.kill();
    println!("\nInstructions of the guest (QEMU's -icount)\n");
    let told = table::print(&[&rows[0], &rows[1]], &rows[0])?;
    let [low, high] = table::untrapped(&rows[1], &rows[0])?;
    println!("\nnot trapped, introspected / not: {low:.4} to {high:.4}");
    Ok(told)
}

fn inside(guest: &mut Client, words: &str) -> anyhow::Result<Value> {
    let said =
        guest.guest.sh_within(&format!("lab-call-costs {words}"), Duration::from_secs(300))?;
    serde_json::from_str(said.trim()).with_context(|| said.clone())
}
