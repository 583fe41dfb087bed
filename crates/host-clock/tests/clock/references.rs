//! Other references are configured while the clock runs.

use timevisor_clock_page::ClockStatus;
use timevisor_estimate::{Quality, Slot};
use timevisor_host_clock::Event;
use timevisor_time::Duration;

use crate::world::{HZ, Machine, Scripted};

const STALE_AFTER: Duration = Duration::from_secs(60);

fn others() -> Event<Scripted> {
    let slots = vec![Slot { name: "new".to_owned(), continues: None }];
    Event::References { slots, stale_after: STALE_AFTER }
}

#[test]
fn what_was_published_holds_until_the_new_references_have_answered() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    estimate.say(Quality::Synchronized, 0, 50_000);
    machine.publish(&mut clock);
    let (before, lines) = (machine.read(), machine.lines());

    machine.handle(&mut clock, others());
    assert_eq!(estimate.0.borrow().slots.len(), 1);
    (estimate.0.borrow_mut().clock, estimate.0.borrow_mut().quality) = (None, Quality::Nothing);
    // Long after a clock that never knew anything would be `unknown`.
    for second in [1, 100, 1000] {
        machine.at(second * HZ);
        machine.publish(&mut clock);
        let now = machine.read();
        assert_eq!((now.status(), now.disruption), (ClockStatus::FreeRunning, before.disruption));
        let old = lines.at(second * HZ);
        assert!(now.earliest <= old.earliest && old.latest <= now.latest, "no narrower");
        assert!(clock.has_only_earlier_lines(), "from before other references were configured");
    }
    estimate.say(Quality::Synchronized, 0, 40_000);
    machine.publish(&mut clock);
    assert_eq!(machine.read().status(), ClockStatus::Synchronized);
    assert_eq!(machine.read().disruption, before.disruption);
    assert!(!clock.has_only_earlier_lines());
}

#[test]
fn a_clock_that_is_not_to_be_relied_on_is_not_carried_over() {
    for quality in [Quality::Unreliable, Quality::Initializing] {
        let (mut machine, estimate) = (Machine::default(), Scripted::new());
        let mut clock = machine.boot(&estimate);
        estimate.say(quality, 0, 50_000);
        machine.publish(&mut clock);
        machine.handle(&mut clock, others());
        (estimate.0.borrow_mut().clock, estimate.0.borrow_mut().quality) = (None, Quality::Nothing);
        machine.at(100 * HZ);
        machine.publish(&mut clock);
        assert!(!machine.read().has_estimate(), "{quality:?}");
    }
}

/// The old reference was wrong by 5 ms, which is why the operator replaced it.
#[test]
fn what_the_new_references_exclude_is_not_gone_back_to() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    estimate.say(Quality::Synchronized, 5_000_000, 1000);
    machine.publish(&mut clock);
    machine.handle(&mut clock, others());
    machine.at(HZ);
    estimate.say(Quality::Unreliable, 0, 1000);
    machine.publish(&mut clock);
    // And then the new one is outvoted and forgotten before anybody else has answered.
    (estimate.0.borrow_mut().clock, estimate.0.borrow_mut().quality) = (None, Quality::Nothing);
    machine.at(2 * HZ);
    machine.publish(&mut clock);
    assert!(!machine.read().has_estimate());
}
