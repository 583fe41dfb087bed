//! Records when this machine took a core away from everything running on it.
//!
//! A thread with the highest real-time priority sleeps on the core and reads the clock each time it
//! wakes. Only a thread under SCHED_DEADLINE runs before it, and the tests know when that one ran
//! ([`Runtimes`]). Any other missing time was lost to this machine's own host, or to the kernel.
//!
//! Limitations: a second reservation on the core would count as a loss, so tests make sure that
//! theirs is the only one. Where a cgroup v2 partition keeps the witness away from the core,
//! nothing is recorded, and thus nothing is excused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use timevisor_linux::affinity::pin;
use timevisor_linux::clock::monotonic;
use timevisor_linux::scheduling::{Attributes, schedstat};

use super::runtimes::Runtimes;
use super::stolen;

/// Time between two clock readings.
const SLEEP: Duration = Duration::from_millis(2);
/// A longer time between two readings is recorded.
const RECORDED_NS: i64 = 3_000_000;
/// A shorter wait of a thread is not recorded.
const DELAY_NS: u64 = 1_000_000;
/// The highest priority of SCHED_FIFO.
const PRIORITY: u32 = 99;

/// A running witness.
#[derive(Debug)]
pub struct Witness {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Option<Vec<[i64; 2]>>>,
}

impl Witness {
    /// Starts to watch a core.
    #[must_use]
    pub fn start(core: usize) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            pin(core).ok()?;
            Attributes::fifo(PRIORITY).set(0).ok()?;
            let mut gaps = Vec::new();
            let mut last = monotonic().floor_nanos();
            while !theirs.load(Ordering::Relaxed) {
                std::thread::sleep(SLEEP);
                let now = monotonic().floor_nanos();
                if now - last > RECORDED_NS {
                    gaps.push([last, now]);
                }
                last = now;
            }
            Some(gaps)
        });
        Self { ended, thread }
    }

    /// Stops it. `on`: when the reserved vCPU ran on that core.
    ///
    /// # Errors
    /// When its thread has panicked.
    pub fn end(self, on: &Runtimes) -> anyhow::Result<Stalls> {
        self.ended.store(true, Ordering::Relaxed);
        let gaps = self.thread.join().ok().context("the witness panicked")?;
        Ok(Stalls::of(gaps, on))
    }
}

/// Records when a thread of this machine was ready to run but did not run: for an emulated
/// processor, whose core is a thread here. The time stolen meanwhile by this machine's own host is
/// added.
#[derive(Debug)]
pub struct DelayWitness {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Option<Vec<Stall>>>,
}

impl DelayWitness {
    /// Starts to watch thread `tid` of process `pid`.
    #[must_use]
    pub fn start(pid: u32, tid: u32) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let look = || -> Option<(i64, u64, u64)> {
                let waited = schedstat(pid, tid).ok()?.waited;
                Some((monotonic().floor_nanos(), waited, stolen::most_ms() * 1_000_000))
            };
            let mut all = Vec::new();
            let mut last = look()?;
            while !theirs.load(Ordering::Relaxed) {
                std::thread::sleep(SLEEP * 2);
                let now = look()?;
                let lost = now.1.saturating_sub(last.1) + now.2.saturating_sub(last.2);
                if lost > DELAY_NS {
                    // A wait is counted when it ends, and steal in steps of 10 ms: either may have
                    // begun before the previous reading.
                    let from = last.0.min(now.0 - i64::try_from(lost).unwrap_or(i64::MAX));
                    all.push(Stall { from, to: now.0, lost });
                }
                last = now;
            }
            Some(all)
        });
        Self { ended, thread }
    }

    /// Stops it.
    ///
    /// # Errors
    /// When its thread has panicked.
    pub fn end(self) -> anyhow::Result<Stalls> {
        self.ended.store(true, Ordering::Relaxed);
        let all = self.thread.join().ok().context("the witness panicked")?;
        let (watched, all) = (all.is_some(), all.unwrap_or_default());
        Ok(Stalls { watched, all, on: Runtimes::default() })
    }
}

/// The time that a core lost, and the interval in which it was lost, by CLOCK_MONOTONIC; ns.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Stalls {
    /// False if the witness was not allowed on the core.
    pub watched: bool,
    all: Vec<Stall>,
    /// When the thread ran beside which it was watched.
    on: Runtimes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stall {
    from: i64,
    to: i64,
    lost: u64,
}

impl Stalls {
    pub(super) fn of(gaps: Option<Vec<[i64; 2]>>, on: &Runtimes) -> Self {
        let watched = gaps.is_some();
        let sleep = u64::try_from(SLEEP.as_nanos()).unwrap_or(u64::MAX);
        let stall = |[from, to]: [i64; 2]| {
            let known = sleep.saturating_add(on.within(from, to));
            let lost = (to - from).unsigned_abs().saturating_sub(known);
            (lost > sleep / 2).then_some(Stall { from, to, lost })
        };
        let all = gaps.into_iter().flatten().filter_map(stall).collect();
        Self { watched, all, on: on.clone() }
    }

    /// The time lost between two moments: at most what the overlapping stalls lost, and at most the
    /// overlap without what the watched thread ran in it.
    #[must_use]
    pub fn within(&self, from: i64, to: i64) -> u64 {
        let part = |stall: &Stall| {
            let (from, to) = (stall.from.max(from), stall.to.min(to));
            let overlap = (to - from).max(0).unsigned_abs();
            stall.lost.min(overlap.saturating_sub(self.on.within(from, to)))
        };
        self.all.iter().map(part).sum()
    }

    /// What either core lost. Neither is one beside whose thread it was watched.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.watched &= other.watched;
        self.all.extend(other.all);
        self
    }

    /// The most time lost in any span of this length, ns.
    #[must_use]
    pub fn most_in(&self, length: i64) -> u64 {
        let from = |stall: &Stall| self.within(stall.from, stall.from.saturating_add(length));
        self.all.iter().map(from).max().unwrap_or(0)
    }

    /// Number of stalls, total lost time, and the loss in the longest one; ns.
    #[must_use]
    pub fn summary(&self) -> (usize, u64, u64) {
        let lost = || self.all.iter().map(|stall| stall.lost);
        (self.all.len(), lost().sum(), lost().max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn a_stall_is_what_neither_the_sleep_nor_the_reserved_thread_explains() {
        let on = Runtimes::of(vec![[10 * MS, 38 * MS]]);
        // The reserved thread ran during the first gap; in the second, 18 ms are unaccounted for.
        let gaps = vec![[9 * MS, 39 * MS], [50 * MS, 70 * MS]];
        let stalls = Stalls::of(Some(gaps), &on);
        assert!(stalls.watched);
        assert_eq!(stalls.summary(), (1, 18_000_000, 18_000_000));
        assert_eq!(stalls.within(0, 100 * MS), 18_000_000);
        assert_eq!(stalls.within(65 * MS, 100 * MS), 5_000_000, "the overlap is the limit");
        assert_eq!(stalls.within(0, 50 * MS), 0);
        assert_eq!(stalls.most_in(1_000 * MS), 18_000_000);
        assert!(Stalls::of(None, &on).all.is_empty());
        // What it ran in a part of a gap was not lost there.
        let gaps = vec![[0, 60 * MS]];
        let stalls = Stalls::of(Some(gaps), &on);
        assert_eq!(stalls.within(9 * MS, 39 * MS), 2_000_000);
    }
}
