//! The figures of one run, and the verdict.
//!
//! What it does not do: print. `timevisor simulate` and the tests do.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::calibration::Calibration;
use crate::checks::Point;
use crate::scenario::{Accuracy, Limits, Scenario};
use crate::world::Outcomes;

/// One run of one scenario.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// The seed of this run.
    pub seed: u64,
    /// Length, true seconds.
    pub seconds: f64,
    /// Exchanges that reached the estimate.
    pub exchanges: u64,
    /// Answers that the client refused.
    pub refused: u64,
    /// Root mean square error of the estimate after the warm-up.
    pub rms_us: f64,
    /// 99th percentile of its absolute value.
    pub p99_us: f64,
    /// Its largest absolute value.
    pub max_us: f64,
    /// Median of half the interval's width.
    pub halfwidth_median_us: f64,
    /// 99th percentile of it.
    pub halfwidth_p99_us: f64,
    /// Share of the vouched readings with truth inside, from the start.
    pub coverage: f64,
    /// Readings whose status vouches for the bounds.
    pub vouched: u64,
    /// Those with truth outside.
    pub uncovered: u64,
    /// The largest distance of truth from the bounds.
    pub worst_excess_us: f64,
    /// The coverage of a VM's UTC page.
    pub utc_coverage: f64,
    /// The largest distance of true UTC from its bounds.
    pub utc_worst_excess_us: f64,
    /// Disruptions of that page.
    pub utc_disruptions: u64,
    /// True seconds by status, from the start.
    pub statuses: BTreeMap<&'static str, u64>,
    /// Share of the time after the warm-up with status `synchronized`.
    pub synchronized: f64,
    /// The status at the end.
    pub at_end: &'static str,
    /// Changes of the disruption marker.
    pub disruptions: u64,
    /// Number of times that the status became `unreliable`.
    pub alarms: u64,
    /// Those before the fault; all of them if no fault is planned.
    pub false_alarms: u64,
    /// When the status first was `unreliable`, from the fault on.
    pub alarm_s: Option<f64>,
    /// When truth left bounds that were vouched for, if that was before the alarm.
    pub exit_s: Option<f64>,
    /// The largest distance of truth from the bounds before the alarm.
    pub residual_us: f64,
    /// References that were outvoted after the warm-up.
    pub falsetickers: Vec<String>,
    /// Largest jump of the published estimate after the warm-up.
    pub max_jump_ns: f64,
    /// Largest correction of the estimator after the warm-up.
    pub max_correction_us: f64,
    /// Publications whose bounds were not within the previous ones.
    pub unnested: u64,
    /// Readings whose estimate was less than an earlier one's.
    pub backward: u64,
    /// How the errors compare with the estimated ones.
    pub calibration: Calibration,
    /// The limits that were missed.
    pub failures: Vec<Failure>,
}

/// A limit that was missed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Failure {
    /// The limit's key in the file, or the name of a rule that always holds.
    pub limit: String,
    /// What was found and what was allowed.
    pub text: String,
    /// Whether `known_failure` names it.
    pub known: bool,
}

/// How a run went.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every limit was kept.
    Ok,
    /// Only limits that are known failures were missed.
    KnownFailure,
    /// A limit was missed.
    Failed,
}

impl Verdict {
    /// The verdict on a run that missed these limits.
    pub fn of<'a>(failures: impl Iterator<Item = &'a Failure>) -> Self {
        match failures.map(|f| f.known).min() {
            None => Self::Ok,
            Some(true) => Self::KnownFailure,
            Some(false) => Self::Failed,
        }
    }
}

