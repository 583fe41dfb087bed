//! The actual cost of each job of a run. The guest reports when it was released, began and ended;
//! the host's kernel reports when the guest's vCPU ran. Both use one clock, because the guest reads
//! the host's.
//!
//! The cost of a job cannot be measured in advance: it takes longer while this machine's neighbours
//! are busy, and a guarantee covers what jobs actually take.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::clock::{monotonic, realtime};
use timevisor_linux::scheduling::threads;
use timevisor_schedule::Supply;

use super::judge::within_any;
use super::runtimes::{Recording, Runtimes};
use super::{Load, Responses, TASKS, arguments, calibrate_loaded, responses, tasks};
use crate::client::Client;
use crate::host::Host;

/// One job; times in ns of the host's CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// When it became ready to run.
    pub release: i64,
    /// When it began to run.
    pub begin: i64,
    /// When it ended.
    pub end: i64,
}

/// One run.
#[derive(Debug)]
pub struct Run {
    /// The responses of each task.
    pub found: Vec<Responses>,
    /// The jobs of each task in the order of their releases; the most urgent task comes first.
    pub jobs: Vec<Vec<Job>>,
    /// When the vCPU ran.
    pub on: Runtimes,
}

/// The processor time that a job needed from its vCPU, ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// The time needed from its release on for the job and for what was pending before it.
    pub first: u64,
    /// More urgent jobs: how long after its release they were released, and how much time they
    /// needed.
    pub later: Vec<(u64, u64)>,
}

impl Demand {
    /// The longest response that `supply` guarantees to a job with this demand, ns; see
    /// [`timevisor_schedule::fixed_priority::response`].
    #[must_use]
    pub fn response(&self, supply: &impl Supply) -> u64 {
        let mut work = self.first;
        loop {
            let t = supply.time_for(work);
            let before = self.later.iter().filter(|(offset, _)| *offset < t);
            let wanted = self.first + before.map(|(_, cost)| cost).sum::<u64>();
            if wanted <= work {
                return t;
            }
            work = wanted;
        }
    }
}

impl Run {
    /// The jobs that were in progress while this one waited or ran, including itself, as task and
    /// index.
    #[must_use]
    pub fn involved(&self, task: usize, job: usize) -> Vec<(usize, usize)> {
        let Job { release, end, .. } = self.jobs[task][job];
        let all = self.jobs.iter().enumerate();
        let all = all.flat_map(|(task, jobs)| (0..jobs.len()).map(move |job| (task, job)));
        let overlaps = |(task, job): &(usize, usize)| {
            let other = self.jobs[*task][*job];
            other.begin < end && release < other.end
        };
        all.filter(overlaps).collect()
    }

    /// Like [`Self::demand`], without the time in which the vCPU ran but no job was in progress.
    #[must_use]
    pub fn demand_of_jobs(&self, task: usize, job: usize) -> Demand {
        let Job { release, end, .. } = self.jobs[task][job];
        let span =
            |(task, job): (usize, usize)| [self.jobs[task][job].begin, self.jobs[task][job].end];
        let mut spans: Vec<_> = self.involved(task, job).into_iter().map(span).collect();
        let in_jobs = within_any(&self.on, &mut spans, release, end);
        let mut demand = self.demand(task, job);
        demand.first = demand.first.saturating_sub(self.on.within(release, end) - in_jobs);
        demand
    }

    /// From the first release to the last end, ns.
    #[must_use]
    pub fn span(&self) -> (i64, i64) {
        let all = || self.jobs.iter().flatten();
        let from = all().map(|job| job.release).min().unwrap_or(0);
        (from, all().map(|job| job.end).max().unwrap_or(from))
    }

    /// The processor time that the job itself took.
    #[must_use]
    pub fn cost(&self, task: usize, job: usize) -> u64 {
        let Job { begin, end, .. } = self.jobs[task][job];
        let mut own = self.on.within(begin, end);
        // The more urgent jobs that preempted it; they may themselves have been preempted by still
        // more urgent ones.
        let mut until = begin;
        let mut others: Vec<Job> = self.jobs[..task].iter().flatten().copied().collect();
        others.sort_unstable_by_key(|other| other.begin);
        for other in others {
            let (from, to) = (other.begin.max(until), other.end.min(end));
            if from < to {
                own -= self.on.within(from, to);
                until = to;
            }
        }
        own
    }

