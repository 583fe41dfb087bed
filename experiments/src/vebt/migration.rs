//! Figure 11: a guest moves between two hosts, each with its own clock. The guest's page is
//! compared with a chronyd that keeps the time inside it, and each host's own clock is watched.
//!
//! The paper warms up for hours and moves after 30 minutes, then every 2 hours; here, minutes
//! replace hours. The moves are those of `soak-migrate`, which stops at the first wrong reading of
//! the page. chronyd replaces ntpd: it polls every 16 s as in the paper, and may step the clock
//! only at its start, which is Debian's default (`makestep 1 3`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};
use timevisor_lab::migration::soak::{Plan, Sample, travel};
use timevisor_lab::plot::{self, Series};
use timevisor_lab::progress;
use timevisor_lab::scenario::Context;

use super::{hosts, paper};
use crate::report;
use crate::spread::Spread;

const NAME: &str = "vebt-migration";
/// Time between two moves.
const STAY: Duration = Duration::from_secs(120);
/// The table calls a clock wrong above this error, us: some hundred times the error without moves.
const WRONG_US: f64 = 1000.0;

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let moves = (span.as_secs() / STAY.as_secs()).saturating_sub(1).max(1);
    let stays = u32::try_from(moves + 1)?;
    let plan = Plan {
        moves: usize::try_from(moves)?,
        is_watched: |_| true,
        watched: span / stays,
        settle: Duration::from_secs(90),
        server: "iburst minpoll 4 maxpoll 4",
        lines: "makestep 1 3\n",
    };
    println!(
        "  {moves} moves, a stay of {} s before and after each; hosts' counters 75 ppm apart (trapped rdtsc, so always emulated);\n  \
         chronyd asks every 16 s, 90 s of warm-up",
        plan.watched.as_secs()
    );
    let ctx = Context::new(ctx.lab_dir(), NAME, false)?;
    let (logs, done) = (ctx.log_dir().to_owned(), AtomicBool::new(false));
    let (soaked, seen) = thread::scope(|scope| {
        let hosts = scope.spawn(|| hosts::watch(&logs, &done));
        let soaked = progress::step("warm-up, stays and moves", || travel(&ctx, &plan));
        done.store(true, Ordering::Relaxed);
        let Ok(seen) = hosts.join() else {
            bail!("the thread that watches the hosts has panicked")
        };
        Ok((soaked?, seen?))
    })?;
    println!("{}", soaked.text());
    let samples = &soaked.samples;
    std::fs::write(ctx.path("samples.csv"), csv(samples))?;
    let mut rows = table(samples, plan.moves);
    plot::write(NAME, &picture("chronyd inside the guest, and the page", samples, true))?;
    plot::write(&format!("{NAME}-page"), &picture("the page alone", samples, false))?;
    rows.extend(seen.table(plan.watched));
    plot::write(&format!("{NAME}-hosts"), &seen.picture(NAME))?;
    rows.extend(soaked.rows());
    report::write(NAME, rows)
}

fn table(samples: &[Sample], moves: usize) -> Vec<Value> {
    println!(
        "\n|error|, us     | page: median   p99     max | chronyd inside: median       max    at the end | wrong by more than 1 ms for | its bound held"
    );
    let mut rows = Vec::new();
    for stay in 0..=moves {
        let of: Vec<&Sample> = samples.iter().filter(|s| s.stay == stay).collect();
        let Some(last) = of.last() else { continue };
        let page = Spread::of(&of.iter().map(|s| s.page_us.abs()).collect::<Vec<_>>());
        let chronyd = Spread::of(&of.iter().map(|s| s.chronyd_us.abs()).collect::<Vec<_>>());
        let wrong = wrong_until(&of);
        let held = of.iter().filter(|s| s.chronyd_held).count();
        let name = if stay == 0 { "before".to_owned() } else { format!("after move {stay}") };
        let wrong_text = wrong.map_or("-".to_owned(), |s| {
            let beyond = if s >= last.since_s { "at least " } else { "" };
            format!("{beyond}{s:.0} s")
        });
        println!(
            "{name:<15} | {:>12.1} {:>5.1} {:>7.1} | {:>22.0} {:>9.0} {:>13.0} | {wrong_text:>27} | {held} of {}",
            page.median,
            page.p99,
            page.max,
            chronyd.median,
            chronyd.max,
            last.chronyd_us,
            of.len()
        );
        rows.push(json!({"row": name, "page_abs_us": page.json(), "chronyd_abs_us": chronyd.json(),
                         "chronyd_at_the_end_us": last.chronyd_us, "chronyd_wrong_s": wrong, "chronyd_held": held}));
    }
    println!("paper: {}", paper::MIGRATION);
    rows
}

/// When chronyd was last wrong, counted from the first sample of this stay.
fn wrong_until(stay: &[&Sample]) -> Option<f64> {
    stay.iter().rev().find(|s| s.chronyd_us.abs() > WRONG_US).map(|s| s.since_s)
}

/// In ms with chronyd, in us without.
fn picture(title: &str, samples: &[Sample], chronyd: bool) -> String {
    let start = samples.first().map_or(0.0, |s| s.at_s);
    let scale = if chronyd { 1e-3 } else { 1.0 };
    let of = |name: &str, value: fn(&Sample) -> f64| Series {
        name: name.to_owned(),
        points: samples.iter().map(|s| (s.at_s - start, value(s) * scale)).collect(),
    };
    let mut series = vec![of("page", |s| s.page_us)];
    if chronyd {
        series.insert(0, of("chronyd inside the guest", |s| s.chronyd_us));
    }
    let unit = if chronyd { "offset from truth, ms" } else { "offset from truth, us" };
    plot::lines(&format!("{NAME}: {title}"), ["time, s", unit], series, false)
}

fn csv(samples: &[Sample]) -> String {
    let mut text =
        "stay,at_s,since_s,page_us,page_half_width_us,chronyd_us,chronyd_held\n".to_owned();
    for s in samples {
        text += &format!(
            "{},{:.3},{:.3},{:.3},{:.3},{:.3},{}\n",
            s.stay,
            s.at_s,
            s.since_s,
            s.page_us,
            s.page_half_width_us,
            s.chronyd_us,
            s.chronyd_held
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_wrong_until_it_stays_right() {
        let sample = |since_s, chronyd_us| Sample {
            stay: 1,
            at_s: since_s,
            since_s,
            page_us: 1.0,
            page_half_width_us: 5.0,
            chronyd_us,
            chronyd_held: true,
        };
        let all =
            [sample(0.0, -90_000.0), sample(0.5, 10.0), sample(1.0, 2000.0), sample(1.5, 999.0)];
        assert_eq!(wrong_until(&all.iter().collect::<Vec<_>>()), Some(1.0));
        assert_eq!(wrong_until(&[&all[1], &all[3]]), None);
        let svg = picture("title", &all, true);
        assert!(svg.contains("chronyd inside") && svg.contains("page"), "{svg}");
        assert_eq!(csv(&all).lines().count(), 5);
    }
}
