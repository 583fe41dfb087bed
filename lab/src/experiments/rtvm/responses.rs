//! Figures 1 to 4 of T. Cucinotta, G. Anastasi, L. Abeni, "Real-Time Virtual Machines": response times of two real-time tasks,
//! (30 ms, 150 ms) and (50 ms, 200 ms): natively, in a guest, in a guest on a loaded host, and there in reservations.
//!
//! Other than in the paper: guests are emulated, so that a job's cost is counted in turns of a loop that the guest has measured; the
//! load is three busy processes for each processor, where the paper had two real-time tasks of 67 %.

use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};

use super::super::plot::{self, Series};
use super::super::report;
use super::{plan, predicted};
use crate::host::Host;
use crate::interrupt;
use crate::real_time::costs::{self, Run};
use crate::real_time::stolen::{Stolen, Watch};
use crate::real_time::{self, Load, Responses, Restore, TASKS};
use crate::scenario::Context;

/// The head of what [`print`] prints.
const HEAD: &str = "                             task    jobs   missed   median     95 %    worst  predicted  a job cost  predicted for that  stolen: all, in 200 ms";

const NAME: &str = "rtvm-responses";

/// One condition: its name, whether the host is loaded, the reservation, whether the guest has background work.
type Condition = (&'static str, bool, Option<&'static str>, bool);

/// The paper's, and what its 28 is beside others.
const CONDITIONS: [Condition; 7] = [
    ("guest, idle host", false, None, false),
    ("guest, loaded host", true, None, false),
    ("27 of 50 ms, loaded", true, Some("27ms/50ms"), false),
    ("28 of 50 ms, loaded", true, Some("28ms/50ms"), false),
    ("32 of 50 ms, loaded", true, Some("32ms/50ms"), false),
    ("28 of 50 ms, busy guest", true, Some("28ms/50ms"), true),
    ("32 of 50 ms, busy guest", true, Some("32ms/50ms"), true),
];

pub(in super::super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
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
    print("native", &found, stolen, 1.0, None);
    let mut all = vec![("native", found, stolen)];
    let mut guest = real_time::guest(ctx, &host, "guest")?;
    let turns = real_time::calibrate_loaded(&host, &mut guest, "guest")?;
    for (name, loaded, budget, hog) in CONDITIONS {
        interrupt::check()?;
        let load = loaded.then(Load::start).transpose()?;
        if let Some(budget) = budget {
            host.cli(&["reserve", "apply", "guest", "--alone", "--budget", budget])?;
        }
        let watch = Watch::start();
        let Run { found, cost } =
            costs::run(&mut guest, (turns, seconds), hog, 0, &real_time::tasks())?;
        let stolen = watch.end()?;
        drop(load);
        if budget.is_some() {
            host.cli(&["reserve", "release", "guest"])?;
        }
        let text = budget.and_then(|text| text.split('/').next());
        let plans = match text {
            Some(text) => {
                Some((plan(ctx, &host, 1.0, Some(text))?, plan(ctx, &host, cost, Some(text))?))
            }
            None => None,
        };
        print(name, &found, stolen, cost, plans.as_ref());
        all.push((name, found, stolen));
    }
    for (index, task) in TASKS.iter().enumerate() {
        let series = all.iter().map(|(name, found, _)| distribution(name, &found[index])).collect();
        let title = format!("{NAME}-tau{}", index + 1);
        let axes = ["response, ms", "share of jobs within this"];
        let heading = format!("{title}: {task} ms");
        report::picture(&title, &plot::lines(&heading, axes, series, true))?;
    }
    let rows = all.iter().flat_map(|(name, found, stolen)| {
        found.iter().enumerate().map(move |(n, task)| {
            json!({"condition": name, "task": TASKS[n], "jobs": task.ms.len(), "misses": task.misses(),
                   "worst_ms": task.worst_ms(), "stolen_ms": stolen.total_ms,
                   "stolen_in_200_ms": stolen.worst_ms, "responses_ms": task.ms})
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

/// `plans`: for the costs that were declared, and for what a job cost.
fn print(
    name: &str,
    found: &[Responses],
    stolen: Stolen,
    cost: f64,
    plans: Option<&(Value, Value)>,
) {
    for (index, task) in found.iter().enumerate() {
        let at = |percent: usize| task.ms[(task.ms.len() - 1) * percent / 100];
        let first = |text: String| if index == 0 { text } else { String::new() };
        let of = |plan: fn(&(Value, Value)) -> &Value| {
            plans.map_or(String::new(), |plans| predicted(plan(plans), index))
        };
        println!(
            "{:<26} {:>6}  {:>6} {:>8} {:>8.1} {:>8.1} {:>8.1}  {:>9}  {:>10}  {:>18}  {}",
            first(name.to_owned()),
            format!("tau{}", index + 1),
            task.ms.len(),
            task.misses(),
            at(50),
            at(95),
            task.worst_ms(),
            of(|plans| &plans.0),
            first(format!("{cost:.3}")),
            of(|plans| &plans.1),
            first(format!("{} ms, {} ms", stolen.total_ms, stolen.worst_ms)),
        );
    }
}

fn distribution(name: &str, task: &Responses) -> Series {
    let count = task.ms.len() as f64;
    let points = task.ms.iter().enumerate().map(|(n, ms)| (*ms, (n + 1) as f64 / count));
    Series { name: name.to_owned(), points: points.collect() }
}
