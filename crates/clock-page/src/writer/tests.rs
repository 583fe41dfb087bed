//! Golden bytes, repair, withdrawal, and a reader that races a writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use timevisor_time::{Instant, Period, RateError, Tai};

use super::*;
use crate::Page;
use crate::lines::Line;
use crate::reader::{OpenError, ReadError, Reader, Vmclock, decode};

/// A counter that ticks by itself, shared between threads; slowly, because waiting readers tick it
/// too.
pub(crate) struct Ticks(pub(crate) AtomicU64, CounterId);

impl Counter for Ticks {
    fn id(&self) -> CounterId {
        self.1
    }
    fn read_ordered(&self) -> u64 {
        self.0.fetch_add(10, Ordering::SeqCst)
    }
}

pub(crate) fn tsc(start: u64) -> Ticks {
    Ticks(AtomicU64::new(start), CounterId::X86Tsc)
}

pub(crate) fn identity() -> Identity {
    let host = core::array::from_fn(|i| 0xa0 + u8::try_from(i).unwrap());
    let vm = core::array::from_fn(|i| 0xb0 + u8::try_from(i).unwrap());
    Identity {
        counter: CounterId::X86Tsc,
        timescale: TimescaleId::Tai,
        host,
        vm,
        timeline: "tai",
        epoch: 0x1122_3344,
    }
}

pub(crate) fn update(base: u64, time_ns: i128) -> Update {
    // A 1 GHz counter, 1500 ns above, 500 ns below, within 15 ppm.
    let period = Period::from_hz(1_000_000_000).unwrap();
    let time = Instant::from_unix_nanos(time_ns);
    let rho = RateError::from_ppm(15);
    Update {
        target: Lines {
            base,
            expiry: base + 64_000_000_000,
            earliest: Line {
                time: time - Duration::from_nanos(500),
                period: period.slowest_time(rho),
            },
            estimate: Line { time, period },
            latest: Line {
                time: time + Duration::from_nanos(1500),
                period: period.fastest_time(rho),
            },
            holdover: 0,
        },
        status: ClockStatus::Synchronized,
        estimated_error: Duration::from_nanos(120),
        as_of: base,
        tai_offset: Some(37),
        slew: Slew { horizon: 8_000_000_000, jump: Duration::from_millis(1) },
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .chunks(16)
        .map(|row| row.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n")
        .collect()
}

#[test]
fn golden_bytes() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.publish(&update(0x10_0000, 1_700_000_000_250_000_000), &tsc(0x10_0000));
    let bytes = page.bytes();
    assert_golden(&hex(&bytes[..0x70]), include_str!("../golden/vmclock_abi.hex"));
    assert_golden(&hex(&bytes[0x100..0x140]), include_str!("../golden/header.hex"));
    assert_golden(&hex(&bytes[0x200..0x2c0]), include_str!("../golden/entry.hex"));
    for unused in [0x70..0x100, 0x140..0x200, 0x2c0..0x1000] {
        assert!(bytes[unused.clone()].iter().all(|b| *b == 0), "{unused:?} must stay zero");
    }
}

/// The files hold hexadecimal rows with comments after `#`.
fn assert_golden(actual: &str, golden: &str) {
    let wanted: String = golden
        .lines()
        .map(|l| l.split('#').next().unwrap().split_whitespace().collect::<String>() + "\n")
        .collect();
    assert_eq!(actual, wanted, "the page ABI changed");
}

#[test]
fn what_is_published_is_what_is_read() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.publish(&update(5000, 1_700_000_000_000_000_000), &tsc(5000));
    let reader = Reader::open(&page, tsc(6000), 0).unwrap();
    let now = reader.read().unwrap();
    assert_eq!(
        (now.counter, now.status(), now.timescale()),
        (6000, ClockStatus::Synchronized, TimescaleId::Tai)
    );
    assert_eq!(now.estimate.ceil_nanos(), 1_700_000_000_000_001_000);
    assert_eq!(now.earliest.ceil_nanos(), 1_700_000_000_000_000_500);
    assert_eq!(now.latest.floor_nanos(), 1_700_000_000_000_002_500);
    assert_eq!(now.tai_offset(), Some(37));
    assert_eq!(now.estimated_error().ceil_nanos(), 120);
    assert!(
        now.interval::<timevisor_time::Tai>().is_some()
            && now.interval::<timevisor_time::Utc>().is_none()
    );
}

