use std::collections::BTreeMap;
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use crate::verify::{Verified, Verifier};

/// Files in memory.
#[derive(Clone, Default)]
struct Disk(BTreeMap<u64, Vec<u8>>);

impl Disk {
    fn list(&self) -> Vec<Found> {
        let found = |(number, bytes): (&u64, &Vec<u8>)| Found {
            number: *number,
            modified_ns: 0,
            length: bytes.len() as u64,
        };
        self.0.iter().map(found).collect()
    }

    /// Writes at most this many bytes of an append.
    fn carry_out(&mut self, action: Action, most: usize) -> Result<(), String> {
        match action {
            Action::Append { file, bytes } => {
                let most = most.min(bytes.len());
                self.0.get_mut(&file).unwrap().extend_from_slice(&bytes[..most]);
                if most < bytes.len() { Err("no space".to_owned()) } else { Ok(()) }
            }
            Action::Create { file, bytes } => {
                let most = most.min(bytes.len());
                assert!(self.0.insert(file, bytes[..most].to_vec()).is_none());
                if most < bytes.len() { Err("no space".to_owned()) } else { Ok(()) }
            }
            Action::Remove { file } => self.0.remove(&file).map(drop).ok_or("none".to_owned()),
        }
    }

    fn open(&self, settings: Settings) -> Journal {
        let mut journal = Journal::new(settings);
        self.show(&mut journal);
        journal
    }

    fn show(&self, journal: &mut Journal) {
        journal
            .find(self.list(), |file| Ok::<_, Infallible>(self.0[&file.number].clone()))
            .unwrap();
    }

    fn verify(&self) -> Result<(Verified, Vec<Event>), String> {
        let (mut verifier, mut events) = (Verifier::default(), Vec::new());
        for (number, bytes) in &self.0 {
            verifier
                .file(&file_name(*number), bytes, |line| events.push(line.event))
                .map_err(|broken| broken.to_string())?;
        }
        Ok((verifier.end()?, events))
    }
}

const LARGE: Settings = Settings { rotate: 1 << 20, keep: Keep::Files(100) };

fn stamp(second: i64) -> Stamp {
    let ns = 1_800_000_000_000_000_000 + second * 1_000_000_000;
    Stamp { earliest_ns: ns - 1000, latest_ns: ns + 1000, vouched: true }
}

fn event(count: u64) -> Event {
    Event::Contradiction { count }
}

fn write_all(journal: &mut Journal, disk: &mut Disk) {
    while let Some(action) = journal.next_action() {
        let outcome = disk.carry_out(action, usize::MAX);
        journal.done(outcome);
    }
}

fn counts(events: &[Event]) -> Vec<u64> {
    let count = |event: &Event| match event {
        Event::Contradiction { count } => Some(*count),
        _ => None,
    };
    events.iter().filter_map(count).collect()
}

fn torn(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Torn { .. })).count()
}

/// A log of lines 1 to `lines`.
fn disk_with(lines: u64, settings: Settings) -> Disk {
    let mut disk = Disk::default();
    let mut journal = disk.open(settings);
    for n in 1..=lines {
        journal.push(stamp(n.cast_signed()), event(n));
        write_all(&mut journal, &mut disk);
    }
    disk
}

#[test]
fn a_restart_goes_on_with_the_chain() {
    let mut disk = disk_with(3, LARGE);
    let mut journal = disk.open(LARGE);
    journal.push(stamp(9), event(4));
    write_all(&mut journal, &mut disk);
    let (verified, events) = disk.verify().unwrap();
    assert_eq!(counts(&events), [1, 2, 3, 4]);
    assert_eq!((verified.lines, verified.head.seq, verified.named.len()), (5, 5, 0));
    assert_eq!(&verified.head, journal.head());
}

#[test]
fn a_crash_at_every_byte_of_an_append_leaves_a_chain_that_names_the_tear() {
    let whole = disk_with(2, LARGE);
    let mut journal = whole.open(LARGE);
    journal.push(stamp(3), event(3));
    let Some(Action::Append { bytes, .. }) = journal.next_action() else { panic!("no append") };
    for cut in 0..=bytes.len() {
        let mut disk = whole.clone();
        let _ = disk.carry_out(Action::Append { file: 1, bytes: bytes.clone() }, cut);
        let is_torn = cut > 0 && cut < bytes.len() - 1;
        assert_eq!(disk.verify().is_err(), is_torn, "{cut}: a tear is said");
        // The next daemon is killed in the middle of its first append, too.
        let mut second = disk.open(LARGE);
        assert_eq!(second.torn_bytes() > 0, is_torn);
        second.push(stamp(4), event(4));
        let again = second.next_action().unwrap();
        let _ = disk.carry_out(again, cut);
        let mut third = disk.open(LARGE);
        third.push(stamp(5), event(5));
        write_all(&mut third, &mut disk);
        let (verified, events) = disk.verify().unwrap_or_else(|why| panic!("{cut}: {why}"));
        assert_eq!(verified.named.len(), torn(&events));
        assert!(!is_torn || torn(&events) >= 1, "{cut}");
        assert!(counts(&events).ends_with(&[5]), "{cut}");
    }
}

