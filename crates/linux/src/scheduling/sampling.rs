//! What a core does to threads that precede everything on it: how late they wake up, when they do not run
//! although they want to, and by how much they exceed a budget.
//!
//! What it does not do: judge. Each function runs a thread of its own, whose policy ends with it.

use std::io;
use std::thread;
use std::time::Duration;

use crate::affinity::pin;
use crate::clock::{monotonic, thread_cpu_time};

use super::Attributes;

/// The highest priority of SCHED_FIFO.
const PRIORITY: u32 = 99;
/// A shorter time between two readings of the clock is the reading itself, ns.
const SHORTEST: i64 = 1_000;
/// It wants to run for so long, and sleeps for so long: the kernel takes 5 % from real-time threads, and
/// others on the core need some time, too.
const RUNS: Duration = Duration::from_millis(60);
const SLEEPS: Duration = Duration::from_millis(40);

/// How late each wake-up was of a thread that sleeps until every multiple of `every`, ns (cyclictest's
/// measurement).
///
/// # Errors
/// When the thread may not be pinned to the core, or not be real-time.
pub fn wake_ups(core: usize, every: Duration, span: Duration) -> io::Result<Vec<u64>> {
    apart(move || {
        pin(core)?;
        Attributes::fifo(PRIORITY).set(0)?;
        let (every, end) = (nanos(every).max(1), now() + nanos(span));
        let mut late = Vec::new();
        let mut next = now() + every;
        while next < end {
            sleep_until(next)?;
            let woken = now();
            late.push(u64::try_from(woken - next).unwrap_or(0));
            // What was slept through was not asked for.
            next += every * ((woken - next) / every + 1);
        }
        Ok(late)
    })
}

/// When a thread that wants to run did not, of CLOCK_MONOTONIC, and for how long; ns, in order.
///
/// # Errors
/// As [`wake_ups`].
pub fn gaps(core: usize, span: Duration) -> io::Result<Vec<(u64, u64)>> {
    apart(move || {
        pin(core)?;
        Attributes::fifo(PRIORITY).set(0)?;
        let end = now() + nanos(span);
        let mut gaps = Vec::new();
        while now() < end {
            let stop = now() + nanos(RUNS);
            let mut last = now();
            while last < stop {
                let next = now();
                if next - last > SHORTEST {
                    gaps.push((last.unsigned_abs(), (next - last).unsigned_abs()));
                }
                last = next;
            }
            thread::sleep(SLEEPS);
        }
        Ok(gaps)
    })
}

/// By how much a thread that computes without pause had exceeded its budget at the end of each of `count`
/// budgets, ns. The kernel takes an overrun from the next budget, so what is measured is the sum of all; its
/// least value counts as none. Choose a budget and a period that are no multiples of a tick.
///
/// # Errors
/// When the kernel gives it no budget.
pub fn overruns(budget: Duration, period: Duration, count: usize) -> io::Result<Vec<u64>> {
    apart(move || {
        let (budget, period) = (nanos(budget), nanos(period));
        Attributes::deadline(budget.unsigned_abs(), period.unsigned_abs(), period.unsigned_abs())
            .set(0)?;
        let mut over = Vec::new();
        let mut last = now();
        let mut began = thread_cpu_time().floor_nanos();
        let mut ran = began;
        while over.len() <= count {
            let next = now();
            // It waits for its next budget for the rest of the period, less the overrun.
            if next - last > (period - budget) / 4 {
                let before = over.last().copied().unwrap_or(0);
                // The first is from the middle of a period.
                let more = if over.is_empty() { 0 } else { ran - began - budget };
                over.push(before + more);
                began = ran;
            }
            (last, ran) = (next, thread_cpu_time().floor_nanos());
        }
        let least = over.iter().min().copied().unwrap_or(0);
        Ok(over.into_iter().map(|sum| (sum - least).unsigned_abs()).collect())
    })
}

fn apart<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let thread = thread::Builder::new().name("measure".to_owned()).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that measures panicked")))
}

fn nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX / 4)
}

fn now() -> i64 {
    monotonic().floor_nanos()
}

fn sleep_until(at: i64) -> io::Result<()> {
    let at = libc::timespec { tv_sec: at / 1_000_000_000, tv_nsec: at % 1_000_000_000 };
    loop {
        // SAFETY: `at` is a valid time, and no remaining time is asked for.
        let failed = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &raw const at,
                core::ptr::null_mut(),
            )
        };
        match failed {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a thread may be real-time.
    #[test]
    fn a_thread_is_watched() {
        let (core, span) = (crate::affinity::online().unwrap()[0], Duration::from_millis(200));
        let Ok(late) = wake_ups(core, Duration::from_millis(1), span) else { return };
        assert!((1..=200).contains(&late.len()), "{}", late.len());
        let gaps = gaps(core, span).unwrap();
        assert!(gaps.is_sorted() && gaps.iter().all(|(_, length)| *length > 1000));
    }
}
