//! A counter in doubt puts everything that counts it in doubt.

use timevisor_clock_page::ClockStatus;
use timevisor_estimate::Quality;
use timevisor_host_clock::Event;

use crate::world::{HZ, Machine, Scripted};

#[test]
fn a_clock_on_a_distrusted_counter_is_unreliable_and_leaves_no_journal() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    estimate.say(Quality::Synchronized, 0, 50_000);
    machine.at(HZ);
    assert_eq!(machine.publish(&mut clock).clock.status, ClockStatus::Synchronized);
    assert!(machine.journal.is_some());

    machine.handle(&mut clock, Event::CounterTrusted(false));
    let publication = machine.publish(&mut clock);
    assert_eq!(publication.clock.status, ClockStatus::Unreliable);
    assert_eq!(machine.read().status(), ClockStatus::Unreliable);
    assert_eq!(machine.journal, None, "a restart must not continue these lines");

    // Nothing is known, and that is not what a reader must act upon.
    let fresh = Scripted::new();
    machine.handle(&mut clock, Event::StartOver { estimate: fresh.clone() });
    assert_eq!(machine.read().status(), ClockStatus::Unreliable);
    let disruption = machine.read().disruption;
    machine.publish(&mut clock);
    assert_eq!(
        (machine.read().status(), machine.read().disruption),
        (ClockStatus::Unreliable, disruption)
    );

    machine.handle(&mut clock, Event::CounterTrusted(true));
    fresh.say(Quality::Synchronized, 0, 50_000);
    assert_eq!(machine.publish(&mut clock).clock.status, ClockStatus::Synchronized);
    assert!(machine.journal.is_some());
}
