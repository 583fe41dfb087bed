//! Every tunable of the estimator: unit, reason, limits. The defaults are
//! docs/explanation/estimation.md's.
//!
//! Field names end in their unit; the others are pure numbers. "Mean queueing" is the mean delay of
//! a message beyond the minimum of its direction.

use super::wander::Wander;
use crate::parameters::InvalidParameter;

/// Oscillator hypotheses that run side by side.
pub const MODELS: usize = 8;
/// Opinions about the minimum delay: how sharp it is, and whether it wanders.
pub const EXPERTS: usize = 3;
/// Exchanges that can be taken back when a level shift shows in hindsight.
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
    /// The hypotheses: from an oven (1e-10) to a crystal in a draught (1e-6), in half decades where
    /// ordinary crystals are, and one with a drift for the slope of a temperature cycle. 1/sqrt(s),
    /// and 1/s per sqrt(s).
    pub models: [Wander; MODELS],
    /// A drift is forgotten within this time, s: temperatures turn around.
    pub drift_decay_s: f64,
    /// Probability per exchange that another hypothesis begins to hold: about once a day at 16 s
    /// polls. Per exchange and not per second: from 1 s to 1024 s polls the difference is below 2
    /// %.
    pub switch_probability: f64,
    /// Prior standard deviation of the rate against the nominal one: twice a crystal's tolerance.
    pub initial_rate: f64,
    /// Prior standard deviation of the drift, 1/s.
    pub initial_drift: f64,
}

/// What delays are like.
#[derive(Clone, Debug, PartialEq)]
pub struct Delays {
    /// Noise of stamps, s: reading the counter and granularity of the reference, one sigma.
    pub stamp_noise_s: f64,
    /// Standard deviation of the minimum delay's edge over the mean queueing, one per expert: 0.02
    /// for queueing that is exponential down to the minimum, 0.3 for delays that are rarely close
    /// to it.
    pub edge_softness: [f64; EXPERTS],
    /// How far both minimum delays move together between two exchanges, over the mean queueing that
    /// the round trips show, one per expert: 0 for a route whose length does not change, above for
    /// a satellite's. A minimum that moves fast widens that figure, and so the range of speeds.
    pub common_walk: [f64; EXPERTS],
    /// Exchanges over which the experts' merits are remembered.
    pub expert_memory: f64,
    /// Share of messages that are held up by something else than ordinary queueing.
    pub slow_weight: f64,
    /// Mean delay of those over the ordinary mean: an interrupted virtual machine against a switch.
    pub slow_factor: f64,
    /// Share of messages that may come before the minimum: steps and shortened paths must not have
    /// infinite weight.
    pub early_weight: f64,
    /// Standard deviation of those over the mean queueing.
    pub early_factor: f64,
    /// Exchanges the mean queueing is averaged over.
    pub queueing_memory: f64,
    /// The mean queueing stays within this factor of what the round trips' lower quartile says.
    pub queueing_range: f64,
    /// An exchange is an outlier when both messages are later than this many mean queueing delays
    /// ...
    pub outlier_queueing: f64,
    /// ... and this many sigmas.
    pub outlier_sigma: f64,
}

/// What is taken from round trips alone.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundTripStatistics {
    /// After the start, the statistics are renewed once in so many exchanges: sorting costs as much
    /// as a filter step.
    pub renew_every: u64,
    /// After a change of the path, they stay as they were until so many round trips of the new one
    /// are known.
    pub enough: usize,
    /// Fewer round trips than this say little about queueing: until then its mean is at least
    /// `few_share` of the best round trip, over their number.
    pub few: usize,
    /// See `few`; also the share of the first round trip that each minimum delay is taken for.
    pub few_share: f64,
    /// The mean queueing is at least this share of the best round trip ...
    pub least_share: f64,
    /// ... and this long, s: no network and no bus is smoother.
    pub least_queueing_s: f64,
    /// Round trips above the minimum by this many mean queueing delays are left out of the
    /// autocorrelation.
    pub outlier_queueing: f64,
    /// An autocorrelation counts when it exceeds this many standard errors 1/sqrt(n).
    pub significance: f64,
    /// However correlated, a message is worth at least this share of an independent one.
    pub least_independence: f64,
}

