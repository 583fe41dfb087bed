//! Every tunable of the estimator, with unit, reason and limits. The defaults are those of
//! docs/explanation/estimation.md.
//!
//! Field names end in their unit; fields without a unit are pure numbers. "Mean queueing" is the
//! mean delay of a message above the minimum of its direction.

use super::wander::Wander;
use crate::parameters::InvalidParameter;

/// Number of oscillator hypotheses that run side by side.
pub const MODELS: usize = 8;
/// Number of experts: hypotheses about how sharp the minimum delay is, and whether it wanders.
pub const EXPERTS: usize = 3;
/// Number of exchanges that can be taken back when a level shift becomes visible in hindsight.
pub const WINDOW: usize = 32;

/// Parameters of [`super::ShiftedExponential`].
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Parameters {
    /// The counter's oscillator.
    pub oscillator: Oscillator,
    /// Delays of single messages.
    pub delays: Delays,
    /// Statistics of round trips.
    pub round_trips: RoundTripStatistics,
    /// The first exchanges.
    pub start: Start,
    /// Changes of paths and clocks.
    pub changes: ChangeDetection,
}

/// How the counter's rate may wander.
#[derive(Clone, Debug, PartialEq)]
pub struct Oscillator {
    /// The hypotheses: from an oven-controlled oscillator (1e-10) to a crystal in a draught (1e-6),
    /// in half-decade steps in the range of ordinary crystals, and one with a drift for the slope
    /// of a temperature cycle. 1/sqrt(s), and 1/s per sqrt(s).
    pub models: [Wander; MODELS],
    /// A drift is forgotten within this time, s, because temperature trends reverse.
    pub drift_decay_s: f64,
    /// Probability per exchange that another hypothesis begins to hold: about once a day at 16 s
    /// polls. It is per exchange and not per second: between 1 s and 1024 s polls the difference is
    /// below 2 %.
    pub switch_probability: f64,
    /// Prior standard deviation of the rate relative to the nominal one: twice a crystal's
    /// tolerance.
    pub initial_rate: f64,
    /// Prior standard deviation of the drift, 1/s.
    pub initial_drift: f64,
}

/// The distribution of delays.
#[derive(Clone, Debug, PartialEq)]
pub struct Delays {
    /// Noise of stamps, s: reading the counter, and the granularity of the reference; one sigma.
    pub stamp_noise_s: f64,
    /// Standard deviation of the edge of the minimum delay relative to the mean queueing, one per
    /// expert: 0.02 for queueing that is exponential down to the minimum, 0.3 for delays that are
    /// rarely close to it.
    pub edge_softness: [f64; EXPERTS],
    /// How far both minimum delays move together between two exchanges, relative to the mean
    /// queueing according to the round trips, one per expert: 0 for a route of constant length,
    /// positive for a satellite link. A fast-moving minimum increases that mean queueing, and with
    /// it the range of speeds.
    pub common_walk: [f64; EXPERTS],
    /// Number of exchanges over which the merits of experts are remembered.
    pub expert_memory: f64,
    /// Share of messages that are delayed by something other than ordinary queueing.
    pub slow_weight: f64,
    /// Mean delay of those relative to the ordinary mean: an interrupted virtual machine versus a
    /// switch.
    pub slow_factor: f64,
    /// Share of messages that may arrive before the minimum: steps and shortened paths must not
    /// have infinite weight.
    pub early_weight: f64,
    /// Standard deviation of those relative to the mean queueing.
    pub early_factor: f64,
    /// Number of exchanges over which the mean queueing is averaged.
    pub queueing_memory: f64,
    /// The mean queueing stays within this factor of the value derived from the lower quartile of
    /// the round trips.
    pub queueing_range: f64,
    /// An exchange is an outlier when both messages are later than this many mean queueing delays
    /// ...
    pub outlier_queueing: f64,
    /// ... and this many sigmas.
    pub outlier_sigma: f64,
}

