use proptest::prelude::*;

use super::*;
use crate::manual::Clock;
use crate::{Comparison, Status};

fn look(clock: &Clock) -> Look {
    let timeline = clock.timeline();
    let (reading, snapshot) = timeline.look().unwrap();
    Look { reading, snapshot, need: timeline.need() }
}

#[test]
fn sleeps_are_short_and_end_early_until_the_last_piece() {
    let arm = |ns, spin| match nap::<()>(ns, Duration::from_nanos(spin)) {
        Next::Arm(after) => Some(u64::try_from(after.as_nanos()).unwrap()),
        _ => None,
    };
    assert_eq!(arm(i64::MAX, 0), Some(100_000_000), "never longer than a nap");
    assert_eq!(arm(51_200_000, 0), Some(51_100_000), "a 512th early");
    assert_eq!(arm(1_000_000, 0), Some(1_000_000));
    assert_eq!(arm(1, 0), Some(1));
    assert_eq!(arm(1_000_000, 60_000), Some(940_000), "up to the spin window");
    assert_eq!(arm(60_000, 60_000), None, "within it: again at once");
}

/// A sleep shortened by a 512th is not late at any rate error up to 500 ppm.
#[test]
fn a_faster_timeline_is_not_overslept() {
    for ns in [1_000_001i64, 20_000_000, 100_000_000] {
        let Next::Arm(after) = nap::<()>(ns, Duration::ZERO) else { panic!("it sleeps") };
        let on_timeline = i64::try_from(after.as_nanos()).unwrap() * 1_000_500 / 1_000_000;
        assert!(on_timeline < ns, "{ns}");
    }
}

#[test]
fn changed_parameters_arm_anew() {
    let clock = Clock::new(0);
    let mut machine = Single::new(When::Past(50_000_000), Duration::ZERO);
    clock.set_error(Duration::from_millis(30));
    let first = machine.step(&look(&clock)).unwrap();
    assert_eq!(first, Next::Arm(Duration::from_nanos(80_000_001 - 80_000_001 / 512)));
    clock.set_error(Duration::from_millis(10));
    let second = machine.step(&look(&clock)).unwrap();
    assert_eq!(second, Next::Arm(Duration::from_nanos(60_000_001 - 60_000_001 / 512)));
    clock.advance(Duration::from_millis(60));
    assert!(
        matches!(machine.step(&look(&clock)), Ok(Next::Arm(d)) if d == Duration::from_nanos(1))
    );
    clock.advance(Duration::from_nanos(1));
    let Ok(Next::Done(waited)) = machine.step(&look(&clock)) else { panic!("it has passed") };
    assert_eq!((waited.lateness_ns, waited.reading.earliest_ns()), (1, 50_000_001));
}

#[test]
fn a_span_is_counted_from_the_first_look() {
    let clock = Clock::new(1_000);
    let mut machine = Single::new(When::For(Duration::from_nanos(500)), Duration::ZERO);
    assert_eq!(machine.step(&look(&clock)).unwrap(), Next::Arm(Duration::from_nanos(500)));
    clock.advance(Duration::from_nanos(499));
    assert_eq!(machine.step(&look(&clock)).unwrap(), Next::Arm(Duration::from_nanos(1)));
    clock.advance(Duration::from_nanos(3));
    let Ok(Next::Done(waited)) = machine.step(&look(&clock)) else { panic!("it is over") };
    assert_eq!(waited.lateness_ns, 2);
}

#[test]
fn nothing_is_waited_for_at_the_end_of_time() {
    let clock = Clock::new(0);
    let mut past = Single::new(When::Past(i64::MAX), Duration::ZERO);
    assert!(matches!(past.step(&look(&clock)), Err(WaitError::OutOfRange(_))));
    let mut until = Single::new(When::Until(i64::MIN), Duration::ZERO);
    assert!(matches!(until.step(&look(&clock)), Ok(Next::Done(w)) if w.lateness_ns == i64::MAX));
}

/// A wait for `lead_ns` before the last moment that is surely before `t_ns`.
fn before(t_ns: i64, lead_ns: u64) -> Single {
    Single::new(When::SurelyBefore { t_ns, lead: Duration::from_nanos(lead_ns) }, Duration::ZERO)
}

