//! Until when bounds are good enough without asking anybody.
//!
//! One visit to a server says nothing about the rate, so its bounds grow at the stated limits: 15 ppm
//! are 15 us a second. What follows is no promise of a clock that needs no synchronization, but the
//! moment until which it needs none.

use timevisor_estimate::RateLimits;
use timevisor_time::{Duration, Interval};

/// Ticks from now until the half-width of `interval` has grown to `within`; `None` if it is wider
/// already, `u64::MAX` if it never gets there.
#[must_use]
pub fn ticks<S>(interval: &Interval<S>, rate: &RateLimits, within: Duration) -> Option<u64> {
    let most = within + within;
    let room = most - interval.width();
    if room.is_negative() {
        return None;
    }
    let growth = |ticks: u64| rate.longest.span_ceil(ticks) - rate.shortest.span(ticks);
    // Bounds grow with time, so the last good moment is found by halving.
    let (mut good, mut bad) = (0, u64::MAX >> 1);
    if growth(bad) <= room {
        return Some(u64::MAX);
    }
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if growth(middle) <= room { good = middle } else { bad = middle }
    }
    Some(good)
}

#[cfg(test)]
mod tests {
    use timevisor_time::{Instant, Period, RateError, Tai};

    use super::*;

    fn around(half_us: i64) -> Interval<Tai> {
        Interval::around(Instant::from_unix_nanos(1_000_000), Duration::from_micros(half_us))
    }

    #[test]
    fn fifteen_ppm_are_fifteen_microseconds_a_second() {
        let nominal = Period::from_hz(1_000_000_000).unwrap();
        let rate = RateLimits::around(nominal, RateError::from_ppm(15));
        let found = ticks(&around(100), &rate, Duration::from_millis(1)).unwrap();
        // 900 us of growth to each side.
        let seconds = found as f64 / 1e9;
        assert!((59.99..60.01).contains(&seconds), "{seconds}");
        let then = crate::facts::aged(around(100), 0, found, &rate);
        assert!(then.width() <= Duration::from_millis(2));
        let later = crate::facts::aged(around(100), 0, found + 1_000_000, &rate);
        assert!(later.width() > Duration::from_millis(2));
        assert_eq!(ticks(&around(1001), &rate, Duration::from_millis(1)), None);
    }

    #[test]
    fn a_counter_without_error_has_no_horizon() {
        let nominal = Period::from_hz(1_000_000_000).unwrap();
        let rate = RateLimits { shortest: nominal, longest: nominal };
        let found = ticks(&around(1), &rate, Duration::from_secs(1));
        assert_eq!(found, Some(u64::MAX));
    }
}
