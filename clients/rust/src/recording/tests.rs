use std::path::PathBuf;
use std::time::Duration as Span;

use super::*;
use crate::manual::Clock;

fn ms(ms: u64) -> Span {
    Span::from_millis(ms)
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("tai.rec")
    }
}

/// A clock that learns something every second, and stamps in between.
fn recorded(folder: &Folder, seconds: usize) -> (Clock, Vec<u64>) {
    let clock = Clock::new(1_000_000_000);
    clock.set_growth_ppb(15_000);
    clock.set_error(Span::from_micros(40));
    clock.step(1_000_000_000);
    let timeline = clock.timeline();
    let mut recorder = timeline.record_to(folder.file()).unwrap();
    let mut stamps = Vec::new();
    for _ in 0..seconds {
        clock.advance(ms(400));
        stamps.push(timeline.stamp());
        clock.advance(ms(600));
        clock.set_error(Span::from_micros(40));
        timeline.observe().unwrap();
        assert!(recorder.observe().unwrap());
    }
    recorder.close().unwrap();
    (clock, stamps)
}

#[test]
fn old_stamps_are_converted_offline_as_they_were_at_the_time() {
    let folder = Folder::new();
    let (clock, stamps) = recorded(&folder, 300);
    let live: Vec<_> =
        stamps.iter().map(|stamp| clock.timeline().convert(*stamp).unwrap()).collect();
    drop(clock);
    let recording = Recording::open(folder.file()).unwrap();
    assert_eq!((recording.name(), recording.timescale()), ("tai", TimescaleId::Tai));
    assert!(!recording.is_torn());
    for (index, stamp) in stamps.iter().enumerate() {
        let then = recording.convert(*stamp).unwrap();
        let true_ns = 1_400_000_000 + i64::try_from(index).unwrap() * 1_000_000_000;
        assert!(then.earliest_ns() <= true_ns && true_ns <= then.latest_ns());
        // 40 us at the publications on both sides, aged by 0.4 s or 0.6 s.
        assert!(then.half_width_ns().unwrap() <= 46_001, "{:?}", then.half_width_ns());
        assert_eq!(
            (then.earliest(), then.latest()),
            (live[index].earliest(), live[index].latest())
        );
    }
    let span = recording.span(stamps[0], stamps[299]).unwrap();
    assert!(span.shortest_ns() <= 299_000_000_000 && 299_000_000_000 <= span.longest_ns());
    let back = recording.span(stamps[1], stamps[0]).unwrap();
    assert!(back.shortest_ns() <= -1_000_000_000 && -1_000_000_000 <= back.longest_ns());
    assert!((29_990..=30_002).contains(&back.width_ns()), "1 s at 15 ppm: {}", back.width_ns());
    let over = recording.convert_between(stamps[0], stamps[1]).unwrap();
    assert!(over.earliest_ns() <= 1_400_000_000 && over.latest_ns() >= 2_400_000_000);
    let order = recording.convert_between(stamps[1], stamps[0]).err();
    assert_eq!(order, Some(ConvertError::WrongOrder));
}

#[test]
fn what_was_not_recorded_is_refused() {
    let folder = Folder::new();
    let (clock, stamps) = recorded(&folder, 3);
    let timeline = clock.timeline();
    let last = timeline.stamp();
    clock.advance(ms(1));
    let unseen = timeline.stamp();
    clock.step(99_000_000_000);
    clock.advance(ms(1));
    // The same file continues with another disruption marker.
    let recorder = timeline.record_to(folder.file()).unwrap();
    let after = timeline.stamp();
    drop(recorder);
    let recording = Recording::open(folder.file()).unwrap();
    let segments: Vec<_> = recording.segments().collect();
    assert_eq!(segments.len(), 2);
    assert_eq!((segments[0].publications, segments[0].until), (4, last));
    let since = segments[1].since;
    assert_eq!(recording.convert(unseen).err(), Some(ConvertError::Disrupted { since }));
    assert_eq!(recording.span(stamps[0], after).err(), Some(ConvertError::Disrupted { since }));
    assert_eq!(recording.span(after, stamps[0]).err(), Some(ConvertError::Disrupted { since }));
    assert!(recording.convert(after).is_ok() && recording.convert(last).is_ok());
    let first = segments[0].since;
    assert_eq!(recording.convert(first - 1).err(), Some(ConvertError::TooOld { since: first }));
    let until = segments[1].until;
    assert_eq!(recording.convert(until + 1).err(), Some(ConvertError::TooNew { until }));
}