/// Latest is 100 ns ahead of the estimate; 30 ns of lead.
#[test]
fn surely_before_ends_a_lead_before_the_time_and_never_at_it() {
    let clock = Clock::new(1_000);
    clock.set_errors(Duration::from_nanos(7), Duration::from_nanos(100));
    let mut machine = before(2_000, 30);
    let mut look_at = |estimate_ns: i64| {
        let by = u64::try_from(estimate_ns - clock.now_ns().unwrap()).unwrap();
        clock.advance(Duration::from_nanos(by));
        machine.step(&look(&clock))
    };
    assert_eq!(look_at(1_000).unwrap(), Next::Arm(Duration::from_nanos(870)));
    assert_eq!(look_at(1_869).unwrap(), Next::Arm(Duration::from_nanos(1)));
    for (estimate_ns, lateness_ns) in [(1_870, 0), (1_871, 1), (1_899, 29)] {
        let Ok(Next::Done(waited)) = look_at(estimate_ns) else {
            panic!("{estimate_ns}: it is due")
        };
        assert_eq!(waited.lateness_ns, lateness_ns);
        assert_eq!(waited.reading.latest_ns(), estimate_ns + 100);
        assert_eq!(waited.reading.compare_to(2_000), Comparison::Before);
    }
    for (estimate_ns, late_ns) in [(1_900, 0), (1_901, 1), (5_000, 3_100)] {
        let Err(WaitError::TooLate { by_ns, reading }) = look_at(estimate_ns) else {
            panic!("{estimate_ns}: it may be the time already")
        };
        assert_eq!((by_ns, reading.latest_ns()), (late_ns, 2_000 + late_ns));
    }
}

#[test]
fn the_last_nanosecond_is_before_the_time() {
    let clock = Clock::new(0);
    let at = |t_ns| before(t_ns, 1).step(&look(&clock));
    assert_eq!(look(&clock).reading.latest_ns(), 1);
    assert!(matches!(at(2), Ok(Next::Done(waited)) if waited.lateness_ns == 0));
    assert!(matches!(at(1), Err(WaitError::TooLate { by_ns: 0, .. })));
    assert!(matches!(at(0), Err(WaitError::TooLate { by_ns: 1, .. })));
    assert_eq!(at(3).unwrap(), Next::Arm(Duration::from_nanos(1)));
}

#[test]
fn surely_before_spins_at_the_end() {
    let clock = Clock::new(0);
    let lead = Duration::from_nanos(100);
    let mut machine =
        Single::new(When::SurelyBefore { t_ns: 1_101, lead }, Duration::from_nanos(300));
    assert_eq!(machine.step(&look(&clock)).unwrap(), Next::Arm(Duration::from_nanos(700)));
    clock.advance(Duration::from_nanos(700));
    assert_eq!(machine.step(&look(&clock)).unwrap(), Next::Again);
}

/// Wider bounds make the last sure moment earlier, narrower ones make it later. A change of the
/// bounds can make a wait too late.
#[test]
fn changed_bounds_arm_surely_before_anew() {
    let clock = Clock::new(0);
    let above = |ms| clock.set_errors(Duration::from_nanos(1), Duration::from_millis(ms));
    let armed = |ns: u64| Next::Arm(Duration::from_nanos(ns - ns / 512));
    let mut machine = before(90_000_000, 10_000_000);
    above(10);
    assert_eq!(machine.step(&look(&clock)).unwrap(), armed(70_000_000));
    above(30);
    assert_eq!(machine.step(&look(&clock)).unwrap(), armed(50_000_000));
    above(5);
    assert_eq!(machine.step(&look(&clock)).unwrap(), armed(75_000_000));
    above(80);
    let Ok(Next::Done(waited)) = machine.step(&look(&clock)) else { panic!("it is due") };
    assert_eq!((waited.lateness_ns, waited.reading.latest_ns()), (0, 80_000_000));
    above(95);
    let late = machine.step(&look(&clock));
    assert!(matches!(late, Err(WaitError::TooLate { by_ns: 5_000_000, .. })));
}

