//! NTP's two fixed-point formats (RFC 5905 section 6) and the era of a 32-bit second.
//!
//! What it does not do: guess the era. A 32.32 timestamp names an instant only together with a
//! reference instant that is right to within 68 years: [`ERA_PIVOT`]. CLOCK_REALTIME is no such
//! instant, because a machine may boot in 1970 or in 2099.

use timevisor_time::{Duration, Instant, Utc};

/// Seconds from NTP's prime epoch, 1900-01-01, to the Unix epoch (RFC 5905 figure 4).
pub const NTP_TO_UNIX_SECS: i64 = 2_208_988_800;

/// The reference instant of a client: timestamps are then of the years 2000 to 2136. The 2^32 s
/// around it begin at 2000-01-01T00:00:00Z.
///
/// Until 2136 no other instant does better. One that is right gives the same result, and one that
/// is wrong, from a clock that says 2099, would move honest servers by 136 years.
pub const ERA_PIVOT: Instant<Utc> = Instant::from_words(946_684_800 + (1 << 31), 0);

/// The short format: unsigned 16.16 seconds. Root delay and root dispersion travel in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct NtpShort(u32);

impl NtpShort {
    /// One unit in the last place, 2^-16 s (15.3 us).
    pub const RESOLUTION: Duration = Duration::from_bits(1 << 48);

    /// From the 32 bits on the wire.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The 32 bits on the wire.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The smallest short value that is not below `span`; saturates at 0 and at 65536 s.
    #[must_use]
    pub fn from_duration_ceil(span: Duration) -> Self {
        let units = -((-span).to_bits() >> 48);
        Self(u32::try_from(units.max(0)).unwrap_or(u32::MAX))
    }

    /// Returns the value as sent. Senders may have truncated it, so the truth can lie up to
    /// [`Self::RESOLUTION`] above.
    #[must_use]
    pub const fn to_duration(self) -> Duration {
        Duration::from_bits((self.0 as i128) << 48)
    }
}

/// The timestamp format: unsigned 32.32 seconds since the start of an unnamed era; all zero means
/// "unknown".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NtpTimestamp(u64);

impl NtpTimestamp {
    /// "Unknown or unsynchronized" (RFC 5905 section 6).
    pub const ZERO: Self = Self(0);
    /// One unit in the last place, 2^-32 s (0.23 ns).
    pub const RESOLUTION: Duration = Duration::from_bits(1 << 32);

    /// From the 64 bits on the wire.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The 64 bits on the wire.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// True for the value that means "unknown".
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Drops the era and everything finer than 2^-32 s.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the era is dropped on purpose"
    )]
    pub const fn from_instant(t: Instant<Utc>) -> Self {
        let secs = t.secs().wrapping_add(NTP_TO_UNIX_SECS) as u32;
        let frac = (t.to_bits() >> 32) as u32;
        Self(((secs as u64) << 32) | frac as u64)
    }

    /// The instant with these 64 bits that lies nearest to `near`: within 2^31 s (68 years) of it,
    /// on either side of 2036-02-07T06:28:16Z, where era 1 starts.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_possible_wrap,
        reason = "two's complement distance modulo 2^32 is the definition"
    )]
    pub const fn to_instant(self, near: Instant<Utc>) -> Instant<Utc> {
        let pivot = near.secs().saturating_add(NTP_TO_UNIX_SECS);
        let distance = ((self.0 >> 32) as u32).wrapping_sub(pivot as u32) as i32;
        let unix = near.secs().saturating_add(distance as i64);
        Instant::from_words(unix as u64, self.0 << 32)
    }
}

