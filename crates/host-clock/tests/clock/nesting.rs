//! Successive publications: the journal is written first, the counter is read late, bounds nest,
//! time never goes back.

use proptest::prelude::*;
use timevisor_clock_page::{Lines, Reading};
use timevisor_estimate::Quality;
use timevisor_time::{Duration, Local};

use crate::world::{Clocked, HZ, Machine, Scripted};

#[test]
fn the_journal_has_the_lines_before_readers_do() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    let mut clock = machine.boot(&estimate);
    estimate.say(Quality::Synchronized, 0, 20_000);
    machine.publish(&mut clock);
    assert_eq!(machine.seen_while_journaling, [None], "the page said nothing yet");
    machine.at(HZ);
    let old = machine.lines().at(HZ).estimate;
    estimate.say(Quality::Synchronized, 5000, 20_000);
    machine.publish(&mut clock);
    assert_eq!(machine.seen_while_journaling[1], Some(old), "the page still had the old lines");
    let (journaled, page) = (machine.journal.unwrap().lines, machine.lines());
    let journaled = journaled.at(HZ + 5).estimate.relabel();
    assert_eq!(journaled, page.at(HZ + 5).estimate, "and they are the same lines");
}

/// The counter moves on at every read. Lines that were continued from a value read before the
/// page's lock would go back for a reader that used the old lines in between.
#[test]
fn lines_take_over_at_a_counter_value_that_no_reader_of_the_old_lines_has_seen() {
    let (mut machine, estimate) = (Machine::default(), Scripted::new());
    machine.at(HZ);
    let mut clock = machine.boot(&estimate);
    machine.counter.step.set(1000);
    for round in 0..50 {
        estimate.say(Quality::Synchronized, if round % 2 == 0 { 900 } else { -900 }, 20_000);
        let old = clock.writer().in_force().copied();
        let publication = machine.publish(&mut clock);
        let new = publication.clock.lines.unwrap();
        // The last read of the counter was the writer's, and the new lines start there.
        assert_eq!(new.base, machine.counter.value.get() - 1000);
        if let Some(old) = old {
            assert!(new.at(new.base).estimate.relabel() >= old.at(new.base).estimate, "back");
        }
    }
}

/// The reading lies within these lines, published before, unless they have expired or are about to:
/// then they are renewed. A rebase may add 2^-64 s to the upper bound.
fn nested(new: &Reading, old: &Lines<Local>, clock: &Clocked) -> bool {
    let (policy, now) = (clock.policy(), new.counter);
    if old.is_renewal_due(now, policy.expiry(now), policy.slew()) {
        return true;
    }
    let at = old.at(new.counter);
    let rounding = Duration::from_bits(1 << 14);
    new.earliest + rounding >= at.earliest && new.latest <= at.latest + rounding
}

proptest! {
    /// Whatever the estimate says, readers see time go on and bounds nest, unless the marker tells
    /// them of a disruption.
    #[test]
    fn consecutive_publications_nest_and_never_go_back_without_a_disruption(
        steps in prop::collection::vec(
            (1u64..3_000_000_000, -200_000i64..200_000, 1000i64..150_000, any::<bool>(), 0u8..40), 1..40),
    ) {
        let (mut machine, estimate) = (Machine::default(), Scripted::new());
        let mut clock = machine.boot(&estimate);
        let (mut now, mut previous) = (HZ, None);
        for (wait, offset, half, synchronized, event) in steps {
            now += wait;
            machine.at(now);
            let quality = if synchronized { Quality::Synchronized } else { Quality::FreeRunning };
            estimate.say(quality, offset, half);
            match event {
                // A restart, warm.
                0 => clock = machine.boot(&estimate),
                // The estimate voids what it said.
                1 => estimate.0.borrow_mut().disruptions += 1,
                _ => {}
            }
            let before = previous.map(|_| (machine.read(), machine.lines()));
            let publication = machine.publish(&mut clock);
            let after = machine.read();
            let in_force = publication.clock.lines.unwrap();
            let at = in_force.at(now);
            prop_assert!(at.earliest <= at.latest);
            if let Some((reading, lines)) = before && reading.disruption == after.disruption {
                prop_assert!(after.estimate >= reading.estimate, "{} < {}", after.estimate, reading.estimate);
                prop_assert!(nested(&after, &lines, &clock), "bounds left those before");
            }
            previous = Some(publication);
        }
    }
}
