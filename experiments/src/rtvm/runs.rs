//! The paper's micro benchmark again and again: its two tasks in the reservation that `reserve plan`
//! recommends, and in the paper's 28 of 50 ms beside it. In the recommended one no job may be late inside
//! its promise, in any run, at the first attempt; of 28 of 50 ms the plan says itself that it is too little for
//! a host with a tick.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use timevisor_lab::client::Client;
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::plot::{self, Series};
use timevisor_lab::real_time::costs::{self, Run};
use timevisor_lab::real_time::judge::{self, Judgement, Promise};
use timevisor_lab::real_time::witness::Witness;
use timevisor_lab::real_time::{self, Load, Restore, plan};
use timevisor_lab::scenario::Context;
use timevisor_schedule::Reservation;

use super::super::report;
use super::PERIOD;

const NAME: &str = "rtvm-runs";
const RUNS: u64 = 20;
/// What jobs may cost beyond what is declared, per cent: they are calibrated at the 99th percentile.
const MARGIN: u64 = 10;
/// The paper's budget, ns.
const PAPER: u64 = 28_000_000;
const SHIFT_MS: u64 = 7;

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let seconds = (span.as_secs() / (RUNS * 2)).max(5);
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let mut guest = real_time::guest(ctx, &host, "guest")?;
    let file = plan::file(&judge::declared(100), MARGIN);
    let planned = plan::ask(ctx, &host, &file, &["--period", PERIOD])?;
    let recommended = Promise::planned(&planned, judge::declared(100 + MARGIN))?;
    let papers = Promise {
        reservation: Reservation::alone(PAPER, recommended.reservation.period())?,
        ..recommended.clone()
    };
    let said = plan::ask(ctx, &host, &file, &["--period", PERIOD, "--budget", "28ms"])?;
    ensure!(said["schedulable"] == false, "28 of 50 ms should be refused with a tick: {said}");
    println!(
        "  {RUNS} runs of {seconds} s each; every second one beside a busy thread in the guest; ms\n"
    );
    println!(
        "run  guest  budget   tau1: jobs, worst   tau2: jobs, worst   late  lost  longer  worst of deadline"
    );
    let mut unmeasured = Vec::new();
    let (mut rows, mut all) = (Vec::new(), [Judgement::default(), Judgement::default()]);
    let mut responses = [[const { Vec::new() }; 2], [const { Vec::new() }; 2]];
    for number in 0..RUNS {
        interrupt::check()?;
        let turns = costs::calibrate(&host, &mut guest, "guest")?;
        let hog = number % 2 == 1;
        for (which, promise) in [&recommended, &papers].into_iter().enumerate() {
            let (run, judged) = one(&host, &mut guest, (turns, seconds), hog, promise)?;
            println!("{}", line(number + 1, hog, promise, &run, &judged));
            for broken in &judged.broken {
                println!("     late: {broken}");
            }
            rows.push(row(number + 1, hog, promise, &run, &judged));
            for (task, found) in run.found.iter().enumerate() {
                responses[which][task].extend_from_slice(&found.ms);
            }
            if which == 0 {
                unmeasured.extend(judged.check().err());
            }
            all[which] = std::mem::take(&mut all[which]).and(judged);
        }
    }
    println!("\nrecommended: {}", all[0]);
    println!("28 of 50 ms: {}", all[1]);
    pictures(responses)?;
    report::write(NAME, rows)?;
    // Each run is judged by itself, at the first attempt.
    unmeasured.into_iter().next().map_or(Ok(()), Err)
}

fn one(
    host: &Host,
    guest: &mut Client,
    (turns, seconds): (u64, u64),
    hog: bool,
    promise: &Promise,
) -> anyhow::Result<(Run, Judgement)> {
    let _load = Load::start()?;
    let budget = format!("{}ns/{PERIOD}", promise.reservation.budget());
    host.cli(&["reserve", "apply", "guest", "--alone", "--budget", &budget])?;
    host.wait_until("the reservation", |host| {
        Ok(host.json(&["reserve", "list"])?[0]["problem"].is_null())
    })?;
    let held = host.json(&["reserve", "list"])?[0].clone();
    let core = held["core"].as_u64().with_context(|| held.to_string())?;
    let witness = Witness::start(usize::try_from(core)?);
    let run = costs::run(guest, (turns, seconds), hog, SHIFT_MS)?;
    let stalls = witness.end(&run.on)?;
    host.cli(&["reserve", "release", "guest"])?;
    ensure!(stalls.watched, "the core could not be watched");
    let judged = Judgement::of(&run, promise, &stalls)?;
    Ok((run, judged))
}

fn line(number: u64, hog: bool, promise: &Promise, run: &Run, judged: &Judgement) -> String {
    let task = |of: usize| format!("{}, {:.1}", run.found[of].ms.len(), run.found[of].worst_ms());
    format!(
        "{number:>3}  {:<5}  {:>6.3}   {:>17}   {:>17}   {:>4}  {:>4}  {:>6}  {:.3}",
        if hog { "busy" } else { "" },
        promise.reservation.budget() as f64 / 1e6,
        task(0),
        task(1),
        judged.broken.len(),
        judged.lost,
        judged.longer,
        judged.most_of_deadline,
    )
}

fn row(number: u64, hog: bool, promise: &Promise, run: &Run, judged: &Judgement) -> Value {
    json!({
        "run": number, "busy_guest": hog, "budget_ns": promise.reservation.budget(), "jobs": judged.jobs,
        "late_inside_promise": judged.broken.len(), "lost": judged.lost, "lost_and_late": judged.lost_and_late,
        "longer": judged.longer, "worst_ms": run.found.iter().map(real_time::Responses::worst_ms).collect::<Vec<_>>(),
    })
}

/// The cumulative distributions, as in the paper's figures 1 to 4.
fn pictures(responses: [[Vec<f64>; 2]; 2]) -> anyhow::Result<()> {
    let [recommended, papers] = responses;
    for (index, (recommended, papers)) in recommended.into_iter().zip(papers).enumerate() {
        let series =
            [("recommended", recommended), ("28 of 50 ms", papers)].map(|(name, mut ms)| {
                ms.sort_by(f64::total_cmp);
                let count = ms.len() as f64;
                let points = ms.into_iter().enumerate().map(|(n, ms)| (ms, (n + 1) as f64 / count));
                Series { name: name.to_owned(), points: points.collect() }
            });
        let title = format!("{NAME}-tau{}", index + 1);
        let heading = format!("{title}: {} ms", real_time::TASKS[index]);
        let axes = ["response, ms", "share of jobs within this"];
        plot::write(&title, &plot::lines(&heading, axes, series.into(), false))?;
    }
    Ok(())
}
