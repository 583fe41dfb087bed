//! What jobs really cost during a run. Their turns are counted by the guest, the time of its vCPU by the host (schedstat): a job that was measured
//! before takes longer when this machine's neighbours are busy, and a prediction is for what it takes.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::scheduling::{schedstat, threads};

use super::{Responses, arguments, responses};
use crate::client::Client;

/// One run.
#[derive(Debug)]
pub struct Run {
    /// Of each task.
    pub found: Vec<Responses>,
    /// What a job cost, where 1 is what was measured before.
    pub cost: f64,
}

/// As [`super::run_tasks`].
///
/// # Errors
/// The same, or when QEMU has no thread named for its vCPU.
pub fn run(
    guest: &mut Client,
    (turns, seconds): (u64, u64),
    hog: bool,
    shift_ms: u64,
    tasks: &[String],
) -> anyhow::Result<Run> {
    let words = arguments(turns, seconds, hog, shift_ms, tasks).join(" ");
    let patience = Duration::from_secs(60 + 30 * seconds);
    let pid = guest.guest.pid();
    let before = ran(pid)?;
    let said = guest.guest.sh_within(&format!("lab-rt {words}"), patience)?;
    let ns = ran(pid)? - before;
    let report: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    let all = report["turns"].as_u64().context("lab-rt does not tell its turns")?;
    Ok(Run { found: responses(&said)?, cost: cost(ns, all, turns)? })
}

/// `turns` was a millisecond.
fn cost(ns: u64, all: u64, turns: u64) -> anyhow::Result<f64> {
    ensure!(all > 0 && turns > 0, "a run without jobs");
    Ok(ns as f64 / 1e6 / (all as f64 / turns as f64))
}

/// The time that the only vCPU has had.
fn ran(pid: u32) -> anyhow::Result<u64> {
    let all = threads(pid)?;
    let vcpu = all.iter().find(|thread| thread.name.starts_with("CPU 0/"));
    let tid = vcpu.with_context(|| format!("no vCPU among {all:?}"))?.tid;
    Ok(schedstat(pid, tid)?.ran)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_costs_more() {
        // 300 ms of work were measured as 1000 turns a ms, and took 330 ms.
        assert!((cost(330_000_000, 300_000, 1000).unwrap() - 1.1).abs() < 1e-9);
        assert!(cost(1, 0, 1000).is_err());
    }
}
