use proptest::prelude::*;

use super::*;
use crate::registry;
use crate::tasks::demand::{Demand, demand};
use crate::testing_elf::Elf;

const FUNCTIONS: [&str; 3] =
    ["timevisor_begin_segment", "timevisor_end_segment", "timevisor_retire_segment"];

fn guest(wide: bool) -> Box<dyn GuestOs> {
    let bytes = Elf::with(wide, &FUNCTIONS).note(NOTE, &[VERSION]).bytes();
    registry::probe_image(&Image::parse(&bytes).unwrap()).unwrap()
}

fn raw(point: u16, parts: &[&[u8]]) -> RawEvent {
    let data = parts.concat();
    RawEvent { sequence: 5, counter: None, counter_error: 0, point, vcpu: 0, failed: 0, data }
}

/// struct timevisor_segment.
fn segment(id: u32, all: [u64; 3]) -> Vec<u8> {
    let numbers = all.iter().flat_map(|n| n.to_le_bytes());
    u64::from(id).to_le_bytes().into_iter().chain(numbers).collect()
}

#[test]
fn a_segment_is_a_task_with_a_deadline() {
    const MS: u64 = 1_000_000;
    for (wide, first) in [(false, 4), (true, 8)] {
        let mut guest = guest(wide);
        let argument = |value: u64| value.to_le_bytes()[..first].to_vec();
        let begin = raw(BEGIN, &[&argument(0x9000), &segment(7, [20 * MS, 80 * MS, 100 * MS])]);
        let event = guest.decode(&begin).unwrap();
        let Kind::SetScheduler { target, attributes } = event.kind else { panic!("{event:?}") };
        assert_eq!((target.tid, target.policy), (7, Policy::Normal));
        let asked = (attributes.runtime_ns, attributes.deadline_ns, attributes.period_ns);
        assert_eq!(asked, (20 * MS, 80 * MS, 100 * MS));
        let end = guest.decode(&raw(END, &[&argument(7)])).unwrap();
        assert_eq!((end.thread.policy, end.kind), (Policy::Deadline, Kind::Yield));
        let task = guest.tasks().get(7).unwrap();
        assert_eq!((task.jobs, task.attributes.unwrap().policy), (1, Policy::Deadline));
        // So that a reservation can follow it.
        let Demand::Tasks(_, planned) = demand(guest.tasks(), &[]) else { panic!("nothing") };
        assert_eq!((planned[0].cost, planned[0].deadline), (20 * MS, 80 * MS));
        // The end of a segment whose beginning was not seen is an event, but adds no task.
        guest.decode(&raw(END, &[&argument(8)])).unwrap();
        guest.decode(&raw(RETIRE, &[&argument(7)])).unwrap();
        assert_eq!(guest.tasks().iter().count(), 0);
    }
}

#[test]
fn another_version_is_refused() {
    let bytes = Elf::with(false, &FUNCTIONS).note(NOTE, &[2]).bytes();
    let why = registry::probe_image(&Image::parse(&bytes).unwrap()).map(drop).unwrap_err();
    assert!(why[1].to_string().contains("version is [02, 00, 00, 00], not 1"), "{why:?}");
    let bytes = Elf::with(false, &FUNCTIONS[..2]).note(NOTE, &[1]).bytes();
    let why = registry::probe_image(&Image::parse(&bytes).unwrap()).map(drop).unwrap_err();
    assert!(why[1].to_string().contains("no symbol timevisor_retire_segment"), "{why:?}");
}

proptest! {
    #[test]
    fn anything_is_decoded_or_refused(
        point in 0u16..5,
        failed in any::<u16>(),
        data in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut guest = guest(false);
        let raw = RawEvent { failed, ..raw(point, &[&data]) };
        let decoded = guest.decode(&raw);
        // The segment's address is irrelevant once the segment has been read.
        let (read, len) = if point == BEGIN { (2, 36) } else { (1, 4) };
        let whole = (1..4).contains(&point) && failed & read == 0 && data.len() >= len;
        prop_assert_eq!(decoded.is_ok(), whole);
    }
}
