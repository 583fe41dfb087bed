//! What is known about the counter's rate, and what the hard bounds prove about it.
//!
//! Two bounds with many ticks between them enclose the average period: it is at least (earliest
//! now - latest then) and at most (latest now - earliest then), per tick. Once that is tight, the
//! assumption "within 15 ppm of the measured rate" replaces "within 100 ppm of the nominal one".
//! Limits only ever narrow, until a contradiction resets them.

use timevisor_time::{Duration, Period, RateError};

use crate::bounds::Bounds;

/// The shortest and the longest period the counter may have at any moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateLimits {
    /// Shortest period: the counter at its fastest, time at its slowest per tick.
    pub shortest: Period,
    /// Longest period.
    pub longest: Period,
}

impl RateLimits {
    /// Everything within `error` of `period`.
    #[must_use]
    pub fn around(period: Period, error: RateError) -> Self {
        Self { shortest: period.slowest_time(error), longest: period.fastest_time(error) }
    }

    /// What both limits allow; `None` when they exclude each other.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        let both = Self {
            shortest: self.shortest.max(other.shortest),
            longest: self.longest.min(other.longest),
        };
        (both.shortest <= both.longest).then_some(both)
    }

    /// The period in the middle.
    #[must_use]
    pub fn middle(&self) -> Period {
        Period::from_bits(self.shortest.to_bits().midpoint(self.longest.to_bits()))
    }

    /// Half the relative width, rounded up; 0 for slopes that come closer.
    #[must_use]
    pub fn half_width(&self) -> RateError {
        let half = self.longest.to_bits().saturating_sub(self.shortest.to_bits()).div_ceil(2);
        let ratio = (u128::from(half) << 64).div_ceil(u128::from(self.shortest.to_bits().max(1)));
        RateError::from_bits(u64::try_from(ratio).unwrap_or(u64::MAX))
    }
}

/// Watches the bounds until they prove a rate.
#[derive(Clone, Debug)]
pub struct RateMeasurement {
    anchor: Option<Bounds>,
}

impl RateMeasurement {
    /// Nothing measured yet.
    #[must_use]
    pub fn new() -> Self {
        Self { anchor: None }
    }

    /// Takes the newest bounds in. Returns limits on the *average* period since the best anchor so
    /// far, once they are within `known_within`.
    pub fn observe(&mut self, bounds: &Bounds, known_within: RateError) -> Option<RateLimits> {
        let Some(anchor) = self.anchor else {
            self.anchor = Some(*bounds);
            return None;
        };
        let ticks = bounds.at().wrapping_sub(anchor.at());
        let proven = average(&anchor, bounds, ticks)?;
        // A first exchange with a long round trip makes a poor anchor; narrower bounds later make a
        // better one.
        if bounds.interval().width() < anchor.interval().width().half() {
            self.anchor = Some(*bounds);
        }
        (proven.half_width() <= known_within).then_some(proven)
    }
}

impl Default for RateMeasurement {
    fn default() -> Self {
        Self::new()
    }
}

fn average(then: &Bounds, now: &Bounds, ticks: u64) -> Option<RateLimits> {
    let at_least: Duration = now.interval().earliest() - then.interval().latest();
    let at_most: Duration = now.interval().latest() - then.interval().earliest();
    let shortest = Period::from_ratio(at_least, ticks)?;
    let longest = Period::from_bits(Period::from_ratio(at_most, ticks)?.to_bits() + 1);
    Some(RateLimits { shortest, longest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_time::{Instant, Interval, Tai};

    const HZ: u64 = 1_000_000_000;

    fn bounds(at: u64, ns: i128, half_ns: i64) -> Bounds {
        Bounds::new(
            at,
            Interval::around(Instant::<Tai>::from_unix_nanos(ns), Duration::from_nanos(half_ns)),
        )
    }

    #[test]
    fn the_average_rate_is_proven_by_the_bounds() {
        // The counter is 20 ppm slow: 100 s take 99.998 s of ticks. Bounds of +-50 us at both ends
        // prove +-1 ppm.
        let mut m = RateMeasurement::new();
        let known = RateError::from_ppm(3);
        assert_eq!(m.observe(&bounds(0, 0, 50_000), known), None);
        assert_eq!(
            m.observe(&bounds(10 * HZ, 10_000_200_000, 50_000), known),
            None,
            "10 s prove +-10 ppm only"
        );
        let limits = m.observe(&bounds(100 * HZ, 100_002_000_000, 50_000), known).unwrap();
        let nominal = Period::from_hz(HZ).unwrap();
        assert!((limits.middle().relative_to(nominal) * 1e6 - 20.0).abs() < 0.01);
        assert!((limits.half_width().ppb() - 1000.0).abs() < 1.0, "{:?}", limits.half_width());
    }

    #[test]
    fn limits_that_exclude_each_other_have_no_intersection() {
        let at = |ppm: u32| Period::from_hz(HZ).unwrap().fastest_time(RateError::from_ppm(ppm));
        let around = |ppm| RateLimits::around(at(ppm), RateError::from_ppm(15));
        assert!(around(0).intersect(&around(20)).is_some());
        assert!(around(0).intersect(&around(40)).is_none());
    }
}
