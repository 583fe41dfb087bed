//! When an elapsed clock read 0, on the global clock: what one host hands to the next, or a daemon
//! to its successor.
//!
//! Whatever happened in between (a blackout, a suspend, a restart), the age is then the global
//! clock's distance from it.

use timevisor_time::{Duration, Instant, Tai};

use crate::elapsed::Age;

/// What the global clock says at one moment; `earliest <= estimate <= latest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Global {
    /// True time is not before this.
    pub earliest: Instant<Tai>,
    /// Best guess.
    pub estimate: Instant<Tai>,
    /// True time is not after this.
    pub latest: Instant<Tai>,
}

/// An instant that is known to so much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Birth {
    /// Best guess.
    pub zero: Instant<Tai>,
    /// The true one is at most this far away.
    pub within: Duration,
}

impl Birth {
    /// Of what has this age now.
    #[must_use]
    pub fn of(age: &Age, now: &Global) -> Self {
        let zero = now.estimate - age.estimate;
        let (first, last) = (now.earliest - age.latest, now.latest - age.earliest);
        Self { zero, within: (zero - first).max(last - zero) }
    }

    /// The age now.
    #[must_use]
    pub fn age(&self, now: &Global) -> Age {
        let since = |instant: Instant<Tai>, more: Duration| {
            (instant - self.zero + more).max(Duration::ZERO)
        };
        Age {
            earliest: since(now.earliest, -self.within),
            estimate: since(now.estimate, Duration::ZERO),
            latest: since(now.latest, self.within),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn global(true_ns: i64, below: i64, above: i64, off: i64) -> Global {
        let at = |ns: i64| Instant::from_bits(Duration::from_nanos(ns).to_bits());
        let estimate = true_ns + off.clamp(-below, above);
        Global {
            earliest: at(true_ns - below),
            estimate: at(estimate),
            latest: at(true_ns + above),
        }
    }

    proptest! {
        /// The true age is inside on every host, whatever either of them knows of the time.
        #[test]
        fn the_age_survives_the_hand_over(
            true_age in 0..1_000_000_000_000i64,
            (low, high, off) in (0..1_000_000i64, 0..1_000_000i64, -1_000_000..1_000_000i64),
            (low2, high2, off2) in (0..1_000_000i64, 0..1_000_000i64, -1_000_000..1_000_000i64),
            blackout in 0..10_000_000_000i64,
            (age_low, age_high) in (0..1000i64, 0..1000i64),
        ) {
            let ns = |n: i64| Duration::from_nanos(n.max(0));
            let here = 1_700_000_000_000_000_000;
            let age = Age::new(ns(true_age - age_low), ns(true_age), ns(true_age + age_high)).unwrap();
            let birth = Birth::of(&age, &global(here, low, high, off));
            let there = birth.age(&global(here + blackout, low2, high2, off2));
            let truth = ns(true_age + blackout);
            prop_assert!(there.earliest <= truth && truth <= there.latest, "{there:?}");
            prop_assert!(there.earliest <= there.estimate && there.estimate <= there.latest);
        }
    }
}
