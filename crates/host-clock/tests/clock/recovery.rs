//! Restarts: what a daemon continues from, and what it does not.

use timevisor_clock_page::ClockStatus;
use timevisor_estimate::Quality;
use timevisor_host_clock::Event;
use timevisor_host_clock::recovery::RESUME_AHEAD;
use timevisor_time::Duration;

use crate::world::{HZ, Machine, Scripted, limits};

/// A machine whose daemon died after a publication at second 100.
fn crashed(quality: Quality) -> Machine {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    machine.at(100 * HZ);
    let mut clock = machine.boot(&estimate);
    estimate.say(quality, 0, 20_000);
    machine.publish(&mut clock);
    machine
}

#[test]
fn a_new_daemon_nests_in_the_old_ones_lines_and_readers_see_no_disruption() {
    let mut machine = crashed(Quality::Synchronized);
    let (before, lines) = (machine.read(), machine.lines());
    machine.at(103 * HZ);
    let estimate = Scripted::new();
    let mut clock = machine.boot(&estimate);
    let publication = machine.publish(&mut clock);
    assert_eq!(publication.clock.status, ClockStatus::FreeRunning);
    assert!(clock.has_only_earlier_lines() && clock.earlier_lines().is_some());
    let after = machine.read();
    assert_eq!(after.disruption, before.disruption);
    let old = lines.at(103 * HZ);
    let rounding = Duration::from_bits(4);
    assert!(old.earliest <= after.earliest && after.latest <= old.latest + rounding, "nests");
    assert!(after.estimate >= old.estimate, "never back");
    assert_eq!(estimate.0.borrow().adopted, Some(limits(15)), "the rate is known from the journal");
    // Bounds hold for ever: they grow at the limits of the rate, and no faster.
    machine.at(1103 * HZ);
    machine.publish(&mut clock);
    let growth = machine.lines().half_width() - lines.half_width();
    assert!(growth > Duration::from_millis(14) && growth < Duration::from_millis(16), "{growth}");
    // The first answer of a reference ends the recovery.
    estimate.say(Quality::Synchronized, 0, 1000);
    machine.publish(&mut clock);
    assert!(!clock.has_only_earlier_lines());
    assert_eq!(machine.read().disruption, before.disruption);
}

#[test]
fn a_slew_ends_with_the_daemon_that_began_it() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    machine.at(100 * HZ);
    let mut clock = machine.boot(&estimate);
    // 8 ms ahead, within bounds that allow it; then the truth is known better.
    estimate.say(Quality::Synchronized, 8_000_000, 9_000_000);
    machine.publish(&mut clock);
    machine.at(101 * HZ);
    estimate.say(Quality::Synchronized, 0, 50_000);
    machine.publish(&mut clock);
    let slewing = machine.lines();
    let lost = |from: u64, to: u64, lines: [timevisor_clock_page::Lines<_>; 2]| {
        let passed = lines[1].at(to).estimate - lines[0].at(from).estimate;
        Duration::from_secs(i64::try_from((to - from) / HZ).unwrap()) - passed
    };
    assert!(lost(101 * HZ, 102 * HZ, [slewing, slewing]) > Duration::from_micros(300), "it slews");
    machine.at(103 * HZ);
    let mut clock = machine.boot(&Scripted::new());
    machine.publish(&mut clock);
    let first = machine.lines();
    for second in (104..=1103).step_by(3) {
        machine.at(second * HZ);
        machine.publish(&mut clock);
    }
    let last = machine.lines();
    let growth = last.half_width() - first.half_width();
    assert!(growth < Duration::from_millis(32), "{growth} in 1000 s");
    let lost = lost(103 * HZ, 1103 * HZ, [first, last]);
    assert!(lost < Duration::from_millis(16), "the estimate lost {lost} in 1000 s");
}

#[test]
fn a_torn_page_is_continued_from_the_journal() {
    let intact = crashed(Quality::Synchronized);
    let journaled = intact.journal.unwrap();
    // The page was lost, or its writer died inside it: only the journal is left.
    let machine = Machine { journal: Some(journaled), ..Machine::default() };
    machine.at(101 * HZ);
    let clock = machine.boot(&Scripted::new());
    let resumed = clock.earlier_lines().unwrap();
    let there = journaled.lines.at(101 * HZ).estimate + RESUME_AHEAD;
    assert_eq!(resumed.at(101 * HZ).estimate, there);
    assert!(machine.read().has_estimate());
    let old = intact.lines().at(101 * HZ);
    assert!(machine.lines().at(101 * HZ).estimate >= old.estimate, "never back");
}

#[test]
fn an_update_that_was_journaled_and_never_published_is_not_taken_for_read() {
    let mut machine = crashed(Quality::Synchronized);
    let on_page = machine.lines();
    let mut entry = machine.journal.unwrap();
    entry.lines.estimate.time = entry.lines.estimate.time + Duration::from_micros(10);
    machine.journal = Some(entry);
    machine.at(101 * HZ);
    let clock = machine.boot(&Scripted::new());
    let resumed = clock.earlier_lines().unwrap().at(101 * HZ).estimate;
    assert_eq!(resumed, on_page.at(101 * HZ).estimate.relabel(), "readers follow the page");
}

#[test]
fn lines_that_an_assumption_failed_for_are_not_resumed() {
    let mut machine = crashed(Quality::Synchronized);
    let before = machine.read().disruption;
    let estimate = Scripted::new();
    let mut clock = machine.boot(&estimate);
    estimate.say(Quality::Unreliable, 0, 1000);
    machine.publish(&mut clock);
    assert_eq!((machine.journal, machine.cleared), (None, 1));
    let clock = machine.boot(&Scripted::new());
    assert!(clock.earlier_lines().is_none());
    assert_ne!(machine.read().disruption, before);
    assert!(!machine.read().has_estimate());
}

#[test]
fn a_counter_that_went_back_is_a_new_start() {
    let machine = crashed(Quality::Synchronized);
    machine.at(99 * HZ);
    let clock = machine.boot(&Scripted::new());
    assert!(clock.earlier_lines().is_none());
    assert!(!machine.read().has_estimate());
}

#[test]
fn the_rate_outlives_daemons_that_learn_nothing() {
    let mut machine = crashed(Quality::Synchronized);
    for restart in 1..4 {
        machine.at((100 + restart) * HZ);
        let mut clock = machine.boot(&Scripted::new());
        machine.publish(&mut clock);
        assert_eq!(machine.journal.unwrap().rate, Some(limits(15)), "restart {restart}");
    }
    let mut clock = machine.boot(&Scripted::new());
    machine.handle(&mut clock, Event::StartOver { estimate: Scripted::new() });
    assert_eq!(machine.journal, None);
    assert!(clock.earlier_lines().is_none());
}