#[test]
fn a_clock_that_forgets_and_a_counter_that_was_reset() {
    let folder = Folder::new();
    let (clock, _) = recorded(&folder, 2);
    let timeline = clock.timeline();
    let mut recorder = timeline.record_to(folder.file()).unwrap();
    clock.forget();
    assert!(recorder.observe().unwrap());
    clock.advance(ms(20_000));
    assert!(!recorder.observe().unwrap(), "once is enough");
    drop(recorder);
    let bytes = std::fs::read(folder.file()).unwrap();
    assert_eq!(Recording::from_bytes(&bytes).unwrap().segments().count(), 1);
    // The same records again, as if the counter had restarted.
    let records = &bytes[HEADER..];
    let twice = [&bytes[..], records].concat();
    let recording = Recording::from_bytes(&twice).unwrap();
    let since = recording.segments().next().unwrap().since;
    assert_eq!(recording.convert(since).err(), Some(ConvertError::Ambiguous { times: 2 }));
}

#[test]
fn damage_is_told_with_its_place_and_a_torn_end_is_left_out() {
    let folder = Folder::new();
    let (clock, _) = recorded(&folder, 5);
    let whole = std::fs::read(folder.file()).unwrap();
    let count = |bytes: &[u8]| {
        let recording = Recording::from_bytes(bytes).unwrap();
        (recording.segments().next().unwrap().publications, recording.is_torn())
    };
    assert_eq!(count(&whole), (6, false));
    // Test every length at which the machine may have stopped.
    for length in HEADER + RECORD..whole.len() {
        let (publications, torn) = count(&whole[..length]);
        assert!(publications >= 1 && torn != (length - HEADER).is_multiple_of(RECORD));
    }
    for at in HEADER..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        let record = (at - HEADER) / RECORD;
        match Recording::from_bytes(&bytes) {
            Ok(recording) => {
                assert!(recording.is_torn() && (record + 1) * RECORD + HEADER == whole.len());
            }
            Err(RecordingError::Damaged { at }) => {
                assert_eq!(at, (HEADER + record * RECORD) as u64);
            }
            Err(other) => panic!("{other}"),
        }
    }
    for at in 0..HEADER {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        match (at, Recording::from_bytes(&bytes)) {
            (0..8, Err(RecordingError::NotARecording))
            | (8..12, Err(RecordingError::Version(_)))
            | (12.., Err(RecordingError::Damaged { at: 0 })) => {}
            (_, other) => panic!("{at}: {other:?}"),
        }
    }
    for length in 0..HEADER {
        assert!(Recording::from_bytes(&whole[..length]).is_err());
    }
    // Recording continues after the last complete record.
    std::fs::write(folder.file(), &whole[..whole.len() - 7]).unwrap();
    drop(clock.timeline().record_to(folder.file()).unwrap());
    assert!(!Recording::open(folder.file()).unwrap().is_torn());
}

/// After a power failure, several records at the end are zeroes or torn.
#[test]
fn bad_records_at_the_end_are_cut_off_and_damage_inside_is_not() {
    let folder = Folder::new();
    let (clock, _) = recorded(&folder, 5);
    let whole = std::fs::read(folder.file()).unwrap();
    let zeroes = [&whole[..], &[0; 3 * RECORD + 17]].concat();
    let mut torn = whole.clone();
    for record in 5..7 {
        torn[HEADER + record * RECORD + 50] ^= 1;
    }
    for (bytes, publications, records) in [(zeroes, 6, 7), (torn, 5, 5)] {
        let recording = Recording::from_bytes(&bytes).unwrap();
        assert!(recording.is_torn());
        assert_eq!(recording.segments().next().unwrap().publications, publications);
        std::fs::write(folder.file(), &bytes).unwrap();
        let recorder = clock.timeline().record_to(folder.file()).unwrap();
        assert_eq!(recorder.length(), (HEADER + (records + 1) * RECORD) as u64);
        drop(recorder);
        assert!(!Recording::open(folder.file()).unwrap().is_torn());
    }
    // Valid records follow these.
    let mut damaged = [&whole[..], &[0; RECORD]].concat();
    damaged[HEADER + 2 * RECORD..HEADER + 4 * RECORD].fill(0);
    let at = (HEADER + 2 * RECORD) as u64;
    let found = Recording::from_bytes(&damaged);
    assert!(matches!(found, Err(RecordingError::Damaged { at: place }) if place == at));
    // Only the header is left.
    let header = [&whole[..HEADER], &[0; 2 * RECORD]].concat();
    std::fs::write(folder.file(), &header).unwrap();
    let recorder = clock.timeline().record_to(folder.file()).unwrap();
    assert_eq!(recorder.length(), (HEADER + RECORD) as u64);
}

