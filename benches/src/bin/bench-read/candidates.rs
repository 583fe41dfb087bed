//! The clocks that are compared, from the bare counter to ClockBound.

use anyhow::Result;
use timevisor_benches::cpu::has_extended_feature;
use timevisor_clock_page::{Counter, Reader};
use timevisor_linux::counter::{Calibration, Tsc};

use crate::clockbound::Files;
use crate::page::Source;
use crate::timing::{Batch, batch};

/// Names of the rows that limits and ratios refer to.
pub(crate) const LFENCE_RDTSC: &str = "lfence; rdtsc";
pub(crate) const RDTSCP: &str = "rdtscp";
pub(crate) const RDTSC: &str = "rdtsc";
pub(crate) const REALTIME: &str = "clock_gettime(REALTIME)";
pub(crate) const CLOCKBOUND_2: &str = "clock-bound-client 2.0.3 now()";
pub(crate) const CLOCKBOUND_3: &str = "clock-bound 3.0.0-rc.0 now()";
pub(crate) const ORDERED: &str = "timevisor read";

/// One clock, or why it cannot be read here.
pub(crate) struct Candidate<'a> {
    pub(crate) name: &'static str,
    pub(crate) batch: Result<Batch<'a>>,
}

/// All of them, in the table's order.
pub(crate) fn all<'a>(source: &Source, calibration: &Calibration) -> Vec<Candidate<'a>> {
    let tsc = Tsc::unchecked();
    let page = source.page;
    // As every client opens its reader.
    let reader = || Reader::open(page, Tsc::for_reader(), 0).map_err(anyhow::Error::new);
    let files = || Files::create(calibration);
    let row = |name, batch| Candidate { name, batch };
    vec![
        row(RDTSC, Ok(batch(move || tsc.read_unordered()))),
        row(LFENCE_RDTSC, Ok(batch(move || tsc.read_ordered()))),
        row(RDTSCP, rdtscp()),
        row(REALTIME, clock_gettime(libc::CLOCK_REALTIME)),
        row("clock_gettime(MONOTONIC)", clock_gettime(libc::CLOCK_MONOTONIC)),
        row("clock_gettime(MONOTONIC_RAW)", clock_gettime(libc::CLOCK_MONOTONIC_RAW)),
        row("quanta 0.13.0 Instant::now()", Ok(batch(quanta::Instant::now))),
        row(
            CLOCKBOUND_3,
            files().and_then(|files| {
                let mut client = files.client_3()?;
                Ok(batch(move || client.now()))
            }),
        ),
        row(
            CLOCKBOUND_2,
            files().and_then(|files| {
                let mut client = files.client_2()?;
                Ok(batch(move || client.now()))
            }),
        ),
        row(ORDERED, reader().map(|reader| batch(move || reader.read()))),
        row("timevisor read, unordered", reader().map(|r| batch(move || r.read_unordered()))),
        row(
            "timevisor read, to nanoseconds",
            reader().map(|reader| {
                batch(move || {
                    let now = reader.read().ok()?;
                    let bounds = (now.earliest.floor_nanos(), now.latest.ceil_nanos());
                    Some((bounds, now.estimate.floor_nanos(), now.status()))
                })
            }),
        ),
    ]
}

fn rdtscp<'a>() -> Result<Batch<'a>> {
    anyhow::ensure!(has_extended_feature(0x8000_0001, 27), "the processor has no rdtscp");
    Ok(batch(|| {
        let mut processor = 0;
        // SAFETY: CPUID says that the instruction exists; it writes the processor's number to a
        // live local.
        unsafe { core::arch::x86_64::__rdtscp(&raw mut processor) }
    }))
}

fn clock_gettime<'a>(clock: libc::clockid_t) -> Result<Batch<'a>> {
    let read = move || {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a live timespec for the call to fill.
        let result = unsafe { libc::clock_gettime(clock, &raw mut now) };
        (result, now)
    };
    anyhow::ensure!(read().0 == 0, "{}", std::io::Error::last_os_error());
    Ok(batch(read))
}
