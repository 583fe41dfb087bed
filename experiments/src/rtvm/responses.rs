//! Figures 1 to 4 of T. Cucinotta, G. Anastasi, L. Abeni, "Real-Time Virtual Machines": response
//! times of two real-time tasks, (30 ms, 150 ms) and (50 ms, 200 ms), measured natively, in a
//! guest, in a guest on a loaded host, and there in reservations.
//!
//! Differences from the paper: guests are emulated, so a job's cost is counted in turns of a loop
//! that the guest has calibrated. The load is three busy processes per processor, where the paper
//! had two real-time tasks of 67 %.

use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::plot::{self, Series};
use timevisor_lab::real_time::stolen::{Stolen, Watch};
use timevisor_lab::real_time::{self, Load, Responses, Restore, TASKS, costs};
use timevisor_lab::scenario::Context;

use super::super::report;
use super::needed::{self, Needed, Promise};
use super::{PERIOD, plan, predicted};

/// The header of what [`print()`] prints.
const HEAD: &str = "                             task    jobs   missed   median     95 %    worst  predicted  cost: mean, most  stolen: all, in 200 ms";

const NAME: &str = "rtvm-responses";

/// One condition: its name, whether the host is loaded, the reservation's budget in ms, and whether
/// the guest has background work.
type Condition = (&'static str, bool, Option<u64>, bool);

/// The paper's conditions, and further budgets around its 28.
const CONDITIONS: [Condition; 7] = [
    ("guest, idle host", false, None, false),
    ("guest, loaded host", true, None, false),
    ("27 of 50 ms, loaded", true, Some(27), false),
    ("28 of 50 ms, loaded", true, Some(28), false),
    ("32 of 50 ms, loaded", true, Some(32), false),
    ("28 of 50 ms, busy guest", true, Some(28), true),
    ("32 of 50 ms, busy guest", true, Some(32), true),
];

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let seconds = (span.as_secs() / (CONDITIONS.len() as u64 + 1)).max(5);
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    println!("  {seconds} s each; responses in ms\n");
    println!("{HEAD}");
    let watch = Watch::start();
    let found = native(ctx, seconds)?;
    let stolen = watch.end()?;
    print("native", &found, stolen, None, None);
    let mut all = vec![("native", found, stolen, Vec::new())];
    let mut guest = real_time::guest(ctx, &host, "guest")?;
    for (name, loaded, budget, hog) in CONDITIONS {
        interrupt::check()?;
        // This machine's speed changes, so it is calibrated each time.
        let turns = costs::calibrate(&host, &mut guest, "guest")?;
        let load = loaded.then(Load::start).transpose()?;
        if let Some(ms) = budget {
            let reserved = format!("{ms}ms/{PERIOD}");
            host.cli(&["reserve", "apply", "guest", "--alone", "--budget", &reserved])?;
        }
        let watch = Watch::start();
        let run = costs::run(&mut guest, (turns, seconds), hog, 0)?;
        let stolen = watch.end()?;
        drop(load);
        let mut needed = Vec::new();
        let mut declared = None;
        if let Some(ms) = budget {
            host.cli(&["reserve", "release", "guest"])?;
            needed = needed::all(&run, ms * 1_000_000)?;
            declared = Some(plan(ctx, &host, Some(&format!("{ms}ms")))?);
        }
        let costs: Vec<_> = (0..run.found.len()).map(|task| run.costs(task)).collect();
        print(name, &run.found, stolen, Some(&costs), declared.as_ref());
        if budget.is_some() {
            judge(&needed);
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
    report::write(NAME, rows.collect())
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

/// Prints whether the guarantees for each job's actual cost were kept, and the jobs that deserve a
/// closer look.
fn judge(jobs: &[Needed]) {
    let promises: [(&str, Promise); 2] =
        [("without the tick", |job| job.promised), ("with it", |job| job.ticked)];
    for (name, promise) in promises {
        let (count, late, beyond) = needed::kept(jobs, promise);
        let nothing = jobs.iter().filter(|job| promise(job) > job.deadline);
        let (others, late_too) =
            (nothing.clone().count(), nothing.filter(|job| job.late()).count());
        println!(
            "    promised in time, {name}: {count} jobs, {late} late, at most {beyond:+.1} ms beyond; promised nothing: {others}, {late_too} late"
        );
    }
    let margin = needed::TICK_NS + 3_000_000;
    for job in jobs.iter().filter(|job| job.late() || job.response > job.promised + margin) {
        println!("    {}", job.text());
    }
}

fn distribution(name: &str, task: &Responses) -> Series {
    let count = task.ms.len() as f64;
    let points = task.ms.iter().enumerate().map(|(n, ms)| (*ms, (n + 1) as f64 / count));
    Series { name: name.to_owned(), points: points.collect() }
}