/// The span 2^`exponent` s, rounded up to 2^-64 s and saturating at the longest span.
#[must_use]
pub const fn log2_span(exponent: i8) -> Duration {
    match exponent {
        63.. => Duration::MAX,
        ..=-64 => Duration::EPSILON,
        e => Duration::from_bits(1 << (64 + e as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2036-02-07T06:28:16Z, second 0 of era 1 (RFC 5905 figure 4).
    const ERA1: i64 = 2_085_978_496;

    fn at(secs: i64) -> Instant<Utc> {
        Instant::from_words(secs.cast_unsigned(), 0)
    }

    #[test]
    fn published_dates() {
        // RFC 5905 figure 4: 1 January 1972 = 2,272,060,800; 31 December 1999 = 3,155,587,200; 8
        // February 2036 = 63,104.
        for (era_secs, unix) in
            [(2_272_060_800_u64, 63_072_000), (3_155_587_200, 946_598_400), (63_104, ERA1 + 63_104)]
        {
            assert_eq!(
                NtpTimestamp::from_bits(era_secs << 32).to_instant(at(1_800_000_000)),
                at(unix)
            );
        }
    }

    #[test]
    fn the_2036_rollover_is_right_from_both_sides() {
        let before = NtpTimestamp::from_bits(0xffff_ffff_8000_0000);
        let after = NtpTimestamp::from_bits(0x0000_0000_8000_0000);
        for near in [at(ERA1 - 40), at(ERA1), at(ERA1 + 40)] {
            assert_eq!(before.to_instant(near).secs(), ERA1 - 1);
            assert_eq!(after.to_instant(near).secs(), ERA1);
            assert_eq!(after.to_instant(near) - before.to_instant(near), Duration::from_secs(1));
        }
    }

    /// The years that a client without any idea of the time must get right.
    #[test]
    fn the_pivot_covers_2000_to_2136() {
        // 2000-01-01, 2026-11-26, the second before and of era 1, 2099-01-01, 2135-12-31.
        let instants = [946_684_800, 1_795_651_200, ERA1 - 1, ERA1, 4_070_908_800, 5_238_604_800];
        for secs in instants {
            let stamp = NtpTimestamp::from_instant(at(secs));
            assert_eq!(stamp.to_instant(ERA_PIVOT), at(secs), "{secs}");
        }
        let last = at(946_684_800 + (1 << 32) - 1);
        assert_eq!(NtpTimestamp::from_instant(last).to_instant(ERA_PIVOT), last);
    }

    #[test]
    fn spans_of_powers_of_two() {
        assert_eq!(log2_span(0), Duration::from_secs(1));
        assert_eq!(log2_span(-20).ceil_nanos(), 954);
        assert_eq!(log2_span(i8::MIN), Duration::EPSILON);
        assert_eq!(log2_span(62), Duration::from_secs(1 << 62));
        assert_eq!(log2_span(i8::MAX), Duration::MAX);
    }

    proptest! {
        #[test]
        fn timestamps_round_trip_near_the_reference(
            bits in any::<u64>(),
            near in -(1i64 << 40)..(1i64 << 40),
        ) {
            let t = NtpTimestamp::from_bits(bits).to_instant(at(near));
            prop_assert_eq!(NtpTimestamp::from_instant(t).to_bits(), bits);
            prop_assert!((t.secs() - near) <= (1 << 31) && (t.secs() - near) >= -(1 << 31));
        }

        #[test]
        fn any_reference_within_68_years_gives_the_same_instant(
            secs in 0i64..(1 << 34), frac in any::<u32>(), error in -(1i64 << 31) + 1..(1i64 << 31),
        ) {
            let truth = Instant::<Utc>::from_words(secs.cast_unsigned(), u64::from(frac) << 32);
            prop_assert_eq!(NtpTimestamp::from_instant(truth).to_instant(at(secs + error)), truth);
        }

        #[test]
        fn extreme_references_do_not_panic(bits in any::<u64>(), near in any::<i128>()) {
            let _ = NtpTimestamp::from_bits(bits).to_instant(Instant::from_bits(near));
        }

        #[test]
        fn shorts_round_trip_and_round_up(bits in any::<u32>(), less in 1i128..(1 << 48)) {
            let short = NtpShort::from_bits(bits);
            prop_assert_eq!(NtpShort::from_duration_ceil(short.to_duration()), short);
            let below = short.to_duration() - Duration::from_bits(less);
            prop_assert!(NtpShort::from_duration_ceil(below) <= short);
            prop_assert!(NtpShort::from_duration_ceil(below).to_duration() >= below);
        }
    }

    #[test]
    fn shorts_saturate() {
        assert_eq!(NtpShort::from_duration_ceil(Duration::from_secs(-1)), NtpShort::from_bits(0));
        assert_eq!(NtpShort::from_duration_ceil(Duration::MAX), NtpShort::from_bits(u32::MAX));
    }
}
