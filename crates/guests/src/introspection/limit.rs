//! How many events of one guest this host takes: a token bucket in its form as a virtual schedule (ITU-T I.371, GCRA).
//!
//! Nothing is thrown away here. Who has sent too much is not read for a while, so that its backend's buffer fills up and drops, which
//! costs the guest's vCPUs nothing and is counted there.

use timevisor_time::Duration;

/// A burst, then a rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    interval: Duration,
    tolerance: Duration,
    due: Duration,
}

impl Limit {
    /// In any time t at most `burst + rate_hz * t` events before reading stops, and what was read with the last of them. At least one
    /// of each.
    #[must_use]
    pub fn new(rate_hz: u32, burst: u32) -> Self {
        let rate = i128::from(rate_hz.max(1));
        let interval = ((1i128 << 64) + rate - 1) / rate;
        Self {
            interval: Duration::from_bits(interval),
            tolerance: Duration::from_bits(interval * i128::from(burst.max(1) - 1)),
            due: Duration::from_bits(i128::MIN),
        }
    }

    /// Counts one event.
    pub fn charge(&mut self, now: Duration) {
        self.due = self.due.max(now) + self.interval;
    }

    /// When to read again; the past means now.
    #[must_use]
    pub fn ready_at(&self) -> Duration {
        self.due - self.tolerance
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn never_more_than_burst_and_rate(
            rate in 1u32..2000,
            burst in 1u32..100,
            steps_ms in prop::collection::vec(0i64..50, 1..200),
        ) {
            let mut limit = Limit::new(rate, burst);
            let (mut now, mut taken) = (0, 0i64);
            for step in steps_ms {
                now += step;
                while limit.ready_at() <= Duration::from_millis(now) {
                    limit.charge(Duration::from_millis(now));
                    taken += 1;
                }
                prop_assert!(taken * 1000 <= i64::from(burst) * 1000 + i64::from(rate) * now);
            }
        }
    }

    #[test]
    fn a_quiet_guest_gets_its_burst_back() {
        let mut limit = Limit::new(10, 5);
        let now = Duration::from_secs(100);
        for _ in 0..5 {
            assert!(limit.ready_at() <= now);
            limit.charge(now);
        }
        assert!(limit.ready_at() > now);
        assert!(limit.ready_at() <= now + Duration::from_millis(101));
    }
}
