//! Tests every wait on a manually driven clock: what ends it, what it reports, and that nothing
//! sleeps.

use std::time::Duration;

use timevisor_linux::poll::{self, PollFd, Woken};

use super::*;
use crate::manual::Clock;
use crate::{Change, Requirement, Status, ValidUntil};

fn ns(n: u64) -> Duration {
    Duration::from_nanos(n)
}

/// Runs a wait in a thread and moves the clock only after the wait has looked at it, because the
/// wait ignores what happened before.
fn while_waiting<T: Send>(
    clock: &Clock,
    wait: impl FnOnce(&Timeline) -> T + Send,
    then: impl FnOnce(&Clock),
) -> T {
    std::thread::scope(|scope| {
        let (timeline, looks) = (clock.timeline(), clock.looks());
        let waiter = scope.spawn(move || wait(&timeline));
        while clock.looks() == looks && !waiter.is_finished() {
            std::thread::yield_now();
        }
        then(clock);
        waiter.join().unwrap()
    })
}

#[test]
fn a_blocking_wait_ends_when_its_time_comes() {
    let clock = Clock::new(0);
    let waited = while_waiting(
        &clock,
        |t| t.wait_until(1_000),
        |c| {
            (0..11).for_each(|_| c.advance(ns(99)));
        },
    );
    // 11 times 99: the last move ends it.
    assert_eq!(waited.unwrap().lateness_ns, 89);
}

#[test]
fn waiting_past_an_instant_waits_for_the_earliest() {
    let clock = Clock::new(0);
    clock.set_error(ns(400));
    let waited = while_waiting(&clock, |t| t.wait_past(0), |c| c.advance(ns(450))).unwrap();
    assert_eq!((waited.lateness_ns, waited.reading.earliest_ns()), (50, 50));
    // The estimate alone is far beyond it.
    let mut wait = clock.timeline().wait_fd(When::Past(50), Duration::ZERO).unwrap();
    assert!(wait.on_ready().unwrap().is_none(), "earliest is not after 50");
    clock.advance(ns(1));
    assert!(wait.on_ready().unwrap().is_some());
}

#[test]
fn waiting_surely_before_an_instant_waits_for_the_latest() {
    let clock = Clock::new(0);
    clock.set_error(ns(400));
    let before = |t: &Timeline| t.wait_surely_before(1_000, ns(100));
    // The estimate is far from it.
    let waited = while_waiting(&clock, before, |c| c.advance(ns(520))).unwrap();
    assert_eq!((waited.lateness_ns, waited.reading.latest_ns()), (20, 920));
    clock.step(0);
    let overslept = while_waiting(&clock, before, |c| c.advance(ns(600)));
    assert!(matches!(overslept, Err(WaitError::TooLate { by_ns: 0, .. })));
    clock.step(0);
    let grown = while_waiting(&clock, before, |c| c.set_error(ns(1_003))).unwrap_err();
    assert!(matches!(grown, WaitError::TooLate { by_ns: 3, .. }));
    assert!(grown.to_string().contains("too late") && grown.to_string().contains("3 ns"));
    assert!(
        matches!(before(&clock.timeline()), Err(WaitError::TooLate { .. })),
        "at the call, too"
    );
}

/// In an event loop, being too late also ends the wait.
#[test]
fn surely_before_as_a_descriptor() {
    let clock = Clock::new(0);
    clock.set_error(ns(400));
    let when = When::SurelyBefore { t_ns: 1_000, lead: ns(100) };
    let start = || {
        let mut wait = clock.timeline().wait_fd(when, Duration::ZERO).unwrap();
        assert!(wait.on_ready().unwrap().is_none());
        wait
    };
    let (mut one, mut other) = (start(), start());
    clock.advance(ns(500));
    assert_eq!(one.on_ready().unwrap().unwrap().lateness_ns, 0);
    clock.advance(ns(105));
    assert!(matches!(other.on_ready(), Err(WaitError::TooLate { by_ns: 5, .. })));
    for mut over in [one, other] {
        assert!(over.on_ready().unwrap().is_none());
    }
}

