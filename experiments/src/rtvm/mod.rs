//! T. Cucinotta, G. Anastasi, L. Abeni, "Real-Time Virtual Machines", with two real-time tasks in a
//! guest.
//!
//! | file | owns |
//! | --- | --- |
//! | `responses.rs` | figures 1 to 4 |
//! | `runs.rs` | the same tasks in the recommended reservation, twenty times |
//! | `promises.rs` | a hundred random task sets, each planned, reserved, run and judged |
//! | `apache.rs` | table 1 |
//! | `vms.rs` | two VMs with tasks and one with Apache on one core at once |
//! | `needed.rs` | what each job needed, compared with what it was guaranteed |
//! | `budget.rs` | the minimum budget, by analysis and measured |
//! | `satisfaction.rs` | many tasks over their utilization (the workload of another paper, KairosVM) |

pub(super) mod apache;
pub(super) mod budget;
mod needed;
pub(super) mod promises;
pub(super) mod responses;
pub(super) mod runs;
pub(super) mod satisfaction;
pub(super) mod vms;

use anyhow::Context as _;
use serde_json::Value;
use timevisor_lab::host::Host;
use timevisor_lab::real_time::TASKS;
use timevisor_lab::scenario::Context;

/// The reservation's period.
const PERIOD: &str = "50ms";
const PERIOD_NS: u64 = 50_000_000;

/// A host that takes nothing: the paper's theory. The tables show it beside what was measured.
const THEORY: [&str; 8] =
    ["--tick", "0ms", "--latency", "0ms", "--interference", "0%", "--burst", "0ms"];

/// The output of `reserve plan` for [`TASKS`] in a reservation; without a budget, for the minimum
/// one.
fn plan(ctx: &Context, host: &Host, budget: Option<&str>) -> anyhow::Result<Value> {
    let file = ctx.path("tasks.toml");
    std::fs::write(&file, tasks_file()?)?;
    let file = file.display().to_string();
    let mut words = vec!["reserve", "plan", &file, "--alone", "--period", PERIOD, "--json"];
    words.extend(THEORY);
    words.extend(budget.iter().flat_map(|budget| ["--budget", *budget]));
    // The exit status is 1 if the tasks do not fit.
    let out = host.cli_output(&words)?;
    serde_json::from_slice(&out.stdout).context("no plan")
}

/// [`TASKS`] in the format that `reserve plan` reads.
fn tasks_file() -> anyhow::Result<String> {
    let mut text = "policy = \"rate-monotonic\"\n".to_owned();
    for (index, task) in TASKS.iter().enumerate() {
        let (cost, period) = task.split_once('/').context("COST/PERIOD")?;
        let name = index + 1;
        text += &format!(
            "[[task]]\nname = \"tau{name}\"\ncost = \"{cost}ms\"\nperiod = \"{period}ms\"\n"
        );
    }
    Ok(text)
}

/// A plan's worst response of a task, as text.
fn predicted(plan: &Value, index: usize) -> String {
    let ns = plan["response_times_ns"][format!("tau{}", index + 1)].as_u64();
    ns.map_or("late".to_owned(), |ns| format!("{:.1}", ns as f64 / 1e6))
}
