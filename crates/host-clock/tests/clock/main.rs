//! The publisher on a host in memory: what readers of the page see, what the journal holds, which
//! actions follow.

mod ages;
mod leap;
mod nesting;
mod recovery;
mod references;
mod timelines;
mod trust;
mod world;

use timevisor_clock_page::ClockStatus;
use timevisor_estimate::{Discard, Exchange, Observation, Quality};
use timevisor_host_clock::{Action, Event, Note};
use timevisor_time::{Duration, Instant};

use world::{HZ, Machine, Scripted, published, truth};

fn exchange() -> Exchange {
    let time = Instant::from_bits(0);
    Exchange { ta: 1, tb: time, te: time, tf: 3, error: Duration::ZERO }
}

#[test]
fn the_status_follows_the_knowledge_and_the_time_without_it() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    let mut statuses = Vec::new();
    for second in [0, 80, 81, 82] {
        machine.at(second * HZ);
        statuses.push(machine.publish(&mut clock).clock.status);
        assert_eq!(machine.read().status(), *statuses.last().unwrap(), "the page says the same");
        assert!(!machine.read().has_estimate());
    }
    use ClockStatus::{FreeRunning, Initializing, Synchronized, Unknown, Unreliable};
    assert_eq!(statuses, [Initializing, Initializing, Unknown, Unknown]);
    let told = [
        (Quality::Initializing, Initializing),
        (Quality::Synchronized, Synchronized),
        (Quality::FreeRunning, FreeRunning),
        (Quality::Unreliable, Unreliable),
        (Quality::Synchronized, Synchronized),
    ];
    for (step, (quality, status)) in (100..).zip(told) {
        machine.at(step * HZ);
        estimate.say(quality, 0, 1000);
        assert_eq!(machine.publish(&mut clock).clock.status, status);
        assert_eq!(machine.read().status(), status);
        assert!(machine.read().has_estimate());
    }
    assert_eq!(machine.publish(&mut clock).leap.tai_offset, Some(37));
}

#[test]
fn what_nobody_knows_is_withdrawn_only_once() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    machine.publish(&mut clock);
    let initializing = machine.read().disruption;
    machine.at(HZ);
    machine.publish(&mut clock);
    assert_eq!(machine.read().disruption, initializing, "said already");
    machine.at(100 * HZ);
    machine.publish(&mut clock);
    let unknown = machine.read().disruption;
    assert_ne!(unknown, initializing, "another status");
    machine.publish(&mut clock);
    assert_eq!(machine.read().disruption, unknown);
}

#[test]
fn a_contradiction_steps_the_clock_as_one_disruption() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    estimate.say(Quality::Synchronized, 0, 1000);
    let before = machine.publish(&mut clock);
    let marker = machine.read().disruption;
    machine.at(HZ);
    estimate.say(Quality::Synchronized, 5_000_000, 1000);
    let actions = machine.handle(&mut clock, Event::Publish);
    assert!(actions.contains(&Action::Note(Note::Stepped)), "{actions:?}");
    let after = published(&actions);
    assert_eq!(after.clock.disruptions, before.clock.disruptions + 1);
    let reading = machine.read();
    assert_ne!(reading.disruption, marker);
    let error = reading.estimate - (truth(HZ) + Duration::from_nanos(5_000_000)).relabel();
    assert!(error.abs() < Duration::from_nanos(2), "it steps at once: {error}");
    machine.at(2 * HZ);
    let actions = machine.handle(&mut clock, Event::Publish);
    assert!(!actions.contains(&Action::Note(Note::Stepped)), "{actions:?}");
    assert_eq!(published(&actions).clock.disruptions, after.clock.disruptions);
    assert_eq!(machine.read().disruption, reading.disruption, "one step, one disruption");
}

#[test]
fn what_the_estimate_voids_is_one_disruption() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    estimate.say(Quality::Synchronized, 0, 1000);
    machine.publish(&mut clock);
    let marker = machine.read().disruption;
    estimate.0.borrow_mut().disruptions += 1;
    estimate.say(Quality::Unreliable, 0, 9000);
    let publication = machine.publish(&mut clock);
    assert_ne!(machine.read().disruption, marker);
    assert_eq!(publication.clock.disruptions, 1);
    assert!(machine.lines().half_width() > Duration::from_nanos(8999), "not nested in the old");
}

