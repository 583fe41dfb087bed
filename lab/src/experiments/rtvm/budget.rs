//! How small a reservation may be: the least budget that the analysis gives, and what two tasks miss with a little more and less,
//! measured beside a busy host and a busy guest.
//!
//! A guest that always has something to run uses its budget up at the beginning of each period: the worst that can happen to a job is
//! then that it is released just afterwards. Releases move against the reservation's periods, so that each of them meets that.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::super::report;
use super::{PERIOD, plan, predicted};
use crate::host::Host;
use crate::interrupt;
use crate::real_time::costs::{self, Run};
use crate::real_time::stolen::Watch;
use crate::real_time::{self, Load, Restore, TASKS};
use crate::scenario::Context;

const NAME: &str = "rtvm-budget";
/// Releases meet the reservation's period at 50 places, one in each 600 ms.
const SHIFT_MS: u64 = 7;
/// Of the least budget, percent.
const SHARES: [u64; 7] = [85, 90, 95, 100, 105, 110, 115];

pub(in super::super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let seconds = (span.as_secs() / SHARES.len() as u64).max(20);
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let mut guest = real_time::guest(ctx, &host, "guest")?;
    let turns = real_time::calibrate_loaded(&host, &mut guest, "guest")?;
    let least =
        plan(ctx, &host, 1.0, None)?["minimum_budget_ns"].as_u64().context("no least budget")?;
    println!("  {seconds} s each; least budget by analysis: {:.3} ms\n", least as f64 / 1e6);
    println!(
        "budget, ms  share    task    jobs   missed  worst, ms  predicted, ms  a job cost  predicted for that  s kept, broken: most missing, ms  stolen: all, in 200 ms"
    );
    let mut rows = Vec::new();
    for share in SHARES {
        interrupt::check()?;
        let budget = (least * share).div_ceil(100 * 1000);
        let budget_text = format!("{budget}us");
        let declared = plan(ctx, &host, 1.0, Some(&budget_text))?;
        let load = Load::start()?;
        host.cli(&[
            "reserve",
            "apply",
            "guest",
            "--alone",
            "--budget",
            &format!("{budget_text}/{PERIOD}"),
        ])?;
        let all = real_time::tasks();
        let watch = Watch::start();
        let Run { found, cost } = costs::run(&mut guest, (turns, seconds), true, SHIFT_MS, &all)?;
        let stolen = watch.end()?;
        drop(load);
        let audit = host.json(&["reserve", "audit"])?[0]["audit"].clone();
        host.cli(&["reserve", "release", "guest"])?;
        let real = plan(ctx, &host, cost, Some(&budget_text))?;
        for (index, task) in found.iter().enumerate() {
            let first = |text: String| if index == 0 { text } else { String::new() };
            println!(
                "{:>10}  {:>5}  {:>6}  {:>6}  {:>7}  {:>9.1}  {:>13}  {:>10}  {:>18}  {:>31}  {}",
                first(format!("{:.3}", budget as f64 / 1e3)),
                first(format!("{share} %")),
                format!("tau{}", index + 1),
                task.ms.len(),
                task.misses(),
                task.worst_ms(),
                predicted(&declared, index),
                first(format!("{cost:.3}")),
                predicted(&real, index),
                first(format!(
                    "{}, {}: {:.1}",
                    audit["exhausted"],
                    audit["broken"],
                    audit["most_missing_ns"].as_f64().unwrap_or(0.0) / 1e6
                )),
                first(format!("{} ms, {} ms", stolen.total_ms, stolen.worst_ms)),
            );
            let name = format!("tau{}", index + 1);
            rows.push(json!({
                "budget_us": budget, "share_percent": share, "task": TASKS[index], "jobs": task.ms.len(),
                "misses": task.misses(), "worst_ms": task.worst_ms(), "cost": cost,
                "predicted_ns": declared["response_times_ns"][&name],
                "predicted_for_cost_ns": real["response_times_ns"][&name],
                "audit": audit, "stolen_ms": stolen.total_ms, "stolen_in_200_ms": stolen.worst_ms,
                "responses_ms": task.ms,
            }));
        }
    }
    report::write(NAME, rows)
}
