//! ClockBound's reader over a page file that our writer wrote: every field must come out as it went
//! in.

use std::path::{Path, PathBuf};

use clock_bound_vmclock::shm::VMClockClockStatus;
use timevisor_clock_page::abi::vmclock;
use timevisor_clock_page::{
    ClockStatus, Counter, CounterId, Identity, Line, Lines, PageWriter, Slew, Update,
};
use timevisor_linux::page::WritePage;
use timevisor_linux::page_file::{self, PageSize};
use timevisor_time::{Duration, Instant, Local, Period, RateError, TimescaleId};

use super::{Decoded, decode};

const BASE: u64 = 0x10_0000;

/// A counter that stands at the base, so that the writer publishes the target's very values.
struct Stopped;

impl Counter for Stopped {
    fn id(&self) -> CounterId {
        CounterId::X86Tsc
    }
    fn read_ordered(&self) -> u64 {
        BASE
    }
}

fn identity() -> Identity {
    Identity {
        counter: CounterId::X86Tsc,
        timescale: TimescaleId::Tai,
        host: [1; 16],
        vm: [2; 16],
        timeline: "tai",
        epoch: 3,
    }
}

/// 1 GHz, 500 ns below and 1500 ns above the estimate, within 15 ppm, 120 ns estimated error.
fn update() -> Update {
    let period = Period::from_hz(1_000_000_000).unwrap();
    let rate = RateError::from_ppm(15);
    let time = Instant::<Local>::from_unix_nanos(1_700_000_000_250_000_000);
    let line = |time, period| Line { time, period };
    Update {
        target: Lines {
            base: BASE,
            expiry: BASE + 64_000_000_000,
            earliest: line(time - Duration::from_nanos(500), period.slowest_time(rate)),
            estimate: line(time, period),
            latest: line(time + Duration::from_nanos(1500), period.fastest_time(rate)),
            holdover: 0,
        },
        status: ClockStatus::Synchronized,
        estimated_error: Duration::from_nanos(120),
        as_of: BASE,
        tai_offset: Some(37),
        slew: Slew { horizon: 8_000_000_000, jump: Duration::from_millis(1) },
    }
}

/// A page file of the given size with whatever `write` does to it.
fn page(folder: &Path, size: PageSize, write: impl FnOnce(&mut PageWriter<WritePage>)) -> PathBuf {
    let path = folder.join(format!("page-{}", size.bytes()));
    let mapping = page_file::create(&path, size).unwrap();
    let page = WritePage::new(mapping).unwrap();
    write(&mut PageWriter::take_over(page, identity(), Some(37)));
    path
}

fn read(path: &Path) -> Decoded {
    decode(path.to_str().unwrap()).unwrap()
}

#[test]
fn every_field_comes_out_as_it_went_in() {
    let folder = tempfile::tempdir().unwrap();
    // The 2 MiB files are those that QEMU maps as an nvdimm.
    for size in [PageSize::Page, PageSize::Nvdimm] {
        let mut published = None;
        let mut disruption = 0;
        let path = page(folder.path(), size, |writer| {
            published = Some(writer.publish(&update(), &Stopped));
            disruption = writer.disruption();
        });
        let lines = published.unwrap();
        let Decoded { header, body } = read(&path);

        assert_eq!(header.magic.into_inner(), vmclock::MAGIC);
        assert_eq!(header.size.into_inner(), 4096);
        assert_eq!(header.version.into_inner(), 1);
        assert_eq!(header.counter_id.into_inner(), CounterId::X86Tsc as u8);
        assert_eq!(header.time_type.into_inner(), TimescaleId::Tai as u8);
        assert_eq!(header.seq_count.into_inner() % 2, 0, "nobody is inside");

        assert_eq!(body.disruption_marker, disruption);
        assert_eq!(body.clock_status, VMClockClockStatus::Synchronized);
        assert_eq!(body.tai_offset_sec, 37);
        assert_eq!((body.leap_second_smearing_hint, body.leap_indicator), (0, 0));
        let valid = vmclock::FLAG_TAI_OFFSET_VALID
            | vmclock::FLAG_PERIOD_ESTERROR_VALID
            | vmclock::FLAG_PERIOD_MAXERROR_VALID
            | vmclock::FLAG_TIME_ESTERROR_VALID
            | vmclock::FLAG_TIME_MAXERROR_VALID
            | vmclock::FLAG_TIME_MONOTONIC;
        assert_eq!(body.flags, valid);
        assert_eq!(body.counter_value, BASE);
        assert_eq!(u32::from(body.counter_period_shift), Period::SHIFT);
        assert_eq!(body.counter_period_frac_sec, lines.estimate.period.to_bits());
        let rate = RateError::from_ppm(15).of_ceil(lines.estimate.period.to_bits());
        assert_eq!(body.counter_period_maxerror_rate_frac_sec, rate);
        // A rate that may be anywhere within its limits: their half-width over the square root of 3.
        let sigma = body.counter_period_esterror_rate_frac_sec as f64;
        assert!((sigma * 3.0_f64.sqrt() / rate as f64 - 1.0).abs() < 1e-4, "{sigma} {rate}");
        assert_eq!(body.time_sec, 1_700_000_000);
        assert_eq!(body.time_frac_sec, 1 << 62, "a quarter of a second");
        assert_eq!(body.time_esterror_nanosec, 120);
        // The larger side, one more because bounds round outward, and two because a driver that
        // extrapolates them rounds down twice.
        assert_eq!(body.time_maxerror_nanosec, 1503);
    }
}

#[test]
fn a_page_without_time_is_unreliable_and_a_disruption_shows() {
    let folder = tempfile::tempdir().unwrap();
    let (mut first, mut second) = (0, 0);
    let path = page(folder.path(), PageSize::Page, |writer| {
        writer.publish(&update(), &Stopped);
        first = writer.disruption();
        writer.withdraw(ClockStatus::Unreliable, None);
        second = writer.disruption();
    });
    let Decoded { body, .. } = read(&path);
    assert_eq!((body.disruption_marker, second), (second, first + 1));
    assert_eq!((body.clock_status, body.flags), (VMClockClockStatus::Unreliable, 0));
    assert_eq!((body.time_sec, body.time_maxerror_nanosec), (0, 0));
}

#[test]
fn the_line_names_every_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = page(folder.path(), PageSize::Page, |writer| {
        writer.publish(&update(), &Stopped);
    });
    let line = read(&path).to_string();
    assert!(line.starts_with("magic=0x4b4c4356 size=4096 version=1 counter_id=1 "), "{line}");
    assert!(line.contains(" clock_status=Synchronized "), "{line}");
    assert!(line.ends_with(" time_esterror_nanosec=120 time_maxerror_nanosec=1503"), "{line}");
    assert_eq!(line.split(' ').count(), 6 + 15, "{line}");
}

#[test]
fn what_is_no_page_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeroes");
    std::fs::write(&path, [0; 4096]).unwrap();
    let refused = |path: &Path| decode(path.to_str().unwrap()).err().unwrap();
    assert!(refused(&path).contains("SegmentMalformed"));
    assert!(refused(&folder.path().join("none")).contains("SegmentNotInitialized"));
}
