//! A token bucket as a virtual schedule (ITU-T I.371, GCRA): one instant instead of a fill level.
//!
//! It also limits input that cannot be refused: we stop reading from a peer that floods us
//! ([`Bucket::charge`]) for a while ([`Bucket::ready_at`]).
//!
//! What it does not do: read a clock.

use timevisor_time::Duration;

/// Admits a burst, then a constant rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Time between two requests at the rate.
    interval: Duration,
    /// How much earlier than due a request may come.
    tolerance: Duration,
    /// When the next request would be due if all came evenly.
    due: Duration,
}

impl Bucket {
    /// Makes a full bucket: in any time t it admits at most `burst + t / interval` requests. A
    /// burst of 0 counts as 1.
    #[must_use]
    pub fn new(interval: Duration, burst: u32) -> Self {
        let tolerance = interval.to_bits().saturating_mul(i128::from(burst.max(1) - 1));
        Self {
            interval,
            tolerance: Duration::from_bits(tolerance),
            due: Duration::from_bits(i128::MIN),
        }
    }

    /// Returns when the next request will be admitted; a time in the past means now.
    #[must_use]
    pub fn ready_at(&self) -> Duration {
        self.due - self.tolerance
    }

    /// Returns whether a request is admitted now; if so, counts it.
    pub fn admit(&mut self, now: Duration) -> bool {
        let admitted = now >= self.ready_at();
        if admitted {
            self.charge(now);
        }
        admitted
    }

    /// Counts a request that could not wait.
    pub fn charge(&mut self, now: Duration) {
        self.due = self.due.max(now) + self.interval;
    }
}

/// Returns the time between two events at this rate, rounded up; a rate of 0 counts as 1.
#[must_use]
pub fn interval(rate_hz: u32) -> Duration {
    let rate = i128::from(rate_hz.max(1));
    Duration::from_bits(((1i128 << 64) + rate - 1) / rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_then_the_rate() {
        let mut bucket = Bucket::new(interval(10), 20);
        let ms = Duration::from_millis;
        assert_eq!((0..50).filter(|_| bucket.admit(ms(5))).count(), 20);
        assert!(!bucket.admit(ms(104)));
        assert!(bucket.admit(bucket.ready_at().max(ms(105))));
        assert!(!bucket.admit(ms(106)));
        assert_eq!((0..50).filter(|_| bucket.admit(ms(60_000))).count(), 20, "no more than full");
    }

    proptest! {
        #[test]
        fn never_more_than_burst_and_rate(
            rate in 1u32..100,
            burst in 1u32..50,
            steps_ms in prop::collection::vec(0i64..300, 1..200),
        ) {
            let mut bucket = Bucket::new(interval(rate), burst);
            let (mut now, mut admitted) = (0, 0);
            for step in steps_ms {
                now += step;
                admitted += i64::from(bucket.admit(Duration::from_millis(now)));
                prop_assert!(admitted * 1000 <= i64::from(burst) * 1000 + i64::from(rate) * now);
            }
        }
    }
}
