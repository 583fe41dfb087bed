//! Arbitrary 4096 bytes in place of a clock page: a reader refuses them or comes to an end with a
//! coherent reading, and a writer that takes them over leaves a page that every reader understands.
#![no_main]

use std::cell::Cell;
use std::ptr::NonNull;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_clock_page::abi::{PAGE_SIZE, entry, header, vmclock};
use timevisor_clock_page::reader::{Vmclock, check, counter_of};
use timevisor_clock_page::{
    ClockStatus, Counter, CounterId, EntryIdentity, Identity, Line, Lines, OpenError, Page,
    PageWriter, Reader, Slew, Update,
};
use timevisor_fuzz::decode;
use timevisor_time::{Duration, Instant, Local, Period, TimescaleId};

fuzz_target!(|data: &[u8]| decode(data, run));

#[repr(align(4096))]
struct Aligned([u8; PAGE_SIZE]);

fn run(u: &mut Unstructured) -> Result<()> {
    let start: u64 = u.arbitrary()?;
    let make_valid: bool = u.arbitrary()?;
    let mut bytes = Aligned([0; PAGE_SIZE]);
    let taken = u.bytes(u.len().min(PAGE_SIZE))?;
    bytes.0[..taken.len()].copy_from_slice(taken);
    if make_valid {
        bytes.0[..4].copy_from_slice(&vmclock::MAGIC.to_le_bytes());
        bytes.0[header::AT_MAGIC..][..8].copy_from_slice(&header::MAGIC.to_le_bytes());
        bytes.0[header::AT_VERSION..][..4].copy_from_slice(&header::VERSION.to_le_bytes());
        let size = u16::try_from(entry::SIZE).expect("192");
        bytes.0[header::AT_VERSION + 4..][..2].copy_from_slice(&size.to_le_bytes());
    }
    let pointer = NonNull::from(&mut bytes.0).cast();
    // SAFETY: aligned, one page long, alive until the end of this function, and accessed only as a
    // page until then.
    let page: &Page = unsafe { Page::from_mapping(pointer) };
    if let Ok(entries) = check(page) {
        assert!(entries <= entry::CAPACITY);
        (0..entries).for_each(|index| read(page, index, start));
        let beyond = Running::new(counter_of(page, 0), start);
        assert!(Reader::open(page, beyond, entries).is_err());
    }
    // An odd sequence is waited for 2^22 turns, which the writer's tests cover.
    if bytes_at(page, vmclock::AT_SEQUENCE)[0] & 1 == 0 {
        let valid = bytes_at(page, 0) == vmclock::MAGIC.to_le_bytes();
        assert_eq!(Vmclock::read(page).is_ok(), valid);
    }
    take_over(page, start);
    Ok(())
}

fn bytes_at(page: &Page, at: usize) -> [u8; 4] {
    let bytes = page.bytes();
    [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]
}

/// A counter that runs on with every look at it, so that waiting for a dead writer ends.
struct Running(CounterId, Cell<u64>);

impl Running {
    fn new(id: CounterId, start: u64) -> Self {
        Self(id, Cell::new(start))
    }
}

impl Counter for Running {
    fn id(&self) -> CounterId {
        self.0
    }

    /// Some 10 ms at 3 GHz.
    fn read_ordered(&self) -> u64 {
        self.1.set(self.1.get().wrapping_add(1 << 25));
        self.1.get()
    }
}

fn read(page: &Page, index: usize, start: u64) {
    let counter = Running::new(counter_of(page, index), start);
    let reader = match Reader::open(page, counter, index) {
        Err(OpenError::NoSuchEntry) if index > 0 => return,
        opened => opened.expect("it was checked"),
    };
    let Ok(reading) = reader.read() else { return };
    assert_eq!(reader.convert(reading.counter), Ok(reading));
    if let Some(interval) = reading.interval::<Local>() {
        assert!(interval.earliest() <= interval.latest());
        assert_eq!(reading.timescale(), TimescaleId::Local);
    }
    if !reading.has_estimate() {
        assert_eq!(reading.half_width(), Duration::MAX);
    }
    assert!(!reading.status().name().is_empty() && !reading.estimated_error().is_negative());
    for vcpu in [0, 11, 12] {
        if let Ok(Some(time)) = reader.host_cpu_time(vcpu) {
            assert!(time.least_ns <= time.most_ns && reading.has_estimate() && vcpu < 12);
        }
    }
    let lines = reader.lines().expect("nobody writes");
    let at = lines.at(reading.counter);
    assert_eq!(
        (at.earliest, at.estimate, at.latest),
        (reading.earliest, reading.estimate, reading.latest)
    );
}

/// Whatever was there before: unknown after the takeover, and true lines after the first
/// publication.
fn take_over(page: &Page, start: u64) {
    let identity = Identity {
        counter: CounterId::X86Tsc,
        timescale: TimescaleId::Tai,
        host: [1; 16],
        vm: [2; 16],
        timeline: "fuzz",
        epoch: start,
    };
    let before = page.bytes();
    let mut writer = PageWriter::take_over(page, identity, Some(37));
    assert_ne!(page.bytes()[vmclock::AT_DISRUPTION..][..8], before[vmclock::AT_DISRUPTION..][..8]);
    let counter = Running::new(CounterId::X86Tsc, start);
    let reader = Reader::open(page, &counter, 0).expect("the writer has just made it");
    let reading = reader.read().expect("the writer is not inside");
    assert!(!reading.has_estimate());
    assert_eq!(reading.status(), ClockStatus::Initializing);
    for index in 1..entry::CAPACITY {
        let opened = Reader::open(page, &counter, index).map(|_| ());
        assert_eq!(opened, Err(OpenError::NoSuchEntry), "somebody else's timeline");
    }
    writer.open_entry(1, EntryIdentity::new(7, "fuzz", TimescaleId::Local, 3));
    let entry = Reader::open(page, &counter, 1).expect("it was just opened");
    assert!(entry.read().is_ok_and(|reading| !reading.has_estimate() && reading.generation() == 3));
    writer.publish_entry(1, &update(counter.read_ordered()), &counter);
    assert!(entry.read().is_ok_and(|reading| reading.status() == ClockStatus::Synchronized));
    let now = counter.read_ordered();
    writer.publish(&update(now), &counter);
    let reading = reader.read().expect("the writer is not inside");
    assert_eq!(reading.status(), ClockStatus::Synchronized);
    assert!(reading.earliest <= reading.estimate && reading.estimate <= reading.latest);
    assert_eq!(Vmclock::read(page).map(|block| block.is_ok()), Ok(true));
}

/// Half a second before now to half a second after it, at 1 GHz; the year 2027.
fn update(now: u64) -> Update {
    let period = Period::from_hz(1_000_000_000).expect("above 1.05 MHz");
    let line = |millis: i64| Line {
        time: Instant::from_words(1_800_000_000, 0) + Duration::from_millis(millis),
        period,
    };
    Update {
        target: Lines {
            base: now,
            expiry: now.wrapping_add(10_000_000_000),
            earliest: line(-500),
            estimate: line(0),
            latest: line(500),
            holdover: 0,
        },
        status: ClockStatus::Synchronized,
        estimated_error: Duration::from_millis(1),
        as_of: now,
        tai_offset: Some(37),
        slew: Slew { horizon: 1_000_000_000, jump: Duration::from_secs(1) },
    }
}
