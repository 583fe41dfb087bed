//! The host's counter at a moment that the kernel's programs stamped with CLOCK_MONOTONIC: BPF cannot read the counter.
//!
//! The clock is compared with the counter every few milliseconds; in between it is taken to run evenly, and how far it may not is
//! part of the error. Pure arithmetic.

use std::collections::VecDeque;

/// Both clocks at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The counter before,
    pub before: u64,
    /// CLOCK_MONOTONIC, ns,
    pub ns: u64,
    /// and the counter after.
    pub after: u64,
}

/// An event may have been stamped before the last samples, if its processor was held up.
const REMEMBERED: usize = 8;
/// How much faster or slower CLOCK_MONOTONIC may run in a part of the time between two samples than over all of it: twice the limits of adjtimex(2)
/// and adjtime(3) together (kernel/time/ntp.c, MAXFREQ and MAX_TICKADJ), parts per million.
const UNEVEN_PPM: u64 = 2000;
/// The kernel's fast clock may be off by that much around a tick (kernel/time/timekeeping.c, ktime_get_mono_fast_ns), and both are rounded.
const ROUNDING_NS: u64 = 100;

/// What is known of the two clocks.
#[derive(Clone, Debug, Default)]
pub struct Stamps(VecDeque<Sample>);

impl Stamps {
    /// Another comparison, later than all before; one that is not, or that took long, is none.
    pub fn add(&mut self, sample: Sample) {
        let is_later =
            self.0.back().is_none_or(|last| sample.ns > last.ns && sample.before > last.after);
        if !is_later {
            // Somebody set a clock back, or the machine was suspended: what was known is void.
            self.0.clear();
        }
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Whether a stamp is later than what is known: it has to wait.
    #[must_use]
    pub fn is_ahead(&self, ns: u64) -> bool {
        self.0.back().is_none_or(|last| ns > last.ns)
    }

    /// The counter at a stamp, and how far it may have been from there, in ticks.
    #[must_use]
    pub fn counter(&self, ns: u64) -> Option<(u64, u64)> {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        let (from, to) = pairs.into_iter().find(|(from, to)| (from.ns..=to.ns).contains(&ns))?;
        let width = |sample: &Sample| sample.after.saturating_sub(sample.before).div_ceil(2);
        let middle = |sample: &Sample| sample.before + (sample.after - sample.before) / 2;
        let (ticks, all) = (u128::from(middle(to) - middle(from)), u128::from(to.ns - from.ns));
        let of = |ns: u64| u64::try_from(u128::from(ns) * ticks / all).ok();
        let nearest = (ns - from.ns).min(to.ns - ns);
        let uneven = nearest * UNEVEN_PPM / 1_000_000 + ROUNDING_NS;
        let error = width(from).max(width(to)) + of(uneven)? + 2;
        Some((middle(from) + of(ns - from.ns)?, error))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn before_the_first_and_after_the_last_nothing_is_known() {
        let mut stamps = Stamps::default();
        assert!(stamps.is_ahead(1));
        for n in 0..20u64 {
            stamps.add(Sample { before: 3000 * n + 1000, ns: 1000 * n, after: 3000 * n + 1010 });
        }
        assert_eq!(stamps.counter(11_000), None, "forgotten");
        assert!(!stamps.is_ahead(19_000) && stamps.is_ahead(19_001));
        let (counter, error) = stamps.counter(15_500).unwrap();
        assert!(counter.abs_diff(47_505) <= 1 && error < 400, "{counter} {error}");
        // A clock that was set back: what was known is not used.
        stamps.add(Sample { before: 70_000, ns: 5, after: 70_001 });
        assert_eq!(stamps.counter(15_500), None);
    }

    proptest! {
        /// A clock that is slewed by up to 1000 ppm either way, and otherwise from some moment on: the truth is within the error.
        /// The counter counts 3 to a true ns; everything is in whole numbers.
        #[test]
        fn the_truth_is_within(
            length in 1_000_000i64..100_000_000,
            parts in (0i64..=100, 0i64..=100, 0i64..=100),
            ppm in (-1000i64..1000, -1000i64..1000),
            delays in (0i64..5000, 0i64..5000),
        ) {
            let (turn, event) = (length * parts.0 / 100, length * parts.1 / 100);
            let slewed = |part: i64, ppm: i64| part + part * ppm / 1_000_000;
            let clock = |at: i64| {
                1_000 + slewed(at.min(turn), ppm.0) + slewed((at - turn).max(0), ppm.1)
            };
            let counter = |at: i64| 3 * at + 1_000_000;
            let whole = |n: i64| u64::try_from(n).unwrap();
            let sample = |at: i64, delay: i64| {
                let before = counter(at) - delay * parts.2 / 100;
                Sample { before: whole(before), ns: whole(clock(at)), after: whole(before + delay) }
            };
            let mut stamps = Stamps::default();
            stamps.add(sample(0, delays.0));
            stamps.add(sample(length, delays.1));
            let (found, error) = stamps.counter(whole(clock(event))).unwrap();
            let truth = whole(counter(event));
            prop_assert!(found.abs_diff(truth) <= error, "{found} {truth} {error}");
        }
    }
}
