//! When a thread ran, according to the kernel. At every tick, and whenever the thread stops
//! running, the tracepoint sched_stat_runtime reports for how long it has just run. It is recorded
//! in a separate trace instance, so that other tracing is not disturbed.
//!
//! (sched_switch would be simpler, but was tried and misses some switches on some kinds of virtual
//! machines.)

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::scratch;

const TRACEFS: &str = "/sys/kernel/tracing";
/// Buffer size for each processor: ten minutes of ticks.
const BUFFER_KB: &str = "16384";

/// A recording in progress, until ended or dropped.
#[derive(Debug)]
pub struct Recording {
    instance: PathBuf,
}

impl Recording {
    /// Records the thread with this ID.
    ///
    /// # Errors
    /// When not root, or when the kernel has no tracefs.
    pub fn start(tid: u32) -> anyhow::Result<Self> {
        if !Path::new(TRACEFS).join("instances").is_dir() {
            crate::command::run("mount", &["-t", "tracefs", "nodev", TRACEFS])?;
        }
        let name = format!("timevisor-lab-{}-{tid}", std::process::id());
        let instance = Path::new(TRACEFS).join("instances").join(name);
        fs::create_dir(&instance).with_context(|| format!("no {}", instance.display()))?;
        let recording = Self { instance };
        recording.set("trace_clock", "mono")?;
        recording.set("buffer_size_kb", BUFFER_KB)?;
        let pid = scratch::host_tid(tid)?;
        recording.set("events/sched/sched_stat_runtime/filter", &format!("pid == {pid}"))?;
        recording.set("events/sched/sched_stat_runtime/enable", "1")?;
        Ok(recording)
    }

    fn set(&self, name: &str, value: &str) -> anyhow::Result<()> {
        let path = self.instance.join(name);
        fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns when the thread ran since the start.
    ///
    /// # Errors
    /// When an event was lost, or one is malformed.
    pub fn end(self) -> anyhow::Result<Runtimes> {
        self.set("tracing_on", "0")?;
        for entry in fs::read_dir(self.instance.join("per_cpu"))? {
            let stats = fs::read_to_string(entry?.path().join("stats"))?;
            ensure!(stats.lines().any(|line| line == "overrun: 0"), "events were lost: {stats}");
        }
        Runtimes::parse(&fs::read_to_string(self.instance.join("trace"))?)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.instance);
    }
}

/// The intervals in which a thread ran, by CLOCK_MONOTONIC, ns; in order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Runtimes(Vec<[i64; 2]>);

impl Runtimes {
    /// Lines like
    /// `CPU 0/TCG-71 [001] d.h.. 12.345678: sched_stat_runtime: comm=CPU 0/TCG pid=71 runtime=4000123 [ns]`.
    fn parse(trace: &str) -> anyhow::Result<Self> {
        let event = |line: &str| -> Option<[i64; 2]> {
            let (head, tail) = line.split_once(": sched_stat_runtime: ")?;
            let (seconds, us) = head.rsplit(' ').next()?.split_once('.')?;
            let end = (seconds.parse::<i64>().ok()? * 1_000_000 + us.parse::<i64>().ok()?) * 1000;
            let ran = tail.split_once("runtime=")?.1.split(' ').next()?.parse::<i64>().ok()?;
            Some([end - ran, end])
        };
        let lines = trace.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let parsed = lines.map(|line| event(line).with_context(|| format!("odd: {line:?}")));
        let mut all = parsed.collect::<anyhow::Result<Vec<_>>>()?;
        all.sort_unstable();
        Ok(Self(all))
    }

    /// When either thread ran; both on one core.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.0.extend(&other.0);
        self.0.sort_unstable();
        self
    }

    #[cfg(test)]
    pub(super) fn of(turns: Vec<[i64; 2]>) -> Self {
        Self(turns)
    }

    /// How long the thread ran between two moments, ns.
    #[must_use]
    pub fn within(&self, from: i64, to: i64) -> u64 {
        let first = self.0.partition_point(|[_, end]| *end <= from);
        let inside = self.0[first..].iter().take_while(|[begin, _]| *begin < to);
        inside.map(|[begin, end]| (*end.min(&to) - *begin.max(&from)).max(0).unsigned_abs()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_prints() {
        let trace = "# tracer: nop\n#\n     CPU 0/TCG-71      [001] d.h.. 12.004000: sched_stat_runtime: comm=CPU 0/TCG pid=71 runtime=3000000 [ns]\n\
                     \x20    CPU 0/TCG-71      [001] d.... 12.012000: sched_stat_runtime: comm=CPU 0/TCG pid=71 runtime=5000000 [ns]\n";
        let ran = Runtimes::parse(trace).unwrap();
        let s = 12_000_000_000;
        assert_eq!(ran.0, [[s + 1_000_000, s + 4_000_000], [s + 7_000_000, s + 12_000_000]]);
        assert_eq!(ran.within(0, i64::MAX), 8_000_000);
        assert_eq!(ran.within(s + 3_000_000, s + 8_000_000), 2_000_000);
        assert_eq!(ran.within(s + 4_000_000, s + 7_000_000), 0);
        let both = Runtimes::of(vec![[s + 5_000_000, s + 6_000_000]]).and(&ran);
        assert_eq!(both.within(s + 4_000_000, s + 7_000_000), 1_000_000);
        assert!(Runtimes::parse("something else\n").is_err());
    }
}