    /// All work that had to be done from its release on: while the job waits, the vCPU does nothing
    /// less urgent.
    #[must_use]
    pub fn demand(&self, task: usize, job: usize) -> Demand {
        let Job { release, end, .. } = self.jobs[task][job];
        let mut first = self.on.within(release, end);
        let mut later = Vec::new();
        for (above, jobs) in self.jobs[..task].iter().enumerate() {
            for (index, other) in jobs.iter().enumerate() {
                if release < other.release && other.begin < end {
                    // It is more urgent, so its cost is included, unless the clocks differ
                    // slightly.
                    let cost = self.cost(above, index).min(first);
                    first -= cost;
                    later.push(((other.release - release).unsigned_abs(), cost));
                }
            }
        }
        later.sort_unstable();
        Demand { first, later }
    }

    /// The costs of a task's jobs relative to the declared cost: average and maximum.
    #[must_use]
    pub fn costs(&self, task: usize) -> (f64, f64) {
        let declared = declared_ns(task) as f64;
        let all: Vec<f64> =
            (0..self.jobs[task].len()).map(|job| self.cost(task, job) as f64 / declared).collect();
        let most = all.iter().copied().fold(0.0, f64::max);
        (all.iter().sum::<f64>() / all.len().max(1) as f64, most)
    }
}

/// The cost that a task of [`TASKS`] declares.
#[must_use]
pub fn declared_ns(task: usize) -> u64 {
    part_ns(task, 0)
}

/// The task's period, which is its deadline.
#[must_use]
pub fn period_ns(task: usize) -> u64 {
    part_ns(task, 1)
}

fn part_ns(task: usize, part: usize) -> u64 {
    let ms = TASKS[task].split('/').nth(part).and_then(|ms| ms.parse::<u64>().ok());
    ms.unwrap_or_default() * 1_000_000
}

/// Runs [`TASKS`] in the guest, which has a single vCPU; see [`super::run_tasks`].
///
/// # Errors
/// As there; also when the guest does not know the time, or when the host's kernel does not report
/// when the vCPU ran.
pub fn run(
    guest: &mut Client,
    (turns, seconds): (u64, u64),
    hog: bool,
    shift_ms: u64,
) -> anyhow::Result<Run> {
    run_tasks(guest, (turns, seconds), hog, shift_ms, &tasks())
}

/// Like [`run`], with these tasks, the most urgent one first.
///
/// # Errors
/// As [`run`].
pub fn run_tasks(
    guest: &mut Client,
    (turns, seconds): (u64, u64),
    hog: bool,
    shift_ms: u64,
    tasks: &[String],
) -> anyhow::Result<Run> {
    let words = arguments(turns, seconds, hog, shift_ms, tasks).join(" ");
    recorded(guest, &words, seconds)
}

/// Runs `lab-rt` with these words, which takes so many seconds where nothing else runs.
///
/// # Errors
/// As [`run`].
pub fn recorded(guest: &mut Client, words: &str, seconds: u64) -> anyhow::Result<Run> {
    let patience = Duration::from_secs(60 + 30 * seconds);
    let recording = Recording::start(vcpu(guest.guest.pid())?)?;
    let before = pair();
    let said = guest.guest.sh_within(&format!("lab-rt {words}"), patience)?;
    let here = [before, pair()];
    let on = recording.end()?;
    let report: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    let jobs = jobs(&report, here)?;
    Ok(Run { found: responses(&said)?, jobs, on })
}

/// The jobs of a report of lab-rt, converted to this machine's clock. `here`: [`pair`] before and
/// after.
pub(crate) fn jobs(report: &Value, here: [[i64; 2]; 2]) -> anyhow::Result<Vec<Vec<Job>>> {
    let there = clock(&report["clock_ns"]).context("the guest does not know the time")?;
    // First the guest's CLOCK_MONOTONIC, then this machine's.
    let at = |ns: i64| along(along(ns, there), here.map(|[monotonic, utc]| [utc, monotonic]));
    let job = |row: &Value| {
        let ns = |index: usize| row[index].as_i64().map(at);
        Some(Job { release: ns(0)?, begin: ns(1)?, end: ns(2)? })
    };
    let jobs = |task: &Value| task["jobs_ns"].as_array()?.iter().map(job).collect::<Option<_>>();
    let rows = report["tasks"].as_array().context("no tasks")?;
    rows.iter().map(jobs).collect::<Option<Vec<_>>>().context("odd jobs")
}