#[test]
fn a_crash_at_every_byte_of_a_rotation_does_as_well() {
    let small = Settings { rotate: 1500, ..LARGE };
    let whole = disk_with(4, small);
    let mut journal = whole.open(small);
    let before = whole.0.len() as u64;
    let mut n = 4;
    let bytes = loop {
        n += 1;
        journal.push(stamp(5), event(n));
        match journal.next_action().unwrap() {
            Action::Create { file, bytes } => {
                assert_eq!(file, before + 1);
                break bytes;
            }
            Action::Append { .. } | Action::Remove { .. } => journal.done(Err("not now".into())),
        }
        whole.show(&mut journal);
    };
    for cut in 0..=bytes.len() {
        let mut disk = whole.clone();
        let _ = disk.carry_out(Action::Create { file: before + 1, bytes: bytes.clone() }, cut);
        let mut next = disk.open(small);
        next.push(stamp(6), event(99));
        write_all(&mut next, &mut disk);
        let (_, events) = disk.verify().unwrap_or_else(|why| panic!("{cut}: {why}"));
        assert!(counts(&events).ends_with(&[99]), "{cut}");
        let is_whole = bytes[..cut].ends_with(b"\n") || bytes[cut..].starts_with(b"\n");
        assert_eq!(torn(&events), usize::from(cut > 0 && !is_whole), "{cut}");
    }
}

#[test]
fn a_full_disk_loses_nothing_that_fits_into_memory_and_names_the_rest() {
    let mut disk = disk_with(1, LARGE);
    let mut journal = disk.open(LARGE);
    let total = MOST_WAITING as u64 + 10;
    for n in 2..=total {
        journal.push(stamp(n.cast_signed()), event(n));
        // Each attempt hashes all that waits: a few are enough here.
        if [2, 3, total].contains(&n) {
            let action = journal.next_action().unwrap();
            let outcome = disk.carry_out(action, if n == 2 { 7 } else { 0 });
            journal.done(outcome);
            disk.show(&mut journal);
        }
    }
    write_all(&mut journal, &mut disk);
    let (verified, events) = disk.verify().unwrap();
    let gap = events.iter().find_map(|event| match event {
        Event::Gap { lost, reason, .. } => Some((*lost, reason.as_str())),
        _ => None,
    });
    assert_eq!(gap, Some((9, "no space")));
    let kept: Vec<u64> = std::iter::once(1).chain(11..=total).collect();
    assert_eq!(counts(&events), kept);
    assert_eq!(verified.named.len(), 2, "{:?}", verified.named);
}

#[test]
fn lines_that_reached_the_disk_although_it_failed_are_not_written_twice() {
    let mut disk = disk_with(1, LARGE);
    let mut journal = disk.open(LARGE);
    journal.push(stamp(2), event(2));
    let action = journal.next_action().unwrap();
    disk.carry_out(action, usize::MAX).unwrap();
    journal.done(Err("fdatasync: Input/output error".into()));
    disk.show(&mut journal);
    journal.push(stamp(3), event(3));
    write_all(&mut journal, &mut disk);
    assert_eq!(counts(&disk.verify().unwrap().1), [1, 2, 3]);
}

#[test]
fn files_are_rotated_and_the_oldest_go() {
    let settings = Settings { rotate: 2000, keep: Keep::Files(3) };
    let disk = disk_with(50, settings);
    assert_eq!(disk.0.len(), 3);
    assert!(disk.0.values().all(|bytes| bytes.len() <= 2000));
    let (verified, events) = disk.verify().unwrap();
    assert!(verified.first.unwrap().0 > 1, "it says that it does not begin with the first");
    assert!(matches!(&events[0], Event::File { previous: Some(_), .. }));
    assert!(counts(&events).ends_with(&[49, 50]));
}

