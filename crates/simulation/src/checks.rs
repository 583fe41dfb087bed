//! Compares what readers see with true time: coverage, accuracy, and the rules for successive
//! readings.
//!
//! | rule | checked |
//! | --- | --- |
//! | truth lies within the bounds while the status vouches for them | every true second; before and after every publication |
//! | bounds nest within earlier ones, until those expire | every publication without a disruption, at both ends of the old lines |
//! | the estimate never goes backwards | every reading, within one disruption marker |
//!
//! `unreliable` and `unknown` do not vouch for bounds; `initializing`, `synchronized` and
//! `freerunning` do.
//!
//! What it does not do: judge. [`crate::report`] holds the figures against a scenario's limits.

use std::collections::{BTreeMap, BTreeSet};

use timevisor_clock_page::{ClockStatus, Lines, Reading};
use timevisor_time::{Duration, Instant, Local, Tai};

/// Allowance for fixed-point rounding in rebased lines, 2^-64 s each: 2^-50 s, a femtosecond.
const ROUNDING: Duration = Duration::from_bits(1 << 14);

/// What a reader saw at one true second, relative to truth.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// True time since the start, s.
    pub t_s: f64,
    /// Estimate - truth, us.
    pub offset_us: f64,
    /// Earliest - truth, us: at most 0 when truth is covered.
    pub earliest_us: f64,
    /// Latest - truth, us: at least 0 when truth is covered.
    pub latest_us: f64,
    /// One sigma of the estimate as published, us.
    pub sigma_us: f64,
    /// The status, which vouches for the bounds or not.
    pub status: ClockStatus,
}

/// When a fault was detected, and when truth was lost; true seconds since the start.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Detection {
    /// The status first was `unreliable`, from the fault on.
    pub alarm_s: Option<f64>,
    /// Truth first was outside bounds that were vouched for, from the fault on.
    pub exit_s: Option<f64>,
    /// The largest distance of truth from the bounds before the alarm, us; 0 if it never left them
    /// before.
    pub residual_us: f64,
}

/// All observations of one run.
#[derive(Clone, Debug)]
pub struct Checks {
    start: Instant<Tai>,
    warmup_s: f64,
    fault_s: f64,
    /// One per true second with an estimate.
    pub points: Vec<Point>,
    /// Readings whose status vouched for the bounds.
    pub vouched: u64,
    /// Those of them in which truth was outside.
    pub uncovered: u64,
    /// The largest distance of truth from bounds that were vouched for, us.
    pub worst_excess_us: f64,
    /// True seconds by status.
    pub statuses: BTreeMap<&'static str, u64>,
    /// The same after the warm-up.
    pub settled: BTreeMap<&'static str, u64>,
    /// The status of the last reading.
    pub last_status: Option<ClockStatus>,
    /// Changes of the disruption marker after the clock first had bounds.
    pub disruptions: u64,
    /// Number of times that the status became `unreliable`.
    pub alarms: u64,
    /// Those of them before the fault.
    pub false_alarms: u64,
    /// What happened after the fault.
    pub detection: Detection,
    /// Publications whose bounds were not within the previous ones.
    pub unnested: u64,
    /// Readings whose estimate was less than an earlier one's.
    pub backward: u64,
    /// Largest jump of the published estimate at a publication after the warm-up, ns.
    pub max_jump_ns: f64,
    /// Largest correction of the estimator after the warm-up, us.
    pub max_correction_us: f64,
    /// Names of the references that were outvoted after the warm-up.
    pub falsetickers: BTreeSet<String>,
    last: Option<Reading>,
}

impl Checks {
    /// `start` is TAI at true time zero.
    #[must_use]
    pub fn new(start: Instant<Tai>, warmup_s: f64, fault_s: Option<f64>) -> Self {
        Self {
            start,
            warmup_s,
            fault_s: fault_s.unwrap_or(f64::INFINITY),
            points: Vec::new(),
            vouched: 0,
            uncovered: 0,
            worst_excess_us: 0.0,
            statuses: BTreeMap::new(),
            settled: BTreeMap::new(),
            last_status: None,
            disruptions: 0,
            alarms: 0,
            false_alarms: 0,
            detection: Detection::default(),
            unnested: 0,
            backward: 0,
            max_jump_ns: 0.0,
            max_correction_us: 0.0,
            falsetickers: BTreeSet::new(),
            last: None,
        }
    }

    /// A reader's look at true second `t`.
    pub fn second(&mut self, t: Duration, reading: &Reading) {
        self.look(t, reading);
        let t_s = t.as_secs_f64();
        let status = reading.status();
        *self.statuses.entry(status.name()).or_default() += 1;
        if t_s >= self.warmup_s {
            *self.settled.entry(status.name()).or_default() += 1;
        }
        if reading.has_estimate() {
            let truth = (self.start + t).relabel();
            let us = |at: Instant<Local>| (at - truth).as_secs_f64() * 1e6;
            let (offset_us, earliest_us, latest_us) =
                (us(reading.estimate), us(reading.earliest), us(reading.latest));
            let sigma_us = reading.estimated_error().as_secs_f64() * 1e6;
            self.points.push(Point { t_s, offset_us, earliest_us, latest_us, sigma_us, status });
        }
    }