/// Statistics derived only from round trips.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundTripStatistics {
    /// After the start, the statistics are renewed once per this many exchanges, because sorting
    /// costs as much as a filter step.
    pub renew_every: u64,
    /// After a change of the path, the statistics stay unchanged until this many round trips of the
    /// new path are known.
    pub enough: usize,
    /// Fewer round trips than this reveal little about queueing: until then, its mean is at least
    /// `few_share` of the best round trip, divided by their number.
    pub few: usize,
    /// See `few`; also the share of the first round trip that is used as each minimum delay.
    pub few_share: f64,
    /// The mean queueing is at least this share of the best round trip ...
    pub least_share: f64,
    /// ... and this long, s: no network and no bus has less jitter.
    pub least_queueing_s: f64,
    /// Round trips above the minimum by this many mean queueing delays are excluded from the
    /// autocorrelation.
    pub outlier_queueing: f64,
    /// An autocorrelation is significant if it exceeds this many standard errors 1/sqrt(n).
    pub significance: f64,
    /// However strong the correlation, a message counts at least this share of an independent one.
    pub least_independence: f64,
}

/// How the filter starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Number of exchanges until the start is over. The filter restarts, from all of them, at
    /// `again_at` and at this number.
    pub exchanges: usize,
    /// Numbers of exchanges at which enough has been learned about the delays for a restart.
    pub again_at: [usize; 2],
    /// Relative variance within which the two minimum delays are equal: only a shift can tell them
    /// apart, and a looser prior would only spread an unobservable error.
    pub symmetry: f64,
    /// Minimum standard deviation of the minimum delays relative to the best round trip.
    pub least_share: f64,
}

/// Criteria for a change of a path or a clock.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeDetection {
    /// A message is early, or a round trip is below its minimum, beyond this many sigmas ...
    pub early_sigma: f64,
    /// ... and, for a round trip, this many mean queueing delays.
    pub early_queueing: f64,
    /// Number of consecutive exchanges with an early message in one direction, without a shorter
    /// round trip, that constitute a step.
    pub step_exchanges: u32,
    /// Messages early by more than this many mean queueing delays are beyond the range of the
    /// early-arrival distribution (three of its sigmas): nothing is learned from them until they
    /// constitute a step.
    pub gross_queueing: f64,
    /// Number of consecutive late messages that raise the suspicion of an upward shift, and the
    /// length of the blocks whose minima define the usual level.
    pub shift_exchanges: usize,
    /// Number of late messages that confirm it: some of the consecutive ones may have been late by
    /// chance, or too late to tell.
    pub shift_support: usize,
    /// Windows, in exchanges, that are searched for a shift too small to make single messages late;
    /// at most [`WINDOW`].
    pub shift_windows: [usize; 4],
    /// Log-likelihood ratio that raises the suspicion: 1e-11 by chance.
    pub shift_evidence: f64,
    /// The smallest residual also exceeds those of all earlier blocks by this factor ...
    pub shift_record: f64,
    /// ... and its own uncertainty by this many sigmas.
    pub shift_sigma: f64,
    /// Probability that a given exchange is the first on a longer path: the loss of merit for an
    /// expert that explains messages by a shift.
    pub shift_prior: f64,
    /// Numbers of exchanges since a message arrived too early (including it) after which the filter
    /// checks in hindsight whether the path changed in both directions; the last check is final.
    pub looked_back_after: [usize; 3],
    /// Log-likelihood ratio between such a change and a clock step if the round trip is not
    /// shorter: 1e-4 by chance.
    pub exchanged_evidence: f64,
    /// In hindsight, a shift is confirmed if it exceeds this many sigmas of the prediction ...
    pub confirmed_sigma: f64,
    /// ... this many mean queueing delays, and half of `shift_evidence` per exchange.
    pub confirmed_queueing: f64,
    /// Standard deviation of a longer minimum: this share of the shift, combined with
    /// `reopened_queueing`.
    pub reopened_share: f64,
    /// See `reopened_share`; in mean queueing delays.
    pub reopened_queueing: f64,
    /// A direction is a candidate for a shorter minimum if its message was early by this many
    /// sigmas.
    pub shortened_sigma: f64,
    /// An earlier route is considered restored if the unchanged direction is within this many mean
    /// queueing delays of its minimum at that time, ...
    pub same_other: f64,
    /// ... and the shortened one is at most this far below or above, in mean queueing delays (a
    /// single message is rarely at the minimum), ...
    pub same_below: f64,
    /// See `same_below`.
    pub same_above: f64,
    /// ... and this many sigmas.
    pub same_sigma: f64,
    /// Uncertainty of a restored asymmetry, in mean queueing delays.
    pub restored_queueing: f64,
}

const fn walk(random_walk: f64) -> Wander {
    Wander { random_walk, drift_walk: 0.0 }
}

