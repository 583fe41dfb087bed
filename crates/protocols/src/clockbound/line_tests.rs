//! The client's arithmetic, copied in its order from clock-bound 3.0.0-rc.0, against random bounds.

use proptest::prelude::*;
use timevisor_time::{Duration, Instant, Interval, Period, Utc};

use super::super::{Status, unknown_3};
use super::{Bounded, line};

/// What a client answers at a counter value: ns.
struct Answer {
    earliest: i64,
    latest: i64,
    status: i32,
}

fn word(words: &[u64], at: usize) -> i64 {
    words[at].cast_signed()
}

/// `compute_bound_at_tsc`, its casts and the order of its operations included.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "as the client does it"
)]
fn client(words: &[u64; 11], now: u64) -> Answer {
    let [.., rates, flags] = words.map(u64::to_ne_bytes);
    let drift = u32::from_ne_bytes([rates[0], rates[1], rates[2], rates[3]]);
    let status = i32::from_ne_bytes([rates[4], rates[5], rates[6], rates[7]]);
    let scaled = |frac: u64, shift: u8| frac as f64 / 2_f64.powi(64 + i32::from(shift));
    let (period, error) = (scaled(words[5], flags[1]), scaled(words[6], flags[2]));
    let ticks = now.saturating_sub(words[0]);
    let duration = ticks as f64 * period;
    let duration_ns = ticks as f64 * period * 1e9;
    let as_of = word(words, 2) + 1_000_000_000 * word(words, 1);
    let now = as_of + duration_ns as i64;
    let bound = (word(words, 7) as f64 + duration * f64::from(drift) + duration_ns * error) as i64;
    let void_after = word(words, 4) + 1_000_000_000 * word(words, 3);
    let status = match status {
        1 | 2 if now > void_after => 0,
        1 | 2 if now > as_of + 60_000_000_000 => 2,
        other => other,
    };
    Answer { earliest: now - bound, latest: now + bound, status }
}

fn at(ns: i64) -> Instant<Utc> {
    Instant::from_unix_nanos(i128::from(ns))
}

fn interval(earliest: Instant<Utc>, below: Duration, above: Duration) -> Interval<Utc> {
    Interval::new(earliest - below, earliest + above).unwrap()
}

const NOW_NS: i64 = 1_800_000_000_123_456_789;

/// A clock whose bounds lie on straight lines.
#[derive(Clone, Copy, Debug)]
struct Clock {
    from: u64,
    period: Period,
    /// Widths below and above at the beginning, and how much they change, in 2^-64 s and ppb.
    halves: [i64; 2],
    drifts_ppb: [i64; 2],
    ticks: u64,
}

impl Clock {
    fn at(&self, ticks: u64) -> Interval<Utc> {
        let elapsed = self.period.span(ticks);
        let half = |which: usize| {
            let drift = elapsed.to_bits() / 1_000_000_000 * i128::from(self.drifts_ppb[which]);
            (Duration::from_nanos(self.halves[which]) + Duration::from_bits(drift))
                .max(Duration::ZERO)
        };
        interval(at(NOW_NS) + elapsed, half(0), half(1))
    }

    fn bounded(&self) -> Bounded {
        Bounded {
            from: self.from,
            at_from: self.at(0),
            until: self.from + self.ticks,
            at_until: self.at(self.ticks),
        }
    }
}

