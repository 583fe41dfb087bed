use proptest::prelude::*;

use super::*;
use crate::{ReadError, Reading, Requirement};

fn at(clock: &Clock) -> (i64, i64, i64) {
    let reading = clock.timeline().now().unwrap();
    (reading.earliest_ns(), reading.estimate_ns(), reading.latest_ns())
}

proptest! {
    /// Tests can compare for equality: the values read are those that were set, to the nanosecond.
    #[test]
    fn it_reads_what_it_was_set_to(
        start in -1i64 << 61..1 << 61, spans in prop::collection::vec(0u64..1 << 40, 1..8),
        errors in (1u64..1 << 40, 1u64..1 << 40),
    ) {
        let clock = Clock::new(start);
        clock.set_errors(Span::from_nanos(errors.0), Span::from_nanos(errors.1));
        let mut now = start;
        let (below, above) = (i64::try_from(errors.0).unwrap(), i64::try_from(errors.1).unwrap());
        for span in spans {
            prop_assert_eq!(at(&clock), (now - below, now, now + above));
            clock.advance(Span::from_nanos(span));
            now += i64::try_from(span).unwrap();
        }
        prop_assert_eq!(clock.now_ns(), Some(now));
    }
}

#[test]
fn bounds_grow_as_they_are_told_to() {
    let clock = Clock::new(0);
    clock.set_error(Span::from_micros(1));
    clock.set_growth_ppb(1_000);
    clock.advance(Span::from_secs(10));
    let (earliest, estimate, latest) = at(&clock);
    assert_eq!(estimate, 10_000_000_000);
    // 10 us in 10 s, rounded outward by less than a nanosecond.
    assert!((estimate - earliest - 11_000).abs() <= 1, "{earliest}");
    assert!((latest - estimate - 11_000).abs() <= 1, "{latest}");
}

#[test]
fn statuses_steps_and_oblivion_are_what_readers_see() {
    let clock = Clock::on(TimescaleId::Utc, 7);
    let timeline = clock.timeline();
    let first = timeline.now().unwrap();
    assert_eq!((first.timescale(), first.status()), (TimescaleId::Utc, ClockStatus::Synchronized));
    clock.set_status(ClockStatus::FreeRunning);
    let second = timeline.now().unwrap();
    assert_eq!(
        (second.status(), second.disruption()),
        (ClockStatus::FreeRunning, first.disruption())
    );
    clock.step(3);
    let third = timeline.now().unwrap();
    assert_eq!(third.estimate_ns(), 3);
    assert_ne!(third.disruption(), first.disruption());
    clock.forget();
    let fourth = timeline.now().unwrap();
    assert!(!fourth.is_known());
    assert_eq!((fourth.earliest_ns(), fourth.latest_ns()), (-i64::MAX, i64::MAX));
    clock.advance(Span::from_secs(1));
    assert!(!timeline.now().unwrap().is_known());
    clock.step(9);
    assert_eq!(timeline.now().map(|r| r.estimate_ns()), Ok::<_, ReadError>(9));
}

#[test]
fn requirements_are_judged() {
    let clock = Clock::new(0);
    clock.set_errors(Span::from_nanos(100), Span::from_nanos(200));
    clock.set_estimated_error(Span::from_nanos(50));
    let met = |requirement: Requirement| {
        clock.timeline().with_requirement(&requirement).unwrap().now().unwrap().met()
    };
    let within = |ns| Requirement::within(Span::from_nanos(ns));
    let sided =
        |below, above| Requirement::between(Span::from_nanos(below), Span::from_nanos(above));
    assert!(met(within(200)) && !met(within(199)));
    assert!(met(sided(100, 200)) && !met(sided(99, 200)) && !met(sided(200, 199)));
    // 1.2 times 3.18 sigma are 190.9 ns.
    assert!(met(within(191).with_probability(0.95)) && !met(within(190).with_probability(0.95)));
    assert!(met(within(200).with_resolution(Span::from_nanos(1))));
    clock.set_status(ClockStatus::FreeRunning);
    assert!(met(within(200)) && !met(within(191).with_probability(0.95)));
    clock.set_status(ClockStatus::Unreliable);
    assert!(!met(within(200)));
    assert!(clock.timeline().now().unwrap().met(), "nothing is required");
}

#[test]
fn readers_never_see_time_go_back() {
    let clock = Clock::new(0);
    std::thread::scope(|scope| {
        let timeline = clock.timeline();
        let reader = scope.spawn(move || {
            let mut last: Option<Reading> = None;
            loop {
                let now = timeline.now().unwrap();
                assert!(last.is_none_or(|last| last.estimate() <= now.estimate()));
                if now.estimate_ns() >= 20_000 {
                    return;
                }
                last = Some(now);
            }
        });
        for _ in 0..20_000 {
            clock.advance(Span::from_nanos(1));
        }
        reader.join().unwrap();
    });
}
