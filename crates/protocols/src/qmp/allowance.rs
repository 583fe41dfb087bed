//! How much a peer may send: a burst, and so much a second after that.

use timevisor_time::Duration;

/// A token bucket.
#[derive(Clone, Debug)]
pub struct Allowance {
    burst: f64,
    per_second: f64,
    left: f64,
    counted: Duration,
}

impl Allowance {
    /// A full one.
    #[must_use]
    pub const fn new(burst: f64, per_second: f64, now: Duration) -> Self {
        Self { burst, per_second, left: burst, counted: now }
    }

    /// Counts so many more. Returns false if that is too much.
    pub fn take(&mut self, count: usize, now: Duration) -> bool {
        let more = (now - self.counted).max(Duration::ZERO).as_secs_f64() * self.per_second;
        #[expect(clippy::cast_precision_loss, reason = "a read has less than 2^32 bytes")]
        let count = count as f64;
        self.left = (self.left + more).min(self.burst) - count;
        self.counted = now;
        self.left >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let at = Duration::from_secs;
        let mut allowance = Allowance::new(10.0, 2.0, at(0));
        assert!(allowance.take(10, at(0)) && allowance.take(2, at(1)));
        assert!(!allowance.take(3, at(2)));
        let mut rested = Allowance::new(10.0, 2.0, at(0));
        assert!(rested.take(10, at(100)) && !rested.take(1, at(100)));
    }
}