#[test]
fn surely_before_needs_bounds_and_a_clock_that_goes_on() {
    let clock = Clock::new(0);
    for status in [Status::Unreliable, Status::Unknown] {
        clock.set_status(status);
        // The wait does not tell whether the time is due, in the future or past.
        for t_ns in [50, 1_000_000, -1_000_000] {
            let doubtful = before(t_ns, 100).step(&look(&clock));
            let Err(WaitError::Unreliable { reading }) = doubtful else { panic!("{doubtful:?}") };
            assert_eq!(reading.status(), status);
        }
    }
    clock.set_status(Status::FreeRunning);
    let mut machine = before(1_000, 100);
    assert!(matches!(machine.step(&look(&clock)), Ok(Next::Arm(_))));
    clock.step(950);
    let stepped = machine.step(&look(&clock));
    assert!(
        matches!(stepped, Err(WaitError::Disrupted { reading }) if reading.estimate_ns() == 950)
    );
    clock.forget();
    assert!(matches!(before(1_000, 100).step(&look(&clock)), Err(WaitError::Unknown)));
}

#[test]
fn surely_before_at_the_ends_of_time() {
    let step = |clock: &Clock, t_ns, lead| {
        let when = When::SurelyBefore { t_ns, lead };
        Single::new(when, Duration::ZERO).step(&look(clock))
    };
    let (ns, ever) = (Duration::from_nanos(1), Duration::MAX);
    let (first, now, last) = (Clock::new(i64::MIN), Clock::new(0), Clock::new(i64::MAX));
    assert_eq!(step(&first, i64::MAX, ns).unwrap(), Next::Arm(NAP));
    assert_eq!(step(&now, i64::MAX, ns).unwrap(), Next::Arm(NAP));
    let at_once = step(&now, i64::MAX, ever);
    assert!(matches!(at_once, Ok(Next::Done(waited)) if waited.lateness_ns == i64::MAX));
    // As far from the time as 64 bits allow and beyond, with a lead of the same length.
    let far = Duration::from_nanos(u64::MAX - 1);
    let Ok(Next::Done(waited)) = step(&first, i64::MAX, far) else { panic!("it is due") };
    assert_eq!(waited.lateness_ns, waited.reading.latest_ns() - i64::MIN - 1);
    for (clock, t_ns, late_ns) in [
        (&last, i64::MAX, 0),
        (&last, i64::MIN, i64::MAX),
        (&now, i64::MIN, i64::MAX),
        (&now, 1 - i64::MAX, i64::MAX),
        (&now, 2 - i64::MAX, i64::MAX - 1),
        (&first, i64::MIN, look(&first).reading.latest_ns() - i64::MIN),
    ] {
        for lead in [ns, ever] {
            let late = step(clock, t_ns, lead);
            assert!(
                matches!(late, Err(WaitError::TooLate { by_ns, .. }) if by_ns == late_ns),
                "{clock:?} {t_ns} {late:?}"
            );
        }
    }
    assert!(matches!(step(&now, i64::MAX, Duration::ZERO), Err(WaitError::OutOfRange(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// For any change of the clock between two looks: a success is surely before the time and
    /// within the lead, `TooLate` is not surely before it, and no sleep passes the moment at which
    /// success begins.
    #[test]
    fn a_success_is_surely_before_the_time(
        t_ns in 1i64..10_000_000,
        lead_ns in 1u64..1_000_000,
        changes in prop::collection::vec((0u64..4_000_000, 1u64..1_000_000), 1..20),
    ) {
        let clock = Clock::new(0);
        let mut machine = before(t_ns, lead_ns);
        for (advance_ns, error_ns) in changes {
            clock.advance(Duration::from_nanos(advance_ns));
            clock.set_error(Duration::from_nanos(error_ns));
            let look = look(&clock);
            let (latest_ns, lead_ns) = (look.reading.latest_ns(), i64::try_from(lead_ns).unwrap());
            match machine.step(&look) {
                Ok(Next::Done(waited)) => {
                    prop_assert_eq!(waited.reading.compare_to(t_ns), Comparison::Before);
                    prop_assert_eq!(waited.lateness_ns, latest_ns + lead_ns - t_ns);
                    prop_assert!(waited.lateness_ns >= 0);
                }
                Err(WaitError::TooLate { by_ns, reading }) => {
                    prop_assert_eq!(by_ns, latest_ns - t_ns);
                    prop_assert!(by_ns >= 0 && reading == look.reading);
                }
                Ok(Next::Arm(after)) => {
                    let left_ns = t_ns - lead_ns - latest_ns;
                    prop_assert!((1..=left_ns).contains(&i64::try_from(after.as_nanos()).unwrap()));
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
