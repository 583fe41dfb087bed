//! Figures 1 to 4 of T. Cucinotta, G. Anastasi, L. Abeni, "Real-Time Virtual Machines": response
//! times of two real-time tasks, (30 ms, 150 ms) and (50 ms, 200 ms), measured natively, in a
//! guest, in a guest on a loaded host, and there in reservations.
//!
//! Differences from the paper: guests are emulated, so a job's cost is counted in turns of a loop
//! that the guest has calibrated. Beside the paper's load (two real-time tasks, 67 % of a core, to which the
//! guest's virtual processor is pinned) there is a heavier one: three busy processes per processor. Beside the
//! paper's 28 of 50 ms there is what `reserve plan` recommends on this host, where no job may be late inside
//! its promise ([`Judgement`]).

use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::plot::{self, Series};
use timevisor_lab::real_time::judge::{self, Judgement, Promise};
use timevisor_lab::real_time::stolen::{Stolen, Watch};
use timevisor_lab::real_time::witness::Witness;
use timevisor_lab::real_time::{
    self, Load, RealTimeLoad, Responses, Restore, TASKS, costs, plan as planning,
};
use timevisor_lab::scenario::Context;
use timevisor_linux::affinity;
use timevisor_schedule::Reservation;

use super::super::report;
use super::needed::{self, Needed};
use super::{PERIOD, PERIOD_NS, plan, predicted};

/// The header of what [`print()`] prints.
const HEAD: &str = "                               task    jobs   missed   median     95 %    worst  in theory  cost: mean, most  stolen: all, in 200 ms";

const NAME: &str = "rtvm-responses";
/// What jobs may cost beyond what is declared, per cent: they are calibrated at the 99th percentile.
const MARGIN: u64 = 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Busy,
    /// The paper's real-time tasks.
    RealTime,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Budget {
    None,
    /// Of 50 ms.
    Ms(u64),
    Recommended,
}

/// One condition; the last value is whether the guest has background work.
type Condition = (&'static str, Beside, Budget, bool);

/// The paper's conditions, and further budgets around its 28.
const CONDITIONS: [Condition; 11] = [
    ("guest, idle host", Beside::Nothing, Budget::None, false),
    ("guest, loaded host", Beside::Busy, Budget::None, false),
    ("guest, the paper's load", Beside::RealTime, Budget::None, false),
    ("27 of 50 ms, loaded", Beside::Busy, Budget::Ms(27), false),
    ("28 of 50 ms, loaded", Beside::Busy, Budget::Ms(28), false),
    ("28 of 50 ms, paper's load", Beside::RealTime, Budget::Ms(28), false),
    ("recommended, loaded", Beside::Busy, Budget::Recommended, false),
    ("recommended, paper's load", Beside::RealTime, Budget::Recommended, false),
    ("28 of 50 ms, busy guest", Beside::Busy, Budget::Ms(28), true),
    ("recommended, busy guest", Beside::Busy, Budget::Recommended, true),
    ("recommended, both busy, rt", Beside::RealTime, Budget::Recommended, true),
];

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let seconds = (span.as_secs() / (CONDITIONS.len() as u64 + 1)).max(5);
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let file = planning::file(&judge::declared(100), MARGIN);
    let planned = planning::ask(ctx, &host, &file, &["--period", PERIOD])?;
    let recommended = Promise::planned(&planned, judge::declared(100 + MARGIN))?;
    let core = affinity::online()?.into_iter().max().unwrap_or(0);
    println!(
        "  {seconds} s each; responses in ms; recommended: {:.3} of 50 ms\n",
        recommended.reservation.budget() as f64 / 1e6
    );
    println!("{HEAD}");
    let watch = Watch::start();
    let found = native(ctx, seconds)?;
    let stolen = watch.end()?;
    print("native", &found, stolen, None, None);
    let mut all = vec![("native", found, stolen, Vec::new())];
    let mut guest = real_time::guest(ctx, &host, "guest")?;
    let vcpu = costs::vcpu(guest.guest.pid())?;
    let (mut kept, mut unkept) = (Judgement::default(), Vec::new());
    for (name, beside, budget, hog) in CONDITIONS {
        interrupt::check()?;
        // This machine's speed changes, so it is calibrated each time.
        let turns = costs::calibrate(&host, &mut guest, "guest")?;
        let load = (beside == Beside::Busy).then(Load::start).transpose()?;
        let tasks =
            (beside == Beside::RealTime).then(|| RealTimeLoad::start(ctx, core)).transpose()?;
        let promise = match budget {
            Budget::None => None,
            Budget::Ms(ms) => Some(Promise {
                reservation: Reservation::alone(ms * 1_000_000, PERIOD_NS)?,
                ..recommended.clone()
            }),
            Budget::Recommended => Some(recommended.clone()),
        };
        if let Some(promise) = &promise {
            let reserved = format!("{}ns/{PERIOD}", promise.reservation.budget());
            let core = core.to_string();
            let words = ["reserve", "apply", "guest", "--alone", "--core", &core];
            host.cli(&[&words[..], &["--budget", &reserved]].concat())?;
        } else if tasks.is_some() {
            // The paper's machine had no other core for it.
            affinity::allow(vcpu, &[core])?;
        }
        let witness = promise.is_some().then(|| Witness::start(core));
        let watch = Watch::start();
        let run = costs::run(&mut guest, (turns, seconds), hog, 0)?;
        let stolen = watch.end()?;
        drop((load, tasks));
        let mut needed = Vec::new();
        let mut declared = None;
        let mut judged = None;
        if let (Some(promise), Some(witness)) = (&promise, witness) {
            let stalls = witness.end(&run.on)?;
            ensure!(stalls.watched, "the core could not be watched");
            host.cli(&["reserve", "release", "guest"])?;
            let budget = promise.reservation.budget();
            needed = needed::all(&run, budget)?;
            declared = Some(plan(ctx, &host, Some(&format!("{budget}ns")))?);
            judged = Some(Judgement::of(&run, promise, &stalls)?);
        } else {
            affinity::allow(vcpu, &affinity::online()?)?;
        }
        let costs: Vec<_> = (0..run.found.len()).map(|task| run.costs(task)).collect();
        print(name, &run.found, stolen, Some(&costs), declared.as_ref());
        if let Some(judged) = judged {
            println!("    {judged}");
            conclude(&needed);
            if budget == Budget::Recommended {
                unkept.extend(judged.check().err());
                kept = kept.and(judged);
            }
        }
        all.push((name, run.found, stolen, needed));
    }
    for (index, task) in TASKS.iter().enumerate() {
        let series =
            all.iter().map(|(name, found, ..)| distribution(name, &found[index])).collect();
        let title = format!("{NAME}-tau{}", index + 1);
        let axes = ["response, ms", "share of jobs within this"];
        let heading = format!("{title}: {task} ms");
        plot::write(&title, &plot::lines(&heading, axes, series, true))?;
    }
    let rows = all.iter().flat_map(|(name, found, stolen, needed)| {
        found.iter().enumerate().map(move |(n, task)| {
            let of_task = needed.iter().filter(|job| job.task == n).map(Needed::row);
            json!({"condition": name, "task": TASKS[n], "jobs": task.ms.len(), "misses": task.misses(),
                   "worst_ms": task.worst_ms(), "stolen_ms": stolen.total_ms,
                   "stolen_in_200_ms": stolen.worst_ms, "responses_ms": task.ms,
                   "needed": of_task.collect::<Vec<_>>()})
        })
    });
    report::write(NAME, rows.collect())?;
    println!("\nrecommended: {kept}");
    // Each run is judged by itself, at the first attempt.
    unkept.into_iter().next().map_or(Ok(()), Err)
}

