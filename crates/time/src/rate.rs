//! Rates: how long a counter's tick is, and how wrong an oscillator may be.

use core::fmt;

use crate::Duration;

/// Length of one counter tick in units of 2^-84 s: the vmclock ABI's `counter_period` at
/// `counter_period_shift` 20.
///
/// One shift for every counter keeps the reader's shift a constant (a variable 128-bit shift costs
/// as much as the multiplication). A 64-bit word then covers counters of 1.05 MHz and faster; a 3
/// GHz period is exact to 1.6e-16.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(u64);

impl Period {
    /// The shift that the page carries: one unit is 2^-(64 + SHIFT) s.
    pub const SHIFT: u32 = 20;

    /// From units of 2^-84 s.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// In units of 2^-84 s.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// From a frequency in hertz, rounded down; `None` below 1.05 MHz.
    #[must_use]
    pub fn from_hz(hz: u64) -> Option<Self> {
        if hz == 0 {
            return None;
        }
        u64::try_from((1u128 << 84) / u128::from(hz)).ok().map(Self)
    }

    /// The period of a counter that advanced by `ticks` while `elapsed` went by, rounded down.
    ///
    /// `None` when the ratio does not fit: no ticks, no time, or a counter below 1.05 MHz.
    #[must_use]
    pub fn from_ratio(elapsed: Duration, ticks: u64) -> Option<Self> {
        let bits = u128::try_from(elapsed.to_bits()).ok().filter(|b| *b > 0 && *b < 1 << 107)?;
        let ticks = (ticks > 0).then_some(u128::from(ticks))?;
        u64::try_from((bits << Self::SHIFT) / ticks).ok().filter(|b| *b > 0).map(Self)
    }

    /// The frequency in hertz, for people.
    #[must_use]
    pub fn hz(self) -> f64 {
        if self.0 == 0 { 0.0 } else { (1u128 << 84) as f64 / self.0 as f64 }
    }

    /// How long `ticks` last, rounded down.
    #[must_use]
    #[expect(clippy::cast_possible_wrap, reason = "128 - 20 bits fit an i128")]
    pub const fn span(self, ticks: u64) -> Duration {
        Duration::from_bits(((ticks as u128 * self.0 as u128) >> Self::SHIFT) as i128)
    }

    /// How long `ticks` last, rounded up.
    #[must_use]
    #[expect(clippy::cast_possible_wrap, reason = "128 - 20 bits fit an i128")]
    pub const fn span_ceil(self, ticks: u64) -> Duration {
        let exact = ticks as u128 * self.0 as u128;
        Duration::from_bits((exact.div_ceil(1 << Self::SHIFT)) as i128)
    }

    /// How many ticks `span` lasts, rounded down; zero for spans below zero, saturating above.
    #[must_use]
    pub fn ticks_in(self, span: Duration) -> u64 {
        if span.is_negative() || self.0 == 0 {
            return 0;
        }
        let bits = span.to_bits().unsigned_abs();
        if bits >= 1 << 107 {
            return u64::MAX;
        }
        u64::try_from((bits << Self::SHIFT) / u128::from(self.0)).unwrap_or(u64::MAX)
    }

    /// The shortest period of an oscillator that is off by at most `error`, rounded down.
    #[must_use]
    pub fn slowest_time(self, error: RateError) -> Self {
        Self(self.0.saturating_sub(error.of_ceil(self.0)))
    }

    /// The longest period of an oscillator that is off by at most `error`, rounded up.
    #[must_use]
    pub fn fastest_time(self, error: RateError) -> Self {
        Self(self.0.saturating_add(error.of_ceil(self.0)))
    }

    /// This period times `1 + relative`, to within f64's rounding; for |relative| < 1.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the product of a u64 and a fraction")]
    pub fn scaled(self, relative: f64) -> Self {
        let change = (self.0 as f64 * relative) as i64;
        Self(self.0.saturating_add_signed(change))
    }

    /// Relative difference `self / other - 1` as a float, for display and statistics.
    #[must_use]
    pub fn relative_to(self, other: Self) -> f64 {
        (self.0 as f64 - other.0 as f64) / other.0 as f64
    }
}

impl fmt::Debug for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} MHz", self.hz() / 1e6)
    }
}

/// A bound on a relative rate, in units of 2^-64 (so at most 1): "within 15 parts per million".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RateError(u64);

impl RateError {
    /// No error at all.
    pub const ZERO: Self = Self(0);

