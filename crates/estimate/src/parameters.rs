//! Every tunable of the estimate in one place: unit, reason, limits.

use timevisor_time::{Duration, RateError};

use crate::estimators::shifted_exponential;

/// How many wander bounds there are to choose from.
pub const WANDER_LEVELS: usize = 8;

/// How many hypotheses about the oscillator the estimator weighs.
pub const WANDER_MODELS: usize = 8;

/// A crystal without a heat sink of its own, the default wander floor, 1/s: 0.5 ppm per kelvin and
/// 3.6 K a minute.
pub const CRYSTAL_WANDER: f64 = 3e-8;
/// A temperature compensated crystal (TCXO), 1/s.
pub const TCXO_WANDER: f64 = 2e-9;
/// A crystal in an oven (OCXO), 1/s.
pub const OCXO_WANDER: f64 = 5e-11;
/// No oscillator changes faster, 1/s: the largest level, unless the floor is near it.
const LARGEST_WANDER: f64 = 1e-6;

/// Parameters of [`crate::bounds`] beyond the limits of the rate. Spans are in seconds.
#[derive(Clone, Debug)]
pub struct BoundParameters {
    /// The operator's statement about the oscillator: its rate changes by at most this much per
    /// second, 1/s. The bounds' wander is never below it.
    pub wander_floor: f64,
    /// A random walk of q per sqrt(s) needs this many q / sqrt(T*).
    pub wander_sigmas: f64,
    /// The same for the drift's random walk.
    pub drift_sigmas: f64,
    /// A drift is forgotten after this: the estimator's time constant.
    pub drift_memory_s: f64,
    /// T* is never taken to be shorter than one poll.
    pub shortest_reach_s: f64,
    /// The bound covers hypotheses until their weights add up to this.
    pub weight_quantile: f64,
    /// Weights are smoothed over this many exchanges.
    pub weight_smoothing: f64,
    /// The estimator's weights count after this many exchanges...
    pub start_exchanges: u64,
    /// ...and this long: what wanders in an hour cannot be seen in a minute.
    pub start_s: f64,
    /// A lower level must have been enough for this long.
    pub lower_after_s: f64,
    /// A contradicted wander is replaced by one this many times larger...
    pub contradicted_factor: f64,
    /// ...for this long.
    pub contradicted_for_s: f64,
    /// Exchanges before the guard starts: the minimum round trip must be known.
    pub guard_after: u64,
    /// The learned minimum round trip may be this much too large, in units of the mean queueing:
    /// exponential queueing needs half of it after 64 exchanges; rounder laws need more.
    pub guard_margin: f64,
    /// And this much more, s, for stamps: where most messages do not queue at all, the mean
    /// queueing leaves no margin.
    pub guard_noise_s: f64,
    /// But no more than this share of the minimum itself, or short paths would have no guard
    /// (docs/decisions/0057).
    pub guard_share: f64,
    /// The share of a reference's stated error by which an honest one may move. With half, a clock
    /// that starts to lie is noticed before it has moved through the stated error and the minimum
    /// delay, where the truth is lost.
    pub guard_error: f64,
    /// Only round trips within this many times the mean queueing of the minimum raise an alarm:
    /// longer ones may have come on another path.
    pub guard_near: f64,
    /// The minimum is that of the last one to two windows of this many exchanges, so that a longer
    /// path is learned.
    pub guard_window: u32,
    /// Exchanges before the lookback starts: the estimator must know the path.
    pub lookback_after: u64,
    /// The lookback permits changes of the rate by this share of the wander floor. With more, a
    /// server that gains 1 ppm is not noticed in time; with less, warm-ups raise more alarms.
    pub lookback_wander: f64,
    /// And this many standard deviations of the estimate.
    pub lookback_sigmas: f64,
    /// And this share of the mean queueing of both directions, for a minimum that is rarely seen.
    pub lookback_margin: f64,
    /// Exchanges that must agree after a doubt before the bounds are trusted again.
    pub doubt_exchanges: u32,
}

