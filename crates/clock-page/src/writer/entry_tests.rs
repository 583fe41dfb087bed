//! Further timelines on a page: given away, read by name, taken back, and not mistaken for each
//! other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use timevisor_time::Instant;

use super::tests::{identity, tsc, update};
use super::*;
use crate::reader::{OpenError, Reader, find};

fn named(id: u64, name: &str, generation: u16) -> EntryIdentity {
    EntryIdentity::new(id, name, TimescaleId::Local, generation)
}

#[test]
fn timelines_are_found_by_name_and_read_apart() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.publish(&update(5000, 1_700_000_000_000_000_000), &tsc(5000));
    writer.open_entry(1, named(7, "cell7", 1));
    writer.open_entry(17, named(8, "a name of more than 32 bytes, cut there", 2));
    writer.require(1, 1_000_000);
    assert_eq!((find(&page, "tai"), find(&page, "cell7")), (Ok(0), Ok(1)));
    assert_eq!(find(&page, "a name of more than 32 bytes, cu"), Ok(17));
    assert_eq!(find(&page, "cell"), Err(OpenError::NoSuchEntry));
    let reader = Reader::open(&page, tsc(6000), 1).unwrap();
    let before = reader.read().unwrap();
    assert_eq!((before.status(), before.generation()), (ClockStatus::Initializing, 1));
    writer.publish_entry(1, &update(5000, 42), &tsc(5000)).unwrap();
    let now = reader.read().unwrap();
    assert_eq!(now.estimate.ceil_nanos(), 42 + i64::try_from(now.counter).unwrap() - 5000);
    assert_eq!((now.timescale(), reader.required_ns()), (TimescaleId::Local, Some(1_000_000)));
    let own = Reader::open(&page, tsc(6000), 0).unwrap().read().unwrap();
    assert_eq!((own.generation(), own.estimate.secs()), (0, 1_700_000_000));
}

#[test]
fn an_entry_that_is_given_away_again_has_another_generation_and_marker() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.open_entry(3, named(7, "first", 1));
    writer.publish_entry(3, &update(0, 0), &tsc(0)).unwrap();
    let stale = Reader::open(&page, tsc(10), 3).unwrap();
    let first = stale.read().unwrap();
    writer.close_entry(3);
    assert!(!stale.read().unwrap().has_estimate());
    assert_eq!(Reader::open(&page, tsc(0), 3).map(|_| ()).unwrap_err(), OpenError::NoSuchEntry);
    assert_eq!(find(&page, "first"), Err(OpenError::NoSuchEntry));
    assert!(writer.publish_entry(3, &update(0, 0), &tsc(0)).is_none(), "nobody has it");
    writer.open_entry(3, named(9, "second", 2));
    writer.publish_entry(3, &update(0, 0), &tsc(0)).unwrap();
    let second = stale.read().unwrap();
    assert_eq!((first.generation(), second.generation()), (1, 2));
    assert_ne!(first.disruption, second.disruption);
}

#[test]
fn a_timeline_is_disrupted_alone_and_the_page_all_together() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.publish(&update(0, 0), &tsc(0));
    for index in [1, 2] {
        writer.open_entry(index, named(10 + index as u64, "t", 1));
        writer.publish_entry(index, &update(0, 0), &tsc(0)).unwrap();
    }
    let marker = |index| Reader::open(&page, tsc(10), index).unwrap().read().unwrap().disruption;
    let before = [marker(0), marker(1), marker(2)];
    writer.withdraw_entry(1, ClockStatus::Unknown);
    writer.publish_entry(1, &update(0, 0), &tsc(0)).unwrap();
    assert_eq!([marker(0), marker(2)], [before[0], before[2]]);
    assert_ne!(marker(1), before[1]);
    let before = [marker(0), marker(1), marker(2)];
    writer.withdraw(ClockStatus::Unknown, Some(37));
    for (index, before) in before.into_iter().enumerate() {
        assert_ne!(marker(index), before);
        let reader = Reader::open(&page, tsc(10), index).unwrap();
        assert!(!reader.read().unwrap().has_estimate());
    }
}