    /// From units of 2^-64.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// In units of 2^-64.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// From parts per billion, rounded up.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a u32 of ppb is at most 4.3, clamped below one"
    )]
    pub const fn from_ppb(ppb: u32) -> Self {
        let bits = ((ppb as u128) << 64).div_ceil(1_000_000_000);
        Self(if bits > u64::MAX as u128 { u64::MAX } else { bits as u64 })
    }

    /// From parts per million, rounded up.
    #[must_use]
    pub const fn from_ppm(ppm: u32) -> Self {
        Self::from_ppb(ppm.saturating_mul(1000))
    }

    /// In parts per billion, for people.
    #[must_use]
    pub fn ppb(self) -> f64 {
        self.0 as f64 / 18_446_744_073.709_553
    }

    /// The sum of two bounds; saturates.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The error of a clock that is off by at most this, as another one sees it that is off by at most
    /// `other`: `(self + other) / (1 - other)`, rounded up; saturates. The sum would be too little: seen
    /// from a clock that is slow, a fast one is faster still.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "saturated below 2^64")]
    pub const fn against(self, other: Self) -> Self {
        let sum = self.0 as u128 + other.0 as u128;
        let rest = (1 << 64) - other.0 as u128;
        if sum >= rest {
            return Self(u64::MAX);
        }
        let bits = (sum << 64).div_ceil(rest);
        Self(if bits > u64::MAX as u128 { u64::MAX } else { bits as u64 })
    }

    /// This fraction of `value`, rounded up.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a fraction below one of a u64 fits a u64")]
    pub const fn of_ceil(self, value: u64) -> u64 {
        (self.0 as u128 * value as u128).div_ceil(1 << 64) as u64
    }

    /// The error that accumulates over `span`, rounded up; zero for spans below zero.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "split into words that fit"
    )]
    pub const fn over(self, span: Duration) -> Duration {
        if span.is_negative() {
            return Duration::ZERO;
        }
        let bits = span.to_bits().unsigned_abs();
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        let low_part = (self.0 as u128 * low as u128).div_ceil(1 << 64);
        Duration::from_bits((self.0 as u128 * high as u128 + low_part) as i128)
    }
}

impl fmt::Debug for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ppb", self.ppb())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_clock_is_faster_still_seen_from_a_slow_one() {
        let error = |ppm| RateError::from_ppm(ppm);
        // (1 + 500e-6) / (1 - 500e-6) is 1 + 1000.50025e-6.
        let both = error(500).against(error(500)).ppb();
        assert!((both - 1_000_500.250_125).abs() < 1e-3, "{both}");
        assert!(error(500).against(error(500)) > error(500).plus(error(500)));
        assert_eq!(error(15).against(RateError::ZERO), error(15));
        assert_eq!(RateError::ZERO.against(RateError::ZERO), RateError::ZERO);
        let (half, most) = (RateError::from_bits(1 << 63), RateError::from_bits(u64::MAX));
        assert_eq!((half.against(half), most.against(most)), (most, most));
    }
    use proptest::prelude::*;

    #[test]
    fn golden_values() {
        // 15 ppm over 16 s is 240 us (docs/explanation/bounds.md).
        let grown = RateError::from_ppm(15).over(Duration::from_secs(16));
        assert_eq!(grown.ceil_nanos(), 240_001);
        assert_eq!(grown.floor_nanos(), 240_000);
        // A 1 GHz counter ticks in nanoseconds.
        let period = Period::from_hz(1_000_000_000).unwrap();
        assert_eq!(period.span_ceil(1_000_000_000).ceil_nanos(), 1_000_000_000);
        assert!(
            Period::from_hz(1_000_000).is_none(),
            "below 1.05 MHz a period does not fit its word"
        );
    }

    proptest! {
        #[test]
        fn ticks_and_spans_are_inverse(hz in 2_000_000u64..6_000_000_000, ticks in 0u64..1 << 55) {
            let p = Period::from_hz(hz).unwrap();
            let back = p.ticks_in(p.span_ceil(ticks));
            prop_assert!(back == ticks || back == ticks + 1, "{} {}", back, ticks);
            prop_assert!(p.span(ticks) <= p.span_ceil(ticks));
        }

        #[test]
        fn rate_bounds_enclose(hz in 2_000_000u64..6_000_000_000, ppb in 0u32..500_000, ticks in 0u64..1 << 50) {
            let p = Period::from_hz(hz).unwrap();
            let e = RateError::from_ppb(ppb);
            let exact = p.span(ticks);
            prop_assert!(p.slowest_time(e).span(ticks) <= exact - Duration::ZERO);
            prop_assert!(p.fastest_time(e).span_ceil(ticks) >= exact);
            // The outer lines are at least as far out as the error over the span.
            prop_assert!(p.fastest_time(e).span_ceil(ticks) + Duration::EPSILON >= exact + Duration::from_bits(e.over(exact).to_bits() - 2));
        }

        #[test]
        fn ratio_recovers_a_period(hz in 2_000_000u64..6_000_000_000, ticks in 1u64 << 20..1 << 50) {
            let p = Period::from_hz(hz).unwrap();
            let q = Period::from_ratio(p.span_ceil(ticks), ticks).unwrap();
            prop_assert!(q.relative_to(p).abs() < 1e-12);
        }
    }
}
