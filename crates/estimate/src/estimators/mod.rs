//! Turns exchanges into a best guess. All estimators see the same exchanges, in order, through the
//! same trait.
//!
//! | module | owns |
//! | --- | --- |
//! | this file | [`Estimator`], [`Estimate`], [`Diagnosis`] |
//! | [`radclock`] | RADclock, the published baseline |
//! | [`shifted_exponential`] | the default: per-direction minimum and queueing, adaptive wander |
//!
//! An estimate is a guess with a standard error and never carries a guarantee. The hard bounds do,
//! and they do not depend on any estimator.

pub mod radclock;
pub mod shifted_exponential;

use timevisor_time::{Duration, Instant, Period, Tai};

use crate::exchange::Exchange;

/// The best guess at one counter value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Best guess of true time.
    pub time: Instant<Tai>,
    /// Best guess of the period.
    pub period: Period,
    /// One sigma of `time`. It does not include the effect of asymmetric paths; the hard bounds do.
    pub error: Duration,
}

/// Turns exchanges into a clock.
pub trait Estimator {
    /// Processes an exchange that passed [`Exchange::check`] against the previous one.
    fn observe(&mut self, exchange: &Exchange);

    /// The clock at counter value `now`, which is not before the newest exchange's end; `None`
    /// before the first one.
    fn at(&self, now: u64) -> Option<Estimate>;
}

/// One hypothesis about the oscillator: how its rate wanders.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WanderModel {
    /// Random walk of the rate, 1/sqrt(s).
    pub random_walk: f64,
    /// Random walk of the rate's drift, 1/s per sqrt(s); 0 for a model without drift.
    pub drift_walk: f64,
    /// Posterior probability, 0 to 1.
    pub weight: f64,
}

/// How the newest exchange compared with the prediction before it was used, for adapting and
/// guarding the bounds. Index 0 is forward (us to the reference), 1 backward.
#[derive(Clone, PartialEq, Debug)]
pub struct Diagnosis<const MODELS: usize> {
    /// Hypotheses about the oscillator with their weights (they sum to 1).
    pub models: [WanderModel; MODELS],
    /// Residual divided by its standard deviation, per direction; negative if the message arrived
    /// earlier than its known minimum allows.
    pub normalized_residual: [f64; 2],
    /// The residual in seconds.
    pub residual: [f64; 2],
    /// Exchanges arrived too early in one direction repeatedly: a clock stepped.
    pub step: bool,
    /// Minimum one-way delay, s; only the sum is observable, the split is an assumption.
    pub minimum_delay: [f64; 2],
    /// Mean queueing beyond the minimum, s.
    pub queueing: [f64; 2],
    /// Number of exchanges seen.
    pub exchanges: u64,
}
