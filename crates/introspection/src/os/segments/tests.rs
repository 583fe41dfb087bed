use proptest::prelude::*;

use super::*;
use crate::registry;
use crate::tasks::demand::{Demand, demand};
use crate::testing_elf::Elf;

const MS: u64 = 1_000_000;

/// The functions of version 2; version 1 has the first three.
const FUNCTIONS: [&str; 5] = [
    "timevisor_begin_segment",
    "timevisor_end_segment",
    "timevisor_retire_segment",
    "timevisor_segment_aborts",
    "timevisor_set_scheduler",
];

fn functions(version: Version) -> &'static [&'static str] {
    if version == Version::One { &FUNCTIONS[..3] } else { &FUNCTIONS }
}

fn guest(version: Version, wide: bool) -> Box<dyn GuestOs> {
    let elf = Elf::with(wide, functions(version)).note(NOTE, &[version.number()]);
    registry::probe_image(&Image::parse(&elf.bytes()).unwrap()).unwrap()
}

/// Why the image is not a program with segments.
fn refused(elf: &Elf) -> String {
    let why = registry::probe_image(&Image::parse(&elf.bytes()).unwrap()).map(drop).unwrap_err();
    why[1].to_string()
}

fn raw(point: u16, parts: &[&[u8]]) -> RawEvent {
    let data = parts.concat();
    RawEvent { sequence: 5, counter: None, counter_error: 0, point, vcpu: 0, failed: 0, data }
}

/// struct timevisor_segment as far as this version reads it; version 1 has a zero for the priority.
fn segment(version: Version, [id, priority]: [u32; 2], all: [u64; 4]) -> Vec<u8> {
    let words = [id, priority].into_iter().flat_map(u32::to_le_bytes);
    let mut bytes: Vec<u8> = words.chain(all.into_iter().flat_map(u64::to_le_bytes)).collect();
    bytes.truncate(version.segment().into());
    bytes
}