#[test]
fn files_go_by_age_only_where_the_time_is_vouched_for() {
    let settings = Settings { rotate: 700, keep: Keep::Age(20_000_000_000) };
    let mut disk = Disk::default();
    let mut journal = disk.open(settings);
    for n in 1..=40 {
        journal.push(stamp(n), event(n.unsigned_abs()));
        write_all(&mut journal, &mut disk);
    }
    let files = disk.0.len();
    assert!((15..=23).contains(&files), "{files}");
    for n in 0..5 {
        journal.push(Stamp::unvouched(i64::MAX / 2 + n), event(1));
        write_all(&mut journal, &mut disk);
    }
    assert!(disk.0.len() > files, "a clock that is years ahead deletes nothing");
}

#[test]
fn the_line_that_was_changed_is_named() {
    let mut disk = disk_with(5, LARGE);
    let bytes = disk.0.get_mut(&1).unwrap();
    let third = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0 + 50;
    bytes[third] ^= 1;
    assert!(disk.verify().unwrap_err().contains("line 3: its sum"));
}

#[test]
fn a_missing_file_is_found() {
    let mut disk = disk_with(50, Settings { rotate: 2000, ..LARGE });
    assert!(disk.0.len() > 4);
    disk.0.remove(&2);
    let error = disk.verify().unwrap_err();
    assert!(error.contains("audit-000003.jsonl, line 1") && error.contains("missing"), "{error}");
}

proptest! {
    /// Any changed byte in any line is found, in the last line and in torn bytes, too.
    #[test]
    fn a_changed_byte_is_found(at in any::<prop::sample::Index>(), flip in 1_u8..=255, cut in 1_usize..300) {
        let mut disk = disk_with(4, Settings { rotate: 1500, ..LARGE });
        let newest = *disk.0.keys().next_back().unwrap();
        let mut journal = disk.open(LARGE);
        journal.push(stamp(6), event(5));
        let action = journal.next_action().unwrap();
        let _ = disk.carry_out(action, cut);
        let mut journal = disk.open(LARGE);
        journal.push(stamp(7), event(6));
        write_all(&mut journal, &mut disk);
        prop_assert!(disk.verify().is_ok());
        prop_assert_eq!(newest, *disk.0.keys().next_back().unwrap());
        let total: usize = disk.0.values().map(Vec::len).sum();
        let mut at = at.index(total);
        for bytes in disk.0.values_mut() {
            if at < bytes.len() {
                bytes[at] ^= flip;
                break;
            }
            at -= bytes.len();
        }
        prop_assert!(disk.verify().is_err());
    }

    /// Whatever a crash or a stranger leaves behind the lines, it is named, and nothing before it is lost.
    #[test]
    fn any_bytes_behind_the_lines_are_named(rest in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200)) {
        let mut disk = disk_with(2, LARGE);
        disk.0.get_mut(&1).unwrap().extend_from_slice(&rest);
        let mut journal = disk.open(LARGE);
        journal.push(stamp(3), event(3));
        write_all(&mut journal, &mut disk);
        let (verified, events) = match disk.verify() {
            Ok(found) => found,
            Err(why) => return Err(TestCaseError::fail(why)),
        };
        prop_assert_eq!(counts(&events), [1, 2, 3]);
        prop_assert_eq!(verified.named.len(), usize::from(!rest.is_empty()));
    }

    /// Kills, full disks and restarts in any order: the chain verifies after the next record, and no
    /// record that was said to be written is missing.
    #[test]
    fn whatever_happens_the_chain_goes_on(
        story in prop::collection::vec((any::<bool>(), 0_usize..1200), 1..25),
        rotate in 400_u64..4000,
    ) {
        let settings = Settings { rotate, keep: Keep::Files(1000) };
        let mut disk = Disk::default();
        let (mut journal, mut n, mut sure) = (disk.open(settings), 0, Vec::new());
        for (is_killed, most) in story {
            n += 1;
            journal.push(stamp(n), event(n.unsigned_abs()));
            while let Some(action) = journal.next_action() {
                let outcome = disk.carry_out(action, most);
                let failed = outcome.is_err();
                journal.done(outcome);
                if failed {
                    disk.show(&mut journal);
                    break;
                }
            }
            if journal.backlog().0 == 0 {
                sure.push(n.unsigned_abs());
            }
            if is_killed {
                journal = disk.open(settings);
            }
        }
        journal.push(stamp(n + 1), event(0));
        write_all(&mut journal, &mut disk);
        let (verified, events) = match disk.verify() {
            Ok(found) => found,
            Err(why) => return Err(TestCaseError::fail(why)),
        };
        prop_assert_eq!(&verified.head, journal.head());
        let counts = counts(&events);
        for n in sure {
            prop_assert_eq!(counts.iter().filter(|count| **count == n).count(), 1, "{}", n);
        }
    }
}