impl Default for Oscillator {
    fn default() -> Self {
        Self {
            models: [
                walk(1e-10),
                walk(1e-9),
                walk(3e-9),
                walk(1e-8),
                walk(3e-8),
                walk(1e-7),
                walk(1e-6),
                Wander { random_walk: 1e-9, drift_walk: 1e-11 },
            ],
            drift_decay_s: 3000.0,
            switch_probability: 3e-4,
            initial_rate: 1e-4,
            initial_drift: 1e-10,
        }
    }
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            stamp_noise_s: 0.2e-6,
            edge_softness: [0.02, 0.3, 0.1],
            common_walk: [0.0, 0.0, 0.1],
            expert_memory: 300.0,
            slow_weight: 0.05,
            slow_factor: 100.0,
            early_weight: 1e-3,
            early_factor: 20.0,
            queueing_memory: 256.0,
            queueing_range: 5.0,
            outlier_queueing: 5.0,
            outlier_sigma: 6.0,
        }
    }
}

impl Default for RoundTripStatistics {
    fn default() -> Self {
        Self {
            renew_every: 32,
            enough: 32,
            few: 8,
            few_share: 0.25,
            least_share: 1e-3,
            least_queueing_s: 1e-7,
            outlier_queueing: 8.0,
            significance: 3.0,
            least_independence: 0.02,
        }
    }
}

impl Default for Start {
    fn default() -> Self {
        Self { exchanges: 64, again_at: [8, 32], symmetry: 1e-9, least_share: 0.02 }
    }
}

impl Default for ChangeDetection {
    fn default() -> Self {
        Self {
            early_sigma: 6.0,
            early_queueing: 0.1,
            step_exchanges: 3,
            gross_queueing: 60.0,
            shift_exchanges: 12,
            shift_support: 9,
            shift_windows: [12, 16, 24, 32],
            shift_evidence: 25.0,
            shift_record: 3.0,
            shift_sigma: 5.0,
            shift_prior: 1e-3,
            looked_back_after: [3, 6, 12],
            exchanged_evidence: 12.0,
            confirmed_sigma: 4.0,
            confirmed_queueing: 0.5,
            reopened_share: 0.5,
            reopened_queueing: 5.0,
            shortened_sigma: 3.0,
            same_other: 2.0,
            same_below: 1.0,
            same_above: 6.0,
            same_sigma: 4.0,
            restored_queueing: 0.01,
        }
    }
}

/// Name of the parameter, whether it is within its limits, and the limits.
type Check = (&'static str, bool, &'static str);

const POSITIVE: &str = "must be above 0";
const SHARE: &str = "must be above 0 and below 1";
const AT_LEAST_ONE: &str = "must be 1 or more";

fn positive(value: f64) -> bool {
    value > 0.0 && value.is_finite()
}

fn share(value: f64) -> bool {
    value > 0.0 && value < 1.0
}

fn at_least_one(value: f64) -> bool {
    value >= 1.0 && value.is_finite()
}

impl Parameters {
    /// Checks all limits.
    ///
    /// # Errors
    /// The first parameter that is outside its limits.
    pub fn validate(&self) -> Result<(), InvalidParameter> {
        let groups = [
            &self.oscillator.checks()[..],
            &self.delays.checks(),
            &self.round_trips.checks(),
            &self.start.checks(),
            &self.changes.checks(),
        ];
        match groups.into_iter().flatten().find(|(_, good, _)| !good) {
            Some((name, _, problem)) => Err(InvalidParameter { name, problem }),
            None => Ok(()),
        }
    }
}

impl Oscillator {
    fn checks(&self) -> [Check; 6] {
        let walks = |m: &Wander| positive(m.random_walk) && m.random_walk <= 1e-3;
        let drifts = |m: &Wander| (0.0..=1e-6).contains(&m.drift_walk);
        [
            ("models", self.models.iter().all(walks), "must have random walks above 0, up to 1e-3"),
            ("models", self.models.iter().all(drifts), "must have drift walks of 0 to 1e-6"),
            ("drift_decay_s", positive(self.drift_decay_s), POSITIVE),
            ("switch_probability", share(self.switch_probability), SHARE),
            ("initial_rate", share(self.initial_rate), SHARE),
            ("initial_drift", share(self.initial_drift), SHARE),
        ]
    }
}