#[test]
fn disruptions_and_doubts_end_waits() {
    let clock = Clock::new(0);
    let until = while_waiting(&clock, |t| t.wait_until(1_000), |c| c.step(5_000));
    assert!(
        matches!(until, Err(WaitError::Disrupted { reading }) if reading.estimate_ns() == 5_000)
    );
    let slept = while_waiting(&clock, |t| t.sleep(ns(10)), Clock::forget);
    assert!(matches!(slept, Err(WaitError::Disrupted { .. })));
    assert!(matches!(clock.timeline().wait_until(0), Err(WaitError::Unknown)));
    clock.step(0);
    clock.set_status(Status::Unreliable);
    assert!(matches!(clock.timeline().wait_past(-100), Err(WaitError::Unreliable { .. })));
    assert!(clock.timeline().wait_until(-100).is_ok(), "the estimate is still the best guess");
}

#[test]
fn waiting_for_a_requirement_outlives_disruptions() {
    let clock = Clock::new(0);
    clock.forget();
    let need = Requirement::within(ns(100));
    let wait = |t: &Timeline| t.with_requirement(&need).unwrap().wait_met(Duration::from_secs(60));
    let waited = while_waiting(&clock, wait, |c| {
        c.set_error(ns(101));
        c.step(7);
        c.set_error(ns(100));
    });
    assert_eq!(waited.unwrap().reading.half_width_ns(), Some(100));
}

#[test]
fn patience_and_cancellation() {
    let clock = Clock::new(0);
    let timeline = clock.timeline();
    let brief = WaitOptions::default().timeout(Duration::from_millis(2)).spin(ns(1 << 40));
    assert!(matches!(timeline.wait(When::Until(1), &brief), Err(WaitError::TimedOut)));
    assert!(timeline.wait(When::Until(0), &brief).is_ok(), "what is due needs no patience");
    let cancel = Cancel::new().unwrap();
    let options = WaitOptions::default().cancel(&cancel);
    let waited = while_waiting(&clock, |t| t.wait(When::Until(1), &options), |_| cancel.cancel());
    assert!(matches!(waited, Err(WaitError::Cancelled)));
    assert!(matches!(timeline.wait(When::Until(1), &options), Err(WaitError::Cancelled)));
}

#[test]
fn an_event_loop_serves_many_waits() {
    let clock = Clock::new(0);
    let timeline = clock.timeline();
    let mut waits: Vec<WaitFd> =
        [300, 100, 200].map(|t| timeline.wait_fd(When::Until(t), Duration::ZERO).unwrap()).into();
    drop(timeline.wait_fd(When::Until(50), Duration::ZERO).unwrap());
    let mut order = Vec::new();
    for _ in 0..100 {
        let mut fds: Vec<PollFd<'_>> = waits.iter().map(|w| PollFd::readable(w.as_fd())).collect();
        if poll::wait(&mut fds, Some(Duration::ZERO)).unwrap() == Woken::Timeout {
            if order.len() == 3 {
                break;
            }
            clock.advance(ns(10));
            continue;
        }
        let ready: Vec<usize> = (0..3).filter(|i| fds[*i].ready().readable).collect();
        for i in ready {
            if let Some(waited) = waits[i].on_ready().unwrap() {
                assert_eq!(waited.lateness_ns, 0);
                order.push(i);
            }
        }
    }
    assert_eq!(order, [1, 2, 0]);
    assert!(waits[0].on_ready().unwrap().is_none(), "it is over");
    drop(waits);
    clock.advance(ns(1));
    assert_eq!(clock.waiting(), 0, "dropping a wait ends it");
}

#[test]
fn ticks_are_on_the_grid() {
    let clock = Clock::new(-1_234);
    let mut ticks = clock.timeline().periodic(ns(1_000), 100, MissedTicks::CatchUp).unwrap();
    assert!(ticks.on_ready().unwrap().is_none());
    clock.advance(ns(333));
    assert!(ticks.on_ready().unwrap().is_none(), "one before");
    clock.advance(ns(1));
    let first = ticks.on_ready().unwrap().unwrap();
    assert_eq!((first.scheduled_ns, first.lateness_ns, first.missed), (-900, 0, 0));
    clock.advance(ns(1_007));
    assert_eq!(ticks.tick().unwrap().scheduled_ns, 100);
    assert!(matches!(
        clock.timeline().periodic(Duration::ZERO, 0, MissedTicks::Skip),
        Err(WaitError::OutOfRange(_))
    ));
}

