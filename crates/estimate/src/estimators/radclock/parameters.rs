//! RADclock's tunables: three published profiles, and the constants that its sources keep beside
//! the algorithm.

use timevisor_time::{Duration, RateError};

use crate::parameters::InvalidParameter;

/// Parameters of [`super::Radclock`].
///
/// The profiles are those of `radclock/sync_algo.h` in RADicalsync/RADclock (also
/// synclab/radclock): `EXCEL`, `GOOD` (its default) and `POOR` describe how good the machine's
/// oscillator is thought to be.
#[derive(Clone, PartialEq, Debug)]
pub struct RadclockParameters {
    /// Largest usual stamping error (interrupt latency); the unit in which all other thresholds are
    /// stated.
    pub stamping_limit: Duration,
    /// Longest time over which the oscillator counts as a constant rate.
    pub constant_rate_scale: Duration,
    /// Bound on the rate's error at any time scale.
    pub rate_error_bound: RateError,
    /// How fast a stamp's worth decays: the best rate knowledge within `constant_rate_scale`.
    pub ageing_rate: RateError,
    /// Width of the offset's weighting, in units of `stamping_limit`.
    pub offset_ratio: f64,
    /// A local rate with a larger error than this is not taken over.
    pub local_quality: RateError,
    /// Poll interval that the windows are derived from, as RADclock takes it from its
    /// configuration.
    pub poll: Duration,
    /// Nothing older than this has any influence, so that ageing is forgotten in the end.
    pub history: Duration,
    /// Stamps over which a higher minimum round trip must persist before it counts as a change of
    /// route; at least.
    pub shift_stamps: u64,
    /// Stamps of the warmup; at least. The windows make it longer.
    pub warmup_stamps: u64,
    /// One part in so many of the warmup's history goes to its far and its near window.
    pub warmup_ratio: u64,
    /// The same for the local rate's windows.
    pub local_ratio: u64,
    /// A reference with a minimum round trip from here on counts as far away: thresholds are
    /// looser.
    pub far_round_trip: Duration,
    /// Bound on the counter's rate against its nominal one, for the error reported before a rate is
    /// measured.
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

    /// RADclock's default.
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
    /// The first parameter that is out of its limits.
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
