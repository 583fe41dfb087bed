//! How many ticks one counter makes while another makes one: a guest's counter that the processor
//! scales.

/// Guest ticks per host tick: `mul / 2^frac_bits`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterRatio {
    /// Numerator; not zero.
    pub mul: u64,
    /// Fraction bits: 48 on VMX, 32 on SVM, at most 63.
    pub frac_bits: u8,
}

impl CounterRatio {
    /// One guest tick per host tick.
    pub const ONE: Self = Self { mul: 1, frac_bits: 0 };

    /// Whether guest and host tick alike.
    #[must_use]
    pub const fn is_one(self) -> bool {
        self.mul.trailing_zeros() == self.frac_bits as u32 && self.mul.is_power_of_two()
    }

    /// The host's counter when it reads `scaled` in guest ticks (rounded down to one, without the
    /// offset), and within how many host ticks. `None` for a ratio of nothing, or a counter beyond
    /// 64 bits.
    #[must_use]
    pub fn host_from_scaled(self, scaled: u64) -> Option<(u64, u64)> {
        if self.is_one() {
            return Some((scaled, 0));
        }
        let mul = u128::from(self.mul);
        // The least counter that is rounded down to `scaled`, and the first that is not.
        let first = |scaled: u128| (scaled << self.frac_bits).checked_div(mul).map(|q| q + 1);
        let low = (u128::from(scaled) << self.frac_bits).checked_div(mul)?;
        let high = first(u128::from(scaled) + 1)?;
        let middle = low + (high - low) / 2;
        Some((u64::try_from(middle).ok()?, u64::try_from(high - middle).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_counter_from_a_scaled_one() {
        assert_eq!(CounterRatio::ONE.host_from_scaled(77), Some((77, 0)));
        assert_eq!(
            CounterRatio { mul: 1 << 32, frac_bits: 32 }.host_from_scaled(u64::MAX),
            Some((u64::MAX, 0))
        );
        assert_eq!(CounterRatio { mul: 0, frac_bits: 32 }.host_from_scaled(1), None);
        assert_eq!(CounterRatio { mul: 1, frac_bits: 32 }.host_from_scaled(u64::MAX), None);
    }

    #[test]
    fn one_in_any_notation_is_one() {
        assert!(CounterRatio::ONE.is_one());
        assert!(CounterRatio { mul: 1 << 48, frac_bits: 48 }.is_one());
        assert!(
            !CounterRatio { mul: (1 << 48) + 1, frac_bits: 48 }.is_one()
                && !CounterRatio { mul: 0, frac_bits: 0 }.is_one()
        );
    }

    proptest! {
        /// The counter that was scaled is within the error, which is little more than a tick of the
        /// guest.
        #[test]
        fn what_was_scaled_is_found(
            host in 0u64..1 << 62, percent in 30u64..300, frac_bits in prop::sample::select(std::vec![32u8, 48]),
        ) {
            let mul = u64::try_from((1u128 << frac_bits) * u128::from(percent) / 100).unwrap();
            let ratio = CounterRatio { mul, frac_bits };
            let scaled = u64::try_from((u128::from(host) * u128::from(mul)) >> frac_bits).unwrap();
            let Some((found, error)) = ratio.host_from_scaled(scaled) else {
                return Ok(());
            };
            prop_assert!(found.abs_diff(host) <= error && error <= 3, "{found} {host} {error}");
        }
    }
}