/// Scheduled times, lateness and missed ticks when a program was away for 3.5 periods.
fn after_an_overrun(policy: MissedTicks) -> Vec<(i64, i64, u64)> {
    let clock = Clock::new(0);
    let mut ticks = clock.timeline().periodic(ns(1_000), 0, policy).unwrap();
    assert!(ticks.on_ready().unwrap().is_none());
    clock.advance(ns(1_000));
    assert_eq!(ticks.on_ready().unwrap().unwrap().scheduled_ns, 1_000);
    clock.advance(ns(3_500));
    let mut seen = Vec::new();
    for _ in 0..3 {
        while let Some(tick) = ticks.on_ready().unwrap() {
            seen.push((tick.scheduled_ns, tick.lateness_ns, tick.missed));
        }
        clock.advance(ns(500));
    }
    seen
}

#[test]
fn missed_ticks_follow_the_policy() {
    assert_eq!(after_an_overrun(MissedTicks::Skip), [(5_000, 0, 3)]);
    assert_eq!(
        after_an_overrun(MissedTicks::CatchUp),
        [(2_000, 2_500, 0), (3_000, 1_500, 0), (4_000, 500, 0), (5_000, 0, 0)]
    );
    assert_eq!(after_an_overrun(MissedTicks::Coalesce), [(4_000, 500, 2), (5_000, 0, 0)]);
}

/// A waiting program has not missed a tick, however late the wake-up comes.
#[test]
fn a_late_wake_up_is_no_missed_tick() {
    let clock = Clock::new(0);
    let mut ticks = clock.timeline().periodic(ns(1_000), 0, MissedTicks::Skip).unwrap();
    assert!(ticks.on_ready().unwrap().is_none());
    clock.advance(ns(2_300));
    let tick = ticks.on_ready().unwrap().unwrap();
    assert_eq!((tick.scheduled_ns, tick.lateness_ns, tick.missed), (1_000, 1_300, 0));
    assert!(ticks.on_ready().unwrap().is_none());
    clock.advance(ns(700));
    let tick = ticks.on_ready().unwrap().unwrap();
    assert_eq!((tick.scheduled_ns, tick.missed), (3_000, 1));
}

#[test]
fn ticks_start_over_after_a_disruption() {
    let clock = Clock::new(0);
    let mut ticks = clock.timeline().periodic(ns(1_000), 0, MissedTicks::CatchUp).unwrap();
    assert!(ticks.on_ready().unwrap().is_none());
    clock.step(-50_500);
    assert!(matches!(ticks.on_ready(), Err(WaitError::Disrupted { .. })));
    assert!(ticks.on_ready().unwrap().is_none());
    clock.advance(ns(500));
    assert_eq!(ticks.on_ready().unwrap().unwrap().scheduled_ns, -50_000);
}

#[test]
fn actions_are_done_in_time_or_not_at_all() {
    let clock = Clock::new(0);
    clock.set_error(ns(100));
    let outcome = |then: fn(&Clock)| {
        clock.step(0);
        clock.set_error(ns(100));
        let mut at = clock.timeline().at_fd(1_000, Some(ns(150)), 1_100, Duration::ZERO).unwrap();
        assert!(at.on_ready().unwrap().is_none());
        then(&clock);
        let outcome = at.on_ready().unwrap();
        assert!(at.on_ready().unwrap().is_none());
        outcome
    };
    let in_time = outcome(|c| c.advance(ns(1_040)));
    assert!(matches!(in_time, Some(AtOutcome::Fired { actual_ns: 1_040, error_ns: 100, .. })));
    let late = outcome(|c| c.advance(ns(1_101)));
    assert!(matches!(late, Some(AtOutcome::TooLate { by_ns: 1, .. })));
    let stepped = outcome(|c| c.step(1_050));
    assert!(matches!(stepped, Some(AtOutcome::Disrupted { .. })));
    let worse = outcome(|c| {
        c.set_error(ns(151));
        c.advance(ns(1_000));
    });
    assert!(matches!(worse, Some(AtOutcome::QotViolated { half_width_ns: 151, .. })));
    let doubtful = outcome(|c| {
        c.set_status(Status::Unreliable);
        c.advance(ns(1_000));
        c.set_status(Status::Unreliable);
    });
    assert!(matches!(doubtful, Some(AtOutcome::QotViolated { half_width_ns: u64::MAX, .. })));
    // Worse in between, but good again when it matters.
    clock.set_status(Status::Synchronized);
    assert!(outcome(|c| c.set_error(ns(500))).is_none());
}