#[test]
fn the_last_publication_runs_free_and_saves() {
    for (quality, status) in [
        (Quality::Synchronized, ClockStatus::FreeRunning),
        (Quality::Initializing, ClockStatus::FreeRunning),
        (Quality::Unreliable, ClockStatus::Unreliable),
    ] {
        let (mut machine, estimate) = (Machine::default(), Scripted::new());
        let mut clock = machine.boot(&estimate);
        estimate.say(quality, 0, 1000);
        machine.publish(&mut clock);
        let actions = machine.handle(&mut clock, Event::PublishLast);
        assert_eq!(actions[0], Action::SaveEstimates);
        assert_eq!(published(&actions).clock.status, status);
        assert_eq!(machine.read().status(), status);
        assert!(machine.read().has_estimate());
    }
}

#[test]
fn estimates_are_saved_once_a_minute() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    let mut saved = Vec::new();
    for second in 0..=130 {
        machine.at(second * HZ);
        if machine.handle(&mut clock, Event::Publish).contains(&Action::SaveEstimates) {
            saved.push(second);
        }
    }
    assert_eq!(saved, [60, 120]);
}

#[test]
fn starting_over_forgets_everything_and_says_so() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    estimate.say(Quality::Synchronized, 0, 1000);
    let before = machine.publish(&mut clock);
    assert!(machine.journal.is_some());
    let marker = machine.read().disruption;
    let fresh = Scripted::new();
    let actions = machine.handle(&mut clock, Event::StartOver { estimate: fresh.clone() });
    assert_eq!(actions, [Action::ClearEstimates]);
    assert_eq!(machine.journal, None);
    let reading = machine.read();
    assert!(!reading.has_estimate() && reading.status() == ClockStatus::Unknown);
    assert_ne!(reading.disruption, marker);
    fresh.say(Quality::Synchronized, -50_000_000, 1000);
    let after = machine.publish(&mut clock);
    assert!(after.clock.disruptions > before.clock.disruptions);
    let error = machine.read().estimate - truth(0).relabel() + Duration::from_nanos(50_000_000);
    assert!(error.abs() < Duration::from_nanos(2), "the clock may go back now: {error}");
}

#[test]
fn observations_become_notes_about_their_reference() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    let by = Duration::from_millis(3);
    let told = [
        (Observation::Used, None),
        (Observation::Doubt(by), Some(Note::Doubt { reference: 4, by })),
        (
            Observation::Discarded(Discard::Duplicate),
            Some(Note::Discarded { reference: 4, reason: Discard::Duplicate }),
        ),
        (Observation::Contradiction(by), Some(Note::Contradiction { reference: 4, gap: by })),
    ];
    for (observation, note) in told {
        estimate.0.borrow_mut().observation = observation;
        let event = Event::Exchange { reference: 4, exchange: exchange() };
        let actions = machine.handle(&mut clock, event);
        assert_eq!(actions, note.map(Action::Note).into_iter().collect::<Vec<_>>());
    }
    assert_eq!(estimate.0.borrow().observed, [4; 4]);
    assert!(machine.handle(&mut clock, Event::Forget { reference: 4 }).is_empty());
    assert_eq!(estimate.0.borrow().observed, [0; 0]);
}

/// In the middle of bounds as wide as a busy uplink's the clock could only step back later.
#[test]
fn an_estimate_within_very_wide_bounds_begins_near_the_early_end() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    const MS: i64 = 1_000_000;
    // Half a second of round trip, all of it on the way there: 200 ms ahead.
    estimate.say(Quality::Synchronized, 200 * MS, 225 * MS);
    machine.publish(&mut clock);
    let off = |machine: &Machine| (machine.read().estimate - truth(0).relabel()).floor_nanos();
    assert_eq!(off(&machine), 0, "25 ms above the earliest");
    assert!(machine.read().estimated_error() > Duration::from_millis(199), "which it says");
    let marker = machine.read().disruption;
    estimate.say(Quality::Synchronized, 0, 25 * MS);
    machine.publish(&mut clock);
    assert_eq!(machine.read().disruption, marker, "the upload ended: nothing steps");
    // From now on wide bounds mean that little was heard; the estimate stays.
    estimate.say(Quality::Synchronized, 0, 225 * MS);
    machine.publish(&mut clock);
    assert_eq!(off(&machine), 0);
}

#[test]
fn very_wide_bounds_have_the_estimate_in_their_middle_after_five_minutes() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    let mut ahead = Vec::new();
    for second in [0, 299, 302] {
        machine.at(second * HZ);
        estimate.say(Quality::Synchronized, 0, 300_000_000);
        machine.publish(&mut clock);
        ahead.push((machine.read().estimate - truth(second * HZ).relabel()).floor_nanos());
    }
    assert!(ahead[0] < -270_000_000 && ahead[1] < -270_000_000, "{ahead:?}");
    assert!(ahead[2].abs() < 1000, "{ahead:?}");
}
