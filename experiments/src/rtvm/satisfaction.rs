//! The share of deadlines that many tasks of a guest meet, by their utilization. The workload is
//! that of the evaluation in K. Burns and others, "KairosVM" (20 to 60 tasks, 25 to 100 %), here
//! with and without the reservation that `reserve plan` recommends.
//!
//! Differences from the paper: tasks have fixed priorities (rate-monotonic) instead of ChronOS'
//! EDF; utilizations are drawn with UUniFast, because 20 tasks of 10 to 40 % each would need more
//! than one processor; a late job runs to completion.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use timevisor_lab::client::Client;
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::plot::{self, Series};
use timevisor_lab::real_time::{self, Load, Responses, Restore};
use timevisor_lab::scenario::Context;
use timevisor_simulation::random::Random;
use timevisor_simulation::reservations::sets::uunifast;

use super::super::report;

const NAME: &str = "rtvm-satisfaction";
/// Number of tasks; lab-rt has a separate priority for each of sixty.
const COUNTS: [u32; 3] = [20, 40, 60];
/// Their utilization.
const PERCENT: [u32; 4] = [25, 50, 75, 100];
const PERIODS_MS: [u64; 5] = [200, 250, 400, 500, 1000];
/// The reservation's period and its largest budget: common kernels admit 95 %.
const PERIOD: &str = "50ms";
const MOST_MS: u64 = 45;
const CONDITIONS: [&str; 3] =
    ["guest, idle host", "guest, loaded host", "reservation, loaded host"];

/// A task set: cost in us and period in ms, in order of increasing period.
pub(crate) type Tasks = Vec<(u64, u64)>;

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let runs = (COUNTS.len() * PERCENT.len() * CONDITIONS.len()) as u64;
    let seconds = (span.as_secs() / runs).max(5);
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let mut guest = real_time::guest(ctx, &host, "guest")?;
    let turns = real_time::calibrate_loaded(&host, &mut guest, "guest")?;
    println!("  {seconds} s each; deadlines met\n");
    println!("utilization  tasks  budget of {PERIOD}  idle host  loaded host  reservation");
    let (mut rows, mut met) = (Vec::new(), vec![vec![(0, 0); PERCENT.len()]; CONDITIONS.len()]);
    for (at, percent) in PERCENT.into_iter().enumerate() {
        for count in COUNTS {
            let tasks = draw(count, percent);
            let (budget_us, schedulable) = planned(ctx, &host, &tasks)?;
            let budget =
                format!("{:.1} ms{}", budget_us as f64 / 1e3, if schedulable { "" } else { " *" });
            let mut line = format!("{percent:>9} %  {count:>5}  {budget:>14}");
            for (index, condition) in CONDITIONS.into_iter().enumerate() {
                interrupt::check()?;
                let found = under(&host, &mut guest, index, budget_us, (turns, seconds), &tasks)?;
                let jobs = found.iter().map(|task| task.ms.len()).sum::<usize>();
                let kept = jobs - found.iter().map(Responses::misses).sum::<usize>();
                let all = &mut met[index][at];
                *all = (all.0 + kept, all.1 + jobs);
                write!(line, "  {:>9.2} %", 100.0 * kept as f64 / jobs as f64)?;
                rows.push(json!({
                    "utilization_percent": percent, "tasks": count, "condition": condition, "jobs": jobs, "met": kept,
                    "budget_us": budget_us, "schedulable": schedulable,
                }));
            }
            println!("{line}");
        }
    }
    println!("\n* not schedulable by the plan, or in no more than {MOST_MS} ms: what there is");
    let series = CONDITIONS.iter().zip(met).map(|(name, met)| {
        let share = |(kept, jobs): (usize, usize)| kept as f64 / jobs.max(1) as f64;
        let points = PERCENT.iter().zip(met).map(|(x, met)| (f64::from(*x), share(met)));
        Series { name: (*name).to_owned(), points: points.collect() }
    });
    let axes = ["utilization of the tasks, %", "share of deadlines met"];
    plot::write(NAME, &plot::lines(NAME, axes, series.collect(), true))?;
    report::write(NAME, rows)
}

/// Returns the same set for the same count and utilization in every run.
pub(crate) fn draw(count: u32, percent: u32) -> Tasks {
    let mut random = Random::stream(u64::from(count * 1000 + percent), NAME);
    let parts = uunifast(&mut random, count, f64::from(percent) / 100.0);
    let mut tasks: Tasks = parts
        .into_iter()
        .map(|part| {
            let which = usize::try_from(random.bits() % PERIODS_MS.len() as u64).unwrap_or(0);
            let period = PERIODS_MS[which];
            let cost = Duration::from_millis(period).mul_f64(part).as_micros();
            (u64::try_from(cost).unwrap_or(u64::MAX).max(1), period)
        })
        .collect();
    tasks.sort_by_key(|(_, period)| *period);
    tasks
}

/// The budget that `reserve plan` recommends, us, and whether it is sufficient.
fn planned(ctx: &Context, host: &Host, tasks: &Tasks) -> anyhow::Result<(u64, bool)> {
    let mut text = "policy = \"listed\"\n[overhead]\nswitch = \"50us\"\n".to_owned();
    for (index, (cost, period)) in tasks.iter().enumerate() {
        write!(
            text,
            "[[task]]\nname = \"{index}\"\ncost = \"{cost}us\"\nperiod = \"{period}ms\"\n"
        )?;
    }
    let file = ctx.path("tasks.toml");
    std::fs::write(&file, text)?;
    let file = file.display().to_string();
    // The exit status is 1 if the tasks do not fit.
    let said =
        host.cli_output(&["reserve", "plan", &file, "--alone", "--period", PERIOD, "--json"])?;
    let plan: Value = serde_json::from_slice(&said.stdout).context("no plan")?;
    let most = MOST_MS * 1000;
    let budget = plan["recommended_budget_ns"].as_u64().map(|ns| ns.div_ceil(1000));
    Ok(match budget.filter(|us| plan["schedulable"] == true && *us <= most) {
        Some(us) => (us, true),
        None => (most, false),
    })
}

fn under(
    host: &Host,
    guest: &mut Client,
    condition: usize,
    budget_us: u64,
    (turns, seconds): (u64, u64),
    tasks: &Tasks,
) -> anyhow::Result<Vec<Responses>> {
    let load = (condition > 0).then(Load::start).transpose()?;
    let reserved = condition == 2;
    if reserved {
        let budget = format!("{budget_us}us/{PERIOD}");
        host.cli(&["reserve", "apply", "guest", "--alone", "--budget", &budget])?;
    }
    let found = real_time::run_tasks(guest, (turns, seconds), false, 0, &words(tasks))?;
    drop(load);
    if reserved {
        host.cli(&["reserve", "release", "guest"])?;
    }
    Ok(found)
}

/// The tasks as lab-rt's arguments.
pub(crate) fn words(tasks: &Tasks) -> Vec<String> {
    let one = |(cost, period): &(u64, u64)| format!("{}.{:03}/{period}", cost / 1000, cost % 1000);
    tasks.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_the_utilization_that_was_asked_for() {
        for count in COUNTS {
            for percent in PERCENT {
                let tasks = draw(count, percent);
                let sum: f64 = tasks.iter().map(|(us, ms)| *us as f64 / (*ms as f64 * 1e3)).sum();
                assert!((sum * 100.0 - f64::from(percent)).abs() < 0.1, "{sum} of {percent} %");
                assert!(tasks.len() == count as usize && tasks.is_sorted_by_key(|(_, p)| *p));
                assert_eq!(tasks, draw(count, percent));
            }
        }
    }
}
