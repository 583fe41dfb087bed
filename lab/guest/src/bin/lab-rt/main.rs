//! lab-rt: periodic tasks under SCHED_FIFO or SCHED_DEADLINE, and the response time of each job,
//! from its release. Prints one line of JSON.
//!
//! `lab-rt calibrate` prints how many turns its loop makes in a millisecond.
//! `lab-rt run TURNS SECONDS HOG SHIFT COST/PERIOD[/RUNTIME]...` runs tasks with these parameters
//! in ms. The first task has the highest priority; a task with a RUNTIME runs under SCHED_DEADLINE.
//! HOG is 1 for a busy thread without priority beside them; the output has the turns of all
//! threads. SHIFT is a pause in ms, without releases, after each common multiple of the periods, so
//! that releases meet a reservation's periods at another moment each time. Every job's release,
//! start and end are given by CLOCK_MONOTONIC, and that clock is given together with the page's UTC
//! before and afterwards, so that the host can convert them.
//! `lab-rt late TURNS SECONDS for|until COST/PERIOD LONGER/EVERY` runs one task under SCHED_FIFO that sleeps before
//! each job, beside a busy thread. One job of EVERY costs LONGER instead of COST.

mod late;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use timevisor::{Client, Reading, Timeline};
use timevisor_linux::clock::monotonic;
use timevisor_linux::scheduling::Attributes;
use timevisor_time::Duration;

/// The first task's priority; each further task has one less.
const PRIORITY: u32 = 60;

#[derive(Clone, Copy)]
struct Task {
    cost_us: u64,
    period_ms: i64,
    /// For SCHED_DEADLINE only.
    runtime_us: Option<u64>,
}

impl Task {
    /// `rank` is the number of more urgent tasks.
    fn attributes(self, rank: usize) -> Result<Attributes> {
        let period = self.period_ms.unsigned_abs() * 1_000_000;
        Ok(match self.runtime_us {
            Some(runtime) => Attributes::deadline(runtime * 1000, period, period),
            None => Attributes::fifo(PRIORITY - u32::try_from(rank)?),
        })
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["calibrate"] => calibrate(),
        ["run", turns, seconds, hog, shift, ref tasks @ ..] => {
            let tasks = tasks.iter().map(|text| task(text)).collect::<Result<Vec<_>>>()?;
            ensure!(!tasks.is_empty(), "no tasks");
            let releases = Releases::new(seconds.parse()?, shift.parse()?, &tasks);
            run(turns.parse()?, &releases, hog == "1", &tasks)
        }
        ["late", ref plan @ ..] => late::run(&late::Plan::parse(plan)?),
        _ => anyhow::bail!(
            "usage: lab-rt calibrate | run TURNS SECONDS HOG SHIFT COST/PERIOD[/RUNTIME]... | late TURNS SECONDS for|until COST/PERIOD LONGER/EVERY"
        ),
    }
}

fn task(text: &str) -> Result<Task> {
    let (cost, rest) = text.split_once('/').context("COST/PERIOD")?;
    let (period, runtime) = rest.split_once('/').map_or((rest, None), |(p, r)| (p, Some(r)));
    Ok(Task {
        cost_us: us(cost)?,
        period_ms: period.parse()?,
        runtime_us: runtime.map(us).transpose()?,
    })
}

/// `1.25` ms in us.
fn us(text: &str) -> Result<u64> {
    let (ms, part) = text.split_once('.').unwrap_or((text, "0"));
    let part = format!("{part:0<3}");
    Ok(ms.parse::<u64>()? * 1000 + part[..3].parse::<u64>()?)
}

/// When jobs are released: by their periods, and `shift` later after each common multiple of the
/// periods.
struct Releases {
    end_ms: i64,
    shift_ms: i64,
    multiple_ms: i64,
}