/// A sparse file of a terabyte, which a user might supply.
#[test]
fn reading_ends_at_the_first_bad_record() {
    let folder = Folder::new();
    let (clock, _) = recorded(&folder, 5);
    let whole = std::fs::read(folder.file()).unwrap();
    let grow = || std::fs::File::options().write(true).open(folder.file()).unwrap();
    grow().set_len(1 << 40).unwrap();
    let at = whole.len() as u64;
    let found = Recording::open(folder.file());
    assert!(matches!(found, Err(RecordingError::Damaged { at: place }) if place == at));
    let refused = clock.timeline().record_to(folder.file());
    assert!(matches!(refused, Err(RecordingError::Damaged { .. })));
    assert_eq!(folder.file().metadata().unwrap().len(), 1 << 40, "nothing was cut off");
    std::fs::write(folder.file(), "something else").unwrap();
    grow().set_len(1 << 40).unwrap();
    assert!(matches!(Recording::open(folder.file()), Err(RecordingError::NotARecording)));
}

#[test]
fn another_machines_page_is_not_recorded_and_the_end_is_written() {
    let folder = Folder::new();
    let (clock, _) = recorded(&folder, 1);
    let mut recorder = clock.timeline().record_to(folder.file()).unwrap();
    clock.let_counter_run(ms(5_000));
    assert!(!recorder.observe().unwrap());
    let last = clock.timeline().stamp();
    clock.continue_on(&Clock::new(77_000_000_000));
    assert!(matches!(recorder.observe(), Err(RecordingError::OtherClock(_))));
    // What was seen before is written even if the page can no longer be used.
    assert!(matches!(recorder.close(), Err(RecordingError::OtherClock(_))));
    let recording = Recording::open(folder.file()).unwrap();
    assert_eq!(recording.segments().map(|segment| segment.until).collect::<Vec<_>>(), [last]);
}

#[test]
fn records_of_another_counter_or_timescale_are_refused() {
    use timevisor_clock_page::abi::entry;
    let folder = Folder::new();
    let _ = recorded(&folder, 2);
    let whole = std::fs::read(folder.file()).unwrap();
    let at = HEADER + RECORD;
    let record = Record::decode(whole[at..].first_chunk().unwrap()).unwrap();
    for byte in [1, 3] {
        let mut other = record;
        other.words[entry::META] ^= 1 << (8 * byte);
        let bytes = [&whole[..at], &other.encode()].concat();
        let found = Recording::from_bytes(&bytes);
        assert!(matches!(found, Err(RecordingError::Damaged { at: place }) if place == at as u64));
    }
}

/// The recorder was stopped for ten minutes.
#[test]
fn a_stamp_from_a_gap_is_refused() {
    use timevisor_clock_page::abi::entry;
    let folder = Folder::new();
    let (clock, stamps) = recorded(&folder, 2);
    let inside = clock.timeline().stamp() + 300_000_000_000;
    clock.advance(ms(600_000));
    drop(clock.timeline().record_to(folder.file()).unwrap());
    let after = clock.timeline().stamp();
    let mut bytes = std::fs::read(folder.file()).unwrap();
    // A manually driven clock's lines hold for years, a daemon's for seconds.
    for bytes in bytes[HEADER..].as_chunks_mut::<RECORD>().0 {
        let mut record = Record::decode(bytes).unwrap();
        record.words[entry::EXPIRY] = record.words[entry::BASE] + 2_000_000_000;
        *bytes = record.encode();
    }
    let recording = Recording::from_bytes(&bytes).unwrap();
    assert_eq!(recording.segments().count(), 1);
    let found = recording.convert(inside);
    assert!(matches!(found, Err(ConvertError::Unobserved { until, .. }) if until == after));
    let (a, b) = (recording.convert(stamps[0]).unwrap(), recording.convert(after).unwrap());
    let span = recording.span(stamps[0], after).unwrap();
    assert_eq!(span.longest(), b.latest() - a.earliest());
    assert_eq!(span.shortest(), b.earliest() - a.latest());
}

