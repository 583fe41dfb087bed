//! Moments that what is regular shares, so that the daemon wakes up once for all of it.

use timevisor_time::Duration;

/// The next multiple of `interval` after `now`.
pub fn next(now: Duration, interval: Duration) -> Duration {
    let (now, every) = (now.floor_nanos(), interval.ceil_nanos().max(1));
    Duration::from_nanos((now.div_euclid(every) + 1).saturating_mul(every))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_that_divide_each_other_meet() {
        let next = |ms: i64, interval: i64| {
            let due = next(Duration::from_millis(ms), Duration::from_millis(interval));
            due.ceil_nanos() / 1_000_000
        };
        assert_eq!(
            [next(1_700, 1_000), next(2_000, 1_000), next(1_999, 500)],
            [2_000, 3_000, 2_000]
        );
        assert_eq!([next(59_000, 20_000), next(0, 250)], [60_000, 250]);
    }
}