fn clocks() -> impl Strategy<Value = Clock> {
    let halves = prop_oneof![0i64..100, 0i64..100_000, 0i64..50_000_000_000];
    let drifts = prop_oneof![0i64..50, -500_000i64..500_000];
    (
        0u64..1 << 62,
        2_000_000u64..8_000_000_000,
        [halves.clone(), halves],
        [drifts.clone(), drifts],
        1u64..1_000_000_000_000,
    )
        .prop_map(|(from, hz, halves, drifts_ppb, ticks)| Clock {
            from,
            period: Period::from_hz(hz).unwrap(),
            halves,
            drifts_ppb,
            ticks,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_clients_interval_contains_the_bounds_until_they_expire(
        clock in clocks(), places in proptest::collection::vec(0u64..=1 << 20, 8),
    ) {
        let words = line(&clock.bounded(), Status::Synchronized, None).unwrap();
        let ends = [0, 1, clock.ticks / 2, clock.ticks - 1, clock.ticks];
        let between = places.iter().map(|place| {
            u64::try_from((u128::from(clock.ticks) * u128::from(*place)) >> 20).unwrap()
        });
        for ticks in ends.into_iter().chain(between).filter(|ticks| *ticks <= clock.ticks) {
            let (ours, theirs) = (clock.at(ticks), client(&words, clock.from + ticks));
            prop_assert!(at(theirs.earliest) <= ours.earliest(), "{ticks}: {} ns", theirs.earliest - ours.earliest().floor_nanos());
            prop_assert!(at(theirs.latest) >= ours.latest(), "{ticks}: {} ns", theirs.latest - ours.latest().ceil_nanos());
        }
    }

    /// What rounding costs: a few ns at both ends.
    #[test]
    fn a_client_loses_little(clock in clocks()) {
        let words = line(&clock.bounded(), Status::Synchronized, None).unwrap();
        for ticks in [0, clock.ticks] {
            let (ours, theirs) = (clock.at(ticks), client(&words, clock.from + ticks));
            let mine = ours.width().ceil_nanos();
            let lost = theirs.latest - theirs.earliest - mine;
            // Where the bounds shrink, a client's cannot.
            let grows = clock.drifts_ppb.iter().all(|drift| *drift >= 0) || ticks == 0;
            prop_assert!(!grows || lost <= 16 + mine / (1 << 40), "{lost} ns at {ticks}");
        }
    }

    #[test]
    fn beyond_the_expiry_a_client_says_unknown(clock in clocks(), later in 1u64..1 << 40) {
        let words = line(&clock.bounded(), Status::FreeRunning, None).unwrap();
        let over = clock.from + clock.ticks + later;
        prop_assert_eq!(client(&words, over).status, 0);
        prop_assert_eq!(client(&words, clock.from + clock.ticks + 1).status, 0);
    }
}

#[test]
fn the_status_is_said_while_the_bounds_hold() {
    let clock = Clock {
        from: 1 << 40,
        period: Period::from_hz(3_000_000_000).unwrap(),
        halves: [20_000, 30_000],
        drifts_ppb: [15_000, 15_000],
        ticks: 30_000_000_000,
    };
    let words = line(&clock.bounded(), Status::Synchronized, Some(7)).unwrap();
    let status = |ticks| client(&words, clock.from + ticks).status;
    assert_eq!([status(0), status(29_999_999_000), status(30_000_000_001)], [1, 1, 0]);
    assert_eq!((words[8], words[10].to_ne_bytes()[0]), (7, 1));
}

#[test]
fn what_no_line_can_say_is_not_said() {
    let known = interval(at(NOW_NS), Duration::ZERO, Duration::ZERO);
    let later = interval(at(NOW_NS + 1_000), Duration::ZERO, Duration::ZERO);
    let bounded = Bounded { from: 5, at_from: known, until: 1005, at_until: later };
    let says = |bounded: Bounded| line(&bounded, Status::Synchronized, None).is_some();
    assert!(says(bounded));
    assert!(!says(Bounded { until: 5, ..bounded }));
    assert!(!says(Bounded { until: 4, ..bounded }), "an expiry that is over");
    assert!(!says(Bounded { at_until: Interval::UNKNOWN, ..bounded }));
    assert!(!says(Bounded { at_from: Interval::UNKNOWN, ..bounded }));
    let before = interval(at(NOW_NS - 10), Duration::ZERO, Duration::ZERO);
    assert!(!says(Bounded { at_until: before, ..bounded }), "a clock that goes back");
}

#[test]
fn nothing_known_excludes_nothing() {
    let answer = client(&unknown_3(None), 12_345);
    assert_eq!(answer.status, 0);
    assert!(
        answer.earliest < -4_000_000_000_000_000_000 && answer.latest > 4_000_000_000_000_000_000
    );
}