#[test]
fn the_vmclock_block_encloses_the_asymmetric_bounds() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    let lines = writer.publish(&update(5000, 1_700_000_000_000_000_000), &tsc(5000));
    let abi = Vmclock::read(&page).unwrap().unwrap();
    assert_eq!(
        (abi.maxerror_ns, u32::from(abi.shift)),
        (1503, Period::SHIFT),
        "the larger side, rounded up, and what the driver rounds down"
    );
    for later in [0u64, 1_000_000_000, 100_000_000_000] {
        // The kernel's arithmetic (drivers/ptp/ptp_vmclock.c) and the widest error it may then
        // state.
        let span = Duration::from_bits((i128::from(later) * i128::from(abi.period)) >> abi.shift);
        let grown = Duration::from_bits(
            ((i128::from(later) * i128::from(abi.period_maxerror)) >> abi.shift) + 1,
        );
        let error = Duration::from_nanos(i64::try_from(abi.maxerror_ns).unwrap()) + grown;
        let at = lines.at(abi.base + later);
        assert!(abi.time + span - error <= at.earliest && abi.time + span + error >= at.latest);
    }
}

#[test]
fn past_the_expiry_the_status_is_free_running() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.publish(&update(0, 0), &tsc(0));
    let reader = Reader::open(&page, tsc(0), 0).unwrap();
    assert_eq!(reader.convert(64_000_000_000).unwrap().status(), ClockStatus::Synchronized);
    assert_eq!(reader.convert(64_000_000_001).unwrap().status(), ClockStatus::FreeRunning);
}

#[test]
fn before_the_first_publication_nothing_is_claimed() {
    let page = Page::new();
    let _writer = PageWriter::take_over(&page, identity(), Some(37));
    let now = Reader::open(&page, tsc(6000), 0).unwrap().read().unwrap();
    assert!(!now.has_estimate());
    assert_eq!((now.status(), now.half_width()), (ClockStatus::Initializing, Duration::MAX));
    assert_eq!((now.earliest, now.latest), (Instant::MIN, Instant::MAX));
    let abi = Vmclock::read(&page).unwrap().unwrap();
    assert_eq!(abi.status, ClockStatus::Unreliable, "a stock driver must refuse, not return 1970");
    assert_eq!(
        abi.flags & vmclock::FLAG_TAI_OFFSET_VALID,
        1,
        "a TAI page without it is refused at probe"
    );
}

/// A counter that is only read where readers of the page wait.
struct InSection<'a>(Ticks, &'a Page);

impl Counter for InSection<'_> {
    fn id(&self) -> CounterId {
        self.0.id()
    }
    fn read_ordered(&self) -> u64 {
        assert_eq!(self.1.entry(0)[entry::SEQUENCE].load(Relaxed) % 2, 1);
        self.0.read_ordered()
    }
}

/// The next daemon knows the time from its journal: no reader may find the page without it.
#[test]
fn a_page_that_is_taken_over_with_the_time_is_never_without_it() {
    let page = Page::new();
    let mut first = PageWriter::take_over(&page, identity(), Some(37));
    first.publish(&update(0, 0), &tsc(0));
    let marker = first.disruption();
    let sequence = page.entry(0)[entry::SEQUENCE].load(Relaxed);
    let reader = Reader::open(&page, tsc(6000), 0).unwrap();
    let counter = InSection(tsc(5000), &page);
    let identity = Identity { epoch: 77, ..identity() };
    let next = PageWriter::take_over_with(
        &page,
        identity,
        &update(1000, 0),
        LeapIndicator::None,
        &counter,
    );
    assert!(counter.0.0.load(Ordering::Relaxed) > 5000, "the counter was read");
    assert_eq!(next.status(), ClockStatus::Synchronized);
    assert!(reader.read().unwrap().has_estimate());
    assert_ne!(next.disruption(), marker, "another daemon's lines need not continue");
    // The sequence moved once beyond the jump, from even to even.
    let moved = page.entry(0)[entry::SEQUENCE].load(Relaxed).wrapping_sub(sequence);
    assert_eq!(moved, (scramble(77) << 1).wrapping_add(2));
}