    /// What a publication at true time `t` changed, for a reader at that very counter value.
    pub fn publication(
        &mut self,
        t: Duration,
        before: &(Reading, Lines<Local>),
        after: &(Reading, Lines<Local>),
    ) {
        self.look(t, &before.0);
        self.look(t, &after.0);
        let continued = before.0.disruption == after.0.disruption;
        if !(continued && before.0.has_estimate() && after.0.has_estimate()) {
            return;
        }
        if !nests(&after.1, &before.1, after.0.counter) {
            self.unnested += 1;
        }
        if t.as_secs_f64() >= self.warmup_s {
            let jump = (after.0.estimate - before.0.estimate).abs().as_secs_f64() * 1e9;
            self.max_jump_ns = self.max_jump_ns.max(jump);
        }
    }

    /// Records that the estimator corrected its estimate by `correction` at true time `t`.
    pub fn correction(&mut self, t: Duration, correction: Duration) {
        if t.as_secs_f64() >= self.warmup_s {
            self.max_correction_us =
                self.max_correction_us.max(correction.abs().as_secs_f64() * 1e6);
        }
    }

    /// Records that these references were outvoted at true time `t`.
    pub fn outvoted<'a>(&mut self, t: Duration, names: impl Iterator<Item = &'a str>) {
        if t.as_secs_f64() >= self.warmup_s {
            self.falsetickers.extend(names.map(str::to_owned));
        }
    }

    fn look(&mut self, t: Duration, reading: &Reading) {
        let status = reading.status();
        self.note_coverage(t, reading, status);
        self.note_status(t, status);
        if let Some(last) = self.last.filter(Reading::has_estimate) {
            if last.disruption != reading.disruption {
                self.disruptions += 1;
            } else if reading.has_estimate() && reading.estimate < last.estimate {
                self.backward += 1;
            }
        }
        // A withdrawn page stays disrupted, so its next lines are not a second disruption.
        let withdrawn =
            self.last.is_some_and(|last| last.has_estimate()) && !reading.has_estimate();
        if reading.has_estimate() || withdrawn {
            self.last = Some(*reading);
        }
    }

    fn note_coverage(&mut self, t: Duration, reading: &Reading, status: ClockStatus) {
        if !vouches(status) || !reading.has_estimate() {
            return;
        }
        let truth = (self.start + t).relabel();
        self.vouched += 1;
        let excess = (truth - reading.latest).max(reading.earliest - truth);
        if excess <= Duration::ZERO {
            return;
        }
        self.uncovered += 1;
        let us = excess.as_secs_f64() * 1e6;
        self.worst_excess_us = self.worst_excess_us.max(us);
        let t_s = t.as_secs_f64();
        if t_s >= self.fault_s && self.detection.alarm_s.is_none() {
            self.detection.exit_s.get_or_insert(t_s);
            self.detection.residual_us = self.detection.residual_us.max(us);
        }
    }

    fn note_status(&mut self, t: Duration, status: ClockStatus) {
        let t_s = t.as_secs_f64();
        if status == ClockStatus::Unreliable {
            if self.last_status != Some(status) {
                self.alarms += 1;
                self.false_alarms += u64::from(t_s < self.fault_s);
            }
            if t_s >= self.fault_s {
                self.detection.alarm_s.get_or_insert(t_s);
            }
        }
        self.last_status = Some(status);
    }

    /// Share of the vouched readings in which truth was covered; 1 if there were none.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        if self.vouched == 0 { 1.0 } else { 1.0 - self.uncovered as f64 / self.vouched as f64 }
    }
}

/// Whether a status says that the bounds hold.
#[must_use]
pub fn vouches(status: ClockStatus) -> bool {
    matches!(
        status,
        ClockStatus::Initializing | ClockStatus::Synchronized | ClockStatus::FreeRunning
    )
}

/// Whether the new bounds lie within the old ones from `now` until the old ones expire, unless they
/// are about to.
fn nests(new: &Lines<Local>, old: &Lines<Local>, now: u64) -> bool {
    // Lines are renewed shortly before they expire.
    let renewed = new.expiry.wrapping_sub(now) / 64;
    if old.is_expired(now) || old.expiry.wrapping_sub(now) <= renewed {
        return true;
    }
    [now, old.expiry].into_iter().all(|counter| {
        let (new, old) = (new.at(counter), old.at(counter));
        new.earliest + ROUNDING >= old.earliest && new.latest <= old.latest + ROUNDING
    })
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
