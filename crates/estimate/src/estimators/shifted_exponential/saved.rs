//! The state with which a restarted daemon continues.

use timevisor_time::Period;

use super::filter::Filter;
use super::gaussian::{Covariance, Gaussian, MINIMUM, N, OFFSET, RATE};
use super::parameters::{EXPERTS, MODELS, Parameters};

/// Saved state of a [`super::ShiftedExponential`]. It is valid only for the same counter: not after
/// a reboot, and not for another host. It does not include the routes that the path left earlier,
/// nor the usual lateness of messages (the first small shift can be found a hundred exchanges
/// later).
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Saved {
    /// Counter value of the state.
    pub counter: u64,
    /// True time at that counter value, whole seconds since 1970 (TAI).
    pub seconds: i64,
    /// The fractional second, in units of 2^-64 s.
    pub fraction: u64,
    /// The counter's period, in units of 2^-84 s.
    pub period_bits: u64,
    /// Number of exchanges seen.
    pub exchanges: u64,
    /// Mean queueing according to the round trips, s.
    pub queueing_s: f64,
    /// The information in one delay relative to an independent one, up to 1.
    pub independence: f64,
    /// One entry per expert.
    pub experts: [SavedExpert; EXPERTS],
}

/// The knowledge of one expert.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SavedExpert {
    /// Logarithm of its merit relative to the best expert's.
    pub merit: f64,
    /// Offset from the saved time, s; rate relative to the saved period; drift, 1/s; minimum delays
    /// forward and backward, s.
    pub mean: [f64; N],
    /// Upper triangle of their covariance, row by row.
    pub covariance: [f64; N * (N + 1) / 2],
    /// Probabilities of the oscillator's hypotheses.
    pub weights: [f64; MODELS],
    /// Mean queueing, s, forward and backward.
    pub queueing_s: [f64; 2],
}

/// A saved state that cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("saved estimator state: {field} {problem}; delete the saved state to start without it")]
pub struct UnusableState {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// If a saved period differs by more than this from the nominal one, it belongs to another counter.
const SAME_COUNTER: f64 = 1e-3;
/// No clock has a variance above this (s^2 and smaller units).
const LARGEST_VARIANCE: f64 = 1e12;
/// One per microsecond for nine years; also far from where further counting would overflow.
const MOST_EXCHANGES: u64 = 1 << 48;

impl SavedExpert {
    /// The state of a filter, with its offset and rate relative to `offset_s` and `rate`.
    pub(super) fn new(
        filter: &Filter,
        state: &Gaussian,
        offset_s: f64,
        rate: f64,
        merit: f64,
    ) -> Self {
        let mut mean = state.mean;
        mean[OFFSET] -= offset_s;
        mean[RATE] -= rate;
        Self {
            merit,
            mean,
            covariance: *state.covariance.triangle(),
            weights: *filter.bank.weights(),
            queueing_s: filter.directions.map(|d| d.queueing_s),
        }
    }

    /// A filter that continues from here; `rate` is the saved period's rate relative to the nominal
    /// one.
    fn filter(&self, rate: f64, exchanges: u64, parameters: &Parameters) -> Filter {
        let mut state =
            Gaussian { mean: self.mean, covariance: Covariance::from_triangle(self.covariance) };
        state.mean[RATE] += rate;
        let sum: f64 = self.weights.iter().sum();
        let count = exchanges.max(parameters.start.exchanges as u64 + 1);
        Filter::new(&state, self.weights.map(|w| w / sum), self.queueing_s, count)
    }

    fn check(&self) -> Result<(), UnusableState> {
        let covariance = Covariance::from_triangle(self.covariance);
        let variances = [OFFSET, RATE, MINIMUM[0], MINIMUM[1]].map(|i| covariance.get(i, i));
        let usual = |v: &f64| *v > 0.0 && *v < LARGEST_VARIANCE;
        let bounded = self.covariance.iter().all(|c| c.abs() < LARGEST_VARIANCE);
        let weights = self.weights.iter().all(|w| (0.0..=1.0).contains(w));
        let sum: f64 = self.weights.iter().sum();
        let checks = [
            (
                "merit",
                self.merit <= 0.0 && self.merit.is_finite(),
                "must be finite and not above 0",
            ),
            ("mean", self.mean.iter().all(|m| m.abs() < 1e6), "must be finite and below 1e6"),
            ("covariance", variances.iter().all(usual), "must have positive variances"),
            ("covariance", bounded, "must be finite and below 1e12"),
            ("weights", weights && (sum - 1.0).abs() < 1e-3, "must be probabilities with sum 1"),
            ("queueing_s", self.queueing_s.iter().all(usual), "must be above 0"),
        ];
        first_failure(&checks)
    }
}

impl Saved {
    /// Detects impossible values in a file.
    pub(super) fn check(&self, nominal: Period) -> Result<(), UnusableState> {
        let period = Period::from_bits(self.period_bits).relative_to(nominal).abs() < SAME_COUNTER;
        let independence = self.independence > 0.0 && self.independence <= 1.0;
        let queueing = self.queueing_s > 0.0 && self.queueing_s.is_finite();
        first_failure(&[
            ("period_bits", period, "is more than 1000 ppm off: it was saved for another counter"),
            ("exchanges", self.exchanges < MOST_EXCHANGES, "must be below 2^48"),
            ("queueing_s", queueing, "must be above 0"),
            ("independence", independence, "must be above 0 and at most 1"),
        ])?;
        self.experts.iter().try_for_each(SavedExpert::check)
    }

    /// The experts' filters and merits.
    pub(super) fn filters(
        &self,
        nominal: Period,
        parameters: &Parameters,
    ) -> ([Filter; EXPERTS], [f64; EXPERTS]) {
        let rate = Period::from_bits(self.period_bits).relative_to(nominal);
        let filter = |i: usize| self.experts[i].filter(rate, self.exchanges, parameters);
        (core::array::from_fn(filter), core::array::from_fn(|i| self.experts[i].merit))
    }
}

fn first_failure(checks: &[(&'static str, bool, &'static str)]) -> Result<(), UnusableState> {
    match checks.iter().find(|(_, good, _)| !good) {
        Some((field, _, problem)) => Err(UnusableState { field, problem }),
        None => Ok(()),
    }
}
