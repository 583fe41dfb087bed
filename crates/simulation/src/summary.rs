//! One scenario over several seeds: the worst of every figure, and the verdict on all runs
//! together.
//!
//! A single run is the special case of one seed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::calibration::Calibration;
use crate::report::{Failure, Report, Verdict};
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
    /// The verdict on all runs.
    pub verdict: Verdict,
    /// The largest of all runs.
    pub rms_us: f64,
    /// The largest of all runs.
    pub p99_us: f64,
    /// The largest of all runs.
    pub max_us: f64,
    /// The largest of all runs.
    pub halfwidth_median_us: f64,
    /// The largest of all runs.
    pub halfwidth_p99_us: f64,
    /// The smallest of all runs.
    pub coverage: f64,
    /// The largest distance of truth from bounds that were vouched for.
    pub worst_excess_us: f64,
    /// The smallest of all runs.
    pub synchronized: f64,
    /// The statuses at the end, each once.
    pub at_end: Vec<&'static str>,
    /// The largest of all runs.
    pub disruptions: u64,
    /// Number of times that the status became `unreliable` before the fault, in all runs together.
    pub false_alarms: u64,
    /// The largest of all runs.
    pub max_jump_ns: f64,
    /// The largest of all runs.
    pub max_correction_us: f64,
    /// Share of the runs in which the alarm came before truth was lost; absent if no fault is
    /// planned.
    pub detected: Option<f64>,
    /// Share of the readings within what `confidence = probability` promises at 0.9, of all runs.
    pub within_90: f64,
    /// At 0.99.
    pub within_99: f64,
    /// At 0.999.
    pub within_999: f64,
    /// The missed limits: the first runs for each, and how many runs missed it.
    pub failures: Vec<String>,
    /// The reason for a known failure.
    pub known_failure: Option<String>,
    /// Whether a known failure no longer occurs, so that its entry should be removed.
    pub is_outdated: bool,
}

/// How many failing runs are spelled out for each limit.
const SPELLED_OUT: usize = 3;

impl Summary {
    /// Summarizes the runs of one scenario; at least one.
    #[must_use]
    pub fn new(scenario: &Scenario, reports: &[Report]) -> Self {
        let largest =
            |f: fn(&Report) -> f64| reports.iter().map(f).fold(f64::NEG_INFINITY, nan_wins);
        let least = |f: fn(&Report) -> f64| reports.iter().map(f).fold(f64::INFINITY, f64::min);
        let count = reports.len().max(1) as f64;
        let share = reports.iter().filter(|r| r.is_detected()).count() as f64 / count;
        let excused = excused(scenario, reports);
        let verdict_of = |r: &Report| {
            Verdict::of(r.failures.iter().filter(|f| !excused.contains(f.limit.as_str())))
        };
        let verdicts: Vec<_> = reports.iter().map(verdict_of).collect();
        let mut at_end: Vec<_> = reports.iter().map(|r| r.at_end).collect();
        at_end.sort_unstable();
        at_end.dedup();
        let false_alarms: u64 = reports.iter().map(|r| r.false_alarms).sum();
        let calibration =
            reports.iter().map(|r| r.calibration).fold(Calibration::default(), Calibration::and);
        let [within_90, within_99, within_999] = calibration.shares();
        let mut failures = calibration.misses(scenario, reports.len());
        failures.extend(too_many(scenario, false_alarms, count));
        let verdict = if failures.is_empty() {
            verdicts.iter().copied().max().unwrap_or(Verdict::Ok)
        } else {
            Verdict::Failed
        };
        failures.extend(misses(scenario, reports));
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
            within_90,
            within_99,
            within_999,
            failures,
            known_failure: scenario.known_failure.as_ref().map(|k| k.reason.clone()),
            is_outdated: scenario.known_failure.is_some() && verdict == Verdict::Ok,
        }
    }
}

/// The runs that missed a limit, by the limit's name.
fn missing(reports: &[Report]) -> BTreeMap<&str, Vec<(&Report, &Failure)>> {
    let mut missing = BTreeMap::<_, Vec<_>>::new();
    for report in reports {
        for failure in &report.failures {
            missing.entry(failure.limit.as_str()).or_default().push((report, failure));
        }
    }
    missing
}

