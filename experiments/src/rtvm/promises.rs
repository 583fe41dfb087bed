//! Random task sets, each planned, reserved with the command that the plan prints, run beside a busy host and
//! judged job by job: no job may be late inside its promise.
//!
//! The rule is that of [`Judgement`], and is fixed before the run: what a job may cost is what the plan was told, the
//! core may lose what the plan has in it for the host, and jobs outside of that are counted apart. Every second
//! set shares the guest with a busy thread, and releases move against the reservation's periods.
//!
//! `SEED=2 make experiment NAME=rtvm-promises` draws other sets, so that a long run can be made in parts.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use timevisor_lab::client::Client;
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::plot::{self, Series};
use timevisor_lab::real_time::costs::{self, Run};
use timevisor_lab::real_time::judge::{self, Declared, Judgement, Promise};
use timevisor_lab::real_time::witness::Witness;
use timevisor_lab::real_time::{self, Load, Restore, plan};
use timevisor_lab::scenario::Context;
use timevisor_simulation::random::Random;
use timevisor_simulation::reservations::sets::uunifast;

use super::super::report;

const NAME: &str = "rtvm-promises";
const SETS: usize = 100;
/// Long enough for all of them.
pub(crate) const MINUTES: usize = 75;
/// Of each set, at least.
const JOBS: u64 = 1000;
const PERIODS_MS: [u64; 7] = [20, 25, 40, 50, 80, 100, 200];
/// Their utilization, from and to.
const UTILIZATION: [f64; 2] = [0.1, 0.55];
const MOST_TASKS: u64 = 4;
/// The shortest job, us: the guest's own interrupts are a part of it.
const SHORTEST_US: u64 = 1_000;
/// Releases are moved by this after each common multiple of the periods, ms.
const SHIFT_MS: u64 = 7;
/// This machine's speed changes, so it is calibrated again after so many sets.
const CALIBRATED_FOR: usize = 10;
/// What the tasks' integrator adds to what was measured: per cent of each cost, and what a job loses to the
/// guest's own interrupts and switches, ns.
const MARGIN: u64 = 15;
const INTERRUPTS_NS: u64 = 400_000;

/// A set and what came of it.
struct Row {
    tasks: Vec<Declared>,
    hog: bool,
    plan: Value,
    judged: Judgement,
    audit: Value,
    /// Each job's response as a share of its deadline.
    shares: Vec<f64>,
    /// The greatest cost of a job, of what the plan was told.
    most_cost: f64,
}

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let sets = (SETS * usize::try_from(span.as_secs() / 60)? / MINUTES).clamp(2, SETS);
    let judged = of_sets(ctx, sets, JOBS)?;
    judged.check()
}

/// A few sets, for the lab's tests.
pub(crate) fn smoke(ctx: &Context) -> anyhow::Result<String> {
    let judged = of_sets(ctx, 4, 300)?;
    judged.check()?;
    Ok(judged.to_string())
}

fn of_sets(ctx: &Context, sets: usize, jobs: u64) -> anyhow::Result<Judgement> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let mut guest = real_time::guest(ctx, &host, "guest")?;
    println!("  {sets} sets, at least {jobs} jobs of each; costs and periods in ms\n");
    println!(
        "set  tasks                                           guest  reserved            jobs  late  lost  longer  worst of deadline  most cost"
    );
    let mut random = Random::stream(seed()?, NAME);
    let (mut rows, mut refused, mut turns) = (Vec::<Row>::new(), 0, 0);
    while rows.len() < sets {
        interrupt::check()?;
        let tasks = draw(&mut random);
        let planned = plan::ask(ctx, &host, &file(&tasks), &[])?;
        if planned["schedulable"] != true || planned["usual_kernels_admit"] != true {
            refused += 1;
            ensure!(refused < sets * 10, "plans refuse nearly everything: {planned}");
            continue;
        }
        if rows.len().is_multiple_of(CALIBRATED_FOR) {
            turns = costs::calibrate(&host, &mut guest, "guest")?;
        }
        let row = one(&host, &mut guest, (turns, jobs), tasks, planned, rows.len() % 2 == 1)?;
        println!("{}", row.line(rows.len() + 1));
        for broken in &row.judged.broken {
            println!("     late inside the promise: {broken}");
        }
        rows.push(row);
        // What was measured is not lost if a later set fails.
        if rows.len().is_multiple_of(CALIBRATED_FOR) || rows.len() == sets {
            write(&rows)?;
        }
    }
    picture(&rows)?;
    // Each set is a run of its own.
    rows.iter().try_for_each(|row| row.judged.check())?;
    let all = rows.iter().map(|row| row.judged.clone()).reduce(Judgement::and).unwrap_or_default();
    println!("\n{} sets ({refused} more were refused by the plan): {all}", rows.len());
    Ok(all)
}