/// Number of loop turns per millisecond such that nearly every job (all but one in a hundred) takes
/// at most its declared cost. It is measured with jobs beside a busy host and a busy guest, in a
/// reservation that is more than large enough.
///
/// # Errors
/// As [`run`].
pub fn calibrate(host: &Host, guest: &mut Client, name: &str) -> anyhow::Result<u64> {
    let turns = calibrate_loaded(host, guest, name)?;
    let _load = Load::start()?;
    host.cli(&["reserve", "apply", name, "--alone", "--budget", "45ms/50ms"])?;
    let run = run(guest, (turns, 15), true, 0)?;
    host.cli(&["reserve", "release", name])?;
    let per_mille = |task: usize| {
        let run = &run;
        (0..run.jobs[task].len()).map(move |job| run.cost(task, job) * 1000 / declared_ns(task))
    };
    let mut costs: Vec<u64> = (0..run.jobs.len()).flat_map(per_mille).collect();
    ensure!(!costs.is_empty(), "a run without jobs");
    costs.sort_unstable();
    let most = costs[(costs.len() - 1) * 99 / 100];
    Ok(turns * 1000 / most.max(1))
}

/// The thread of this QEMU's only vCPU.
///
/// # Errors
/// When it has no thread with the expected name.
pub fn vcpu(pid: u32) -> anyhow::Result<u32> {
    let all = threads(pid)?;
    let found = all.iter().find(|thread| thread.name.starts_with("CPU 0/"));
    Ok(found.with_context(|| format!("no vCPU among {all:?}"))?.tid)
}

/// CLOCK_MONOTONIC and UTC of this machine: the fastest of several readings. The lab's server
/// serves this machine's CLOCK_REALTIME.
pub(crate) fn pair() -> [i64; 2] {
    let reading = || {
        let before = monotonic();
        let utc = realtime().floor_nanos();
        let took = (monotonic() - before).floor_nanos();
        (took, [before.floor_nanos() + took / 2, utc])
    };
    (0..20).map(|_| reading()).min().map_or([0, 0], |(_, pair)| pair)
}

fn clock(pairs: &Value) -> Option<[[i64; 2]; 2]> {
    let pair = |index: usize| Some([pairs[index][0].as_i64()?, pairs[index][1].as_i64()?]);
    Some([pair(0)?, pair(1)?])
}

/// The value at `x` of the line through two points.
fn along(x: i64, [from, to]: [[i64; 2]; 2]) -> i64 {
    let [[x0, y0], [x1, y1]] = [from, to].map(|pair| pair.map(i128::from));
    let y = y0 + (i128::from(x) - x0) * (y1 - y0) / (x1 - x0).max(1);
    i64::try_from(y).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn job(release: i64, begin: i64, end: i64) -> Job {
        Job { release: release * MS, begin: begin * MS, end: end * MS }
    }

    #[test]
    fn what_a_job_takes_is_without_more_urgent_ones() {
        // The vCPU runs for 10 of every 20 ms. A job of tau1 preempts tau2's job, and another one
        // was pending before it.
        let on = Runtimes::of((0..10).map(|n| [n * 20 * MS, (n * 20 + 10) * MS]).collect());
        let tau1 = vec![job(0, 0, 5), job(45, 60, 65)];
        let tau2 = vec![job(2, 5, 85)];
        let run = Run { found: Vec::new(), jobs: vec![tau1, tau2], on };
        assert_eq!(run.cost(0, 0), 5_000_000);
        assert_eq!(run.cost(0, 1), 5_000_000);
        // 5 to 10, 20 to 30, 40 to 50, 65 to 70, 80 to 85.
        assert_eq!(run.cost(1, 0), 35_000_000);
        // At its release, 3 ms of tau1's first job are left.
        let demand = run.demand(1, 0);
        assert_eq!(demand, Demand { first: 38_000_000, later: vec![(43_000_000, 5_000_000)] });
        let (mean, most) = run.costs(1);
        assert!((mean - 0.7).abs() < 1e-9 && (most - 0.7).abs() < 1e-9);
    }

    #[test]
    fn one_clock_by_another() {
        let pairs = [[100, 1_000_100], [300, 1_000_500]];
        assert_eq!([100, 200, 400].map(|x| along(x, pairs)), [1_000_100, 1_000_300, 1_000_700]);
    }
}