impl Report {
    /// The figures of a run, compared with the scenario's limits.
    #[must_use]
    pub fn new(scenario: &Scenario, outcomes: &Outcomes) -> Self {
        let checks = &outcomes.checks;
        let accuracy = accuracy(&checks.points, scenario.warmup_s, scenario.duration_s);
        let settled: u64 = checks.settled.values().sum();
        let synchronized = *checks.settled.get("synchronized").unwrap_or(&0);
        let mut report = Self {
            scenario: scenario.name.clone(),
            seed: scenario.seed,
            seconds: scenario.duration_s,
            exchanges: outcomes.exchanges,
            refused: outcomes.refused,
            rms_us: accuracy.rms_us,
            p99_us: accuracy.p99_us,
            max_us: accuracy.max_us,
            halfwidth_median_us: accuracy.halfwidth_median_us,
            halfwidth_p99_us: accuracy.halfwidth_p99_us,
            coverage: checks.coverage(),
            vouched: checks.vouched,
            uncovered: checks.uncovered,
            worst_excess_us: checks.worst_excess_us,
            utc_coverage: outcomes.utc.coverage(),
            utc_worst_excess_us: outcomes.utc.worst_excess_us,
            utc_disruptions: outcomes.utc.disruptions,
            statuses: checks.statuses.clone(),
            synchronized: if settled == 0 { 0.0 } else { synchronized as f64 / settled as f64 },
            at_end: checks.last_status.map_or("unknown", |s| s.name()),
            disruptions: checks.disruptions,
            alarms: checks.alarms,
            false_alarms: checks.false_alarms,
            alarm_s: checks.detection.alarm_s,
            exit_s: checks.detection.exit_s,
            residual_us: checks.detection.residual_us,
            falsetickers: checks.falsetickers.iter().cloned().collect(),
            max_jump_ns: checks.max_jump_ns,
            max_correction_us: checks.max_correction_us,
            unnested: checks.unnested,
            backward: checks.backward,
            calibration: Calibration::of(scenario, &checks.points),
            failures: Vec::new(),
        };
        report.failures = report.judge(scenario, &checks.points);
        report
    }

    /// The verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict::of(self.failures.iter())
    }

    /// Whether the alarm came before truth was lost.
    #[must_use]
    pub fn is_detected(&self) -> bool {
        self.alarm_s.is_some() && self.exit_s.is_none()
    }

    /// How long after truth was lost the alarm came, s; 0 if before. `None` without an alarm.
    #[must_use]
    pub fn alarm_delay_s(&self) -> Option<f64> {
        let alarm = self.alarm_s?;
        Some(self.exit_s.map_or(0.0, |exit| (alarm - exit).max(0.0)))
    }

    fn judge(&self, scenario: &Scenario, points: &[Point]) -> Vec<Failure> {
        let limits = &scenario.limits;
        let known = scenario.known_failure.as_ref().map_or(&[][..], |k| &k.limits);
        let mut failures = Failures { known, list: Vec::new() };
        failures.accuracy(&self.accuracy(), &limits.accuracy(), "");
        for window in &limits.windows {
            let to = window.to_s.unwrap_or(scenario.duration_s);
            let measured = accuracy(points, window.from_s, to);
            let place = format!(" from {} to {to} s", window.from_s);
            failures.accuracy(&measured, &window.accuracy(), &place);
        }
        self.judge_rules(limits, &mut failures);
        self.judge_statuses(limits, &mut failures);
        failures.list
    }

    fn accuracy(&self) -> Accuracy<f64> {
        Accuracy {
            rms_us: self.rms_us,
            p99_us: self.p99_us,
            max_us: self.max_us,
            halfwidth_median_us: self.halfwidth_median_us,
            halfwidth_p99_us: self.halfwidth_p99_us,
        }
    }

    fn judge_rules(&self, limits: &Limits, failures: &mut Failures<'_>) {
        let outside = self.worst_excess_us;
        failures.add("coverage", self.coverage >= limits.coverage, || {
            format!(
                "{:.6} is below {}: truth was up to {outside:.3} us outside",
                self.coverage, limits.coverage
            )
        });
        let outside = self.utc_worst_excess_us;
        failures.add("coverage", self.utc_coverage >= limits.coverage, || {
            format!(
                "{:.6} of a UTC page is below {}: UTC was up to {outside:.3} us outside",
                self.utc_coverage, limits.coverage
            )
        });
        failures.add("nesting", self.unnested == 0, || {
            format!("{} publications had bounds outside of those before", self.unnested)
        });
        failures.add("monotonic", self.backward == 0, || {
            format!("{} readings were before an earlier one", self.backward)
        });
        failures.at_most("disruptions", self.disruptions as f64, Some(limits.disruptions as f64));
        failures.at_most("max_jump_ns", self.max_jump_ns, limits.max_jump_ns);
        failures.at_most("max_correction_us", self.max_correction_us, limits.max_correction_us);
        if let Some(limit) = limits.detected_within_s {
            let delay = self.alarm_delay_s();
            failures.add("detected_within_s", delay.is_some_and(|delay| delay <= limit), || {
                delay.map_or_else(
                    || "no alarm came".to_owned(),
                    |delay| {
                        format!(
                            "the alarm came {delay} s after truth left the bounds, above {limit} s"
                        )
                    },
                )
            });
        }
        if let Some(wanted) = limits.detected {
            failures.add("detected", self.is_detected() == wanted, || match (self.alarm_s, self.exit_s) {
                (None, None) => "no alarm, but truth never left the bounds".to_owned(),
                (None, Some(exit)) => format!("truth left the bounds at {exit} s and no alarm came"),
                (Some(alarm), Some(exit)) => format!(
                    "truth left the bounds at {exit} s, the alarm came at {alarm} s, {:.1} us outside",
                    self.residual_us
                ),
                (Some(alarm), None) => format!("the alarm came at {alarm} s, in time"),
            });
        }
    }

    fn judge_statuses(&self, limits: &Limits, failures: &mut Failures<'_>) {
        for status in &limits.see {
            failures.add("see", self.statuses.contains_key(status.as_str()), || {
                format!("{status} was never seen")
            });
        }
        for status in &limits.never {
            let seconds = self.statuses.get(status.as_str()).copied().unwrap_or(0);
            // A status can appear and disappear between two seconds.
            let short = status == "unreliable" && self.alarms > 0;
            failures.add("never", seconds == 0 && !short, || format!("{status} for {seconds} s"));
        }
        if let Some(wanted) = &limits.at_end {
            failures
                .add("at_end", wanted == self.at_end, || format!("{}, not {wanted}", self.at_end));
        }
        if let Some(share) = limits.synchronized {
            failures.add("synchronized", self.synchronized >= share, || {
                format!("{:.5} of the time is below {share}", self.synchronized)
            });
        }
        if let Some(wanted) = &limits.falsetickers {
            let mut wanted = wanted.clone();
            wanted.sort();
            failures.add("falsetickers", wanted == self.falsetickers, || {
                format!("{:?} were outvoted, not {wanted:?}", self.falsetickers)
            });
        }
    }
}