/// How the filter begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Exchanges until the start is over. The filter starts again, from all of them, at `again_at`
    /// and at this many.
    pub exchanges: usize,
    /// Numbers of exchanges at which enough more is known about the delays to start again.
    pub again_at: [usize; 2],
    /// Relative variance to which the two minimum delays are equal: nothing but a shift can tell
    /// them apart, and a looser prior would only spread an unobservable error.
    pub symmetry: f64,
    /// Least standard deviation of the minimum delays over the best round trip.
    pub least_share: f64,
}

/// When a path or a clock has changed.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeDetection {
    /// A message is early, or a round trip is below its minimum, beyond this many sigmas ...
    pub early_sigma: f64,
    /// ... and, for a round trip, this many mean queueing delays.
    pub early_queueing: f64,
    /// Exchanges in a row with an early message in one direction, without a shorter round trip,
    /// that make a step.
    pub step_exchanges: u32,
    /// Messages early by more than this many mean queueing delays are beyond what the delays' law
    /// for early ones was made for (three of its sigmas): nothing is learned from them until they
    /// make a step.
    pub gross_queueing: f64,
    /// Late messages in a row that raise the suspicion of an upward shift, and the length of the
    /// blocks whose minima tell what is usual.
    pub shift_exchanges: usize,
    /// Late messages that confirm it: some of those in a row may have been late by chance or too
    /// late to tell.
    pub shift_support: usize,
    /// Windows, exchanges, in which a shift too small to make single messages late is looked for;
    /// at most [`WINDOW`].
    pub shift_windows: [usize; 4],
    /// Logarithm of the likelihood ratio that raises the suspicion: 1e-11 by chance.
    pub shift_evidence: f64,
    /// The least residual also exceeds those of all earlier blocks by this factor ...
    pub shift_record: f64,
    /// ... and its own uncertainty by this many sigmas.
    pub shift_sigma: f64,
    /// Probability that a given exchange is the first of a longer path: what an expert's merit
    /// loses when it explains messages by a shift.
    pub shift_prior: f64,
    /// Exchanges after a message that came too early, with it, at which a look back asks whether
    /// the path changed in both directions; the last of them ends the question.
    pub looked_back_after: [usize; 3],
    /// Logarithm of the likelihood ratio between that and a step of a clock when the round trip is
    /// no shorter: 1e-4 by chance.
    pub exchanged_evidence: f64,
    /// In hindsight, a shift is confirmed beyond this many sigmas of the prediction ...
    pub confirmed_sigma: f64,
    /// ... this many mean queueing delays, and half of `shift_evidence` per exchange.
    pub confirmed_queueing: f64,
    /// Standard deviation of a longer minimum: this share of the shift and `reopened_queueing`.
    pub reopened_share: f64,
    /// See `reopened_share`; mean queueing delays.
    pub reopened_queueing: f64,
    /// A shorter minimum is sought in a direction whose message was early by this many sigmas.
    pub shortened_sigma: f64,
    /// An earlier route is back when the unchanged direction is within this many mean queueing
    /// delays of its minimum then, ...
    pub same_other: f64,
    /// ... and the shortened one at most so far below or above, mean queueing delays (one message
    /// is rarely at the minimum), ...
    pub same_below: f64,
    /// See `same_below`.
    pub same_above: f64,
    /// ... and this many sigmas.
    pub same_sigma: f64,
    /// How exactly an earlier route has its earlier asymmetry, mean queueing delays.
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

/// Name, whether it is within its limits, and what the limits are.
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
    /// The first parameter that is out of its limits.
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