#[test]
fn only_one_recorder_and_only_of_the_same_clock() {
    let folder = Folder::new();
    let (clock, _) = recorded(&folder, 1);
    let first = clock.timeline().record_to(folder.file()).unwrap();
    let second = clock.timeline().record_to(folder.file());
    assert!(matches!(second, Err(RecordingError::Busy(_))));
    drop(first);
    // Every manually driven clock is a separate host.
    let other = Clock::new(0).timeline().record_to(folder.file());
    assert!(matches!(other, Err(RecordingError::OtherClock(_))), "{other:?}");
    std::fs::write(folder.file(), "something else").unwrap();
    let mistake = clock.timeline().record_to(folder.file());
    assert!(matches!(mistake, Err(RecordingError::NotARecording)));
    assert_eq!(std::fs::read(folder.file()).unwrap(), b"something else");
}

#[test]
fn a_publication_that_stays_in_force_is_written_every_ten_seconds() {
    let folder = Folder::new();
    let (clock, _) = recorded(&folder, 1);
    let timeline = clock.timeline();
    let mut recorder = timeline.record_to(folder.file()).unwrap();
    // A daemon that died publishes nothing, but the counter keeps running.
    let mut written = 0;
    for _ in 0..300 {
        clock.let_counter_run(ms(100));
        written += u32::from(recorder.observe().unwrap());
    }
    assert_eq!(written, 3);
    let stamp = timeline.stamp();
    drop(recorder);
    assert!(Recording::open(folder.file()).unwrap().convert(stamp).is_ok());
}

proptest::proptest! {
    /// The file may have been forged. Whatever its records contain, the result is an answer or an
    /// error, never a panic.
    #[test]
    fn no_content_of_records_ends_the_program(
        words in proptest::collection::vec(proptest::array::uniform24(proptest::prelude::any::<u64>()), 1..6),
        near in proptest::prelude::any::<bool>(),
        stamps in proptest::array::uniform2(proptest::prelude::any::<u64>()),
    ) {
        use timevisor_clock_page::abi::entry;
        let clock = Clock::new(0);
        let mut bytes = clock.timeline().subject().unwrap().encode().to_vec();
        let mut base = words[0][entry::BASE];
        for mut words in words {
            // Often from the header's clock, known, with one marker, and in order.
            words[entry::META] = (words[entry::META] & !0xff00_ff00) | 0x8000_0100;
            words[entry::META] |= (u64::from(entry::FLAG_BOUNDS | entry::FLAG_ESTIMATE)) << 48;
            words[entry::DISRUPTION] = 1;
            base = base.wrapping_add(words[entry::BASE] >> 40);
            words[entry::BASE] = base;
            words[entry::EXPIRY] = if near { base.wrapping_add(words[entry::EXPIRY] >> 44) } else { words[entry::EXPIRY] };
            words[entry::ESTIMATE] = words[entry::EARLIEST].wrapping_add(1);
            words[entry::LATEST] = words[entry::EARLIEST].wrapping_add(2);
            let seen = base.wrapping_add(stamps[0] >> 40);
            bytes.extend(Record { seen, words }.encode());
        }
        if let Ok(recording) = Recording::from_bytes(&bytes) {
            let segments: Vec<_> = recording.segments().collect();
            let inside = segments.iter().flat_map(|s| [s.since, s.until, s.since.wrapping_add(s.until.wrapping_sub(s.since) / 2)]);
            for stamp in inside.chain(stamps) {
                let _ = recording.convert(stamp);
                for other in stamps.into_iter().chain(segments.iter().map(|s| s.until)) {
                    let _ = recording.span(stamp, other);
                    let _ = recording.convert_between(stamp, other);
                }
            }
        }
    }
}
