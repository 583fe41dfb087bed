use proptest::prelude::*;
use timevisor_linux::counter::{self, Choice};

use super::*;

const START: u64 = 1 << 50;
const NOMINAL: i128 = (1 << 84) / 1_000_000_000;

fn limits() -> (Period, Period) {
    let period =
        |ppm: i128| Period::from_bits(u64::try_from(NOMINAL + NOMINAL * ppm / 1_000_000).unwrap());
    (period(-15), period(15))
}

/// A clock against a 1 GHz counter, whose rate changes at every step, in parts per million.
fn clock(steps: &[(u64, i64)], counter: u64) -> Instant<Utc> {
    let (mut at, mut millionths) = (START, 0i128);
    for (index, (ticks, ppm)) in steps.iter().enumerate() {
        let last = index + 1 == steps.len();
        let span = if last { counter - at } else { (*ticks).min(counter - at) };
        millionths += i128::from(span) * i128::from(1_000_000 + ppm);
        at += span;
    }
    Instant::from_unix_nanos(5_000_000_000 + millionths / 1_000_000)
}

proptest! {
    /// However a PTP clock is steered within what its driver allows, and whatever its stamps are
    /// rounded to, up to the grain, the result contains the edge's counter value.
    #[test]
    fn the_edge_is_inside(
        steps in prop::collection::vec((1u64..2_000_000, -62_000i64..=62_000), 1..20),
        edge in 2_000u64..10_000_000, between in 1_000u64..10_000_000, now in 0u64..1_000_000,
        widths in [1u64..20_000, 1u64..20_000], places in [0u64..=100, 0u64..=100], off in -90i128..=90,
    ) {
        let bracket = |before: u64, width: u64, place: u64| Bracket {
            before,
            realtime: clock(&steps, before + width * place / 100),
            after: before + width,
        };
        let begun = bracket(START, 1_000, 50);
        let edge = START + edge;
        let last = bracket(START + between, widths[0], places[0]);
        let now = bracket(edge.max(last.after) + now, widths[1], places[1]);
        let grain = Duration::from_nanos(100);
        let stamp = Instant::from_unix_nanos(
            i128::from(clock(&steps, edge).floor_nanos()) + off,
        );
        // A stamp that seems to be from the future is refused, not misplaced.
        prop_assume!(stamp <= now.realtime);
        let rates = rates(limits(), RateError::from_ppm(62_500 + 1_000));
        let found = packets::placed(stamp, [begun, last, now], rates).unwrap();
        let (first, last) = widened(found, grain, limits().0);
        prop_assert!(first <= edge && edge <= last, "{} {} {}", first, edge, last);
    }
}

#[test]
fn a_grain_moves_both_ends_outward() {
    assert_eq!(widened((1_000, 2_000), Duration::ZERO, limits().0), (1_000, 2_000));
    let (first, last) = widened((1_000, 2_000), Duration::from_nanos(100), limits().0);
    assert_eq!((first, last), (899, 2_101));
}

#[test]
fn a_sleep_and_a_disruption_end_what_was_known() {
    let ns = Duration::from_nanos;
    let at = |clock, slept| State { clock, slept: (slept, ns(50)) };
    let before = at((1, 7), ns(1_000));
    assert!(before.leads_to(&at((1, 7), ns(1_101))));
    assert!(before.leads_to(&at((1, 7), ns(899))));
    assert!(!before.leads_to(&at((1, 7), ns(1_104))), "the machine slept");
    assert!(!before.leads_to(&at((1, 8), ns(1_000))), "a disruption");
    assert!(!before.leads_to(&at((2, 7), ns(1_000))), "another page");
}

#[test]
fn a_disruption_while_nothing_comes_spares_the_next_stamp_and_a_clock_that_is_set_spares_none() {
    let at = |disruption, ns: u64| {
        let realtime = Instant::from_unix_nanos(i128::from(ns));
        let bracket = Bracket { before: START + ns, realtime, after: START + ns + 10 };
        let slept = (Duration::ZERO, Duration::ZERO);
        Compared { bracket, state: State { clock: (1, disruption), slept } }
    };
    let begun = at(7, 1_000);
    let mut placer = Placer { clock: Monotonic, begun, last: begun, was_set: false };
    assert_eq!(placer.take(at(7, 2_000)).unwrap().before, START + 1_000);
    assert!(matches!(placer.take(at(8, 3_000)), Err(Unplaced::Disrupted)));
    // What comes now is compared with what was seen after the disruption.
    assert_eq!(placer.take(at(8, 4_000)).unwrap().before, START + 3_000);
    assert_eq!(placer.begun.bracket.before, START + 3_000);
    assert!(matches!(placer.take(at(8, 3_999)), Err(Unplaced::Contradiction)));
    assert!(matches!(placer.take(at(8, 5_000)), Err(Unplaced::Contradiction)), "for ever");
}

/// CLOCK_MONOTONIC of this machine: a moment between two readings of the counter is found there.
#[test]
fn a_stamp_of_this_machine_is_inside() {
    let (counter, _) = counter::select(Choice::Auto).unwrap();
    let known = counter::calibrate(&counter).unwrap();
    let rate = Monotonic.rate().plus(known.error).plus(RateError::from_ppm(1_000));
    let rates = rates((known.period, known.period), rate);
    let begun = Monotonic.compare(&counter).unwrap();
    let mut last = begun;
    for _ in 0..200 {
        let stamped = monotonic_bracket(&counter, 1);
        std::thread::sleep(std::time::Duration::from_micros(50));
        let now = Monotonic.compare(&counter).unwrap();
        let (first, end) = packets::placed(stamped.realtime, [begun, last, now], rates).unwrap();
        assert!(first <= stamped.after && stamped.before <= end, "{first} {end} {stamped:?}");
        last = now;
    }
}
