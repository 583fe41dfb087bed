//! The shim against the Rust client that it stands for, on hand-driven clocks. What C sees:
//! tests/*.c.

use core::mem::MaybeUninit;
use std::time::Duration;

use timevisor::manual::Clock;
use timevisor::{Reading, Status, TimescaleId};

use crate::conversions::status;
use crate::memory::InOut;
use crate::timeline::{
    timevisor_reading_compare, timevisor_reading_compare_to, timevisor_status_name,
};
use crate::types::{TIMEVISOR_UNKNOWN_NS, timevisor_comparison, timevisor_reading};

fn empty<T: crate::memory::Shared>() -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    let size = u32::try_from(size_of::<T>()).unwrap();
    // SAFETY: Shared: begins with a u32, and every pattern is a value.
    unsafe {
        value.as_mut_ptr().cast::<u32>().write(size);
        value.assume_init()
    }
}

fn in_c(reading: &Reading) -> timevisor_reading {
    let mut c = empty::<timevisor_reading>();
    c.set(reading);
    c
}

fn input<T>(value: &T) -> crate::memory::In<'_, T> {
    // SAFETY: a pointer with the layout of one (repr(transparent)), to a structure.
    unsafe { core::mem::transmute::<*const T, crate::memory::In<'_, T>>(value) }
}

fn comparison(from: timevisor::Comparison) -> core::ffi::c_int {
    match from {
        timevisor::Comparison::Uncertain => timevisor_comparison::Uncertain as _,
        timevisor::Comparison::Before => timevisor_comparison::Before as _,
        timevisor::Comparison::After => timevisor_comparison::After as _,
    }
}

/// Readings with and without order of every kind, in all pairs: timescales, clocks, both sides of a
/// disruption, doubt, nothing known.
#[test]
fn readings_compare_as_in_rust() {
    let mut readings = Vec::new();
    for timescale in [TimescaleId::Tai, TimescaleId::Utc, TimescaleId::Local, TimescaleId::Local] {
        let clock = Clock::on(timescale, 1_000);
        let timeline = clock.timeline();
        for (advance, error) in [(0, 10), (19, 10), (2, 10), (500, 100), (1, 1)] {
            clock.advance(Duration::from_nanos(advance));
            clock.set_error(Duration::from_nanos(error));
            readings.push(timeline.now().unwrap());
        }
        clock.set_status(Status::Unreliable);
        readings.push(timeline.now().unwrap());
        clock.set_status(Status::FreeRunning);
        clock.step(5_000);
        readings.push(timeline.now().unwrap());
        clock.forget();
        readings.push(timeline.now().unwrap());
    }
    let mut seen = [0; 3];
    for one in &readings {
        let c_one = in_c(one);
        for other in &readings {
            let order = comparison(one.compare(other));
            assert_eq!(
                timevisor_reading_compare(input(&c_one), input(&in_c(other))),
                order,
                "{one:?} {other:?}"
            );
            seen[usize::try_from(order).unwrap()] += 1;
        }
        for t_ns in [989, 990, 1_010, 1_011, 1_050, 4_999, i64::MIN, i64::MAX] {
            let order = comparison(one.compare_to(t_ns));
            assert_eq!(timevisor_reading_compare_to(input(&c_one), t_ns), order, "{one:?} {t_ns}");
        }
    }
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
}

#[test]
fn what_is_not_known_is_said_to_be_so() {
    let clock = Clock::new(0);
    clock.forget();
    let c = in_c(&clock.timeline().now().unwrap());
    assert_eq!((c.known, c.status), (0, 0));
    assert_eq!((c.earliest_ns, c.estimate_ns, c.latest_ns), (-i64::MAX, 0, i64::MAX));
    assert_eq!(
        [c.below_ns, c.above_ns, c.estimated_error_ns],
        [TIMEVISOR_UNKNOWN_NS; 3],
        "a limit on these refuses"
    );
}

/// A structure in a row of guard bytes, of which a caller says that it has `size` bytes.
fn filled(reading: &Reading, size: usize) -> [u64; 32] {
    let mut memory = [0x5555_5555_5555_5555u64; 32];
    let at = memory.as_mut_ptr().cast::<timevisor_reading>();
    // SAFETY: aligned, and large enough for every size used here.
    unsafe { at.cast::<u32>().write(u32::try_from(size).unwrap()) };
    // SAFETY: as above.
    let mut out = unsafe { InOut::new(at) };
    out.fill(|c| {
        c.set(reading);
        Ok(())
    })
    .unwrap();
    memory
}

#[test]
fn an_older_program_gets_what_it_has_room_for() {
    let reading = Clock::new(-1).timeline().now().unwrap();
    let filled = |size| filled(&reading, size);
    let whole = filled(size_of::<timevisor_reading>());
    let words = size_of::<timevisor_reading>() / 8;
    for size in (8..=size_of::<timevisor_reading>()).step_by(8) {
        let part = filled(size);
        assert_eq!(part[1..size / 8], whole[1..size / 8]);
        assert!(part[size / 8..].iter().all(|word| *word == 0x5555_5555_5555_5555), "{size}");
        assert_eq!(part[0] & 0xffff_ffff, size as u64, "the caller's size stays");
    }
    let newer = filled(size_of::<timevisor_reading>() + 16);
    assert_eq!(newer[1..words], whole[1..words]);
    assert_eq!(newer[words..words + 3], [0, 0, 0x5555_5555_5555_5555]);
}

#[test]
fn statuses_have_the_words_of_the_rest_of_the_house() {
    use Status::{FreeRunning, Initializing, Synchronized, Unknown, Unreliable};
    for one in [Unknown, Initializing, Synchronized, FreeRunning, Unreliable] {
        // SAFETY: a constant text.
        let name = unsafe { core::ffi::CStr::from_ptr(timevisor_status_name(status(one) as i32)) };
        assert_eq!(name.to_str().unwrap(), one.name());
    }
}

#[test]
fn host_cpu_time_is_handed_on() {
    let mut c = empty::<crate::types::timevisor_host_cpu_time>();
    c.set(&timevisor::HostCpuTime { least_ns: 5, most_ns: u64::MAX, disruption: 7 });
    assert_eq!((c.least_ns, c.most_ns, c.disruption), (5, u64::MAX, 7));
}

/// What the header promises by "any thread".
#[test]
fn handles_are_for_any_thread() {
    fn any<T: Send + Sync>() {}
    any::<crate::client::timevisor_client>();
    any::<crate::client::timevisor_timeline_list>();
    any::<crate::timeline::timevisor_timeline>();
    any::<crate::cancel::timevisor_cancel_token>();
    any::<crate::wait::timevisor_wait_handle>();
    any::<crate::at::timevisor_at_handle>();
    any::<crate::periodic::timevisor_periodic>();
    any::<crate::watch::timevisor_watch>();
    any::<crate::manual::timevisor_manual_clock>();
}
