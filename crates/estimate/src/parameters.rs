//! Every tunable of the estimate in one place: unit, reason, limits.

use timevisor_time::{Duration, RateError};

/// Parameters of [`crate::Ensemble`]; the defaults are theory/clock.md's.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Bound on the counter's rate against its nominal one before any data: a crystal's tolerance is +-50 ppm, and a
    /// margin. The uncertainty of the nominal rate itself is added by the caller.
    pub unmeasured_rate: RateError,
    /// Bound on the rate against the measured one: temperature and ageing of an ordinary crystal.
    pub measured_rate: RateError,
    /// A rate counts as measured once the bounds prove it to this: well below `measured_rate`, so that it adds little.
    pub rate_known_within: RateError,
    /// Round trips below this are wrong stamps, not fast networks.
    pub minimum_round_trip: Duration,
    /// Exchanges that must agree with each other after a contradiction before the bounds are trusted again.
    pub rebuild_exchanges: u32,
    /// Exchanges the fit looks at: long enough to average queueing, short enough that the rate is constant.
    pub fit_window: usize,
    /// How fast the rate may wander between an exchange and now, for the fit's weights.
    pub fit_wander: RateError,
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
            fit_window: 64,
            fit_wander: RateError::from_ppb(50),
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
            ("fit_window", (2..=4096).contains(&self.fit_window), "must be 2 to 4096 exchanges"),
            ("first_exchanges", self.first_exchanges >= 1, "must be 1 or more"),
            ("stale_after", self.stale_after > Duration::ZERO, "must be positive"),
        ];
        match checks.into_iter().find(|(_, good, _)| !good) {
            Some((name, _, problem)) => Err(InvalidParameter { name, problem }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_nonsense_is_named() {
        assert_eq!(Parameters::default().validate(), Ok(()));
        let bad = Parameters { measured_rate: RateError::from_ppm(101), ..Parameters::default() };
        assert_eq!(bad.validate().unwrap_err().name, "measured_rate");
    }
}
