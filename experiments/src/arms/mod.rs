//! Two robot arms that carry a part together (QuartzV, section III), while something goes wrong: ours, and
//! controllers that believe what an NTP server said last.
//!
//! | file | owns |
//! | --- | --- |
//! | `cell.rs` | planner, controllers, their hosts, the bus and the plant, as processes |
//! | `faults.rs` | what goes wrong, and when |
//! | `python.rs` | the plant's environment, picture, animation and recording |

mod cell;
mod faults;
mod python;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use timevisor_lab::programs;
use timevisor_lab::scenario::Context;

use cell::{Cell, Mode};
use faults::{ALL, Fault};
use python::Python;

/// From the first motion to the fault, and how long things go on after it, or after they went on again.
const BEFORE: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(5);

/// What came of one run.
struct Outcome {
    mode: Mode,
    fault: &'static Fault,
    said: Value,
    /// How often each controller held, by reason.
    holds: [Value; 2],
    /// How long after the fault's end both arms moved again; `None` if never.
    goes_on_after: Option<Duration>,
    trace: std::path::PathBuf,
}

impl Outcome {
    fn stops(&self) -> u64 {
        self.said["stops"].as_u64().unwrap_or(0)
    }

    fn row(&self) -> Value {
        json!({
            "fault": self.fault.name, "mode": self.mode.name(), "stops": self.stops(),
            "deviation_max_mm": self.said["deviation_max_mm"], "linked_holds": self.said["linked_holds"],
            "holds": self.holds, "goes_on_after_s": self.goes_on_after.map(|it| it.as_secs_f64()), "plant_late_us": self.said["late_us"],
        })
    }

    fn line(&self) -> String {
        let holds = |value: &Value| {
            let reasons = value.as_object().into_iter().flatten();
            let each: Vec<String> = reasons.map(|(why, count)| format!("{count} {why}")).collect();
            if each.is_empty() { "-".to_owned() } else { each.join(", ") }
        };
        let goes_on = match self.goes_on_after {
            Some(span) if span < Duration::from_secs(1) => "moves".to_owned(),
            Some(span) => format!("{:.0} s later", span.as_secs_f64()),
            None => "stands".to_owned(),
        };
        let stops = if self.stops() > 0 { "STOP" } else { "no" };
        format!(
            "{:<26} {:<6} {:>7.2} mm  {:<5} {:<11} {}",
            self.fault.name,
            self.mode.name(),
            self.said["deviation_max_mm"].as_f64().unwrap_or(f64::NAN),
            stops,
            goes_on,
            holds(&self.holds[1]),
        )
    }
}

/// Each fault once, in both modes: the table and the pictures.
pub(crate) fn run(ctx: &Context, _span: Duration) -> anyhow::Result<()> {
    let python = Python::ready(&ctx.lab_dir().join("arms-venv"))?;
    let plan = python.plan(ctx)?;
    let mut cell = Cell::new(ctx, &python, &plan)?;
    println!("fault                      mode   deviation    stop  goes on     holds of arm b");
    let mut outcomes = Vec::new();
    for (index, fault) in ALL.iter().enumerate() {
        for mode in [Mode::Ours, Mode::Naive] {
            let trace = ctx.path(&format!("{index}-{}.trace", mode.name()));
            let outcome = one(&mut cell, fault, mode, &trace)?;
            println!("{}", outcome.line());
            outcomes.push(outcome);
        }
    }
    pictures(ctx, &python, &outcomes)?;
    let rows: Vec<Value> = outcomes.iter().map(Outcome::row).collect();
    programs::write_result("arms", &rows)?;
    let stopped: Vec<&str> = outcomes
        .iter()
        .filter(|it| it.mode == Mode::Ours && it.stops() > 0)
        .map(|it| it.fault.name)
        .collect();
    ensure!(stopped.is_empty(), "ours came to a protective stop: {}", stopped.join(", "));
    Ok(())
}

/// One run: motion, a fault, and what comes after it.
fn one(
    cell: &mut Cell,
    fault: &'static Fault,
    mode: Mode,
    trace: &Path,
) -> anyhow::Result<Outcome> {
    cell.settle()?;
    cell.start(mode, trace)?;
    cell.wait_for_motion()?;
    cell.watch(BEFORE)?;
    fault.inject(cell)?;
    cell.watch(fault.lasts)?;
    fault.relieve(cell, mode)?;
    let goes_on_after = cell.wait_until_both_move()?;
    cell.watch(AFTER)?;
    let holds = cell.holds();
    let said = cell.end()?;
    Ok(Outcome { mode, fault, said, holds, goes_on_after, trace: trace.to_owned() })
}

/// Ours, with all faults in turn, for so long.
pub(crate) fn endure(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let python = Python::ready(&ctx.lab_dir().join("arms-venv"))?;
    let plan = python.plan(ctx)?;
    let mut cell = Cell::new(ctx, &python, &plan)?;
    cell.settle()?;
    cell.start(Mode::Ours, &ctx.path("endure.trace"))?;
    cell.wait_for_motion()?;
    let begun = std::time::Instant::now();
    let (mut count, mut went_on) = (0, 0);
    for fault in ALL.iter().cycle() {
        if begun.elapsed() >= span {
            break;
        }
        fault.inject(&mut cell)?;
        cell.watch(fault.lasts)?;
        fault.relieve(&mut cell, Mode::Ours)?;
        let goes_on = cell.wait_until_both_move()?;
        cell.watch(AFTER)?;
        let after =
            goes_on.map_or("not".to_owned(), |it| format!("{:.0} s later", it.as_secs_f64()));
        println!("{:>5} s: {}; goes on: {after}", begun.elapsed().as_secs(), fault.name);
        (count, went_on) = (count + 1, went_on + u32::from(goes_on.is_some()));
    }
    let holds = cell.holds();
    let said = cell.end()?;
    let row = json!({"minutes": span.as_secs() / 60, "faults": count, "went_on": went_on, "holds": holds, "plant": said});
    println!(
        "{} minutes: {count} faults, {went_on} times both arms moved on after it; {} stops, {} mm at most",
        span.as_secs() / 60,
        said["stops"],
        said["deviation_max_mm"]
    );
    programs::write_result("arms-endure", &[row])?;
    ensure!(said["stops"] == 0, "a protective stop");
    Ok(())
}

/// Both runs of the fault that shows most.
fn pictures(ctx: &Context, python: &Python, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let of = |mode: Mode| {
        let found = outcomes.iter().find(|it| it.mode == mode && it.fault.is_shown);
        found.map(|it| it.trace.clone()).context("no run to show")
    };
    let folder = programs::workspace()?.join("target/results");
    python.show(ctx, &of(Mode::Naive)?, &of(Mode::Ours)?, &folder)
}
