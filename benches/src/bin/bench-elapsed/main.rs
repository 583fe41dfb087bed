//! The elapsed clock as its readers see it (RVEC, "SIP" and read overhead): strictly increasing
//! while its rate changes and the reader moves between cores, and how much longer a read takes than
//! the counter alone.
//!
//! Method: a writer consolidates the clock every millisecond at another rate within its limits and
//! publishes it; a reader reads 10^8 times and changes to the other core after every 10^4 reads.
//! Then blocks of reads are timed in turns. Limitations: x86-64; two cores of this machine, which
//! share one counter.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration as StdDuration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use timevisor_benches::cpu;
use timevisor_clock_page::{
    ClockStatus, Counter, CounterId, Identity, Line, Lines, Page, PageWriter, Reader, Slew, Update,
};
use timevisor_estimate::elapsed::{Age, Rate};
use timevisor_estimate::{ElapsedClock, RateLimits};
use timevisor_linux::counter::{Calibration, Choice, Tsc, calibrate, select};
use timevisor_results::Results;
use timevisor_time::{Duration, Instant, RateError, TimescaleId};

const READS: u64 = 100_000_000;
const MOVES: u64 = 10_000;
/// What the elapsed clock may take, over an ordered read of the counter.
const LIMIT: f64 = 1.3;

fn main() -> Result<()> {
    let check = std::env::args().any(|argument| argument == "--check");
    let (counter, _) = select(Choice::Tsc)?;
    let calibration = calibrate(&counter)?;
    let page: &'static Page = Box::leak(Box::default());
    let (done, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (violations, ratios) = std::thread::scope(|scope| {
        scope.spawn(|| write(page, &calibration, &done, &changes));
        let measured = read(page, &changes);
        done.store(true, Relaxed);
        measured
    })?;
    let [plain, estimate, whole] = ratios;
    let row = json!({
        "reads": READS, "moves": MOVES, "violations": violations, "counter_ns": plain, "estimate_ns": estimate, "read_ns": whole,
    });
    let results = Results::new("bench-elapsed", vec![row]);
    println!("bench-elapsed: {} ({})", results.machine, results.commit);
    println!(
        "{READS} reads, {MOVES} moves between cores, {} changes of the rate: {violations} not later than the one before",
        changes.load(Relaxed)
    );
    println!(
        "an ordered read of the counter: {plain:.2} ns; the elapsed clock: {estimate:.2} ns, {:.2}x; with bounds and status: {whole:.2} ns, {:.2}x",
        estimate / plain,
        whole / plain
    );
    results.write(&timevisor_results::path(Path::new(""), "bench-elapsed"))?;
    ensure!(violations == 0, "the elapsed clock stood still or went back {violations} times");
    ensure!(!check || estimate / plain <= LIMIT, "{:.2}x is more than {LIMIT}x", estimate / plain);
    Ok(())
}

/// Changes the rate every millisecond, within 50 ppm.
fn write(page: &'static Page, calibration: &Calibration, done: &AtomicBool, changes: &AtomicU64) {
    let identity = Identity {
        counter: CounterId::X86Tsc,
        timescale: TimescaleId::Local,
        host: [0; 16],
        vm: [0; 16],
        timeline: "elapsed",
        epoch: 1,
    };
    let tsc = Tsc::unchecked();
    let limits = RateLimits::around(calibration.period, RateError::from_ppm(50));
    let rate = |turn: u64| {
        let off = [0.0, 40e-6, -40e-6, 10e-6][(turn % 4) as usize];
        Rate::new(calibration.period.scaled(off), limits)
    };
    let Ok(first) = rate(0) else { return };
    let mut clock = ElapsedClock::new(tsc.read_ordered(), Age::ZERO, first);
    let mut writer = PageWriter::take_over(page, identity, None);
    let hour = calibration.period.ticks_in(Duration::from_secs(3600));
    for turn in 1.. {
        if done.load(Relaxed) {
            return;
        }
        let now = tsc.read_ordered();
        if let Ok(rate) = rate(turn) {
            clock.change_rate(now, rate);
        }
        let age = clock.at(now);
        let line =
            |span: Duration, period| Line { time: Instant::from_bits(span.to_bits()), period };
        let target = Lines {
            base: now,
            expiry: now + hour,
            earliest: line(age.earliest, limits.shortest),
            estimate: line(age.estimate, clock.rate().period()),
            latest: line(age.latest, limits.longest),
            holdover: 0,
        };
        let update = Update {
            target,
            status: ClockStatus::Synchronized,
            estimated_error: Duration::ZERO,
            as_of: now,
            tai_offset: None,
            slew: Slew { horizon: hour / 3600, jump: Duration::ZERO },
        };
        writer.publish(&update, &tsc);
        changes.store(turn, Relaxed);
        std::thread::sleep(StdDuration::from_millis(1));
    }
}

/// Readings that were not later than the one before, and ns per read of the counter, the estimate,
/// and everything.
fn read(page: &'static Page, changes: &AtomicU64) -> Result<(u64, [f64; 3])> {
    while changes.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    let reader = Reader::open(page, Tsc::unchecked(), 0)?;
    let cores = cpu::two()?;
    let mut violations = 0;
    let mut last = reader.read_estimate()?.context("nothing is known")?;
    for turn in 0..MOVES {
        cpu::pin(if turn % 2 == 0 { cores.1 } else { cores.0 })?;
        for _ in 0..READS / MOVES {
            let now = reader.read_estimate()?.context("nothing is known")?;
            violations += u64::from(now <= last);
            last = now;
        }
    }
    Ok((violations, timed(&reader)))
}

/// Medians over blocks that take turns, so that a noisy moment hits all of them.
fn timed(reader: &Reader<&'static Page, Tsc>) -> [f64; 3] {
    const BLOCKS: usize = 2_001;
    const BLOCK: u32 = 500;
    let tsc = Tsc::unchecked();
    let time = |read: &dyn Fn()| {
        let begin = std::time::Instant::now();
        read();
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(BLOCK)
    };
    let counter = || (0..BLOCK).for_each(|_| _ = std::hint::black_box(tsc.read_ordered()));
    let estimate = || (0..BLOCK).for_each(|_| _ = std::hint::black_box(reader.read_estimate()));
    let whole = || (0..BLOCK).for_each(|_| _ = std::hint::black_box(reader.read()));
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..BLOCKS {
        times[0].push(time(&counter));
        times[1].push(time(&estimate));
        times[2].push(time(&whole));
    }
    times.map(|mut of| {
        of.sort_by(f64::total_cmp);
        of[BLOCKS / 2]
    })
}
