//! How small a reservation may be: the least budget that the analysis gives, and what two tasks miss with a little more and less,
//! measured beside a busy host and a busy guest.
//!
//! A guest that always has something to run uses its budget up at the beginning of each period: the worst that can happen to a job is
//! then that it is released just afterwards. Releases move against the reservation's periods, so that each of them meets that.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::report;
use crate::host::Host;
use crate::interrupt;
use crate::real_time::stolen::Watch;
use crate::real_time::{self, Load, Restore, TASKS};
use crate::scenario::Context;

const NAME: &str = "rtvm-budget";
/// The reservation's.
const PERIOD_MS: u64 = 50;
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
    let file = ctx.path("tasks.toml");
    std::fs::write(&file, tasks_file())?;
    let file = file.display().to_string();
    let period = format!("{PERIOD_MS}ms");
    let plan = |budget: Option<&str>| -> anyhow::Result<Value> {
        let mut words = vec!["reserve", "plan", &file, "--alone", "--period", &period, "--json"];
        words.extend(budget.iter().flat_map(|budget| ["--budget", *budget]));
        // It ends with 1 where the tasks do not fit.
        let out = host.cli_output(&words)?;
        serde_json::from_slice(&out.stdout).context("no plan")
    };
    let least = plan(None)?["minimum_budget_ns"].as_u64().context("no least budget")?;
    println!("  {seconds} s each; least budget by analysis: {:.3} ms\n", least as f64 / 1e6);
    println!(
        "budget, ms  share    task    jobs   missed  worst, ms  predicted, ms  stolen: all, in 200 ms"
    );
    let mut rows = Vec::new();
    for share in SHARES {
        interrupt::check()?;
        let budget = (least * share).div_ceil(100 * 1000);
        let budget_text = format!("{budget}us");
        let predicted = plan(Some(&budget_text))?["response_times_ns"].clone();
        let load = Load::start()?;
        host.cli(&[
            "reserve",
            "apply",
            "guest",
            "--alone",
            "--budget",
            &format!("{budget_text}/{period}"),
        ])?;
        let all = real_time::tasks();
        let watch = Watch::start();
        let found = real_time::run_tasks(&mut guest, (turns, seconds), true, SHIFT_MS, &all)?;
        let stolen = watch.end()?;
        drop(load);
        host.cli(&["reserve", "release", "guest"])?;
        for (index, task) in found.iter().enumerate() {
            let predicted = predicted[format!("tau{}", index + 1)].as_u64();
            println!(
                "{:>10}  {:>5}  {:>6}  {:>6}  {:>7}  {:>9.1}  {:>13}  {}",
                if index == 0 { format!("{:.3}", budget as f64 / 1e3) } else { String::new() },
                if index == 0 { format!("{share} %") } else { String::new() },
                format!("tau{}", index + 1),
                task.ms.len(),
                task.misses(),
                task.worst_ms(),
                predicted.map_or("late".to_owned(), |ns| format!("{:.1}", ns as f64 / 1e6)),
                if index == 0 {
                    format!("{} ms, {} ms", stolen.total_ms, stolen.worst_ms)
                } else {
                    String::new()
                },
            );
            rows.push(json!({
                "budget_us": budget, "share_percent": share, "task": TASKS[index], "jobs": task.ms.len(),
                "misses": task.misses(), "worst_ms": task.worst_ms(), "predicted_ns": predicted,
                "stolen_ms": stolen.total_ms, "stolen_in_200_ms": stolen.worst_ms,
                "responses_ms": task.ms,
            }));
        }
    }
    report::write(NAME, rows)
}

/// [`TASKS`] as `reserve plan` reads them.
fn tasks_file() -> String {
    let one = |(index, text): (usize, &&str)| {
        let (cost, period) = text.split_once('/').unwrap_or((text, "0"));
        format!(
            "[[task]]\nname = \"tau{}\"\ncost = \"{cost}ms\"\nperiod = \"{period}ms\"\n",
            index + 1
        )
    };
    let tasks: Vec<String> = TASKS.iter().enumerate().map(one).collect();
    format!("policy = \"rate-monotonic\"\n{}", tasks.concat())
}