impl Default for BoundParameters {
    fn default() -> Self {
        Self {
            wander_floor: CRYSTAL_WANDER,
            wander_sigmas: 5.0,
            drift_sigmas: 3.0,
            drift_memory_s: 3000.0,
            shortest_reach_s: 16.0,
            weight_quantile: 0.9,
            weight_smoothing: 16.0,
            start_exchanges: 256,
            start_s: 1024.0,
            lower_after_s: 3600.0,
            contradicted_factor: 4.0,
            contradicted_for_s: 86_400.0,
            guard_after: 64,
            guard_margin: 0.6,
            guard_share: 0.25,
            guard_noise_s: 3e-6,
            guard_error: 0.5,
            guard_near: 1.5,
            guard_window: 512,
            lookback_after: 128,
            lookback_wander: 0.5,
            lookback_sigmas: 3.8,
            lookback_margin: 0.03,
            doubt_exchanges: 32,
        }
    }
}

impl BoundParameters {
    /// Checks all limits.
    ///
    /// # Errors
    /// The first parameter that is out of its limits.
    pub fn validate(&self) -> Result<(), InvalidParameter> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        first_wrong(&[
            (
                "wander_floor",
                (1e-13..=1e-6).contains(&self.wander_floor),
                "must be 1e-13 to 1e-6 per second: a crystal keeps 3e-8",
            ),
            ("wander_sigmas", self.wander_sigmas >= 3.0, "must be 3 or more: less is no bound"),
            ("drift_sigmas", self.drift_sigmas >= 1.0, "must be 1 or more"),
            ("drift_memory_s", positive(self.drift_memory_s), "must be above 0"),
            ("shortest_reach_s", positive(self.shortest_reach_s), "must be above 0"),
            (
                "weight_quantile",
                (0.5..1.0).contains(&self.weight_quantile),
                "must be 0.5 or more and below 1",
            ),
            ("weight_smoothing", self.weight_smoothing >= 1.0, "must be 1 or more exchanges"),
            ("lower_after_s", positive(self.lower_after_s), "must be above 0"),
            ("contradicted_factor", self.contradicted_factor >= 1.0, "must be 1 or more"),
            ("guard_after", self.guard_after >= 8, "must be 8 or more exchanges"),
            ("guard_margin", self.guard_margin > 0.0, "must be above 0"),
            (
                "guard_share",
                (0.0..0.5).contains(&self.guard_share),
                "must be 0 or more and below 0.5",
            ),
            ("guard_error", (0.0..=1.0).contains(&self.guard_error), "must be 0 to 1"),
            ("guard_near", self.guard_near > 0.0, "must be above 0"),
            (
                "lookback_wander",
                (0.0..=1.0).contains(&self.lookback_wander),
                "must be 0 to 1, a share of the wander floor",
            ),
            ("lookback_sigmas", self.lookback_sigmas >= 3.0, "must be 3 or more"),
            ("lookback_margin", self.lookback_margin >= 0.0, "must not be negative"),
            ("guard_window", self.guard_window >= 64, "must be 64 or more exchanges"),
            ("doubt_exchanges", self.doubt_exchanges >= 1, "must be 1 or more"),
        ])
    }

    /// The wander bounds that there are to choose from, 1/s: the floor, and above it in equal
    /// ratios up to what no oscillator exceeds.
    #[must_use]
    pub fn levels(&self) -> [f64; WANDER_LEVELS] {
        let largest = LARGEST_WANDER.max(10.0 * self.wander_floor);
        let ratio = (largest / self.wander_floor).powf(1.0 / (WANDER_LEVELS - 1) as f64);
        let mut level = self.wander_floor;
        std::array::from_fn(|_| {
            let this = level;
            level *= ratio;
            this
        })
    }
}

