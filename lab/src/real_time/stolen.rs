//! Time that the hypervisor below took from this machine (steal, proc_stat(5)): it may be why a job
//! was late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_millis(20);
/// The longest period of the tasks: no job has more time than this.
const WINDOW: Duration = Duration::from_millis(200);
/// The kernel reports it in ticks of USER_HZ, which is 100 everywhere.
const TICK_MS: u64 = 10;

/// The stolen time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stolen {
    /// Total over all processors.
    pub total_ms: u64,
    /// Maximum for one processor within 200 ms.
    pub worst_ms: u64,
}

/// Samples the stolen time until it is ended.
#[derive(Debug)]
pub struct Watch {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Stolen>,
}

impl Watch {
    /// Starts sampling.
    #[must_use]
    pub fn start() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let mut seen: Vec<(Instant, Vec<u64>)> = Vec::new();
            let mut found = Stolen::default();
            loop {
                let last = theirs.load(Ordering::Relaxed);
                let ticks = std::fs::read_to_string("/proc/stat").map(|text| steal(&text));
                seen.push((Instant::now(), ticks.unwrap_or_default()));
                found.worst_ms = found.worst_ms.max(worst(&seen));
                if last {
                    break;
                }
                std::thread::sleep(INTERVAL);
            }
            if let (Some((_, first)), Some((_, last))) = (seen.first(), seen.last()) {
                let taken = last.iter().zip(first).map(|(last, first)| last.saturating_sub(*first));
                found.total_ms = taken.sum::<u64>() * TICK_MS;
            }
            found
        });
        Self { ended, thread }
    }

    /// Returns what was stolen since the start.
    ///
    /// # Errors
    /// When its thread has panicked.
    pub fn end(self) -> anyhow::Result<Stolen> {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the thread that looks at steal panicked")
    }
}

/// Time stolen from one core since this machine was booted, ms.
#[must_use]
pub fn of_core_ms(core: usize) -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    steal(&stat).get(core).copied().unwrap_or(0) * TICK_MS
}

/// The same for the core that lost the most.
#[must_use]
pub fn most_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    steal(&stat).into_iter().max().unwrap_or(0) * TICK_MS
}

/// The stolen time of each processor, in ticks.
fn steal(stat: &str) -> Vec<u64> {
    let lines = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    lines.filter_map(|line| line.split_ascii_whitespace().nth(8)?.parse().ok()).collect()
}

/// The largest loss in the window that ends with the last sample.
fn worst(seen: &[(Instant, Vec<u64>)]) -> u64 {
    let Some((now, last)) = seen.last() else { return 0 };
    // Uses the last sample before the window, which overestimates rather than underestimates.
    let before = seen.iter().rev().find(|(at, _)| now.duration_since(*at) >= WINDOW);
    let Some((_, first)) = before.or(seen.first()) else { return 0 };
    let taken = last.iter().zip(first).map(|(last, first)| last.saturating_sub(*first));
    taken.max().unwrap_or(0) * TICK_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_each_processor() {
        let stat = "cpu  1 2 3 4 5 6 7 30 9 10\ncpu0 1 2 3 4 5 6 7 10 0 0\ncpu1 1 2 3 4 5 6 7 20 0 0\nintr 9\n";
        assert_eq!(steal(stat), [10, 20]);
        let start = Instant::now();
        let at = |ms: u64, ticks: [u64; 2]| (start + Duration::from_millis(ms), ticks.to_vec());
        let seen = [at(0, [0, 0]), at(100, [9, 0]), at(200, [9, 1]), at(350, [10, 6])];
        assert_eq!(worst(&seen), 60, "100 ms is the last look before the window");
        assert_eq!(worst(&seen[..2]), 90);
        assert_eq!(worst(&[]), 0);
    }
}
