//! Simulated oscillators and paths against level 1: truth is never excluded, bounds only narrow.

use proptest::prelude::*;
use timevisor_time::{Period, RateError};

use super::*;

const HZ: u64 = 1_000_000_000;

/// One exchange: wait, then two one-way delays; the rate's place within its limits while waiting.
fn steps() -> impl Strategy<Value = Vec<(i64, i64, i64, f64)>> {
    prop::collection::vec(
        (1i64..64_000_000_000, 0i64..3_000_000, 0i64..3_000_000, -1.0..1.0f64),
        1..60,
    )
}

proptest! {
    #[test]
    fn truth_is_never_excluded_and_bounds_nest(steps in steps(), error_ns in 0i64..100_000, lie in -1.0..1.0f64) {
        let rho = RateError::from_ppm(15);
        let limits = RateLimits::around(Period::from_hz(HZ).unwrap(), rho);
        let (mut counter, mut truth) = (0u64, Instant::<Tai>::from_unix_nanos(1_700_000_000_000_000_000));
        // The reference is wrong by up to what it admits.
        let reference = |t: Instant<Tai>| t + Duration::from_secs_f64(error_ns as f64 * 1e-9 * lie);
        let mut bounds: Option<Bounds> = None;
        for (wait, forward, backward, rate) in steps {
            let mut advance = |ns: i64| {
                counter += u64::try_from(ns).unwrap();
                truth = truth + Duration::from_secs_f64(ns as f64 * 1e-9 * (1.0 + rate * 14.9e-6));
                (counter, truth)
            };
            let (ta, _) = advance(wait);
            let (_, t) = advance(forward);
            let (tf, now) = advance(backward);
            let x = Exchange { ta, tb: reference(t), te: reference(t), tf, error: Duration::from_nanos(error_ns) };
            let next = match bounds {
                None => Bounds::of_exchange(&x, tf, &limits).unwrap(),
                Some(old) => {
                    let new = old.with(&x, &limits).unwrap();
                    let aged = old.aged(tf, &limits).interval();
                    prop_assert!(new.interval().earliest() >= aged.earliest());
                    prop_assert!(new.interval().latest() <= aged.latest());
                    new
                }
            };
            prop_assert!(next.interval().contains(now), "truth excluded");
            let later = next.aged(tf + HZ, &limits);
            prop_assert!(later.interval().contains(now + Duration::from_secs(1)));
            bounds = Some(next);
        }
    }
}

#[test]
fn the_best_of_each_direction_beats_any_round_trip() {
    // 30 us one way at best; each exchange queues 1 ms in one direction only.
    let limits = RateLimits::around(Period::from_hz(HZ).unwrap(), RateError::from_ppb(100));
    let exchange = |ta: u64, forward: u64, backward: u64| {
        let tb = Instant::from_unix_nanos(i128::from(ta + forward));
        Exchange { ta, tb, te: tb, tf: ta + forward + backward, error: Duration::ZERO }
    };
    let first = Bounds::of_exchange(&exchange(0, 30_000, 1_030_000), 1_060_000, &limits).unwrap();
    let both = first.with(&exchange(2_000_000, 1_030_000, 30_000), &limits).unwrap();
    assert!(both.interval().width() < Duration::from_nanos(61_000), "{}", both.interval().width());
}

#[test]
fn facts_that_exclude_each_other_are_a_contradiction() {
    let limits = RateLimits::around(Period::from_hz(HZ).unwrap(), RateError::from_ppm(15));
    let exchange = |ta: u64, step: i128| {
        let tb = Instant::from_unix_nanos(i128::from(ta) + 30_000 + step);
        Exchange { ta, tb, te: tb, tf: ta + 60_000, error: Duration::ZERO }
    };
    let bounds = Bounds::of_exchange(&exchange(0, 0), 60_000, &limits).unwrap();
    assert!(bounds.with(&exchange(HZ, 0), &limits).is_ok());
    let stepped = bounds.with(&exchange(HZ, 1_000_000), &limits).unwrap_err();
    assert!(stepped.gap > Duration::from_micros(800), "{}", stepped.gap);
}