#[test]
fn a_segment_is_a_task_with_a_deadline() {
    for version in Version::ALL {
        for (wide, first) in [(false, 4), (true, 8)] {
            let mut guest = guest(version, wide);
            assert_eq!(guest.name(), format!("real-time segments, version {}", version.number()));
            let argument = |value: u64| value.to_le_bytes()[..first].to_vec();
            let asks = segment(version, [7, 3], [20 * MS, 80 * MS, 100 * MS, u64::MAX]);
            let event = guest.decode(&raw(BEGIN, &[&argument(0x9000), &asks])).unwrap();
            let Kind::SetScheduler { target, attributes } = event.kind else { panic!("{event:?}") };
            assert_eq!((target.tid, target.policy), (7, Policy::Normal));
            let asked = (attributes.runtime_ns, attributes.deadline_ns, attributes.period_ns);
            assert_eq!(asked, (20 * MS, 80 * MS, 100 * MS));
            let worth = if version == Version::One { (0, 0) } else { (3, u64::MAX) };
            assert_eq!((attributes.priority, attributes.utility), worth);
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
}

/// Guests as linkers made them; the first one was built when version 1 was the only one.
#[test]
fn real_programs_of_both_versions() {
    let guests: [&[u8]; 2] = [
        include_bytes!("../../../../../fuzz/corpus-seeds/introspect_image/segments.elf"),
        include_bytes!("../../../../../fuzz/corpus-seeds/introspect_image/segments-2.elf"),
    ];
    for (bytes, version) in guests.into_iter().zip(Version::ALL) {
        // On the heap, where it is aligned as the parser needs it.
        let bytes = bytes.to_vec();
        let guest = registry::probe_image(&Image::parse(&bytes).unwrap()).unwrap();
        assert_eq!(guest.name(), format!("real-time segments, version {}", version.number()));
        let symbols: Vec<_> = guest.points().iter().map(|point| point.symbol.as_str()).collect();
        assert_eq!(symbols, functions(version));
    }
}

#[test]
fn a_job_is_aborted_and_a_scheduler_chosen() {
    for (wide, size) in [(false, 4), (true, 8)] {
        let mut guest = guest(Version::Two, wide);
        let argument = |value: u64| value.to_le_bytes()[..size].to_vec();
        // Garbage in the high half of a register with a 32-bit argument is not the argument's.
        let choice = [0xffff_ffff_0000_0003u64, 2, 5].map(argument).concat();
        let event = guest.decode(&raw(SCHEDULER, &[&choice])).unwrap();
        let scheduler = Scheduler::Hvdf;
        let expected = Kind::ChooseScheduler { scheduler, priority: 2, processors: 5 };
        assert_eq!((event.thread, event.kind), (Thread::default(), expected));
        assert_eq!(guest.tasks().iter().count(), 0);

        let asks = segment(Version::Two, [7, 2], [20 * MS, 80 * MS, 100 * MS, 9]);
        guest.decode(&raw(BEGIN, &[&argument(0x9000), &asks])).unwrap();
        let before = demand(guest.tasks(), &[]);
        let event = guest.decode(&raw(ABORT, &[&argument(7)])).unwrap();
        assert_eq!((event.thread.tid, event.thread.policy), (7, Policy::Deadline));
        assert_eq!(event.kind, Kind::Abort);
        let task = guest.tasks().get(7).unwrap();
        assert_eq!((task.jobs, task.aborted), (0, 1));
        assert_eq!(demand(guest.tasks(), &[]), before, "its next job needs the same");
        // One whose beginning was not seen.
        guest.decode(&raw(ABORT, &[&argument(8)])).unwrap();
        assert_eq!(guest.tasks().iter().count(), 1);
    }
}

/// Utility, priority and scheduler are reported, and change nothing of a reservation.
#[test]
fn demand_is_that_of_version_1() {
    let of = |version, priority, utility| {
        let mut guest = guest(version, false);
        if version == Version::Two {
            guest.decode(&raw(SCHEDULER, &[&[1; 12]])).unwrap();
        }
        let asks = segment(version, [7, priority], [20 * MS, 80 * MS, 100 * MS, utility]);
        guest.decode(&raw(BEGIN, &[&[1; 4], &asks])).unwrap();
        demand(guest.tasks(), &[])
    };
    let expected = of(Version::One, 0, 0);
    assert_ne!(expected, Demand::Nothing);
    assert_eq!(of(Version::Two, 0, 0), expected);
    assert_eq!(of(Version::Two, u32::MAX, u64::MAX), expected);
}

#[test]
fn another_version_is_refused() {
    let with = |functions: &[&str], note: &[u32]| Elf::with(false, functions).note(NOTE, note);
    assert!(refused(&with(&FUNCTIONS, &[3])).contains("[03, 00, 00, 00], not 1 or 2"));
    assert!(refused(&with(&FUNCTIONS, &[0])).contains("[00, 00, 00, 00], not 1 or 2"));
    assert!(refused(&with(&FUNCTIONS, &[2, 0])).contains("not 1 or 2"));
    assert!(refused(&with(&FUNCTIONS, &[])).contains("not 1 or 2"));
    for (version, last) in [(1, 2), (2, 3), (2, 4)] {
        let lacks = format!("no symbol {}", FUNCTIONS[last]);
        let why = refused(&with(&FUNCTIONS[..last], &[version]));
        assert!(why.contains(&lacks), "{why}");
    }
}

proptest! {
    #[test]
    fn anything_is_decoded_or_refused(
        version in prop::sample::select(Version::ALL.to_vec()),
        point in 0u16..7,
        failed in any::<u16>(),
        data in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut guest = guest(version, false);
        let raw = RawEvent { failed, ..raw(point, &[&data]) };
        let decoded = guest.decode(&raw);
        // The segment's address is irrelevant once the segment has been read.
        let (needed, len) = match point {
            BEGIN => (2, 4 + usize::from(version.segment())),
            SCHEDULER => (7, 12),
            _ => (1, 4),
        };
        let points = if version == Version::One { 1..=RETIRE } else { 1..=SCHEDULER };
        let whole = points.contains(&point) && failed & needed == 0 && data.len() >= len;
        prop_assert_eq!(decoded.is_ok(), whole);
    }
}
