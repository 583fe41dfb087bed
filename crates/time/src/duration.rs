//! Signed spans of time in units of 2^-64 s.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Neg, Sub, SubAssign};

use crate::NANOS_PER_SEC;

/// A signed span of time; one unit is 2^-64 s (0.054 attoseconds), the range is +-2^63 s.
///
/// Arithmetic saturates: a span at the end of its range stays there instead of wrapping to the
/// other sign.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(i128);

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest span; bounds that are not known are this wide.
    pub const MAX: Self = Self(i128::MAX);
    /// The smallest step, 2^-64 s.
    pub const EPSILON: Self = Self(1);

    /// From units of 2^-64 s.
    #[must_use]
    pub const fn from_bits(bits: i128) -> Self {
        Self(bits)
    }

    /// In units of 2^-64 s.
    #[must_use]
    pub const fn to_bits(self) -> i128 {
        self.0
    }

    /// From whole seconds.
    #[must_use]
    pub const fn from_secs(secs: i64) -> Self {
        Self((secs as i128) << 64)
    }

    /// From nanoseconds, rounded down to 2^-64 s (the rounding error is below 10^-10 ns).
    #[must_use]
    pub const fn from_nanos(nanos: i64) -> Self {
        let secs = (nanos as i128).div_euclid(NANOS_PER_SEC);
        let rest = (nanos as i128).rem_euclid(NANOS_PER_SEC);
        Self((secs << 64) + (rest << 64) / NANOS_PER_SEC)
    }

    /// From microseconds.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self::from_nanos(micros.saturating_mul(1000))
    }

    /// From milliseconds.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self::from_nanos(millis.saturating_mul(1_000_000))
    }

    /// From seconds as a float; for spans, configuration and statistics, never for absolute time.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a float-to-integer `as` saturates, which is what is meant"
    )]
    pub fn from_secs_f64(secs: f64) -> Self {
        Self((secs * 18_446_744_073_709_551_616.0) as i128)
    }

    /// In seconds as a float; for statistics and display.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 18_446_744_073_709_551_616.0
    }

    /// Whole nanoseconds, rounded towards minus infinity; saturates.
    #[inline]
    #[must_use]
    pub const fn floor_nanos(self) -> i64 {
        self.nanos(0)
    }

    /// Whole nanoseconds, rounded towards plus infinity; saturates. Bounds round this way.
    #[inline]
    #[must_use]
    pub const fn ceil_nanos(self) -> i64 {
        self.nanos(u64::MAX)
    }

    /// In 64-bit words wherever they suffice: readers convert three of these per read.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "splitting into words is the point"
    )]
    const fn nanos(self, rounding: u64) -> i64 {
        let secs = (self.0 >> 64) as i64;
        let frac = ((self.0 as u64 as u128 * 1_000_000_000 + rounding as u128) >> 64) as i64;
        match secs.checked_mul(1_000_000_000) {
            Some(nanos) if nanos > i64::MIN + 1_000_000_000 => nanos.saturating_add(frac),
            _ => saturate(secs as i128 * NANOS_PER_SEC + frac as i128),
        }
    }

    /// The larger of two spans.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Ord::max(self, other)
    }

    /// The smaller of two spans.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Ord::min(self, other)
    }

    /// The span without its sign.
    #[must_use]
    pub const fn abs(self) -> Self {
        Self(self.0.saturating_abs())
    }

    /// Half of the span, rounded towards minus infinity.
    #[must_use]
    pub const fn half(self) -> Self {
        Self(self.0 >> 1)
    }

    /// True for spans below zero.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }
}

/// i64 nanoseconds hold +-292 years; beyond that the nearest end is the honest answer.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked just before")]
const fn saturate(nanos: i128) -> i64 {
    if nanos > i64::MAX as i128 {
        i64::MAX
    } else if nanos < -(i64::MAX as i128) {
        -i64::MAX
    } else {
        nanos as i64
    }
}

impl Add for Duration {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Duration {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Neg for Duration {
    type Output = Self;
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl AddAssign for Duration {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Duration {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Duration {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

/// People read spans in the unit that fits: `312 ns`, `4.125 us`, `1.500 s`.
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.unsigned_abs() >= (i64::MAX as u128) << 64 {
            return f.write_str("unbounded");
        }
        let secs = self.as_secs_f64();
        match secs.abs() {
            s if s < 1e-6 => write!(f, "{:.0} ns", secs * 1e9),
            s if s < 1e-3 => write!(f, "{:.3} us", secs * 1e6),
            s if s < 1.0 => write!(f, "{:.3} ms", secs * 1e3),
            _ => write!(f, "{secs:.3} s"),
        }
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::format;

    proptest! {
        #[test]
        fn nanos_round_trip(n in -i64::MAX..i64::MAX) {
            // from_nanos rounds down by less than one unit, so ceil gives the same number back.
            prop_assert_eq!(Duration::from_nanos(n).ceil_nanos(), n);
        }

        #[test]
        fn floor_and_ceil_enclose(bits in -(1i128 << 90)..(1i128 << 90)) {
            let d = Duration::from_bits(bits);
            prop_assert!(Duration::from_nanos(d.floor_nanos()) <= d);
            prop_assert!(Duration::from_nanos(d.ceil_nanos()) + Duration::EPSILON > d);
            prop_assert!(d.ceil_nanos() - d.floor_nanos() <= 1);
        }
    }

    #[test]
    fn the_ends_saturate() {
        assert_eq!(Duration::MAX + Duration::EPSILON, Duration::MAX);
        assert_eq!(Duration::MAX.floor_nanos(), i64::MAX);
        assert_eq!((-Duration::MAX).floor_nanos(), -i64::MAX);
    }

    #[test]
    fn display_picks_a_unit() {
        assert_eq!(format!("{}", Duration::from_nanos(312)), "312 ns");
        assert_eq!(format!("{}", Duration::from_nanos(-4125)), "-4.125 us");
        assert_eq!(format!("{}", Duration::from_millis(1500)), "1.500 s");
        assert_eq!(format!("{}", Duration::MAX), "unbounded");
    }
}
