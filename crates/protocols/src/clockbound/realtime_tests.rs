//! The clients' arithmetic, copied from clock-bound-shm 2.0.3, against a CLOCK_REALTIME that runs away.

use proptest::prelude::*;
use timevisor_time::{Duration, Instant, Utc};

use super::super::{Status, unknown_2};
use super::{Disciplined, realtime};

const NOW_NS: i64 = 1_800_000_000_123_456_789;

/// `compute_bound_at`: the bound in ns and the status.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "as the client does it"
)]
fn client(words: &[u64; 8], monotonic: i64) -> (i64, i32) {
    let word = |at: usize| words[at].cast_signed();
    let rates = words[6].to_ne_bytes();
    let drift = u32::from_ne_bytes([rates[0], rates[1], rates[2], rates[3]]);
    let status = i32::from_ne_bytes([rates[4], rates[5], rates[6], rates[7]]);
    let as_of = word(1) + 1_000_000_000 * word(0);
    let void_after = word(3) + 1_000_000_000 * word(2);
    let status = match status {
        1 | 2 if monotonic < as_of + 5_000_000_000 => status,
        1 | 2 if monotonic < void_after => 2,
        1 | 2 => 0,
        other => other,
    };
    assert!(monotonic >= as_of);
    let seconds = (monotonic - as_of) as f64 / 1e9;
    (word(4) + (seconds * f64::from(drift)) as i64, status)
}

fn at(ns: i64) -> Instant<Utc> {
    Instant::from_unix_nanos(i128::from(ns))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_bound_holds_however_the_clock_is_slewed_within_the_drift(
        monotonic_ns in 6_000_000_000i64..1 << 60, offset in -100_000i64..100_000,
        halves in [0i64..50_000, 0i64..50_000], left_ms in 1i64..100_000, drift_ppb in 0u32..3_000_000,
        slewed in -1_000i64..=1_000, elapsed_permille in 0i64..=1_000, raw_ppm in -900i64..900,
        lag_ns in 0i64..100_000_000,
    ) {
        let seen = Disciplined {
            monotonic: Duration::from_nanos(monotonic_ns),
            realtime: at(NOW_NS + offset),
            earliest: at(NOW_NS - halves[0]),
            latest: at(NOW_NS + halves[1]),
            left: Duration::from_millis(left_ms),
            drift_ppb,
        };
        let words = realtime(&seen, Status::Synchronized, None).unwrap();
        // True time was anywhere in the interval, and goes on for so long; CLOCK_REALTIME drifts as said.
        let elapsed = left_ms * 1_000 * elapsed_permille;
        let drifted = i128::from(elapsed) * i128::from(drift_ppb) * i128::from(slewed) / 1_000_000_000_000;
        let drifted = i64::try_from(drifted).unwrap();
        // CLOCK_MONOTONIC runs at its own rate, and clients see it at the last tick.
        let monotonic = monotonic_ns + elapsed + elapsed / 1_000_000 * raw_ppm;
        let (bound, _) = client(&words, monotonic - lag_ns);
        for truth in [NOW_NS - halves[0], NOW_NS + halves[1]] {
            let error = (NOW_NS + offset + drifted - truth).abs();
            prop_assert!(bound >= error, "{bound} < {error}");
        }
    }

    #[test]
    fn a_client_says_unknown_when_the_bounds_have_expired(
        monotonic_ns in 6_000_000_000i64..1 << 60, left_ms in 1i64..100_000, drift_ppb in 0u32..3_000_000,
        lag_ns in 0i64..100_000_000,
    ) {
        let seen = Disciplined {
            monotonic: Duration::from_nanos(monotonic_ns),
            realtime: at(NOW_NS),
            earliest: at(NOW_NS),
            latest: at(NOW_NS),
            left: Duration::from_millis(left_ms),
            drift_ppb,
        };
        let words = realtime(&seen, Status::Synchronized, None).unwrap();
        prop_assert_eq!(client(&words, monotonic_ns + left_ms * 1_000_000 - lag_ns).1, 0);
    }
}

#[test]
fn what_layout_2_cannot_say_is_not_said() {
    let seen = Disciplined {
        monotonic: Duration::from_secs(100),
        realtime: at(NOW_NS),
        earliest: at(NOW_NS - 5),
        latest: at(NOW_NS + 5),
        left: Duration::from_secs(8),
        drift_ppb: 500_000,
    };
    let says = |seen: Disciplined| realtime(&seen, Status::Synchronized, None);
    let words = says(seen).unwrap();
    assert_eq!(client(&words, 99_900_000_000), (10, 1), "5 ns, and what rounding may take");
    assert_eq!(
        client(&words, 106_000_000_000).1,
        2,
        "ClockBound's own rule: free running after 5 s"
    );
    assert!(says(Disciplined { left: Duration::ZERO, ..seen }).is_none());
    assert!(says(Disciplined { drift_ppb: 50_000_000, ..seen }).is_none());
    assert!(says(Disciplined { latest: Instant::MAX, ..seen }).is_none());
    assert!(
        says(Disciplined { monotonic: Duration::ZERO, left: Duration::from_secs(1), ..seen })
            .is_none()
    );
    assert_eq!(client(&unknown_2(None), 5).1, 0);
}