/// Of the sets that are drawn.
fn seed() -> anyhow::Result<u64> {
    match std::env::var("SEED") {
        Ok(text) => text.parse().with_context(|| format!("SEED={text} is not a number")),
        Err(_) => Ok(12),
    }
}

/// A set with costs in whole us; the shortest period comes first.
fn draw(random: &mut Random) -> Vec<Declared> {
    let count = u32::try_from(1 + random.bits() % MOST_TASKS).unwrap_or(1);
    let [from, to] = UTILIZATION;
    let total = from + random.uniform() * (to - from);
    let of = |random: &mut Random, part: f64| {
        let which = usize::try_from(random.bits() % PERIODS_MS.len() as u64).unwrap_or(0);
        let period = PERIODS_MS[which];
        let cost = Duration::from_millis(period).mul_f64(part).as_micros();
        let us = u64::try_from(cost).unwrap_or(u64::MAX).max(SHORTEST_US);
        Declared { cost: us * 1000, deadline: period * 1_000_000 }
    };
    let parts = uunifast(random, count, total);
    let mut tasks: Vec<Declared> = parts.into_iter().map(|part| of(random, part)).collect();
    tasks.sort_by_key(|task| task.deadline);
    tasks
}

/// As a task file, with the margins.
pub(super) fn file(tasks: &[Declared]) -> String {
    plan::file(tasks, MARGIN)
        .replace("[overhead]\n", &format!("[overhead]\ninterrupts = \"{INTERRUPTS_NS}ns\"\n"))
}

/// With the margins: what the plan was told.
pub(super) fn with_margins(tasks: &[Declared]) -> Vec<Declared> {
    let one = |task: &Declared| Declared {
        cost: task.cost + (task.cost * MARGIN).div_ceil(100) + INTERRUPTS_NS,
        ..*task
    };
    tasks.iter().map(one).collect()
}

fn one(
    host: &Host,
    guest: &mut Client,
    (turns, jobs): (u64, u64),
    tasks: Vec<Declared>,
    plan: Value,
    hog: bool,
) -> anyhow::Result<Row> {
    let promise = Promise::planned(&plan, with_margins(&tasks))?;
    let _load = Load::start()?;
    let apply = plan::apply(&plan, "guest")?;
    host.cli(&apply.iter().map(String::as_str).collect::<Vec<_>>())?;
    host.wait_until("the reservation", |host| {
        let row = &host.json(&["reserve", "list"])?[0];
        Ok(row["problem"].is_null() && !row["audit"].is_null())
    })?;
    let held = host.json(&["reserve", "list"])?[0].clone();
    let core = usize::try_from(held["core"].as_u64().with_context(|| held.to_string())?)?;
    let in_1000_s: u64 = tasks.iter().map(|task| 1_000_000_000_000 / task.deadline).sum();
    let seconds = (jobs * 1000).div_ceil(in_1000_s);
    let witness = Witness::start(core);
    let before = host.json(&["reserve", "audit"])?[0]["audit"].clone();
    let words: Vec<String> = tasks.iter().map(word).collect();
    let run = costs::run_tasks(guest, (turns, seconds), hog, SHIFT_MS, &words)?;
    let audit = host.json(&["reserve", "audit"])?[0]["audit"].clone();
    let stalls = witness.end(&run.on)?;
    host.cli(&["reserve", "release", "guest"])?;
    ensure!(stalls.watched, "the core could not be watched");
    let judged = Judgement::of(&run, &promise, &stalls)?;
    // The audit saw the supply delivered, except where the core was lost.
    judge::owes_nothing(&before, &audit, &stalls).with_context(|| judged.to_string())?;
    let (shares, most_cost) = (shares(&run, &tasks), most_cost(&run, &promise.tasks));
    Ok(Row { tasks, hog, plan, judged, audit, shares, most_cost })
}