#[test]
fn a_writer_that_died_inside_an_update_is_repaired() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.publish(&update(0, 0), &tsc(0));
    let marker = writer.disruption();
    // The death: both sequences odd, data half written.
    write_begin(page.head(vmclock::AT_SEQUENCE));
    write_begin(&page.entry(0)[entry::SEQUENCE]);
    page.entry(0)[entry::ESTIMATE].store(42, Relaxed);
    let reader = Reader::open(&page, tsc(0), 0).unwrap();
    assert_eq!(reader.read(), Err(ReadError::WriterStalled));
    let mut next = PageWriter::take_over(&page, identity(), Some(37));
    assert_eq!(reader.read().unwrap().status(), ClockStatus::Initializing);
    next.publish(&update(0, 0), &tsc(0));
    let now = reader.read().unwrap();
    assert!(now.has_estimate() && now.disruption != marker);
}

/// Counts on by so much with every look at it, and has a writer on its processor.
struct Shared<'a>(Ticks, u64, &'a dyn Fn());

impl Counter for Shared<'_> {
    fn id(&self) -> CounterId {
        self.0.id()
    }
    fn read_ordered(&self) -> u64 {
        self.0.0.fetch_add(self.1, Ordering::Relaxed)
    }
    fn let_others_run(&self) {
        self.2();
    }
}

/// A reader with a real-time priority that has interrupted the writer would wait for itself.
#[test]
fn a_reader_lets_the_writer_that_it_interrupted_go_on() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    writer.publish(&update(0, 0), &tsc(0));
    let own = &page.entry(0)[entry::SEQUENCE];
    // Looks 1 us apart, and 1 s apart: a machine that was stopped. Then the first chance of the writer counts.
    for (apart, needed) in [(1_000, 3), (1_000_000_000, 1)] {
        let odd = write_begin(own);
        let naps = core::cell::Cell::new(0);
        let go_on = || {
            naps.set(naps.get() + 1);
            if naps.get() == needed {
                write_end(own, odd);
            }
        };
        let reader = Reader::open(&page, Shared(tsc(0), apart, &go_on), 0).unwrap();
        assert!(reader.read().is_ok());
        assert_eq!(naps.get(), needed);
    }
}

/// Bounds that exclude the estimate, or each other, bound nothing.
#[test]
fn an_entry_that_is_out_of_order_is_refused() {
    for damaged in [entry::EARLIEST, entry::ESTIMATE, entry::LATEST] {
        // One to one side, one to the other.
        for by in [1, u64::MAX] {
            let page = Page::new();
            let mut writer = PageWriter::take_over(&page, identity(), Some(37));
            writer.publish(&update(0, 0), &tsc(0));
            let reader = Reader::open(&page, tsc(0), 0).unwrap();
            assert!(reader.read().is_ok());
            page.entry(0)[damaged].fetch_add(by, Relaxed);
            let outward = (damaged == entry::EARLIEST && by == u64::MAX)
                || (damaged == entry::LATEST && by == 1);
            let refused = Err(ReadError::OutOfOrder);
            assert_eq!(reader.read().map(drop) == refused, !outward, "{damaged} {by}");
            assert_eq!(reader.read_estimate().map(drop) == refused, !outward, "{damaged} {by}");
            assert_eq!(reader.lines().map(drop) == refused, !outward, "{damaged} {by}");
        }
    }
}

/// Where the lines are one, as on the host that a timeline has its time from, their rounding may
/// cross them. Readings are in order for all that, and wide enough for all three.
#[test]
fn what_rounding_has_crossed_is_put_in_order() {
    for (part, by) in [(entry::EARLIEST, 40), (entry::ESTIMATE, 40), (entry::LATEST, 40)] {
        let page = Page::new();
        let mut writer = PageWriter::take_over(&page, identity(), Some(37));
        writer.publish(&update(0, 0), &tsc(0));
        let own = page.entry(0);
        let fraction = 1 << 63;
        for at in [entry::EARLIEST, entry::ESTIMATE, entry::LATEST] {
            own[at].store(own[entry::ESTIMATE].load(Relaxed), Relaxed);
            own[at + 1].store(if at == part { fraction + by } else { fraction }, Relaxed);
        }
        let reader = Reader::open(&page, tsc(0), 0).unwrap();
        let reading = reader.convert(own[entry::BASE].load(Relaxed)).unwrap();
        let fraction = |instant: Instant<_>| instant.to_words().1;
        assert!(reading.earliest <= reading.estimate && reading.estimate <= reading.latest);
        assert!(reading.interval::<Tai>().is_some(), "{part}");
        let ends = (fraction(reading.earliest), fraction(reading.latest));
        assert_eq!(ends, (1 << 63, (1 << 63) + by), "{part}");
    }
}