#[test]
fn bindings_do_not_outlive_the_daemon_that_gave_them() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    let lines = writer.publish(&update(0, 0), &tsc(0));
    writer.open_entry(4, named(7, "gone", 5));
    writer.publish_entry(4, &update(0, 0), &tsc(0)).unwrap();
    let stale = Reader::open(&page, tsc(10), 4).unwrap();
    // Died inside an update of that entry.
    write_begin(&page.entry(4)[entry::SEQUENCE]);
    let recovered = Update { target: lines, ..update(0, 0) };
    let next = PageWriter::recover(&page, identity(), &recovered, &tsc(500_000));
    assert!(!stale.read().unwrap().has_estimate());
    assert_eq!(find(&page, "gone"), Err(OpenError::NoSuchEntry));
    assert!(next.in_force().is_some());
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.open_entry(4, named(8, "gone", 6));
    let _writer = PageWriter::take_over(&page, identity(), Some(37));
    assert_eq!(find(&page, "gone"), Err(OpenError::NoSuchEntry));
}

#[test]
fn entries_become_what_is_wanted() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    let want = |index, id, disruptions, time| EntryUpdate {
        index,
        identity: named(id, if id == 7 { "seven" } else { "eight" }, 1),
        required_ns: id,
        disruptions,
        clock: 0,
        update: Ok(update(0, time)),
    };
    writer.write_entries(&[want(1, 7, 0, 1_000_000), want(2, 8, 0, 0)], &tsc(0));
    let read = |index| Reader::open(&page, tsc(10), index).unwrap().read().unwrap();
    let first = read(1);
    assert_eq!((find(&page, "seven"), find(&page, "eight")), (Ok(1), Ok(2)));
    // The same again goes on; a new count of disruptions may step back.
    writer.write_entries(&[want(1, 7, 0, 0), want(2, 8, 0, 0)], &tsc(10));
    assert!(read(1).estimate >= first.estimate && read(1).disruption == first.disruption);
    writer.write_entries(&[want(1, 7, 1, 0)], &tsc(10));
    assert!(read(1).estimate < first.estimate && read(1).disruption != first.disruption);
    assert_eq!(find(&page, "eight"), Err(OpenError::NoSuchEntry), "nobody wants it any more");
    let nothing = EntryUpdate { update: Err(ClockStatus::Unknown), ..want(1, 7, 1, 0) };
    writer.write_entries(&[nothing], &tsc(10));
    assert!(!read(1).has_estimate());
    // Beyond the page, and the page's own clock: not here.
    writer.write_entries(&[want(0, 8, 0, 0), want(18, 8, 0, 0)], &tsc(10));
    assert_eq!(find(&page, "tai"), Ok(0));
}

#[test]
fn a_timeline_of_several_hosts_says_which_clock_it_is() {
    let (one, other) = (Page::new(), Page::new());
    let want = |disruptions, clock| EntryUpdate {
        index: 3,
        identity: named(7, "cell", 1),
        required_ns: 0,
        disruptions,
        clock,
        update: Ok(update(0, 1_000_000)),
    };
    let mut writers = [&one, &other].map(|page| PageWriter::take_over(page, identity(), Some(37)));
    let mut write = |disruptions, clock| {
        for writer in &mut writers {
            writer.write_entries(&[want(disruptions, clock)], &tsc(0));
        }
        [&one, &other].map(|page| {
            let reader = Reader::open(page, tsc(10), 3).unwrap();
            let (clock, disruption) = reader.clock().unwrap();
            assert_eq!(disruption, reader.read().unwrap().disruption);
            (clock, disruption)
        })
    };
    let first = write(0, 55);
    assert_eq!([first[0].0, first[1].0], [55, 55]);
    let second = write(1, 56);
    assert_eq!([second[0].0, second[1].0], [56, 56]);
    assert_ne!(first[0].1, second[0].1);
    // Who has the entry next has a clock of its own.
    assert_eq!(write(1, 0).map(|(clock, _)| clock), [0, 0]);
}

#[test]
fn an_entry_never_goes_back_under_racing_readers() {
    let page = Page::new();
    let counter = tsc(1 << 40);
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.open_entry(1, named(7, "raced", 1));
    let target = |now: u64, jitter: i128| update(now, i128::from(now) + jitter);
    writer.publish_entry(1, &target(1 << 40, 0), &counter).unwrap();
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let (page, counter, done, reads) = (&page, &counter, &done, &reads);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let reader = Reader::open(page, counter, 1).unwrap();
            let mut last = Instant::MIN;
            while !done.load(Ordering::Relaxed) {
                let now = reader.read().unwrap();
                assert!(now.estimate >= last && now.earliest <= now.latest, "back, or torn");
                last = now.estimate;
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        for i in 0..20_000i128 {
            let now = counter.0.load(Ordering::Relaxed);
            writer.publish_entry(1, &target(now, (i * 7919) % 800 - 400), counter).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 0);
}