/// lab-rt's argument.
pub(super) fn word(task: &Declared) -> String {
    let (us, ms) = (task.cost / 1000, task.deadline / 1_000_000);
    format!("{}.{:03}/{ms}", us / 1000, us % 1000)
}

fn shares(run: &Run, tasks: &[Declared]) -> Vec<f64> {
    let of = |(jobs, task): (&Vec<costs::Job>, &Declared)| {
        let deadline = task.deadline as f64;
        jobs.iter().map(move |job| (job.end - job.release) as f64 / deadline).collect::<Vec<_>>()
    };
    run.jobs.iter().zip(tasks).flat_map(of).collect()
}

fn most_cost(run: &Run, told: &[Declared]) -> f64 {
    let of = |task: usize| {
        let cost = told[task].cost as f64;
        (0..run.jobs[task].len()).map(move |job| run.cost(task, job) as f64 / cost)
    };
    (0..told.len()).flat_map(of).fold(0.0, f64::max)
}

impl Row {
    fn line(&self, number: usize) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        let task = |task: &Declared| format!("{:.2}/{:.0}", ms(task.cost), ms(task.deadline));
        let tasks: Vec<String> = self.tasks.iter().map(task).collect();
        let ns = |name: &str| ms(self.plan[name].as_u64().unwrap_or(0));
        format!(
            "{number:>3}  {:<46}  {:<5}  {:<17}  {:>5}  {:>4}  {:>4}  {:>6}  {:>17.3}  {:>9.3}",
            tasks.join(" "),
            if self.hog { "busy" } else { "" },
            format!("{:.3} of {:.1}", ns("recommended_budget_ns"), ns("period_ns")),
            self.judged.jobs,
            self.judged.broken.len(),
            self.judged.lost,
            self.judged.longer,
            self.judged.most_of_deadline,
            self.most_cost,
        )
    }
}

fn write(rows: &[Row]) -> anyhow::Result<()> {
    let row = |row: &Row| {
        let task = |task: &Declared| json!({"cost_ns": task.cost, "period_ns": task.deadline});
        json!({
            "tasks": row.tasks.iter().map(task).collect::<Vec<_>>(), "busy_guest": row.hog,
            "budget_ns": row.plan["recommended_budget_ns"], "period_ns": row.plan["period_ns"],
            "minimum_budget_ns": row.plan["minimum_budget_ns"], "overheads": row.plan["overheads"],
            "jobs": row.judged.jobs, "late_inside_promise": row.judged.broken.len(), "lost": row.judged.lost,
            "lost_and_late": row.judged.lost_and_late, "longer": row.judged.longer,
            "most_of_deadline": row.judged.most_of_deadline, "most_cost": row.most_cost, "audit": row.audit,
        })
    };
    report::write_quietly(NAME, rows.iter().map(row).collect())
}

fn picture(rows: &[Row]) -> anyhow::Result<()> {
    let series = [("guest without other work", false), ("busy guest", true)].map(|(name, hog)| {
        let mut all: Vec<f64> =
            rows.iter().filter(|row| row.hog == hog).flat_map(|row| row.shares.clone()).collect();
        all.sort_by(f64::total_cmp);
        let count = all.len();
        // A thousand points draw the same curve.
        let step = (count / 1000).max(1);
        let points = all.into_iter().enumerate().filter(|(n, _)| n % step == 0 || n + 1 == count);
        let point = |(n, share): (usize, f64)| (share, (n + 1) as f64 / count as f64);
        Series { name: name.to_owned(), points: points.map(point).collect() }
    });
    let axes = ["response, as a share of the deadline", "share of jobs within this"];
    plot::write(NAME, &plot::lines(NAME, axes, series.into(), false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_the_same_in_every_run() {
        let sets = || {
            let mut random = Random::stream(12, NAME);
            (0..50).map(|_| draw(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(sets(), sets());
        for set in sets() {
            assert!((1..=4).contains(&set.len()) && set.is_sorted_by_key(|task| task.deadline));
            assert!(set.iter().all(|task| task.cost >= 1_000_000 && task.cost < task.deadline));
        }
        assert_eq!(word(&Declared { cost: 1_250_000, deadline: 20_000_000 }), "1.250/20");
        let [one] = with_margins(&[Declared { cost: 1_000_000, deadline: 7 }])[..] else {
            panic!()
        };
        assert_eq!(one.cost, 1_550_000);
    }
}