/// Runs on by 10 ms with every look at it.
struct Fast(Ticks);

impl Counter for Fast {
    fn id(&self) -> CounterId {
        self.0.id()
    }
    fn read_ordered(&self) -> u64 {
        self.0.0.fetch_add(10_000_000, Ordering::SeqCst)
    }
}

/// Found by fuzzing: in periods of 2^-84 s, 200 ms are 2^64 ticks, and the wait had no end.
#[test]
fn a_damaged_period_does_not_make_readers_wait_for_ever() {
    let page = Page::new();
    let _writer = PageWriter::take_over(&page, identity(), Some(37));
    write_begin(&page.entry(0)[entry::SEQUENCE]);
    page.entry(0)[entry::ESTIMATE + 2].store(1, Relaxed);
    let counter = Fast(tsc(0));
    let reader = Reader::open(&page, &counter, 0).unwrap();
    assert_eq!(reader.read(), Err(ReadError::WriterStalled));
    assert!(counter.read_ordered() < 1 << 32, "no counter runs at 20 GHz");
}

#[test]
fn recovering_after_a_restart_never_goes_back_and_is_no_disruption() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    let before = writer.publish(&update(0, 5_000_000_000), &tsc(0));
    let marker = writer.disruption();
    write_begin(page.head(vmclock::AT_SEQUENCE));
    write_begin(&page.entry(0)[entry::SEQUENCE]);
    let recovered = Update { target: before, status: ClockStatus::FreeRunning, ..update(0, 0) };
    let mut next = PageWriter::recover(&page, identity(), &recovered, &tsc(500_000));
    let reader = Reader::open(&page, tsc(600_000), 0).unwrap();
    assert_eq!(reader.read().unwrap().status(), ClockStatus::FreeRunning);
    // The new daemon's first estimate is 400 ns behind.
    let after = next.publish(&update(0, 4_999_999_600), &tsc(1_000_000));
    assert!(after.at(1_000_000).estimate >= before.at(1_000_000).estimate);
    assert_eq!(reader.read().unwrap().disruption, marker);
}

#[test]
fn pages_that_are_not_ours_are_refused() {
    let page = Page::new();
    let open = |page: &Page, id| {
        Reader::open(page, Ticks(AtomicU64::new(0), id), 0).map(|_| ()).unwrap_err()
    };
    assert_eq!(open(&page, CounterId::X86Tsc), OpenError::NotAPage);
    page.head(vmclock::AT_MAGIC).store(vmclock::MAGIC, Relaxed);
    assert_eq!(open(&page, CounterId::X86Tsc), OpenError::NotTimevisor);
    let _writer = PageWriter::take_over(&page, identity(), None);
    let wrong = OpenError::Counter { page: CounterId::X86Tsc, reader: CounterId::ArmVcnt };
    assert_eq!(open(&page, CounterId::ArmVcnt), wrong);
    assert_eq!(Reader::open(&page, tsc(0), 1).map(|_| ()).unwrap_err(), OpenError::NoSuchEntry);
    page.word(header::AT_VERSION).store(2 | (192 << 32) | (18 << 48), Relaxed);
    assert_eq!(open(&page, CounterId::X86Tsc), OpenError::Version(2));
}

