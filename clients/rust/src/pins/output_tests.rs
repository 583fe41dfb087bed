use std::cell::Cell;

use super::*;
use crate::Status;
use crate::error::ConvertError;
use crate::manual::Clock;
use crate::requirement::Requirement;

const T: i64 = 1_000_000;

fn clock() -> (Clock, Timeline) {
    let clock = Clock::new(0);
    clock.set_error(Duration::from_nanos(100));
    clock.step(0); // what was known before does not count any more
    let timeline = clock.timeline();
    (clock, timeline)
}

fn fired(timeline: &Timeline) -> AtOutcome {
    timeline.at(T, None, T + 10_000_000).unwrap()
}

fn why(error: &PinError) -> Option<&AtOutcome> {
    if let PinError::NotChanged(outcome) = error { Some(outcome) } else { None }
}

/// Counts changes, each of which takes some time.
struct Pin<'a> {
    clock: &'a Clock,
    changes: Cell<u32>,
}

impl Pin<'_> {
    fn change(&self) -> Result<Option<bool>, PinError> {
        self.clock.advance(Duration::from_nanos(300));
        self.changes.set(self.changes.get() + 1);
        Ok(Some(true))
    }
}

#[test]
fn the_interval_contains_the_change_and_lateness_ends_after_it() {
    let (clock, timeline) = clock();
    check(&timeline, T).unwrap();
    clock.advance(Duration::from_nanos(1_000_040));
    let pin = Pin { clock: &clock, changes: Cell::new(0) };
    let changed = finish(&timeline, T, &fired(&timeline), || pin.change()).unwrap();
    assert_eq!((pin.changes.get(), changed.lateness_ns), (1, 340));
    assert_eq!((changed.first, changed.last), (changed.first, changed.first + 300));
    // 40 ns after its time before, 340 ns after it; 100 ns of error on both sides.
    let (earliest, latest) = (changed.reading.earliest_ns(), changed.reading.latest_ns());
    assert!((T - 61..=T - 60).contains(&earliest), "{earliest}");
    assert!((T + 440..=T + 441).contains(&latest), "{latest}");
}

#[test]
fn a_time_that_has_come_is_refused() {
    let (clock, timeline) = clock();
    clock.advance(Duration::from_nanos(1_000_000));
    let error = check(&timeline, T).unwrap_err();
    assert!(matches!(why(&error), Some(AtOutcome::TooLate { by_ns: 0, .. })), "{error}");
    assert!(error.to_string().contains("give a time that is farther ahead"), "{error}");
    assert!(error.reading().is_some());
}

#[test]
fn a_clock_that_is_not_good_enough_is_refused_at_both_ends() {
    let (clock, timeline) = clock();
    let within = |ns| Requirement::within(Duration::from_nanos(ns));
    let strict = timeline.with_requirement(&within(50)).unwrap();
    let error = check(&strict, T).unwrap_err();
    let half = why(&error);
    assert!(
        matches!(half, Some(AtOutcome::QotViolated { half_width_ns: 100..=101, .. })),
        "{error}"
    );
    let loose = timeline.with_requirement(&within(200)).unwrap();
    check(&loose, T).unwrap();
    clock.advance(Duration::from_nanos(1_000_000));
    clock.set_error(Duration::from_nanos(300));
    let pin = Pin { clock: &clock, changes: Cell::new(0) };
    let error = finish(&loose, T, &fired(&loose), || pin.change()).unwrap_err();
    assert!(error.to_string().contains("does not meet the handle's requirement"), "{error}");
    assert_eq!(pin.changes.get(), 0);
    // Without a requirement any bounds do, but not those that must not be relied on.
    check(&timeline, T + 1).unwrap();
    clock.set_status(Status::Unreliable);
    let error = check(&timeline, T + 1).unwrap_err();
    assert!(error.to_string().contains("must not be relied on (unreliable)"), "{error}");
    clock.forget();
    assert!(check(&timeline, T + 1).is_err());
}

#[test]
fn a_disruption_and_a_late_wake_up_leave_the_line() {
    let (clock, timeline) = clock();
    let mut at = timeline.at_fd(T, None, T + 10_000_000, Duration::ZERO).unwrap();
    assert!(at.on_ready().unwrap().is_none());
    clock.step(T);
    let pin = Pin { clock: &clock, changes: Cell::new(0) };
    let disrupted = at.on_ready().unwrap().unwrap();
    let error = finish(&timeline, T, &disrupted, || pin.change()).unwrap_err();
    assert!(matches!(why(&error), Some(AtOutcome::Disrupted { .. })), "{error}");
    clock.advance(Duration::from_millis(11));
    let error = finish(&timeline, T, &fired(&timeline), || pin.change()).unwrap_err();
    assert!(matches!(why(&error), Some(AtOutcome::TooLate { by_ns: 1_000_000, .. })));
    assert_eq!(pin.changes.get(), 0);
}

#[test]
fn what_happens_after_the_change_is_told() {
    let (clock, timeline) = clock();
    clock.advance(Duration::from_nanos(1_000_000));
    let outcome = fired(&timeline);
    let error = finish(&timeline, T, &outcome, || {
        clock.step(T + 50);
        Ok(Some(true))
    })
    .unwrap_err();
    assert!(matches!(error, PinError::Undated { why: Unplaced::Disrupted, .. }), "{error}");
    let outcome = fired(&timeline);
    let error = finish(&timeline, T, &outcome, || Ok(Some(false))).unwrap_err();
    assert!(matches!(error, PinError::NotTaken { .. }), "{error}");
    let error = finish(&timeline, T, &outcome, || Ok(None)).unwrap_err();
    assert!(matches!(error, PinError::Undated { why: Unplaced::NotReadBack, .. }), "{error}");
    let failed = || Err(PinError::OutOfRange("a bus that fails after the write"));
    let error = finish(&timeline, T, &outcome, failed).unwrap_err();
    assert!(matches!(error, PinError::MayHaveChanged { first: 1.., .. }), "{error}");
    let changed = finish(&timeline, T, &outcome, || Ok(Some(true))).unwrap();
    assert!(
        timeline
            .convert(changed.first - 10_000_000)
            .is_err_and(|e| matches!(e, ConvertError::TooOld { .. }))
    );
}

#[test]
fn what_is_no_chip_says_what_to_give() {
    let error = OutputLine::open("/dev/null", 3, false).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/dev/null does not give line 3"), "{text}");
    assert!(text.contains("give /dev/gpiochipN"), "{text}");
    let error = OutputLine::open("/dev/there-is-none", 3, false).unwrap_err();
    assert!(error.to_string().contains("there is no such device"), "{error}");
}
