//! Instants that carry their timescale in their type.
//!
//! ```compile_fail
//! use timevisor_time::{Instant, Tai, Utc};
//! // A 37-second mistake that does not compile: instants of two timescales have no difference.
//! let _ = Instant::<Utc>::from_unix_nanos(0) - Instant::<Tai>::from_unix_nanos(0);
//! ```

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Add, Sub};

use crate::{Duration, NANOS_PER_SEC};

mod sealed {
    pub trait Sealed {}
}

/// A timescale, known at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum TimescaleId {
    /// Coordinated Universal Time as POSIX counts it: leap seconds are not counted.
    Utc = 0,
    /// International Atomic Time.
    Tai = 1,
    /// A timeline's own epoch, unrelated to UTC.
    Local = 2,
}

impl TimescaleId {
    /// The name used in JSON and configuration: `utc`, `tai`, `local`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Utc => "utc",
            Self::Tai => "tai",
            Self::Local => "local",
        }
    }

    /// From the page's byte (same numbers as the vmclock ABI's `time_type`, 2 being its MONOTONIC).
    #[must_use]
    pub const fn from_u8(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Utc),
            1 => Some(Self::Tai),
            2 => Some(Self::Local),
            _ => None,
        }
    }
}

/// A timescale, known at compile time.
pub trait Timescale: sealed::Sealed + Copy + 'static {
    /// The same fact for run time.
    const ID: TimescaleId;
}

macro_rules! timescale {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        impl Timescale for $name {
            const ID: TimescaleId = TimescaleId::$name;
        }
    };
}

timescale!(
    /// International Atomic Time, counted from 1970-01-01T00:00:00 TAI (the PTP epoch).
    Tai
);
timescale!(
    /// UTC as POSIX counts it, from 1970-01-01T00:00:00 UTC without leap seconds.
    Utc
);
timescale!(
    /// A timeline's own time, counted from that timeline's epoch.
    Local
);

/// A point on timescale `S`, in units of 2^-64 s since that timescale's epoch.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant<S>(i128, PhantomData<S>);

impl<S> Clone for Instant<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Instant<S> {}

impl<S> Instant<S> {
    /// The earliest representable instant: the honest lower bound of an unknown clock.
    pub const MIN: Self = Self(i128::MIN, PhantomData);
    /// The latest representable instant: the honest upper bound of an unknown clock.
    pub const MAX: Self = Self(i128::MAX, PhantomData);

    /// From units of 2^-64 s since the epoch.
    #[must_use]
    pub const fn from_bits(bits: i128) -> Self {
        Self(bits, PhantomData)
    }

    /// In units of 2^-64 s since the epoch.
    #[must_use]
    pub const fn to_bits(self) -> i128 {
        self.0
    }

    /// From the two words of the vmclock ABI: seconds and 2^-64 fractions.
    #[must_use]
    #[expect(
        clippy::cast_possible_wrap,
        reason = "the page's word is two's complement by definition"
    )]
    pub const fn from_words(sec: u64, frac: u64) -> Self {
        Self(((sec as i64 as i128) << 64) | frac as i128, PhantomData)
    }

    /// As the two words of the vmclock ABI: seconds and 2^-64 fractions.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "splitting into two words is the point"
    )]
    pub const fn to_words(self) -> (u64, u64) {
        ((self.0 >> 64) as u64, self.0 as u64)
    }

    /// From nanoseconds since the epoch.
    #[must_use]
    pub const fn from_unix_nanos(nanos: i128) -> Self {
        let secs = nanos.div_euclid(NANOS_PER_SEC);
        let rest = nanos.rem_euclid(NANOS_PER_SEC);
        Self((secs << 64) + (rest << 64) / NANOS_PER_SEC, PhantomData)
    }

    /// Whole seconds since the epoch, rounded down.
    #[must_use]
    pub const fn secs(self) -> i64 {
        (self.0 >> 64) as i64
    }

    /// Nanoseconds since the epoch, rounded down; saturates at the ends of i64 (years 1678 and
    /// 2262).
    #[must_use]
    pub const fn floor_nanos(self) -> i64 {
        Duration::from_bits(self.0).floor_nanos()
    }

    /// Nanoseconds since the epoch, rounded up; saturates.
    #[must_use]
    pub const fn ceil_nanos(self) -> i64 {
        Duration::from_bits(self.0).ceil_nanos()
    }

    /// The span since the epoch.
    #[must_use]
    pub const fn since_epoch(self) -> Duration {
        Duration::from_bits(self.0)
    }

    /// The later of two instants.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if self.0 >= other.0 { self } else { other }
    }

    /// The earlier of two instants.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        if self.0 <= other.0 { self } else { other }
    }

    /// Reinterprets the count on another timescale. Only for code that has just applied the offset
    /// between the two, or that carries the timescale beside the number (the page, the leap table).
    #[must_use]
    pub const fn relabel<T>(self) -> Instant<T> {
        Instant(self.0, PhantomData)
    }
}

impl<S> Add<Duration> for Instant<S> {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.to_bits()), PhantomData)
    }
}

impl<S> Sub<Duration> for Instant<S> {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.to_bits()), PhantomData)
    }
}

impl<S> Sub for Instant<S> {
    type Output = Duration;
    fn sub(self, other: Self) -> Duration {
        Duration::from_bits(self.0.saturating_sub(other.0))
    }
}

impl<S: Timescale> fmt::Display for Instant<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = (u128::from(self.to_words().1) * 1_000_000_000) >> 64;
        write!(f, "{}.{:09} {}", self.secs(), nanos, S::ID.name())
    }
}

/// Debug output has no timescale, so that generic code can derive it.
impl<S> fmt::Debug for Instant<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#018x}/2^64", self.secs(), self.to_words().1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::format;

    proptest! {
        #[test]
        fn words_round_trip(bits in any::<i128>()) {
            let i = Instant::<Tai>::from_bits(bits);
            let (sec, frac) = i.to_words();
            prop_assert_eq!(Instant::<Tai>::from_words(sec, frac), i);
        }

        #[test]
        fn subtraction_undoes_addition(a in -(1i128 << 100)..(1i128 << 100), d in -(1i128 << 100)..(1i128 << 100)) {
            let (a, d) = (Instant::<Utc>::from_bits(a), Duration::from_bits(d));
            prop_assert_eq!((a + d) - a, d);
            prop_assert_eq!((a + d) - d, a);
        }
    }

    #[test]
    fn display_names_the_timescale() {
        assert_eq!(
            format!("{}", Instant::<Tai>::from_unix_nanos(1_500_000_001)),
            "1.500000000 tai"
        );
        assert_eq!(format!("{}", Instant::<Utc>::from_unix_nanos(-1)), "-1.999999998 utc");
    }

    #[test]
    fn nanos_beyond_i64_saturate() {
        assert_eq!(Instant::<Tai>::MAX.floor_nanos(), i64::MAX);
        assert_eq!(Instant::<Tai>::MIN.ceil_nanos(), -i64::MAX);
    }
}
