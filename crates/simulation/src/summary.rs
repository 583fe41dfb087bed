//! One scenario over several seeds: the worst of every figure, and the verdict on all runs together.
//!
//! A single run is the special case of one seed.

use serde::Serialize;

use crate::report::{Report, Verdict};
use crate::scenario::Scenario;

/// One line of the table of `timevisor simulate`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// The scenario's name.
    pub scenario: String,
    /// The first seed.
    pub seed: u64,
    /// Runs, with consecutive seeds.
    pub runs: usize,
    /// Runs that kept every limit, known failures aside.
    pub passed: usize,
    /// On all of them.
    pub verdict: Verdict,
    /// The largest of all runs, and so on.
    pub rms_us: f64,
    /// The largest.
    pub p99_us: f64,
    /// The largest.
    pub max_us: f64,
    /// The largest.
    pub halfwidth_median_us: f64,
    /// The largest.
    pub halfwidth_p99_us: f64,
    /// The smallest.
    pub coverage: f64,
    /// The farthest that truth was outside of bounds that were vouched for.
    pub worst_excess_us: f64,
    /// The smallest.
    pub synchronized: f64,
    /// The statuses at the end, each once.
    pub at_end: Vec<&'static str>,
    /// The largest.
    pub disruptions: u64,
    /// Times that the status became `unreliable` before the fault, in all runs together.
    pub false_alarms: u64,
    /// The largest.
    pub max_jump_ns: f64,
    /// The largest.
    pub max_correction_us: f64,
    /// Share of the runs in which the alarm came before truth was lost; absent where no fault is planned.
    pub detected: Option<f64>,
    /// What the first failing runs missed.
    pub failures: Vec<String>,
    /// Why a known failure is one.
    pub known_failure: Option<String>,
    /// A known failure is none any more: the entry should go.
    pub is_outdated: bool,
}

/// More failing runs than this are not spelled out.
const SPELLED_OUT: usize = 3;

impl Summary {
    /// Of the runs of one scenario; at least one.
    #[must_use]
    pub fn new(scenario: &Scenario, reports: &[Report]) -> Self {
        let largest =
            |f: fn(&Report) -> f64| reports.iter().map(f).fold(f64::NEG_INFINITY, nan_wins);
        let least = |f: fn(&Report) -> f64| reports.iter().map(f).fold(f64::INFINITY, f64::min);
        let count = reports.len().max(1) as f64;
        let share = reports.iter().filter(|r| r.is_detected()).count() as f64 / count;
        // Each run must detect, or enough of them.
        let enough = scenario.limits.detected == Some(true)
            && reports.len() > 1
            && share >= scenario.limits.detected_share;
        let verdict_of = |r: &Report| {
            let matters = r.failures.iter().filter(|f| !(enough && f.limit == "detected"));
            Verdict::of(matters)
        };
        let verdicts: Vec<_> = reports.iter().map(verdict_of).collect();
        let mut at_end: Vec<_> = reports.iter().map(|r| r.at_end).collect();
        at_end.sort_unstable();
        at_end.dedup();
        let false_alarms: u64 = reports.iter().map(|r| r.false_alarms).sum();
        let alarming = too_many(scenario, false_alarms, count);
        let verdict = match &alarming {
            Some(_) => Verdict::Failed,
            None => verdicts.iter().copied().max().unwrap_or(Verdict::Ok),
        };
        let failing = reports.iter().filter(|r| !r.failures.is_empty());
        let several = reports.len() > 1;
        let spell = |r: &Report| -> Vec<String> {
            let seed = if several { format!("seed {}: ", r.seed) } else { String::new() };
            let line = |f: &crate::report::Failure| format!("{seed}{}: {}", f.limit, f.text);
            r.failures.iter().map(line).collect()
        };
        Self {
            scenario: scenario.name.clone(),
            seed: reports.first().map_or(scenario.seed, |r| r.seed),
            runs: reports.len(),
            passed: verdicts.iter().filter(|v| **v != Verdict::Failed).count(),
            verdict,
            rms_us: largest(|r| r.rms_us),
            p99_us: largest(|r| r.p99_us),
            max_us: largest(|r| r.max_us),
            halfwidth_median_us: largest(|r| r.halfwidth_median_us),
            halfwidth_p99_us: largest(|r| r.halfwidth_p99_us),
            coverage: least(|r| r.coverage),
            worst_excess_us: largest(|r| r.worst_excess_us),
            synchronized: least(|r| r.synchronized),
            at_end,
            disruptions: reports.iter().map(|r| r.disruptions).max().unwrap_or(0),
            false_alarms,
            max_jump_ns: largest(|r| r.max_jump_ns),
            max_correction_us: largest(|r| r.max_correction_us),
            detected: scenario.fault_at_s.map(|_| share),
            failures: alarming
                .into_iter()
                .chain(failing.take(SPELLED_OUT).flat_map(spell))
                .collect(),
            known_failure: scenario.known_failure.as_ref().map(|k| k.reason.clone()),
            is_outdated: scenario.known_failure.is_some() && verdict == Verdict::Ok,
        }
    }
}