fn native(ctx: &Context, seconds: u64) -> anyhow::Result<Vec<Responses>> {
    let program = ctx.program("timevisor-lab-guest", "lab-rt")?;
    let say = |arguments: &[String]| -> anyhow::Result<String> {
        let out = Command::new(&program).args(arguments).output()?;
        ensure!(out.status.success(), "lab-rt: {}", String::from_utf8_lossy(&out.stderr));
        Ok(String::from_utf8(out.stdout)?)
    };
    let turns = real_time::turns(&say(&["calibrate".to_owned()])?)?;
    real_time::responses(&say(&real_time::arguments(
        turns,
        seconds,
        false,
        0,
        &real_time::tasks(),
    ))?)
}

/// `costs`: average and maximum, relative to the declared cost. `declared`: the plan for the
/// declared costs.
fn print(
    name: &str,
    found: &[Responses],
    stolen: Stolen,
    costs: Option<&[(f64, f64)]>,
    declared: Option<&Value>,
) {
    for (index, task) in found.iter().enumerate() {
        let at = |percent: usize| task.ms[(task.ms.len() - 1) * percent / 100];
        let first = |text: String| if index == 0 { text } else { String::new() };
        println!(
            "{:<26} {:>6}  {:>6} {:>8} {:>8.1} {:>8.1} {:>8.1}  {:>9}  {:>16}  {}",
            first(name.to_owned()),
            format!("tau{}", index + 1),
            task.ms.len(),
            task.misses(),
            at(50),
            at(95),
            task.worst_ms(),
            declared.map_or(String::new(), |plan| predicted(plan, index)),
            costs.map_or(String::new(), |all| format!("{:.3}, {:.3}", all[index].0, all[index].1)),
            first(format!("{} ms, {} ms", stolen.total_ms, stolen.worst_ms)),
        );
    }
}

/// Prints what each job was promised for its actual cost, and those that were late.
fn conclude(jobs: &[Needed]) {
    let (count, late, beyond) = needed::kept(jobs, |job| job.ticked);
    println!(
        "    promised in time for what it did cost, with the tick: {count} jobs, {late} late, at most {beyond:+.1} ms beyond"
    );
    for job in jobs.iter().filter(|job| job.late()) {
        println!("    {}", job.text());
    }
}

fn distribution(name: &str, task: &Responses) -> Series {
    let count = task.ms.len() as f64;
    let points = task.ms.iter().enumerate().map(|(n, ms)| (*ms, (n + 1) as f64 / count));
    Series { name: name.to_owned(), points: points.collect() }
}
