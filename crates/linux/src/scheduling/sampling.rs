//! What a core does to threads that precede everything on it: how late they wake up, when they do not run
//! although they want to, by how much they exceed a budget, and how fast they work.
//!
//! What it does not do: judge. Each function runs a thread of its own, whose policy ends with it.

use std::hint::black_box;
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

/// When a thread that wants to run did not, and for how long, in order; and for how long it wanted to run; ns.
/// When is said in time for which it had wanted to run: it sleeps now and then.
///
/// # Errors
/// As [`wake_ups`].
pub fn gaps(core: usize, span: Duration) -> io::Result<(Vec<(u64, u64)>, u64)> {
    apart(move || {
        pin(core)?;
        Attributes::fifo(PRIORITY).set(0)?;
        let end = now() + nanos(span);
        let (mut gaps, mut watched) = (Vec::new(), 0);
        while now() < end {
            let began = now();
            let mut last = began;
            while last < began + nanos(RUNS) {
                let next = now();
                if next - last > SHORTEST {
                    let at = watched + last - began;
                    gaps.push((at.unsigned_abs(), (next - last).unsigned_abs()));
                }
                last = next;
            }
            watched += last - began;
            thread::sleep(SLEEPS);
        }
        Ok((gaps, watched.unsigned_abs()))
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
        let mut ran_each = Vec::new();
        let mut last = now();
        let mut began = thread_cpu_time().floor_nanos();
        let mut ran = began;
        while ran_each.len() <= count {
            let next = now();
            // It waits for its next budget for the rest of the period, less the overrun. A pause in the middle of
            // a budget is the host's.
            if next - last > (period - budget) / 4 && ran - began > budget / 2 {
                ran_each.push(ran - began);
                began = ran;
            }
            (last, ran) = (next, thread_cpu_time().floor_nanos());
        }
        // The first is from the middle of a period.
        Ok(beyond(&ran_each[1..], budget))
    })
}

/// A loop whose turns are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loop {
    /// A multiplication, an addition, a shift and an exclusive or of 64 bits, each of which needs the result of the
    /// one before.
    Compute,
    /// A load from 16 MiB, more than most cores' own caches, from where the load before says.
    Memory,
}

/// Memory that [`Loop::Memory`] reads: lines of this many words of four bytes, and how many of them.
const LINE: usize = 16;
const LINES: usize = (16 << 20) / (4 * LINE);

impl Loop {
    /// Turns in a block, which takes about a millisecond.
    #[must_use]
    pub const fn turns(self) -> u64 {
        match self {
            Self::Compute => 400_000,
            Self::Memory => 10_000,
        }
    }
}

/// The processor time of each block of [`Loop::turns`] turns, ns. It runs and sleeps by turns, as [`gaps`] does.
///
/// # Errors
/// As [`wake_ups`].
pub fn blocks(core: usize, of: Loop, span: Duration) -> io::Result<Vec<u64>> {
    apart(move || {
        pin(core)?;
        let memory = match of {
            Loop::Compute => Vec::new(),
            Loop::Memory => cycle(),
        };
        Attributes::fifo(PRIORITY).set(0)?;
        let end = now() + nanos(span);
        let (mut all, mut at) = (Vec::new(), 1);
        while now() < end {
            let began = now();
            while now() < began + nanos(RUNS) {
                let before = thread_cpu_time().floor_nanos();
                at = match of {
                    Loop::Compute => compute(at, of.turns()),
                    Loop::Memory => chase(&memory, at, of.turns()),
                };
                let took = thread_cpu_time().floor_nanos() - before;
                all.push(u64::try_from(took).unwrap_or(0));
            }
            thread::sleep(SLEEPS);
        }
        Ok(all)
    })
}

fn compute(mut x: u64, turns: u64) -> u64 {
    for _ in 0..turns {
        // Knuth's MMIX generator, whose result is mixed once more.
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        x ^= x >> 29;
    }
    black_box(x)
}

fn chase(memory: &[u32], at: u64, turns: u64) -> u64 {
    let mut line = usize::try_from(at).unwrap_or(0) % LINES;
    for _ in 0..turns {
        line = memory[line * LINE] as usize;
    }
    black_box(line) as u64
}

/// Memory in which each line's first word names another line, and all lines are one cycle in random order
/// (Sattolo's algorithm), so that no prefetcher guesses the next one.
fn cycle() -> Vec<u32> {
    let mut order: Vec<u32> = (0..).take(LINES).collect();
    let mut x = 1;
    for last in (1..LINES).rev() {
        x = compute(x, 1);
        let other = usize::try_from(x >> 33).unwrap_or(0) % last;
        order.swap(last, other);
    }
    let mut memory = vec![0; LINES * LINE];
    for (line, next) in order.into_iter().enumerate() {
        memory[line * LINE] = next;
    }
    memory
}

/// By how much a budget was exceeded after each of these, from how long each of them was.
fn beyond(ran: &[i64], budget: i64) -> Vec<u64> {
    let sums: Vec<i64> = ran
        .iter()
        .scan(0, |sum, ran| {
            *sum += ran - budget;
            Some(*sum)
        })
        .collect();
    let least = sums.iter().min().copied().unwrap_or(0).min(0);
    sums.into_iter().map(|sum| (sum - least).unsigned_abs()).collect()
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

    #[test]
    fn an_overrun_is_taken_from_the_next_budget() {
        // Budgets of 20 that end at ticks of 4: 3 beyond, then 1 beyond, then none, then 2.
        assert_eq!(beyond(&[23, 18, 19, 22], 20), [3, 1, 0, 2]);
        // The first one began with an overrun of 3 to pay back.
        assert_eq!(beyond(&[17, 22, 20], 20), [0, 2, 2]);
        assert_eq!(beyond(&[], 20), [0; 0]);
    }

    #[test]
    fn a_chase_goes_through_all_of_the_memory() {
        let memory = cycle();
        let (mut line, mut count) = (0, 0);
        loop {
            line = memory[line * LINE] as usize;
            count += 1;
            if line == 0 {
                break;
            }
        }
        assert_eq!(count, LINES);
        assert_eq!(chase(&memory, 0, LINES as u64), 0);
    }

    /// Needs a thread that may be real-time: root, as the lab's runs are.
    #[test]
    fn a_thread_is_watched() {
        let (core, span) = (crate::affinity::online().unwrap()[0], Duration::from_millis(300));
        let late = match wake_ups(core, Duration::from_millis(1), span) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
            late => late.unwrap(),
        };
        assert!((1..=300).contains(&late.len()), "{}", late.len());
        let (gaps, watched) = gaps(core, span).unwrap();
        assert!(gaps.iter().all(|(at, length)| at + length <= watched), "{gaps:?} of {watched}");
        assert!(watched >= 60_000_000, "{watched}");
        for of in [Loop::Compute, Loop::Memory] {
            let blocks = blocks(core, of, Duration::from_millis(100)).unwrap();
            assert!(!blocks.is_empty() && blocks.iter().all(|ns| *ns > 0), "{of:?}: {blocks:?}");
        }
    }
}
