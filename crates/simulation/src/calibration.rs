//! Whether the estimated error is calibrated: the shares of readings as near to truth as
//! `confidence = probability` promises.
//!
//! Errors of adjacent seconds are correlated, so one run contains at most a few hundred independent
//! errors. Shares are therefore judged over ten or more runs together.

use serde::Serialize;
use timevisor_clock_page::ClockStatus;
use timevisor_protocols::channel::confidence::probability_within;

use crate::checks::Point;
use crate::scenario::{CONFIDENCES, Scenario};

/// Fewer runs cannot measure a share of 0.999.
const FEWEST_RUNS: usize = 10;

/// Readings, and how many of them were as near as promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Calibration {
    /// Readings with status `synchronized`.
    pub readings: u64,
    /// Those within the promise, for each of [`CONFIDENCES`].
    pub inside: [u64; 3],
}

impl Calibration {
    /// Counts the readings after the warm-up and before the fault.
    #[must_use]
    pub fn of(scenario: &Scenario, points: &[Point]) -> Self {
        let end = scenario.fault_at_s.unwrap_or(f64::INFINITY);
        let judged = points.iter().filter(|p| {
            p.status == ClockStatus::Synchronized && (scenario.warmup_s..end).contains(&p.t_s)
        });
        judged.fold(Self::default(), |sum, point| {
            // A sigma is published in whole 2^-64 s; a value of 0 has never been seen.
            let sigmas = (point.offset_us / point.sigma_us).abs();
            let needed = probability_within(sigmas, sigmas);
            let inside = CONFIDENCES.map(|p| u64::from(needed <= p));
            sum.and(Self { readings: 1, inside })
        })
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let inside = [0, 1, 2].map(|k| self.inside[k] + other.inside[k]);
        Self { readings: self.readings + other.readings, inside }
    }

    /// The share inside for each of [`CONFIDENCES`]; 1 if nothing was judged.
    #[must_use]
    pub fn shares(&self) -> [f64; 3] {
        self.inside.map(|n| if self.readings == 0 { 1.0 } else { n as f64 / self.readings as f64 })
    }

    /// The confidences that were not reached over all `runs` runs together.
    #[must_use]
    pub fn misses(&self, scenario: &Scenario, runs: usize) -> Vec<String> {
        if scenario.limits.uncalibrated.is_some() || runs < FEWEST_RUNS {
            return Vec::new();
        }
        if self.readings == 0 {
            return vec!["confidence: there was no reading to judge; say why: uncalibrated".into()];
        }
        let found = CONFIDENCES.into_iter().zip(self.shares());
        let broken = found.filter(|(p, share)| share < p);
        let say = |(p, share)| {
            format!(
                "confidence: {share:.5} of {} readings were within a promise of {p}",
                self.readings
            )
        };
        broken.map(say).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn scenario(more: &str) -> Scenario {
        let text = format!(
            "description = 'x'\nduration_s = 120\nwarmup_s = 60\nfault_at_s = 100\n[limits]\n{more}"
        );
        Scenario::parse(&text, Path::new("x.toml")).unwrap()
    }

    fn point(t_s: f64, sigmas: f64) -> Point {
        Point {
            t_s,
            offset_us: -sigmas * 2.0,
            earliest_us: -100.0,
            latest_us: 100.0,
            sigma_us: 2.0,
            status: ClockStatus::Synchronized,
        }
    }

    #[test]
    fn each_probability_has_its_width() {
        // 1.2 times Student's t with 3 degrees of freedom: 2.82, 7.01, 15.5.
        let all = [2.8, 2.9, 7.0, 7.1, 15.5, 15.6].map(|sigmas| point(80.0, sigmas));
        let found = Calibration::of(&scenario(""), &all);
        assert_eq!(found, Calibration { readings: 6, inside: [1, 3, 5] });
    }

    #[test]
    fn warm_up_fault_and_other_statuses_do_not_count() {
        let lost = Point { status: ClockStatus::FreeRunning, ..point(80.0, 50.0) };
        let points = [point(59.0, 50.0), point(60.0, 1.0), lost, point(100.0, 50.0)];
        let found = Calibration::of(&scenario(""), &points);
        assert_eq!(found, Calibration { readings: 1, inside: [1; 3] });
        assert_eq!(Calibration::default().shares(), [1.0; 3]);
    }

    #[test]
    fn a_promise_is_judged_over_ten_runs() {
        let found = Calibration { readings: 1000, inside: [900, 989, 1000] };
        assert_eq!(
            found.misses(&scenario(""), 10),
            ["confidence: 0.98900 of 1000 readings were within a promise of 0.99"]
        );
        assert!(found.misses(&scenario(""), 9).is_empty());
        assert!(found.misses(&scenario("uncalibrated = 'a test'"), 10).is_empty());
    }
}