#[test]
fn readers_that_race_the_writer_see_one_publication_and_never_go_back() {
    let page = Page::new();
    let counter = tsc(1 << 40);
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    // Estimates jitter by 400 ns around a steady clock; every publication has consistent words.
    let target = |now: u64, jitter: i128| update(now, i128::from(now) + jitter);
    writer.publish(&target(1 << 40, 0), &counter);
    let done = AtomicBool::new(false);
    let (page, counter, done) = (&page, &counter, &done);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    let reader = Reader::open(page, counter, 0).unwrap();
                    let (mut last, mut reads) = (Instant::MIN, 0u64);
                    while !done.load(Ordering::Relaxed) {
                        let now = reader.read().unwrap();
                        assert!(now.estimate >= last, "went back");
                        assert!(now.earliest <= now.estimate && now.estimate <= now.latest, "torn");
                        last = now.estimate;
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        for i in 0..20_000i128 {
            let now = counter.0.load(Ordering::Relaxed);
            writer.publish(&target(now, (i * 7919) % 800 - 400), counter);
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
}

/// Two hosts' pages, written the same number of times; a guest moves between them.
#[test]
fn no_two_hosts_pages_can_be_taken_for_one() {
    let open = |epoch: u64| {
        let page = Box::leak(Box::new(Page::new()));
        let mut writer = PageWriter::take_over(&*page, Identity { epoch, ..identity() }, Some(37));
        writer.publish(&update(5000, 1_700_000_000_000_000_000), &tsc(5000));
        (&*page, writer)
    };
    let words = |page: &Page| {
        let at = |at: usize| u64::from_le_bytes(page.bytes()[at..at + 8].try_into().unwrap());
        let abi = u32::from_le_bytes(page.bytes()[0xc..0x10].try_into().unwrap());
        (abi, at(0x10), at(0x200), at(0x200 + 15 * 8))
    };
    let different = |a: (u32, u64, u64, u64), b: (u32, u64, u64, u64)| {
        assert!(a.0 != b.0 && a.1 != b.1 && a.2 != b.2 && a.3 != b.3, "{a:x?} {b:x?}");
        assert!(a.0 % 2 == 0 && a.2 % 2 == 0, "a sequence is left odd: {a:x?}");
    };
    let (source, _writer) = open(1_795_000_000_000_000_000);
    let (destination, mut writer) = open(1_795_000_000_000_000_001);
    let seen = words(source);
    different(words(destination), seen);

    // The page does not travel (nvdimm): the destination's own one starts over.
    let before = words(destination);
    writer.arrive(*writer.identity(), Some(37));
    different(words(destination), seen);
    different(words(destination), before);

    // It does (QEMU's device), torn in the middle of an update, and QEMU moves the marker on:
    // whatever is there is replaced.
    for at in (0..0x10).step_by(4) {
        destination.head(at).store(source.head(at).load(Relaxed), Relaxed);
    }
    for at in (0x10..0x1000).step_by(8) {
        destination.word(at).store(source.word(at).load(Relaxed), Relaxed);
    }
    let abi: &AtomicU32 = destination.head(vmclock::AT_SEQUENCE);
    abi.fetch_or(1, Relaxed);
    destination.word(vmclock::AT_DISRUPTION).fetch_add(1, Relaxed);
    // QEMU leaves its own sequence even.
    abi.fetch_and(!1, Relaxed);
    let sequence = &destination.entry(0)[entry::SEQUENCE];
    sequence.store(sequence.load(Relaxed) & !1, Relaxed);
    // Nobody has written it yet, and maybe nobody will.
    let stranger = Reader::open(destination, tsc(6000), 0).unwrap();
    let loaded = stranger.read().unwrap();
    assert_eq!(stranger.read_estimate(), Ok(None));
    assert!(!loaded.has_estimate() && loaded.status() == ClockStatus::Unknown);
    assert_eq!((loaded.half_width(), loaded.tai_offset()), (Duration::MAX, Some(37)));
    assert_ne!(loaded.disruption, words(source).1);
    let (lines, kept) = decode(&stranger.words().unwrap()).unwrap();
    assert_eq!((lines, kept.has_estimate()), (Lines::NOTHING, false));
    assert_eq!((kept.disruption, kept.tai_offset()), (loaded.disruption, Some(37)));
    assert_eq!(writer.found_timescale(), Some(TimescaleId::Tai));
    let here = Identity { host: [7; 16], ..*writer.identity() };
    writer.arrive(here, Some(37));
    different(words(destination), seen);
    let reader = Reader::open(destination, tsc(6000), 0).unwrap();
    let unknown = reader.read().unwrap();
    assert!(!unknown.has_estimate() && unknown.status() == ClockStatus::Initializing);
    writer.publish(&update(7000, 1_700_000_000_000_000_000), &tsc(7000));
    assert_eq!(reader.read().unwrap().status(), ClockStatus::Synchronized);
    let (lines, kept) = decode(&reader.words().unwrap()).unwrap();
    assert_eq!((lines, kept), (reader.lines().unwrap(), reader.convert(lines.base).unwrap()));
    let alone = |reader: &Reader<_, _>| reader.read_estimate().unwrap().unwrap();
    let (before, between) = (reader.read().unwrap().estimate, alone(&reader));
    assert!(before < between && between < reader.read().unwrap().estimate);
    assert_eq!(destination.bytes()[0x110..0x120], [7; 16]);
}

/// What a VM monitor does when it loads a snapshot: copies the page's bytes as they once were.
pub(crate) fn restore(page: &Page, bytes: &[u8]) {
    for (at, four) in (0..16).step_by(4).zip(bytes.chunks_exact(4)) {
        page.head(at).store(u32::from_le_bytes(four.try_into().unwrap()), Relaxed);
    }
    for (at, eight) in (16..).step_by(8).zip(bytes[16..].chunks_exact(8)) {
        page.word(at).store(u64::from_le_bytes(eight.try_into().unwrap()), Relaxed);
    }
}

#[test]
fn an_older_state_of_the_page_is_noticed_and_started_over() {
    let page = Page::new();
    let counter = tsc(0);
    let mut writer = PageWriter::take_over(&page, identity(), Some(37));
    assert!(writer.is_intact());
    writer.open_entry(3, EntryIdentity::new(9, "line", TimescaleId::Tai, 1));
    writer.publish(&update(0, 1_000_000_000), &counter);
    writer.publish_entry(3, &update(0, 1_000_000_000), &counter);
    assert!(writer.is_intact());
    let old = page.bytes();
    let sequence = page.entry(0)[entry::SEQUENCE].load(Relaxed);
    let mut markers = vec![writer.disruption()];
    // One entry alone is enough.
    writer.publish_entry(3, &update(0, 2_000_000_000), &counter);
    assert!(writer.is_intact());
    restore(&page, &old);
    assert!(!writer.is_intact());
    for epoch in 1..=3 {
        writer.withdraw(ClockStatus::Unknown, Some(37));
        writer.publish(&update(0, 2_000_000_000), &counter);
        assert!(!markers.contains(&writer.disruption()));
        markers.push(writer.disruption());
        restore(&page, &old);
        assert!(!writer.is_intact());
        writer.arrive(Identity { epoch, ..identity() }, Some(37));
        assert!(writer.is_intact());
        let reader = Reader::open(&page, &counter, 0).unwrap();
        let reading = reader.read().unwrap();
        assert!(!reading.has_estimate() && reading.status() == ClockStatus::Initializing);
        assert!(!markers.contains(&reading.disruption), "{markers:?}");
        markers.push(reading.disruption);
        assert_ne!(page.entry(0)[entry::SEQUENCE].load(Relaxed), sequence);
        assert_eq!(reader.epoch(), epoch);
        // The other timelines are nobody's until they are given away again.
        assert_eq!(page.entry(3)[entry::ID].load(Relaxed), 0);
    }
}

#[test]
fn whatever_the_writer_does_itself_leaves_the_page_intact() {
    let page = Page::new();
    let counter = tsc(0);
    let mut writer = PageWriter::take_over(&page, identity(), None);
    let line = |id| EntryIdentity::new(id, "line", TimescaleId::Tai, 1);
    let wanted = |index, id| EntryUpdate {
        index,
        identity: line(id),
        required_ns: 5,
        disruptions: 0,
        clock: 0,
        update: Ok(update(0, 7)),
    };
    type Step<'a> = &'a dyn Fn(&mut PageWriter<&Page>);
    let steps: [Step<'_>; 9] = [
        &|w| w.write_entries(&[wanted(1, 4), wanted(17, 5)], &counter),
        &|w| _ = w.publish(&update(0, 5), &counter),
        &|w| w.disrupt(),
        &|w| w.withdraw_entry(1, ClockStatus::Unknown),
        &|w| w.write_entries(&[wanted(17, 6)], &counter),
        &|w| w.close_entry(17),
        &|w| w.withdraw(ClockStatus::Unknown, None),
        &|w| w.start_over(identity(), Some(37)),
        &|w| w.require(0, 9),
    ];
    for (number, step) in steps.iter().enumerate() {
        step(&mut writer);
        assert!(writer.is_intact(), "step {number}");
    }
    let next = PageWriter::take_over(&page, identity(), None);
    assert!(next.is_intact() && !writer.is_intact(), "another writer's page is not ours");
}