fn first_wrong(checks: &[(&'static str, bool, &'static str)]) -> Result<(), InvalidParameter> {
    match checks.iter().find(|(_, good, _)| !good) {
        Some((name, _, problem)) => Err(InvalidParameter { name, problem }),
        None => Ok(()),
    }
}

/// Parameters of [`crate::Ensemble`]; the defaults are docs/explanation/bounds.md's and
/// estimation.md's.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Bound on the counter's rate against its nominal one before any data: a crystal's tolerance
    /// is +-50 ppm, and a margin. The uncertainty of the nominal rate itself is added by the
    /// caller.
    pub unmeasured_rate: RateError,
    /// Bound on the rate against the measured one: temperature and ageing of an ordinary crystal.
    pub measured_rate: RateError,
    /// A rate counts as measured once the bounds prove it to this: well below `measured_rate`, so
    /// that it adds little.
    pub rate_known_within: RateError,
    /// Round trips below this are wrong stamps, not fast networks.
    pub minimum_round_trip: Duration,
    /// Exchanges that must agree with each other after a contradiction before the bounds are
    /// trusted again.
    pub rebuild_exchanges: u32,
    /// Level 2 and the guard.
    pub bounds: BoundParameters,
    /// When a reference joins or leaves, the difference it makes to the estimate fades in over this
    /// long.
    pub handover: Duration,
    /// How long a published line must hold: longer than the interval between publications, or
    /// readers fall back on free running.
    pub validity: Duration,
    /// The default estimator.
    pub estimator: shifted_exponential::Parameters,
    /// Exchanges before the status says `synchronized`.
    pub first_exchanges: u32,
    /// Without a new exchange for this long, the status says `freerunning`.
    pub stale_after: Duration,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            unmeasured_rate: RateError::from_ppm(100),
            measured_rate: RateError::from_ppm(15),
            rate_known_within: RateError::from_ppm(3),
            minimum_round_trip: Duration::ZERO,
            rebuild_exchanges: 8,
            bounds: BoundParameters::default(),
            handover: Duration::from_secs(600),
            validity: Duration::from_secs(10),
            estimator: shifted_exponential::Parameters::default(),
            first_exchanges: 1,
            stale_after: Duration::from_secs(80),
        }
    }
}

/// A parameter outside its limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} {problem}")]
pub struct InvalidParameter {
    /// The field's name.
    pub name: &'static str,
    /// What is wrong and what would be right.
    pub problem: &'static str,
}

impl Parameters {
    /// What the worst-case bounds assume of the oscillator, in one sentence.
    #[must_use]
    pub fn assumption(&self) -> String {
        let wander = self.bounds.wander_floor;
        // A crystal's rate changes by 0.5 ppm per kelvin.
        let kelvin_a_minute = wander / 0.5e-6 * 60.0;
        format!(
            "worst-case bounds hold while the oscillator's rate is within {} ppm of nominal, within {} ppm of the \
             measured rate once that is known, and changes by at most {wander:e} per second (a crystal of 0.5 ppm \
             per kelvin at {} K a minute)",
            plain(self.unmeasured_rate.ppb() / 1000.0, 3),
            plain(self.measured_rate.ppb() / 1000.0, 3),
            significant(kelvin_a_minute),
        )
    }

    /// What to say, and what to set, when the facts ask for this wander (1/s) instead of what is
    /// stated.
    #[must_use]
    pub fn broken_by(&self, wander: f64) -> String {
        format!(
            "the rate changes by up to {wander:.1e} per second, more than oscillator.wander states \
             ({:.1e}): set oscillator.wander to that or more, unless the only reference drifts",
            self.bounds.wander_floor
        )
    }