impl Releases {
    fn new(seconds: i64, shift_ms: i64, tasks: &[Task]) -> Self {
        let divisor = |mut a: i64, mut b: i64| {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let multiple = |all: i64, task: &Task| all / divisor(all, task.period_ms) * task.period_ms;
        Self { end_ms: seconds * 1000, shift_ms, multiple_ms: tasks.iter().fold(1, multiple) }
    }

    /// The releases of one task, in ms after the beginning.
    fn of(&self, task: Task) -> impl Iterator<Item = i64> {
        let regular = (0..).map(move |n| n * task.period_ms).take_while(|ms| *ms < self.end_ms);
        regular.map(|ms| ms + ms / self.multiple_ms * self.shift_ms)
    }
}

/// Work that cannot be optimized away and touches no memory but its stack. There must be only one
/// copy of it: QEMU's translator is ten times slower where a loop crosses a page boundary, so
/// measuring one copy would say nothing about another.
#[inline(never)]
fn work(turns: u64) {
    let mut x = 1u32;
    for _ in 0..turns {
        x = std::hint::black_box(x).wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    std::hint::black_box(x);
}

fn sleep_until(at: Duration) {
    let left = (at - monotonic()).floor_nanos();
    if let Ok(left) = u64::try_from(left) {
        std::thread::sleep(std::time::Duration::from_nanos(left));
    }
}

/// From many short measurements, takes the 20th percentile (an interrupted measurement is too long)
/// and, for measurements on a busy machine, the 90th: what a turn takes there.
fn calibrate() -> Result<()> {
    Attributes::fifo(PRIORITY + 1).set(0)?;
    work(2_000_000);
    const TURNS: u64 = 100_000;
    const COUNT: usize = 2000;
    let mut all: Vec<u64> = (0..COUNT)
        .map(|_| {
            let before = monotonic();
            work(TURNS);
            (monotonic() - before).ceil_nanos().unsigned_abs().max(1)
        })
        .collect();
    all.sort_unstable();
    let in_a_ms = |ns: u64| TURNS * 1_000_000 / ns;
    println!(
        "{}",
        json!({"turns_per_ms": in_a_ms(all[COUNT / 5]), "loaded_turns_per_ms": in_a_ms(all[COUNT / 10 * 9])})
    );
    Ok(())
}

fn run(turns: u64, releases: &Releases, hog: bool, tasks: &[Task]) -> Result<()> {
    let stop = AtomicBool::new(false);
    // On a native run there is no page, and nobody needs it.
    let page = Client::connect().ok().and_then(|client| client.timeline("tai").ok());
    let before = pair(page.as_ref());
    let begin = monotonic() + Duration::from_nanos(300_000_000);
    let (reports, others) = std::thread::scope(|scope| {
        let hog = hog.then(|| {
            scope.spawn(|| {
                let mut turns = 0;
                while !stop.load(Ordering::Relaxed) {
                    work(1000);
                    turns += 1000;
                }
                turns
            })
        });
        let jobs = |index: usize, task: Task| {
            scope.spawn(move || -> Result<_> {
                task.attributes(index)?.set(0)?;
                let turns = turns * task.cost_us / 1000;
                let mut jobs = Vec::new();
                for ms in releases.of(task) {
                    let release = begin + Duration::from_nanos(ms * 1_000_000);
                    sleep_until(release);
                    let begun = monotonic();
                    work(turns);
                    jobs.push([release, begun, monotonic()].map(Duration::floor_nanos));
                }
                Ok((task, jobs))
            })
        };
        let threads: Vec<_> = tasks.iter().enumerate().map(|(n, task)| jobs(n, *task)).collect();
        let reports: Vec<_> =
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        (reports, hog.map_or(Ok(0), std::thread::ScopedJoinHandle::join))
    });
    let mut all: u64 = others.map_err(|_| anyhow::anyhow!("the busy thread panicked"))?;
    let mut rows = Vec::new();
    for report in reports {
        let (task, jobs) = report.map_err(|_| anyhow::anyhow!("a task panicked"))??;
        let response = |job: &[i64; 3]| (job[2] - job[0]) as f64 / 1e6;
        let mut responses: Vec<f64> = jobs.iter().map(response).collect();
        let misses = responses.iter().filter(|ms| **ms > task.period_ms as f64).count();
        all += turns * task.cost_us / 1000 * u64::try_from(responses.len())?;
        responses.sort_by(f64::total_cmp);
        let at = |percent: usize| responses[(responses.len() - 1) * percent / 100];
        rows.push(json!({
            "cost_us": task.cost_us, "period_ms": task.period_ms, "jobs": responses.len(), "misses": misses,
            "median_ms": at(50), "p95_ms": at(95), "worst_ms": at(100), "responses_ms": responses,
            "jobs_ns": jobs,
        }));
    }
    println!("{}", json!({"tasks": rows, "turns": all, "clock_ns": [before, pair(page.as_ref())]}));
    Ok(())
}

/// CLOCK_MONOTONIC and UTC at the same moment, in ns, if the page knows the time; the fastest of
/// several readings.
fn pair(page: Option<&Timeline>) -> Option<[i64; 2]> {
    let reading = |page: &Timeline| {
        let before = monotonic();
        let tai = page.now().ok().filter(Reading::is_known)?;
        let took = (monotonic() - before).floor_nanos();
        let utc = tai.estimate_ns() - i64::from(tai.tai_offset()?) * 1_000_000_000;
        Some((took, before.floor_nanos() + took / 2, utc))
    };
    let (_, monotonic, utc) = (0..20).filter_map(|_| reading(page?)).min()?;
    Some([monotonic, utc])
}
