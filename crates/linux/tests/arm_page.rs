//! A page written and read with the Arm virtual counter, in one process.
//!
//! The lab's test `arm` runs this under emulation, and looks for [`read`] and [`publish`] in the
//! machine code: an emulator on x86 executes memory accesses in program order, so that only the
//! instructions themselves tell of missing fences.
#![cfg(target_arch = "aarch64")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration as StdDuration, Instant as StdInstant};

use timevisor_clock_page::reader::counter_of;
use timevisor_clock_page::{
    ClockStatus, Counter, CounterId, Identity, Line, Lines, Page, PageWriter, ReadError, Reader,
    Reading, Slew, Update,
};
use timevisor_linux::counter::{Cntvct, HostCounter};
use timevisor_time::{Duration, Instant, Period, RateError, TimescaleId};

/// 2023-11-14 22:13:20, the time at the base.
const START_NS: i128 = 1_700_000_000_000_000_000;

const IDENTITY: Identity = Identity {
    counter: CounterId::ArmVcnt,
    timescale: TimescaleId::Tai,
    host: [0xa0; 16],
    vm: [0xb0; 16],
    timeline: "tai",
    epoch: 1,
};

/// A clock that runs at the counter's stated rate, known to 1 us and 50 ppm; `jitter_ns` moves its
/// estimate.
fn update(counter: Cntvct, base: u64, jitter_ns: i64) -> Update {
    let hz = counter.nominal_hz();
    let (period, rho) = (Period::from_hz(hz).unwrap(), RateError::from_ppm(50));
    let time = Instant::from_unix_nanos(START_NS);
    let half = Duration::from_nanos(1_000);
    Update {
        target: Lines {
            base,
            expiry: base + 60 * hz,
            earliest: Line { time: time - half, period: period.slowest_time(rho) },
            estimate: Line { time: time + Duration::from_nanos(jitter_ns), period },
            latest: Line { time: time + half, period: period.fastest_time(rho) },
            holdover: 0,
        },
        status: ClockStatus::Synchronized,
        estimated_error: Duration::from_nanos(100),
        as_of: base,
        tai_offset: Some(37),
        slew: Slew { horizon: hz, jump: Duration::from_millis(1) },
    }
}

/// Not inlined, so that its machine code can be found.
#[inline(never)]
fn read(reader: &Reader<&Page, Cntvct>) -> Result<Reading, ReadError> {
    reader.read()
}

/// Not inlined, so that its machine code can be found.
#[inline(never)]
fn publish(writer: &mut PageWriter<&Page>, update: &Update, counter: Cntvct) {
    writer.publish(update, &counter);
}

/// Reads again when the writer, being preempted within an update, seems to have stalled: that
/// happens where there are more threads than processors, and an emulated reader's patience is
/// short.
fn now(reader: &Reader<&Page, Cntvct>) -> Reading {
    (0..1000).find_map(|_| read(reader).ok()).unwrap()
}

#[test]
fn a_page_of_the_arm_counter_is_read_back() {
    let (page, counter) = (Page::new(), Cntvct::new());
    let base = counter.read_ordered();
    let mut writer = PageWriter::take_over(&page, IDENTITY, Some(37));
    publish(&mut writer, &update(counter, base, 0), counter);

    // The vmclock ABI's number for the counter, and our reader's choice by it.
    assert_eq!(page.bytes()[0x0a], 0);
    assert_eq!(counter_of(&page, 0), CounterId::ArmVcnt);
    let chosen = HostCounter::for_reader(CounterId::ArmVcnt).unwrap();
    assert!(Reader::open(&page, chosen, 0).unwrap().read().unwrap().has_estimate());
    assert!(HostCounter::for_reader(CounterId::X86Tsc).is_none());

    let reader = Reader::open(&page, counter, 0).unwrap();
    let (first, started) = (now(&reader), StdInstant::now());
    thread::sleep(StdDuration::from_millis(200));
    let (last, elapsed) = (now(&reader), started.elapsed());
    assert_eq!(first.status(), ClockStatus::Synchronized);

    // The page turns ticks into time at CNTFRQ's rate, exactly; and the counter itself runs at
    // about that rate.
    let ticks = u128::from(last.counter - first.counter);
    let expected =
        i128::try_from(ticks * 1_000_000_000 / u128::from(counter.nominal_hz())).unwrap();
    let advanced = i128::from((last.estimate - first.estimate).ceil_nanos());
    assert!((advanced - expected).abs() <= 2, "{advanced} ns for {ticks} ticks");
    let real = i128::try_from(elapsed.as_nanos()).unwrap();
    assert!((advanced - real).abs() * 20 < real, "{advanced} ns in {real} ns");
    println!("counter: {} Hz", counter.nominal_hz());
}

#[test]
fn reads_during_publications_never_go_back() {
    let (page, counter) = (&Page::new(), Cntvct::new());
    let base = counter.read_ordered();
    let mut writer = PageWriter::take_over(page, IDENTITY, Some(37));
    publish(&mut writer, &update(counter, base, 0), counter);
    let done = &AtomicBool::new(false);
    let reads: u64 = thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(move || {
                let reader = Reader::open(page, counter, 0).unwrap();
                let (mut last, mut reads) = (now(&reader), 0);
                while !done.load(Ordering::Relaxed) {
                    let now = now(&reader);
                    assert!(now.counter >= last.counter && now.estimate >= last.estimate);
                    assert!(now.earliest <= now.estimate && now.estimate <= now.latest, "torn");
                    (last, reads) = (now, reads + 1);
                }
                reads
            })
        });
        for i in 0..20_000 {
            publish(&mut writer, &update(counter, base, (i * 7919) % 800 - 400), counter);
        }
        done.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().unwrap()).iter().sum()
    });
    assert!(reads > 0);
    println!("race: {reads} reads during 20000 publications");
}
