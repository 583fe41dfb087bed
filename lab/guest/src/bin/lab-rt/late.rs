//! `lab-rt late`: one task that sleeps between all its jobs, also when it is late. A release that has passed when a
//! job ends is left out. Only a sleep or a yield ends a job for introspection, so a task with a backlog would
//! show nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::thread::{ClockId, Timespec, clock_nanosleep_absolute};
use serde_json::json;
use timevisor::Client;
use timevisor_linux::clock::monotonic;
use timevisor_time::Duration;

use crate::{Task, pair, us, work};

/// After the last job the task still sleeps for so long, so that what is reserved for it can be looked at.
const TAIL: Duration = Duration::from_nanos(3_000_000_000);

/// What a run consists of.
pub struct Plan {
    pub turns: u64,
    pub seconds: i64,
    pub sleeps: Sleeps,
    pub task: Task,
    /// Cost of a longer job, us, and which part of the jobs is longer: one of so many.
    pub longer: (u64, usize),
}

/// How the task asks to be woken up.
#[derive(Clone, Copy)]
pub enum Sleeps {
    /// After so many ns.
    For,
    /// At an instant of CLOCK_MONOTONIC.
    Until,
}

impl Plan {
    /// Parses `TURNS SECONDS for|until COST/PERIOD LONGER/EVERY`.
    pub fn parse(words: &[&str]) -> Result<Self> {
        let &[turns, seconds, sleeps, task, longer] = words else {
            bail!("TURNS SECONDS for|until COST/PERIOD LONGER/EVERY")
        };
        let (cost, every) = longer.split_once('/').context("LONGER/EVERY")?;
        let sleeps = match sleeps {
            "for" => Sleeps::For,
            "until" => Sleeps::Until,
            _ => bail!("it sleeps `for` a time or `until` an instant"),
        };
        let (turns, seconds, task) = (turns.parse()?, seconds.parse()?, crate::task(task)?);
        Ok(Self { turns, seconds, sleeps, task, longer: (us(cost)?, every.parse()?) })
    }

    /// Releases, begins and ends of all jobs, by CLOCK_MONOTONIC; ns.
    fn jobs(&self) -> Result<Vec<[i64; 3]>> {
        self.task.attributes(0)?.set(0)?;
        let period = self.task.period_ms * 1_000_000;
        let first = monotonic().floor_nanos() + 300_000_000;
        let last = first + self.seconds * 1_000_000_000;
        let mut jobs = Vec::new();
        let mut release = first;
        while release < last {
            self.sleep(release)?;
            let begun = monotonic().floor_nanos();
            let is_longer = jobs.len() % self.longer.1 == self.longer.1 - 1;
            let cost = if is_longer { self.longer.0 } else { self.task.cost_us };
            work(self.turns * cost / 1000);
            let end = monotonic().floor_nanos();
            jobs.push([release, begun, end]);
            release += ((end - release) / period + 1) * period;
        }
        self.sleep(release + TAIL.floor_nanos())?;
        Ok(jobs)
    }

    fn sleep(&self, until: i64) -> Result<()> {
        match self.sleeps {
            Sleeps::For => {
                let left = (until - monotonic().floor_nanos()).max(1).unsigned_abs();
                std::thread::sleep(std::time::Duration::from_nanos(left));
            }
            Sleeps::Until => {
                let (seconds, nanos) = (until / 1_000_000_000, until % 1_000_000_000);
                let instant = Timespec { tv_sec: seconds, tv_nsec: nanos };
                clock_nanosleep_absolute(ClockId::Monotonic, &instant)?;
            }
        }
        Ok(())
    }
}

/// Runs it beside a busy thread without priority, and prints one line of JSON as `lab-rt run` does.
pub fn run(plan: &Plan) -> Result<()> {
    let stop = AtomicBool::new(false);
    let page = Client::connect().ok().and_then(|client| client.timeline("tai").ok());
    let before = pair(page.as_ref());
    let jobs = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                work(1000);
            }
        });
        let jobs = scope.spawn(|| plan.jobs()).join();
        stop.store(true, Ordering::Relaxed);
        jobs
    });
    let jobs = jobs.map_err(|_| anyhow!("the task panicked"))??;
    let mut responses: Vec<f64> = jobs.iter().map(|job| (job[2] - job[0]) as f64 / 1e6).collect();
    responses.sort_by(f64::total_cmp);
    let task = json!({
        "period_ms": plan.task.period_ms, "responses_ms": responses, "jobs_ns": jobs,
    });
    println!("{}", json!({"tasks": [task], "clock_ns": [before, pair(page.as_ref())]}));
    Ok(())
}
