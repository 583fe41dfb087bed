//! Table 4: times a benchmark while it moves between two hosts with unrelated counters.
//!
//! The paper runs Memperf in an OpenVZ container. Here, lmbench's walk through memory (lab-rvec,
//! timed by rdtsc) replaces Memperf. Two processes, one on each host, replace the container: one
//! ends the measurement that the other has begun. They use different oscillators (lab/oscillator
//! traps their rdtsc), so a timestamp of one means nothing to the other, as between two machines.
//! Memperf's rule is kept: a measurement below 75 % of the run's average is discarded. Its
//! differences are unsigned.
//!
//! A container's `elapsed` belongs to its host and does not move with it, so both hosts' pages are
//! read as the global clock, which corresponds to RVEC plus HPGC. The time of the handover itself
//! is part of the measurement.

use anyhow::Context as _;
use serde_json::{Value, json};
use timevisor_lab::interrupt;
use timevisor_lab::migration::pair::Hosts;
use timevisor_lab::programs;
use timevisor_lab::scenario::Context;

use super::worker::Worker;
use super::{PROGRAM, paper};
use crate::statistics::{Summary, quantile};

const RUNS: usize = 20;
const MEASUREMENTS: usize = 100;
/// The benchmark moves in the middle of these measurements, there and back.
const MOVES: [usize; 2] = [33, 66];
const CASES: [(&str, &str, bool); 4] = [
    ("RDTSC", "tsc", false),
    ("RDTSC, moves", "tsc", true),
    ("page", "page", false),
    ("page, moves", "page", true),
];

/// The result of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Run {
    /// Measurements discarded by Memperf's rule.
    discarded: usize,
    /// Measurements that ended before they began.
    negative: usize,
    /// Measurements longer than ten times the median.
    long: usize,
    /// Median of all measurements.
    median: f64,
}

impl Run {
    /// `spans`: ticks or ns, as signed differences.
    fn of(spans: &[i128]) -> Self {
        // As seen by a program that subtracts unsigned timestamps.
        let seen: Vec<f64> = spans
            .iter()
            .map(|span| {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "the wrap is meant"
                )]
                let wrapped = *span as u64;
                wrapped as f64
            })
            .collect();
        let average = seen.iter().sum::<f64>() / seen.len().max(1) as f64;
        let median = quantile(&seen, 0.5);
        Self {
            discarded: seen.iter().filter(|s| **s < 0.75 * average).count(),
            negative: spans.iter().filter(|s| **s < 0).count(),
            long: seen.iter().filter(|s| **s > 10.0 * median).count(),
            median,
        }
    }
}

pub(super) fn run(ctx: &Context) -> anyhow::Result<Vec<Value>> {
    // Guests are not needed, but the oscillators are built into their own directory.
    let hosts = Hosts::apart(ctx)?;
    let program = programs::optimized_binary("timevisor-lab-guest", PROGRAM)?;
    let [a, b] = &hosts.hosts;
    let (mut here, mut there) = (Worker::start(a, &program)?, Worker::start(b, &program)?);
    println!(
        "\ntable 4: a walk through memory, {RUNS} runs of {MEASUREMENTS} measurements; moves to the other host and back\n\
         timed by         discarded (sd over the runs)  negative  over 10 medians  median, ms | paper: discarded (sd)"
    );
    // They take turns, so that a disturbance of the machine affects all of them.
    let mut found = CASES.map(|_| Vec::new());
    for _ in 0..RUNS {
        for ((_, clock, moves), runs) in CASES.into_iter().zip(&mut found) {
            interrupt::check()?;
            runs.push(Run::of(&measure(&mut here, &mut there, clock, moves)?));
        }
    }
    let mut rows = Vec::new();
    for ((name, clock, moves), runs) in CASES.into_iter().zip(found) {
        let discarded = Summary::of(&runs.iter().map(|r| r.discarded as f64).collect::<Vec<_>>());
        let sum = |of: fn(&Run) -> usize| runs.iter().map(of).sum::<usize>();
        let (negative, long) = (sum(|r| r.negative), sum(|r| r.long));
        // The oscillators' counters run at about the machine's rate, so ticks are shown as such.
        let median = quantile(&runs.iter().map(|r| r.median).collect::<Vec<_>>(), 0.5);
        let unit = if clock == "tsc" { "M ticks" } else { "ms" };
        let beside = match (clock, moves) {
            ("tsc", _) => Some(paper::TABLE_4[usize::from(moves)]),
            (_, true) => Some(paper::TABLE_4[2]),
            _ => None,
        };
        println!(
            "{name:<16} {:>12.2} ({:>5.2}) {:>18} {:>16} {:>8.2} {unit} | {}",
            discarded.mean,
            discarded.sd,
            negative,
            long,
            median / 1e6,
            beside.map_or("-".into(), |(what, mean, sd)| format!("{what}: {mean:.2} ({sd:.2})"))
        );
        rows.push(json!({"table": 4, "timed_by": name, "runs": RUNS, "measurements": MEASUREMENTS, "discarded": discarded.mean,
                         "discarded_sd": discarded.sd, "negative": negative, "over_ten_medians": long, "median": median,
                         "paper": beside.map(|(_, mean, sd)| json!({"discarded": mean, "sd": sd}))}));
    }
    Ok(rows)
}

fn measure(
    here: &mut Worker,
    there: &mut Worker,
    clock: &str,
    moves: bool,
) -> anyhow::Result<Vec<i128>> {
    let mut spans = Vec::with_capacity(MEASUREMENTS);
    let mut on = [here, there];
    for n in 0..MEASUREMENTS {
        let (begin, end) = if moves && MOVES.contains(&n) {
            let begin = *on[0].ask(&format!("begin {clock}"))?.first().context("no stamp")?;
            on.swap(0, 1);
            (begin, *on[0].ask(&format!("end {clock}"))?.first().context("no stamp")?)
        } else {
            let stamps = on[0].ask(&format!("whole {clock}"))?;
            (stamps[0], *stamps.get(1).context("one stamp")?)
        };
        spans.push(end - begin);
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_measurement_across_counters_spoils_the_average() {
        let mut spans = vec![1000_i128; 100];
        spans[3] = 700;
        let run = Run::of(&spans);
        assert_eq!((run.discarded, run.negative, run.long, run.median), (1, 0, 0, 1000.0));
        spans[50] = 5_000_000_000_000;
        assert_eq!((Run::of(&spans).discarded, Run::of(&spans).long), (99, 1));
        spans[50] = -5;
        let run = Run::of(&spans);
        assert_eq!((run.discarded, run.negative, run.long), (99, 1, 1));
    }
}