#[test]
fn actions_are_checked_when_they_are_armed() {
    let clock = Clock::new(0);
    clock.set_error(ns(100));
    let timeline = clock.timeline();
    let brief = WaitOptions::default().timeout(Duration::from_secs(5));
    let violated = timeline.at_with(1_000, Some(ns(99)), 1_000, &brief).unwrap();
    assert!(matches!(violated, AtOutcome::QotViolated { half_width_ns: 100, .. }));
    let late = timeline.at(-100, None, -50).unwrap();
    assert!(matches!(late, AtOutcome::TooLate { by_ns: 50, .. }));
    assert!(matches!(timeline.at(0, None, 0).unwrap(), AtOutcome::Fired { .. }));
    assert!(matches!(timeline.at(0, None, -1), Err(WaitError::OutOfRange(_))));
}

#[test]
fn a_watch_tells_every_edge_once() {
    let clock = Clock::new(0);
    clock.set_error(ns(100));
    let need = Requirement::within(ns(100));
    let mut watch = clock.timeline().with_requirement(&need).unwrap().watch().unwrap();
    let mut seen = || {
        let mut changes = Vec::new();
        while let Some(event) = watch.on_ready().unwrap() {
            changes.push(event.change);
        }
        changes
    };
    assert_eq!(seen(), [Change::Met]);
    assert_eq!(seen(), []);
    clock.set_status(Status::FreeRunning);
    clock.set_error(ns(101));
    assert_eq!(seen(), [Change::Holdover, Change::Violated]);
    clock.step(0);
    clock.set_error(ns(50));
    clock.set_status(Status::Synchronized);
    assert_eq!(seen(), [Change::Disrupted, Change::Synchronized, Change::Met]);
    clock.set_status(Status::Unreliable);
    assert_eq!(seen(), [Change::Violated]);
}

#[test]
fn an_event_says_until_when_the_requirement_holds() {
    let clock = Clock::new(0);
    clock.set_error(ns(1_000));
    clock.set_growth_ppb(1_000_000);
    let timeline = clock.timeline().with_requirement(&Requirement::within(ns(2_000))).unwrap();
    let mut watch = timeline.watch().unwrap();
    let met = watch.event().unwrap();
    // 1 us per millisecond: a margin of a microsecond lasts a millisecond.
    let ValidUntil::Until { estimate_ns, .. } = met.valid_until else { panic!("it grows") };
    assert!((999_990..=1_000_000).contains(&estimate_ns), "{estimate_ns}");
    clock.advance(ns(u64::try_from(estimate_ns).unwrap()));
    assert!(watch.on_ready().unwrap().is_none(), "to the end it is met");
    clock.advance(ns(1_000_010) - ns(u64::try_from(estimate_ns).unwrap()));
    let violated = watch.on_ready().unwrap().unwrap();
    assert_eq!((violated.change, violated.valid_until), (Change::Violated, ValidUntil::Exceeded));
}

#[test]
fn without_a_requirement_nothing_is_met_or_violated() {
    let clock = Clock::new(0);
    let mut watch = clock.timeline().watch().unwrap();
    assert!(watch.on_ready().unwrap().is_none());
    clock.set_error(Duration::from_secs(1));
    assert!(watch.on_ready().unwrap().is_none());
    clock.step(1);
    let event = watch.on_ready().unwrap().unwrap();
    assert_eq!((event.change, event.valid_until), (Change::Disrupted, ValidUntil::Unlimited));
}