struct Failures<'a> {
    known: &'a [String],
    list: Vec<Failure>,
}

impl Failures<'_> {
    fn add(&mut self, limit: &str, kept: bool, text: impl FnOnce() -> String) {
        if !kept {
            let known = self.known.iter().any(|k| k == limit);
            self.list.push(Failure { limit: limit.to_owned(), text: text(), known });
        }
    }

    fn at_most(&mut self, limit: &str, value: f64, most: Option<f64>) {
        if let Some(most) = most {
            // Not `value > most`: if there is nothing to measure, the figure is NaN, which must not
            // count as success.
            self.add(limit, value <= most, || format!("{value:.3} is above {most}"));
        }
    }

    fn accuracy(&mut self, measured: &Accuracy<f64>, limits: &Accuracy<Option<f64>>, place: &str) {
        for ((limit, value), (_, most)) in measured.named().into_iter().zip(limits.named()) {
            if let Some(most) = most {
                self.add(limit, value <= most, || format!("{value:.3} is above {most}{place}"));
            }
        }
    }
}

/// Accuracy over the true seconds from `from_s` to `to_s`; NaN if there was no estimate at all.
#[must_use]
pub fn accuracy(points: &[Point], from_s: f64, to_s: f64) -> Accuracy<f64> {
    let inside: Vec<_> = points.iter().filter(|p| p.t_s >= from_s && p.t_s <= to_s).collect();
    let mut errors: Vec<f64> = inside.iter().map(|p| p.offset_us.abs()).collect();
    let mut widths: Vec<f64> = inside.iter().map(|p| (p.latest_us - p.earliest_us) / 2.0).collect();
    errors.sort_unstable_by(f64::total_cmp);
    widths.sort_unstable_by(f64::total_cmp);
    let squares: f64 = errors.iter().map(|e| e * e).sum();
    Accuracy {
        rms_us: (squares / errors.len() as f64).sqrt(),
        p99_us: quantile(&errors, 0.99),
        max_us: quantile(&errors, 1.0),
        halfwidth_median_us: quantile(&widths, 0.5),
        halfwidth_p99_us: quantile(&widths, 0.99),
    }
}

/// The smallest value that at least a share `q` of the sorted values does not exceed.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index into the values"
)]
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