impl Delays {
    fn checks(&self) -> [Check; 12] {
        let walks = self.common_walk.iter().all(|w| (0.0..=1.0).contains(w));
        let common = self.slow_weight + self.early_weight < 0.5;
        let softness = self.edge_softness.iter().all(|s| positive(*s) && *s <= 1.0);
        [
            ("stamp_noise_s", self.stamp_noise_s >= 1e-12, "must be 1e-12 s or more"),
            ("edge_softness", softness, "must be above 0, up to 1"),
            ("common_walk", walks, "must be 0 to 1"),
            ("expert_memory", at_least_one(self.expert_memory), AT_LEAST_ONE),
            ("slow_weight", positive(self.slow_weight), POSITIVE),
            ("early_weight", positive(self.early_weight), POSITIVE),
            ("slow_weight", common, "must stay below 0.5 together with early_weight"),
            ("slow_factor", at_least_one(self.slow_factor), AT_LEAST_ONE),
            ("early_factor", at_least_one(self.early_factor), AT_LEAST_ONE),
            ("queueing_memory", at_least_one(self.queueing_memory), AT_LEAST_ONE),
            ("queueing_range", at_least_one(self.queueing_range), AT_LEAST_ONE),
            ("outlier_queueing", positive(self.outlier_queueing.min(self.outlier_sigma)), POSITIVE),
        ]
    }
}

impl RoundTripStatistics {
    fn checks(&self) -> [Check; 7] {
        [
            ("renew_every", self.renew_every >= 1, AT_LEAST_ONE),
            ("enough", (1..=256).contains(&self.enough), "must be 1 to 256 exchanges"),
            ("few_share", share(self.few_share), SHARE),
            ("least_share", share(self.least_share), SHARE),
            ("least_queueing_s", self.least_queueing_s >= 1e-12, "must be 1e-12 s or more"),
            ("significance", positive(self.significance), POSITIVE),
            ("least_independence", share(self.least_independence), SHARE),
        ]
    }
}

impl Start {
    fn checks(&self) -> [Check; 4] {
        let ordered = self.again_at[0] > 1
            && self.again_at[0] < self.again_at[1]
            && self.again_at[1] < self.exchanges;
        [
            ("exchanges", (16..=1024).contains(&self.exchanges), "must be 16 to 1024 exchanges"),
            ("again_at", ordered, "must grow from 2 and stay below exchanges"),
            ("symmetry", share(self.symmetry), SHARE),
            ("least_share", share(self.least_share), SHARE),
        ]
    }
}

impl ChangeDetection {
    fn checks(&self) -> [Check; 10] {
        let exchanged = self.looked_back_after.iter().all(|n| (2..=WINDOW).contains(n))
            && self.looked_back_after.is_sorted();
        let windows = self.shift_windows.iter().all(|n| (1..=WINDOW).contains(n));
        let sorted = self.shift_windows.is_sorted();
        let support = (1..=self.shift_exchanges).contains(&self.shift_support);
        [
            ("early_sigma", self.early_sigma >= 3.0, "must be 3 or more: noise is early too"),
            ("early_queueing", self.early_queueing >= 0.0, "must not be negative"),
            ("step_exchanges", self.step_exchanges >= 2, "must be 2 or more: one may be a mistake"),
            ("shift_exchanges", (2..=WINDOW).contains(&self.shift_exchanges), "must be 2 to 32"),
            ("shift_support", support, "must be 1 to shift_exchanges"),
            ("shift_windows", windows && sorted, "must grow and stay within 1 to 32 exchanges"),
            ("shift_evidence", positive(self.shift_evidence), POSITIVE),
            ("looked_back_after", exchanged, "must grow and stay within 2 to 32 exchanges"),
            ("exchanged_evidence", positive(self.exchanged_evidence), POSITIVE),
            ("shift_prior", share(self.shift_prior), SHARE),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_nonsense_is_named() {
        assert_eq!(Parameters::default().validate(), Ok(()));
        let mut bad = Parameters::default();
        bad.changes.shift_windows[3] = WINDOW + 1;
        assert_eq!(bad.validate().unwrap_err().name, "shift_windows");
        let mut bad = Parameters::default();
        bad.delays.stamp_noise_s = f64::NAN;
        assert_eq!(bad.validate().unwrap_err().name, "stamp_noise_s");
    }
}
