//! chrony's 32-bit float: a 7-bit signed exponent and a 25-bit signed coefficient without a hidden
//! bit; the value is `coefficient * 2^(exponent - 25)` (`candm.h`, `Float`).
//!
//! What it does not do: pass through a machine float. A value in seconds becomes a [`Duration`]
//! exactly, or rounded away from zero where it has finer digits than 2^-64 s, because the values
//! are used as errors.

use timevisor_time::Duration;

/// Bits of the coefficient, its sign included.
const COEFFICIENT_BITS: u32 = 25;
/// Bits of the exponent, its sign included.
const EXPONENT_BITS: u32 = 7;

/// The four bytes on the wire, as one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Float(u32);

impl Float {
    /// Builds it from the four bytes on the wire.
    #[must_use]
    pub const fn from_be_bytes(bytes: [u8; 4]) -> Self {
        Self(u32::from_be_bytes(bytes))
    }

    /// The signed coefficient and the power of two that it is multiplied with.
    #[must_use]
    #[expect(
        clippy::cast_possible_wrap,
        reason = "sign extension: moving up and back is the point"
    )]
    pub const fn parts(self) -> (i32, i32) {
        let coefficient = ((self.0 << EXPONENT_BITS) as i32) >> EXPONENT_BITS;
        let exponent = (self.0 as i32) >> COEFFICIENT_BITS;
        (coefficient, exponent - COEFFICIENT_BITS as i32)
    }

    /// A number of seconds as a span; rounded away from zero if 2^-64 s is too coarse, and
    /// saturating if 2^63 s is too short.
    #[must_use]
    pub fn seconds(self) -> Duration {
        let (coefficient, exponent) = self.parts();
        let coefficient = i128::from(coefficient);
        // The exponent is -89..=38, so the shift is -25..=102 and 25 + 102 bits just fit.
        match u32::try_from(exponent + 64) {
            Ok(shift) => Duration::from_bits(coefficient << shift),
            Err(_) => {
                let shift = (exponent + 64).unsigned_abs();
                let rounding = (1_i128 << shift) - 1;
                let size = (coefficient.abs() + rounding) >> shift;
                Duration::from_bits(if coefficient < 0 { -size } else { size })
            }
        }
    }

    /// As a machine float, for display.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        let (coefficient, exponent) = self.parts();
        f64::from(coefficient) * f64::from(exponent).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn float(bits: u32) -> Float {
        Float::from_be_bytes(bits.to_be_bytes())
    }

    #[test]
    fn published_examples() {
        // 1.0 as chrony writes it: 2^23 * 2^(2 - 25).
        assert_eq!(float(2 << 25 | 1 << 23).seconds(), Duration::from_secs(1));
        assert_eq!(float(0).seconds(), Duration::ZERO);
        // The most negative coefficient with the largest exponent: -2^24 * 2^(63 - 25).
        assert_eq!(float(63 << 25 | 1 << 24).seconds(), Duration::from_secs(-(1 << 62)));
        // -0.5: coefficient -2^24 with exponent 0.
        assert_eq!(float(1 << 24).seconds(), Duration::from_millis(-500));
    }

    #[test]
    fn what_is_too_small_is_rounded_away_from_zero() {
        // 2^-89 s.
        assert_eq!(float(64 << 25 | 1).seconds(), Duration::EPSILON);
        assert_eq!(float(64 << 25 | 0x1ff_ffff).seconds(), -Duration::EPSILON);
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition_in_machine_floats(bits in any::<u32>()) {
            let (exact, float) = (float(bits).seconds().as_secs_f64(), float(bits).to_f64());
            prop_assert!((exact - float).abs() <= 1e-12 * float.abs() + 6e-20, "{exact} {float}");
            // Never smaller than what chronyd stated.
            prop_assert!(exact.abs() >= float.abs() * (1.0 - 1e-12));
        }
    }
}
