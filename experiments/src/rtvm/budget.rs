//! How small a reservation may be: the minimum budget according to the analysis, and the deadlines
//! that two tasks miss with slightly larger and smaller budgets, measured beside a busy host and a
//! busy guest.
//!
//! A guest that always has something to run uses up its budget at the beginning of each period. The
//! worst case for a job is then a release just afterwards. Releases shift relative to the
//! reservation's periods, so that every job meets this case.
//!
//! Jobs are judged by their actual cost, not by the declared one: each job has its own minimum
//! budget, and received some share of it.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::real_time::stolen::Watch;
use timevisor_lab::real_time::{self, Load, Restore, TASKS, costs};
use timevisor_lab::scenario::Context;

use super::super::report;
use super::needed::{self, Needed};
use super::{PERIOD, plan, predicted};

const NAME: &str = "rtvm-budget";
/// Releases meet the reservation's period in 50 phases, one every 600 ms.
const SHIFT_MS: u64 = 7;
/// Share of the minimum budget, percent.
const SHARES: [u64; 7] = [85, 90, 95, 100, 105, 110, 115];
/// The share of its own minimum budget that each job received, percent.
const CLASSES: [(&str, Range<f64>); 4] = [
    ("less than 95 %", 0.0..95.0),
    ("95 to 100 %", 95.0..100.0),
    ("100 to 105 %", 100.0..105.0),
    ("105 % and more", 105.0..f64::INFINITY),
];

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let seconds = (span.as_secs() / SHARES.len() as u64).max(20);
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let mut guest = real_time::guest(ctx, &host, "guest")?;
    let least = plan(ctx, &host, None)?["minimum_budget_ns"].as_u64().context("no least budget")?;
    println!("  {seconds} s each; least budget by analysis: {:.3} ms\n", least as f64 / 1e6);
    println!(
        "budget, ms  share    task    jobs   missed  worst, ms  predicted, ms  cost: mean, most  s kept, broken: most missing, ms  stolen: all, in 200 ms"
    );
    let (mut rows, mut jobs) = (Vec::new(), Vec::new());
    for share in SHARES {
        interrupt::check()?;
        // This machine's speed changes, so it is calibrated each time.
        let turns = costs::calibrate(&host, &mut guest, "guest")?;
        let budget = (least * share).div_ceil(100 * 1000);
        let budget_text = format!("{budget}us");
        let declared = plan(ctx, &host, Some(&budget_text))?;
        let load = Load::start()?;
        let reserved = format!("{budget_text}/{PERIOD}");
        host.cli(&["reserve", "apply", "guest", "--alone", "--budget", &reserved])?;
        let watch = Watch::start();
        let run = costs::run(&mut guest, (turns, seconds), true, SHIFT_MS)?;
        let stolen = watch.end()?;
        drop(load);
        let audit = host.json(&["reserve", "audit"])?[0]["audit"].clone();
        host.cli(&["reserve", "release", "guest"])?;
        let needed = needed::all(&run, budget * 1000)?;
        for (index, task) in run.found.iter().enumerate() {
            let first = |text: String| if index == 0 { text } else { String::new() };
            let (mean, most) = run.costs(index);
            println!(
                "{:>10}  {:>5}  {:>6}  {:>6}  {:>7}  {:>9.1}  {:>13}  {mean:>10.3}, {most:.3}  {:>31}  {}",
                first(format!("{:.3}", budget as f64 / 1e3)),
                first(format!("{share} %")),
                format!("tau{}", index + 1),
                task.ms.len(),
                task.misses(),
                task.worst_ms(),
                predicted(&declared, index),
                first(format!(
                    "{}, {}: {:.1}",
                    audit["exhausted"],
                    audit["broken"],
                    audit["most_missing_ns"].as_f64().unwrap_or(0.0) / 1e6
                )),
                first(format!("{} ms, {} ms", stolen.total_ms, stolen.worst_ms)),
            );
            let of_task = needed.iter().filter(|job| job.task == index).map(Needed::row);
            rows.push(json!({
                "budget_us": budget, "share_percent": share, "task": TASKS[index], "jobs": task.ms.len(),
                "misses": task.misses(), "worst_ms": task.worst_ms(), "cost": mean, "most_cost": most,
                "predicted_ns": declared["response_times_ns"][format!("tau{}", index + 1)],
                "audit": audit, "stolen_ms": stolen.total_ms, "stolen_in_200_ms": stolen.worst_ms,
                "needed": of_task.collect::<Vec<_>>(),
            }));
        }
        jobs.extend(
            needed.into_iter().map(|job| (100.0 * (budget * 1000) as f64 / job.least as f64, job)),
        );
    }
    conclude(&jobs);
    report::write(NAME, rows)
}

/// Misses by the share of the minimum budget, for its actual cost, that each job received.
fn conclude(jobs: &[(f64, Needed)]) {
    println!("\nreserved, of the least budget for what each job took: missed, of jobs");
    for (name, class) in CLASSES {
        let inside = || jobs.iter().filter(|(share, _)| class.contains(share));
        let late = inside().filter(|(_, job)| job.late()).count();
        println!("{name:>16}: {late:>5} of {}", inside().count());
    }
    let late = jobs.iter().filter(|(_, job)| job.late());
    if let Some((share, job)) = late.max_by(|(a, _), (b, _)| a.total_cmp(b)) {
        println!("the last one that was missed had {share:.1} %: {}", job.text());
    }
    let needed: Vec<Needed> = jobs.iter().map(|(_, job)| *job).collect();
    let (count, late, _) = needed::kept(&needed, |job| job.ticked);
    println!("promised to be in time, with the tick: {count} jobs, {late} of them late");
}