/// Whether honest running was interrupted too often.
fn too_many(scenario: &Scenario, false_alarms: u64, runs: f64) -> Option<String> {
    let limit = scenario.limits.false_alarms_per_day?;
    let honest_s = scenario.fault_at_s.unwrap_or(scenario.duration_s);
    let days = runs * honest_s / 86_400.0;
    let rate = false_alarms as f64 / days;
    (days >= 2.0 && rate > limit)
        .then(|| format!("false_alarms_per_day: {rate:.2} in {days:.0} days is above {limit}"))
}

/// The larger one; what is not a number is worse than anything.
fn nan_wins(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::report::Failure;

    const TEXT: &str = "description = 'x'\nduration_s = 120\nwarmup_s = 60\nfault_at_s = 60\n\
                        [limits]\ndetected = true\ndetected_share = 0.5\ncoverage = 0\n";

    /// Two runs of a world without a fault; `timely` of them are given an alarm in time.
    fn summary(timely: usize) -> Summary {
        let scenario = Scenario::parse(TEXT, Path::new("x.toml")).unwrap();
        let mut reports: Vec<_> =
            [1, 2].map(|seed| crate::run(&Scenario { seed, ..scenario.clone() })).into();
        for report in &mut reports[..timely] {
            report.alarm_s = Some(70.0);
            report.failures.clear();
        }
        reports[0].rms_us = 5.0;
        reports[1].rms_us = 7.0;
        reports[1].coverage = 0.25;
        Summary::new(&scenario, &reports)
    }

    #[test]
    fn the_worst_of_all_runs_is_shown() {
        let both = summary(2);
        assert_eq!((both.runs, both.passed, both.verdict), (2, 2, Verdict::Ok));
        assert_eq!((both.rms_us, both.coverage, both.detected), (7.0, 0.25, Some(1.0)));
        assert_eq!(nan_wins(nan_wins(1.0, f64::NAN), 2.0).to_bits(), f64::NAN.to_bits());
    }

    #[test]
    fn enough_detections_are_enough() {
        let half = summary(1);
        assert_eq!((half.passed, half.verdict, half.detected), (2, Verdict::Ok, Some(0.5)));
        // Said nevertheless.
        assert!(half.failures[0].starts_with("seed 2: detected: no alarm"), "{:?}", half.failures);
        let none = summary(0);
        assert_eq!((none.passed, none.verdict, none.detected), (0, Verdict::Failed, Some(0.0)));
    }

    #[test]
    fn false_alarms_are_counted_over_all_runs() {
        let text = "description = 'x'\nduration_s = 86400\n[limits]\nfalse_alarms_per_day = 1\n";
        let scenario = Scenario::parse(text, Path::new("x.toml")).unwrap();
        assert_eq!(too_many(&scenario, 5, 1.0), None, "one day is no statistics");
        assert_eq!(too_many(&scenario, 5, 5.0), None);
        assert!(too_many(&scenario, 6, 5.0).unwrap().contains("1.20 in 5 days"));
    }

    #[test]
    fn a_known_failure_that_is_none_is_told() {
        let text = format!("{TEXT}[known_failure]\nlimits = ['detected']\nreason = 'test'\n");
        let scenario = Scenario::parse(&text, Path::new("x.toml")).unwrap();
        let mut report = crate::run(&scenario);
        assert_eq!(Summary::new(&scenario, &[report.clone()]).verdict, Verdict::KnownFailure);
        report.failures = Vec::<Failure>::new();
        let fixed = Summary::new(&scenario, &[report]);
        assert!(fixed.is_outdated && fixed.verdict == Verdict::Ok);
    }
}
