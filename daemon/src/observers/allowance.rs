//! How many requests each user has left: a token bucket for each.

use std::collections::BTreeMap;

use timevisor_time::Duration;

/// Requests a second of one user, on average. Answers come from memory: a thousand take a few
/// hundredths of one processor.
pub const PER_SECOND: i64 = 1000;
/// Requests of one user at once.
pub const BURST: i64 = 1000;
/// The time that one request takes from a bucket.
const COST: Duration = Duration::from_micros(1_000_000 / PER_SECOND);
/// What a bucket holds.
const FULL: Duration = Duration::from_micros(1_000_000 / PER_SECOND * BURST);

/// Each user's bucket, as the moment at which it will be full. Users without one have a full bucket.
#[derive(Debug, Default)]
pub struct Allowances(BTreeMap<u32, Duration>);

impl Allowances {
    /// Takes one request of `user`'s.
    ///
    /// # Errors
    /// When the user has none left: how long it takes until there is one.
    pub fn take(&mut self, user: u32, now: Duration) -> Result<(), Duration> {
        self.0.retain(|_, full_at| *full_at > now);
        let full_at = self.0.get(&user).copied().unwrap_or(now);
        let left = FULL - (full_at - now);
        if left < COST {
            return Err(COST - left);
        }
        self.0.insert(user, full_at + COST);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_burst_and_then_a_rate_and_others_have_their_own() {
        let mut allowances = Allowances::default();
        let at = Duration::from_secs(100);
        let taken = (0..3 * BURST).filter(|_| allowances.take(1, at).is_ok()).count();
        assert_eq!(i64::try_from(taken).unwrap(), BURST);
        let wait = allowances.take(1, at).unwrap_err();
        assert!(wait <= COST && wait > COST.half(), "{wait}");
        assert!(allowances.take(2, at).is_ok());
        let later = at + COST + COST;
        assert!(allowances.take(1, later).is_ok() && allowances.take(1, later).is_ok());
        assert!(allowances.take(1, later).is_err());
        // Whoever has been quiet is forgotten, and has a full bucket.
        let much_later = at + FULL + FULL;
        assert!(allowances.take(3, much_later).is_ok());
        assert_eq!(allowances.0.len(), 1);
    }
}
