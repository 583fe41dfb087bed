//! T. Cucinotta, G. Anastasi, L. Abeni, "Real-Time Virtual Machines", with two real-time tasks in a guest.
//!
//! | file | owns |
//! | --- | --- |
//! | `responses.rs` | figures 1 to 4 |
//! | `apache.rs` | table 1 |
//! | `budget.rs` | the least budget, by analysis and measured |
//! | `satisfaction.rs` | many tasks over their utilization (the workload of another paper, KairosVM) |

pub(super) mod apache;
pub(super) mod budget;
pub(super) mod responses;
pub(super) mod satisfaction;

use anyhow::Context as _;
use serde_json::Value;

use crate::host::Host;
use crate::real_time::TASKS;
use crate::scenario::Context;

/// The reservation's period.
const PERIOD: &str = "50ms";

/// What `reserve plan` says of [`TASKS`] in a reservation, with costs that are so many times as long; without a budget, of the least one.
fn plan(ctx: &Context, host: &Host, cost: f64, budget: Option<&str>) -> anyhow::Result<Value> {
    let file = ctx.path("tasks.toml");
    std::fs::write(&file, tasks_file(cost)?)?;
    let file = file.display().to_string();
    let mut words = vec!["reserve", "plan", &file, "--alone", "--period", PERIOD, "--json"];
    words.extend(budget.iter().flat_map(|budget| ["--budget", *budget]));
    // It ends with 1 where the tasks do not fit.
    let out = host.cli_output(&words)?;
    serde_json::from_slice(&out.stdout).context("no plan")
}

/// [`TASKS`] as `reserve plan` reads them.
fn tasks_file(cost: f64) -> anyhow::Result<String> {
    let mut text = "policy = \"rate-monotonic\"\n".to_owned();
    for (index, task) in TASKS.iter().enumerate() {
        let (ms, period) = task.split_once('/').context("COST/PERIOD")?;
        let us = ms.parse::<f64>()? * 1000.0 * cost;
        text += &format!(
            "[[task]]\nname = \"tau{}\"\ncost = \"{us:.0}us\"\nperiod = \"{period}ms\"\n",
            index + 1
        );
    }
    Ok(text)
}

/// A plan's worst response of a task, in words.
fn predicted(plan: &Value, index: usize) -> String {
    let ns = plan["response_times_ns"][format!("tau{}", index + 1)].as_u64();
    ns.map_or("late".to_owned(), |ns| format!("{:.1}", ns as f64 / 1e6))
}
