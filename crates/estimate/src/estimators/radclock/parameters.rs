//! RADclock's tunables: three published profiles, and the constants that its sources define next to
//! the algorithm.

use timevisor_time::{Duration, RateError};

use crate::parameters::InvalidParameter;

/// Parameters of [`super::Radclock`].
///
/// The profiles are those of `radclock/sync_algo.h` in RADicalsync/RADclock (also
/// synclab/radclock): `EXCEL`, `GOOD` (its default) and `POOR` describe the assumed quality of the
/// machine's oscillator.
#[derive(Clone, PartialEq, Debug)]
pub struct RadclockParameters {
    /// Largest usual timestamping error (interrupt latency); the unit of all other thresholds.
    pub stamping_limit: Duration,
    /// Longest time over which the oscillator's rate is considered constant.
    pub constant_rate_scale: Duration,
    /// Bound on the error of the rate at any time scale.
    pub rate_error_bound: RateError,
    /// How fast the value of a stamp decays: the best knowledge of the rate within
    /// `constant_rate_scale`.
    pub ageing_rate: RateError,
    /// Width of the offset's weighting, in units of `stamping_limit`.
    pub offset_ratio: f64,
    /// A local rate with a larger error than this is not adopted.
    pub local_quality: RateError,
    /// Poll interval from which the windows are derived; RADclock takes it from its configuration.
    pub poll: Duration,
    /// Nothing older than this has any influence, so that ageing is eventually forgotten.
    pub history: Duration,
    /// Minimum number of stamps over which a higher minimum round trip must persist before it
    /// counts as a change of route.
    pub shift_stamps: u64,
    /// Minimum number of stamps in the warmup. The windows may extend it.
    pub warmup_stamps: u64,
    /// The far and the near window of the warmup each get one part in this many of its history.
    pub warmup_ratio: u64,
    /// The same for the local rate's windows.
    pub local_ratio: u64,
    /// A reference with at least this minimum round trip counts as far away, and has looser
    /// thresholds.
    pub far_round_trip: Duration,
    /// Bound on the deviation of the counter's rate from its nominal one, for the error that is
    /// reported before a rate is measured.
    pub unmeasured_rate: RateError,
}

impl RadclockParameters {
    /// An excellent oscillator: temperature-controlled room, quiet machine.
    #[must_use]
    pub fn excellent() -> Self {
        Self {
            rate_error_bound: RateError::from_ppb(100),
            ageing_rate: RateError::from_ppb(50),
            offset_ratio: 6.0,
            ..Self::good()
        }
    }

    /// The default of RADclock.
    #[must_use]
    pub fn good() -> Self {
        Self {
            stamping_limit: Duration::from_micros(15),
            constant_rate_scale: Duration::from_secs(1024),
            rate_error_bound: RateError::from_ppb(500),
            ageing_rate: RateError::from_ppb(200),
            offset_ratio: 10.0,
            local_quality: RateError::from_ppb(800),
            poll: Duration::from_secs(16),
            history: Duration::from_secs(7 * 24 * 3600),
            shift_stamps: 100,
            warmup_stamps: 100,
            warmup_ratio: 4,
            local_ratio: 5,
            far_round_trip: Duration::from_millis(3),
            unmeasured_rate: RateError::from_ppm(100),
        }
    }

    /// A poor oscillator: temperature changes, a busy machine.
    #[must_use]
    pub fn poor() -> Self {
        Self {
            constant_rate_scale: Duration::from_secs(512),
            rate_error_bound: RateError::from_ppb(1000),
            ageing_rate: RateError::from_ppb(1000),
            local_quality: RateError::from_ppb(2000),
            ..Self::good()
        }
    }

    /// Checks all limits.
    ///
    /// # Errors
    /// The first parameter that is outside its limits.
    pub fn validate(&self) -> Result<(), InvalidParameter> {
        let second = Duration::from_secs(1);
        let checks = [
            ("stamping_limit", self.stamping_limit > Duration::ZERO, "must be positive"),
            (
                "constant_rate_scale",
                self.constant_rate_scale > self.poll,
                "must be longer than one poll interval",
            ),
            ("rate_error_bound", self.rate_error_bound > RateError::ZERO, "must be positive"),
            ("offset_ratio", self.offset_ratio >= 1.0, "must be 1 or more"),
            ("local_quality", self.local_quality > RateError::ZERO, "must be positive"),
            ("poll", self.poll >= second, "must be 1 s or more"),
            ("history", self.history >= second, "must be 1 s or more"),
            ("shift_stamps", (2..=100_000).contains(&self.shift_stamps), "must be 2 to 100000"),
            ("warmup_stamps", (8..=100_000).contains(&self.warmup_stamps), "must be 8 to 100000"),
            ("warmup_ratio", self.warmup_ratio >= 2, "must be 2 or more"),
            ("local_ratio", self.local_ratio >= 2, "must be 2 or more"),
        ];
        match checks.into_iter().find(|(_, good, _)| !good) {
            Some((name, _, problem)) => Err(InvalidParameter { name, problem }),
            None => Ok(()),
        }
    }
}

impl Default for RadclockParameters {
    fn default() -> Self {
        Self::good()
    }
}
