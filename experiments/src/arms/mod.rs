//! Two robot arms that carry a part together (QuartzV, section III), while something goes wrong: ours, and
//! controllers that believe what an NTP server said last.
//!
//! | file | owns |
//! | --- | --- |
//! | `cell.rs` | planner, controllers, their hosts, the bus and the plant, as processes |
//! | `guests.rs` | the planner and one controller in stock guests |
//! | `apart.rs` | keeps them off the guest's reserved processor |
//! | `faults.rs` | what goes wrong, and when |
//! | `python.rs` | the plant's environment, picture, animation and recording |

mod apart;
mod cell;
mod faults;
mod guests;
mod python;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use timevisor_lab::programs;
use timevisor_lab::scenario::Context;

use cell::{A, Cell, Mode, Place};
use faults::{Fault, IN_GUESTS, ON_HOSTS, UNRESERVED};
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
    /// Cycles of controller a that were late by more than 2, 5 and 10 ms.
    late: Value,
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
            "holds": self.holds, "goes_on_after_s": self.goes_on_after.map(|it| it.as_secs_f64()), "cycles_of_a_late_over_ms": self.late, "plant_late_us": self.said["late_us"],
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
            holds(&self.holds[self.fault.arm - A]),
        )
    }
}

/// Each fault once, in both modes: the table and the pictures.
pub(crate) fn run(ctx: &Context, _span: Duration) -> anyhow::Result<()> {
    let python = Python::ready(&ctx.lab_dir().join("arms-venv"))?;
    python.test()?;
    let plan = python.plan(ctx)?;
    let mut cell = Cell::new(ctx, &python, &plan, Place::Hosts)?;
    println!("fault                      mode   deviation    stop  goes on     holds of that arm");
    let mut outcomes = Vec::new();
    for (index, fault) in ON_HOSTS.iter().enumerate() {
        for mode in [Mode::Ours, Mode::Naive] {
            let trace = ctx.path(&format!("{index}-{}.trace", mode.name()));
            let outcome = one(&mut cell, fault, mode, &trace)?;
            println!("{}", outcome.line());
            outcomes.push(outcome);
        }
    }
    pictures(ctx, &python, &outcomes)?;
    judge("arms", &outcomes)
}

/// The planner and controller a in guests: each fault once, with a reservation for the controller's guest; then beside
/// busy programs without one.
pub(crate) fn run_in_guests(ctx: &Context, _span: Duration) -> anyhow::Result<()> {
    let python = Python::ready(&ctx.lab_dir().join("arms-venv"))?;
    let plan = python.plan(ctx)?;
    let mut cell = Cell::new(ctx, &python, &plan, Place::Guests)?;
    println!("fault                      mode   deviation    stop  goes on     holds of that arm");
    let mut outcomes = Vec::new();
    let mut one = |cell: &mut Cell, fault: &'static Fault| {
        let trace = ctx.path(&format!("{}.trace", outcomes.len()));
        let outcome = one(cell, fault, Mode::Ours, &trace)?;
        println!("{}; cycles of a late by more than {}", outcome.line(), outcome.late);
        outcomes.push(outcome);
        anyhow::Ok(())
    };
    cell.reserve(true)?;
    for fault in IN_GUESTS {
        one(&mut cell, fault)?;
    }
    cell.reserve(false)?;
    one(&mut cell, &UNRESERVED)?;
    judge("arms-guests", &outcomes)
}

/// Writes the result. A protective stop with ours is a failure, and so are arms that stand after the fault's end.
fn judge(name: &str, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let rows: Vec<Value> = outcomes.iter().map(Outcome::row).collect();
    programs::write_result(name, &rows)?;
    let faults = |mode: Mode, wrong: fn(&Outcome) -> bool| -> Vec<&str> {
        let found = outcomes.iter().filter(|it| it.mode == mode && wrong(it));
        found.map(|it| it.fault.name).collect()
    };
    let stopped = faults(Mode::Ours, |it| it.stops() > 0);
    ensure!(stopped.is_empty(), "ours came to a protective stop: {}", stopped.join(", "));
    let stands = faults(Mode::Ours, |it| it.goes_on_after.is_none());
    ensure!(stands.is_empty(), "ours did not move again after: {}", stands.join(", "));
    let is_compared = outcomes.iter().any(|it| it.mode == Mode::Naive);
    let naive = faults(Mode::Naive, |it| it.stops() > 0);
    ensure!(!is_compared || !naive.is_empty(), "without bounds nothing stopped: nothing was shown");
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
    let (holds, late) = (cell.holds()?, cell.last(A)?["cycles_late_over_ms"].clone());
    let said = cell.end()?;
    Ok(Outcome { mode, fault, said, holds, goes_on_after, late, trace: trace.to_owned() })
}

/// Ours, with all faults in turn, for so long.
pub(crate) fn endure(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    last(ctx, span, "arms-endure", Place::Hosts)
}

/// The same with the planner and controller a in guests, the latter in a reservation.
pub(crate) fn endure_in_guests(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    last(ctx, span, "arms-guests-endure", Place::Guests)
}

fn last(ctx: &Context, span: Duration, name: &str, place: Place) -> anyhow::Result<()> {
    let python = Python::ready(&ctx.lab_dir().join("arms-venv"))?;
    let plan = python.plan(ctx)?;
    let mut cell = Cell::new(ctx, &python, &plan, place)?;
    let mut faults = ON_HOSTS;
    if place == Place::Guests {
        cell.reserve(true)?;
        faults = IN_GUESTS;
    }
    cell.settle()?;
    cell.start(Mode::Ours, &ctx.path("endure.trace"))?;
    cell.wait_for_motion()?;
    let begun = std::time::Instant::now();
    let (mut count, mut went_on) = (0, 0);
    for fault in faults.iter().cycle() {
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
    let holds = cell.holds()?;
    let said = cell.end()?;
    let row = json!({"minutes": span.as_secs() / 60, "faults": count, "went_on": went_on, "holds": holds, "plant": said});
    println!(
        "{} minutes: {count} faults, {went_on} times both arms moved on after it; {} stops, {} mm at most",
        span.as_secs() / 60,
        said["stops"],
        said["deviation_max_mm"]
    );
    programs::write_result(name, &[row])?;
    ensure!(said["stops"] == 0, "a protective stop");
    ensure!(went_on == count, "after {} faults an arm stood", count - went_on);
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
