//! The numbers a run is judged by.
//!
//! Some rules apply even if a file does not state them: the bounds contain truth at every check,
//! they nest, the estimate never goes backwards, and no disruption is signalled.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What must hold; absent means not judged, except where a default is given.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Root mean square of the estimate's error after the warm-up, us.
    pub rms_us: Option<f64>,
    /// 99th percentile of its absolute value, us.
    pub p99_us: Option<f64>,
    /// Its largest absolute value, us.
    pub max_us: Option<f64>,
    /// Median of half the interval's width, us.
    pub halfwidth_median_us: Option<f64>,
    /// 99th percentile of it, us.
    pub halfwidth_p99_us: Option<f64>,
    /// The same in parts of the run.
    #[serde(rename = "window")]
    pub windows: Vec<Window>,
    /// Share of the checks with a status that vouches for the bounds in which truth lies inside
    /// them. Default 1. Use less only if an assumption fails; 0 (not judged) if truth must
    /// eventually be lost.
    pub coverage: f64,
    /// Statuses that must occur.
    pub see: Vec<String>,
    /// Statuses that must not.
    pub never: Vec<String>,
    /// The status at the end.
    pub at_end: Option<String>,
    /// Share of the time after the warm-up with status `synchronized`, at least.
    pub synchronized: Option<f64>,
    /// Disruptions signalled after the clock first had bounds, at most. Default 0.
    pub disruptions: u64,
    /// The status became `unreliable` after `fault_at_s` and before truth left bounds that were
    /// vouched for.
    pub detected: Option<bool>,
    /// For a fault that is faster than a poll: the status became `unreliable` before truth left
    /// bounds that were vouched for, or at most so many seconds later.
    pub detected_within_s: Option<f64>,
    /// Limits that need not hold in every one of several runs, by name, each with the reason. A
    /// name covers the limit of the whole run and those of the windows.
    pub share: BTreeMap<String, Share>,
    /// Why the estimated error is not meaningful here, such as paths that differ in their minima.
    /// Otherwise a share p of the readings with status `synchronized`, after the warm-up and before
    /// the fault, must be as near to truth as `confidence = probability` promises, for each p of
    /// [`CONFIDENCES`]. Judged over all runs together, of ten or more.
    pub uncalibrated: Option<String>,
    /// Times that the status became `unreliable` before `fault_at_s` (or at all), per simulated day
    /// of all runs together, at most. Judged over two days or more.
    pub false_alarms_per_day: Option<f64>,
    /// References named falsetickers after the warm-up: exactly these.
    pub falsetickers: Option<Vec<String>>,
    /// Largest jump of the published estimate at a publication after the warm-up, ns.
    pub max_jump_ns: Option<f64>,
    /// Largest correction by the estimator at one exchange after the warm-up, us: what the
    /// published estimate then slews to.
    pub max_correction_us: Option<f64>,
}

/// The probabilities at which the estimated error is judged.
pub const CONFIDENCES: [f64; 3] = [0.9, 0.99, 0.999];

/// How many of several runs must keep a limit.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The share of the runs that must keep the limit: above 0, below 1.
    pub of: f64,
    /// Why no more can be required.
    pub why: String,
}

impl Share {
    /// How many of `runs` may miss the limit. A single run must keep it; if there are too few runs
    /// to measure the share, one may miss it.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the number of runs"
    )]
    pub fn misses(&self, runs: usize) -> usize {
        if runs < 2 {
            return 0;
        }
        // 20 x (1 - 0.95) is a little less than 1 in binary fractions.
        let misses = runs as f64 * (1.0 - self.of) + 1e-9;
        (misses.floor() as usize).max(1)
    }
}

/// Limits on accuracy from `from_s` up to `to_s`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Begin, s.
    pub from_s: f64,
    /// End, s; the run's by default.
    pub to_s: Option<f64>,
    /// As in [`Limits`].
    pub rms_us: Option<f64>,
    /// As in [`Limits`].
    pub p99_us: Option<f64>,
    /// As in [`Limits`].
    pub max_us: Option<f64>,
    /// As in [`Limits`].
    pub halfwidth_median_us: Option<f64>,
    /// As in [`Limits`].
    pub halfwidth_p99_us: Option<f64>,
}

/// Accuracy over a span of time, measured or as a limit; us.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Accuracy<T> {
    /// Root mean square error of the estimate.
    pub rms_us: T,
    /// 99th percentile of its absolute value.
    pub p99_us: T,
    /// Its largest absolute value.
    pub max_us: T,
    /// Median of half the interval's width.
    pub halfwidth_median_us: T,
    /// 99th percentile of it.
    pub halfwidth_p99_us: T,
}

impl<T: Copy> Accuracy<T> {
    /// With the names that limits have.
    #[must_use]
    pub fn named(&self) -> [(&'static str, T); 5] {
        [
            ("rms_us", self.rms_us),
            ("p99_us", self.p99_us),
            ("max_us", self.max_us),
            ("halfwidth_median_us", self.halfwidth_median_us),
            ("halfwidth_p99_us", self.halfwidth_p99_us),
        ]
    }
}

impl Limits {
    /// The limits on the whole run after the warm-up.
    #[must_use]
    pub fn accuracy(&self) -> Accuracy<Option<f64>> {
        Accuracy {
            rms_us: self.rms_us,
            p99_us: self.p99_us,
            max_us: self.max_us,
            halfwidth_median_us: self.halfwidth_median_us,
            halfwidth_p99_us: self.halfwidth_p99_us,
        }
    }
}

impl Window {
    /// The limits on this window.
    #[must_use]
    pub fn accuracy(&self) -> Accuracy<Option<f64>> {
        Accuracy {
            rms_us: self.rms_us,
            p99_us: self.p99_us,
            max_us: self.max_us,
            halfwidth_median_us: self.halfwidth_median_us,
            halfwidth_p99_us: self.halfwidth_p99_us,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rms_us: None,
            p99_us: None,
            max_us: None,
            halfwidth_median_us: None,
            halfwidth_p99_us: None,
            windows: Vec::new(),
            coverage: 1.0,
            see: Vec::new(),
            never: Vec::new(),
            at_end: None,
            synchronized: None,
            disruptions: 0,
            detected: None,
            detected_within_s: None,
            share: BTreeMap::new(),
            uncalibrated: None,
            false_alarms_per_day: None,
            falsetickers: None,
            max_jump_ns: None,
            max_correction_us: None,
        }
    }
}

/// What [`KnownFailure::limits`] and [`Limits::share`] may name: the limits, and the rules that
/// hold without being stated.
pub(super) const NAMES: [&str; 18] = [
    "rms_us",
    "p99_us",
    "max_us",
    "halfwidth_median_us",
    "halfwidth_p99_us",
    "coverage",
    "nesting",
    "monotonic",
    "disruptions",
    "max_jump_ns",
    "max_correction_us",
    "detected",
    "detected_within_s",
    "see",
    "never",
    "at_end",
    "synchronized",
    "falsetickers",
];

/// Limits that the current code is known to miss. The scenario still runs and its figures are
/// printed, but missing these limits does not fail it. When a run meets all of them, the table asks
/// for the entry to be removed.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFailure {
    /// Names of limits.
    pub limits: Vec<String>,
    /// What is missing.
    pub reason: String,
}