    /// The same when the counter seems to run this much faster than nominal, relative, before any
    /// rate is proven.
    #[must_use]
    pub fn rate_broken_by(&self, rate: f64) -> String {
        format!(
            "the counter runs {:+.0} ppm from its nominal rate, more than oscillator.unmeasured_rate_ppm states ({}): \
             set it to that or more, unless the reference drifts",
            rate * 1e6,
            plain(self.unmeasured_rate.ppb() / 1000.0, 3),
        )
    }

    /// Checks all limits.
    ///
    /// # Errors
    /// The first parameter that is out of its limits.
    pub fn validate(&self) -> Result<(), InvalidParameter> {
        let checks = [
            (
                "unmeasured_rate",
                self.unmeasured_rate >= RateError::from_ppm(50),
                "must be 50 ppm or more: crystals are not better",
            ),
            (
                "unmeasured_rate",
                self.unmeasured_rate <= RateError::from_ppm(5000),
                "must be 5000 ppm or less",
            ),
            (
                "measured_rate",
                self.measured_rate >= RateError::from_ppb(100),
                "must be 100 ppb or more",
            ),
            (
                "measured_rate",
                self.measured_rate <= self.unmeasured_rate,
                "must not exceed unmeasured_rate",
            ),
            (
                "rate_known_within",
                self.rate_known_within <= self.measured_rate,
                "must not exceed measured_rate",
            ),
            (
                "rebuild_exchanges",
                self.rebuild_exchanges >= 2,
                "must be 2 or more: one exchange agrees with itself",
            ),
            ("handover", self.handover > Duration::ZERO, "must be positive"),
            ("validity", self.validity > Duration::ZERO, "must be positive"),
            ("first_exchanges", self.first_exchanges >= 1, "must be 1 or more"),
            ("stale_after", self.stale_after > Duration::ZERO, "must be positive"),
        ];
        first_wrong(&checks)?;
        self.bounds.validate()?;
        let wrong = self.estimator.validate();
        wrong.map_err(|e| InvalidParameter { name: e.name, problem: e.problem })
    }
}

/// Two significant digits.
fn significant(value: f64) -> String {
    let digits = (1.0 - value.abs().log10().floor()).clamp(0.0, 12.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 12")]
    plain(value, digits as usize)
}

/// With at most so many digits behind the point.
fn plain(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assumption_is_one_sentence_in_kelvin() {
        let mut parameters = Parameters::default();
        let text = parameters.assumption();
        assert!(
            text.contains("at most 3e-8 per second") && text.contains("at 3.6 K a minute"),
            "{text}"
        );
        assert!(text.contains("within 100 ppm of nominal, within 15 ppm"), "{text}");
        parameters.bounds.wander_floor = OCXO_WANDER;
        assert!(
            parameters.assumption().contains("at 0.006 K a minute"),
            "{}",
            parameters.assumption()
        );
    }

    #[test]
    fn the_floor_is_the_first_level_and_nonsense_is_refused() {
        for floor in [CRYSTAL_WANDER, TCXO_WANDER, OCXO_WANDER, 1e-6] {
            let bounds = BoundParameters { wander_floor: floor, ..BoundParameters::default() };
            let levels = bounds.levels();
            assert_eq!(levels[0].to_bits(), floor.to_bits());
            assert!(
                levels.is_sorted_by(|a, b| a < b) && levels[WANDER_LEVELS - 1] > 0.99e-6,
                "{levels:?}"
            );
            assert_eq!(bounds.validate(), Ok(()));
        }
        for floor in [0.0, -3e-8, f64::NAN, 1e-5] {
            let bounds = BoundParameters { wander_floor: floor, ..BoundParameters::default() };
            assert_eq!(bounds.validate().unwrap_err().name, "wander_floor", "{floor}");
        }
    }

    #[test]
    fn defaults_are_valid_and_nonsense_is_named() {
        assert_eq!(Parameters::default().validate(), Ok(()));
        let bad = Parameters { measured_rate: RateError::from_ppm(101), ..Parameters::default() };
        assert_eq!(bad.validate().unwrap_err().name, "measured_rate");
    }
}