fn runs_of(misses: &[(&Report, &Failure)]) -> usize {
    misses.iter().map(|(report, _)| report.seed).collect::<BTreeSet<_>>().len()
}

/// The limits that few enough runs missed, by the scenario's shares.
fn excused<'a>(scenario: &Scenario, reports: &'a [Report]) -> BTreeSet<&'a str> {
    let few = |(limit, misses): &(&str, Vec<_>)| {
        let share = scenario.limits.share.get(*limit);
        share.is_some_and(|share| runs_of(misses) <= share.misses(reports.len()))
    };
    missing(reports).into_iter().filter(few).map(|(limit, _)| limit).collect()
}

/// The missed limits: for each, the first runs and the total number.
fn misses(scenario: &Scenario, reports: &[Report]) -> Vec<String> {
    let mut lines = Vec::new();
    for (limit, misses) in missing(reports) {
        if reports.len() == 1 {
            lines.extend(misses.iter().map(|(_, failure)| format!("{limit}: {}", failure.text)));
            continue;
        }
        let spelled = misses.iter().take(SPELLED_OUT);
        lines.extend(spelled.map(|(r, f)| format!("seed {}: {limit}: {}", r.seed, f.text)));
        let count = format!("{limit}: missed in {} of {} runs", runs_of(&misses), reports.len());
        lines.push(match scenario.limits.share.get(limit) {
            Some(share) => {
                format!("{count}, {} allowed: {}", share.misses(reports.len()), share.why)
            }
            None => count,
        });
    }
    lines
}

/// Reports if `unreliable` occurred too often while all assumptions held.
fn too_many(scenario: &Scenario, false_alarms: u64, runs: f64) -> Option<String> {
    let limit = scenario.limits.false_alarms_per_day?;
    let honest_s = scenario.fault_at_s.unwrap_or(scenario.duration_s);
    let days = runs * honest_s / 86_400.0;
    let rate = false_alarms as f64 / days;
    (days >= 2.0 && rate > limit)
        .then(|| format!("false_alarms_per_day: {rate:.2} in {days:.0} days is above {limit}"))
}

/// The larger one; NaN is worse than anything.
fn nan_wins(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TEXT: &str = "description = 'x'\nduration_s = 120\nwarmup_s = 60\nfault_at_s = 60\n\
                        [limits]\ndetected = true\ncoverage = 0\n\
                        [limits.share]\ndetected = { of = 0.5, why = 'a test' }\n";

    /// Two runs of a world without a fault; `timely` of them have an alarm in time.
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
        // It is reported nevertheless.
        assert!(half.failures[0].starts_with("seed 2: detected: no alarm"), "{:?}", half.failures);
        assert_eq!(half.failures[1], "detected: missed in 1 of 2 runs, 1 allowed: a test");
        let none = summary(0);
        assert_eq!((none.passed, none.verdict, none.detected), (0, Verdict::Failed, Some(0.0)));
    }

    #[test]
    fn a_share_excuses_its_own_limit_only() {
        let text = "description = 'x'\nduration_s = 120\nwarmup_s = 60\n[limits]\nrms_us = 0.001\nmax_us = 0.001\n\
                    [limits.share]\nrms_us = { of = 0.1, why = 'a test' }\n";
        let scenario = Scenario::parse(text, Path::new("x.toml")).unwrap();
        let mut reports: Vec<_> =
            (1..=20).map(|seed| Report { seed, ..crate::run(&scenario) }).collect();
        let verdict = |reports: &[Report]| Summary::new(&scenario, reports).verdict;
        assert_eq!(verdict(&reports), Verdict::Failed);
        reports.iter_mut().for_each(|r| r.failures.retain(|f| f.limit == "rms_us"));
        assert_eq!(verdict(&reports), Verdict::Failed, "20 of 20 missed it, 18 may");
        reports[0].failures.clear();
        reports[1].failures.clear();
        assert_eq!(verdict(&reports), Verdict::Ok);
        assert_eq!(verdict(&reports[2..3]), Verdict::Failed, "a single run keeps every limit");
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
