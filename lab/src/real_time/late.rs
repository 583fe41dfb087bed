//! Compares the late jobs that timevisord tells of with what the guest's own program has measured, and their
//! causes with when the host's kernel has run the vCPU.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use timevisor_schedule::supply::Worst;
use timevisor_schedule::{Reservation, Supply};

use super::costs::{Job, Run};

/// By so much the guest's times may be converted wrongly, ns: it reads them from the page, and the clocks are
/// compared twice a run.
const CLOCKS: i64 = 2_000_000;
/// A program that has read the clock may be interrupted before it sleeps, ns: for as long as its reservation makes
/// its vCPU wait.
pub const INTERRUPTED: i64 = 60_000_000;
/// Budgets are enforced and counted at ticks: 10 ms for the slowest usual kernel, ns.
const TICK: u64 = 10_000_000;

/// A late job that timevisord tells of; ns of the host's CLOCK_MONOTONIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// When it was released, at the latest.
    pub released: i64,
    /// When it ended.
    pub ended: i64,
    /// How late it was, at least.
    pub late_by: i64,
    /// `host_broke` and the like; `None`: there was no reservation.
    pub cause: Option<String>,
}

impl Told {
    /// Of `late.recent` in `reserve list --json`.
    ///
    /// # Errors
    /// When it has another form.
    pub fn parse(row: &Value) -> anyhow::Result<Self> {
        let ns = |name: &str| row[name].as_i64().with_context(|| format!("no {name} in {row}"));
        Ok(Self {
            released: ns("released_ns")?,
            ended: ns("ended_ns")?,
            late_by: ns("late_by_ns")?,
            cause: row["missed"]["cause"].as_str().map(str::to_owned),
        })
    }
}

/// What a run has shown.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Compared {
    /// Jobs that the guest has counted.
    pub jobs: usize,
    /// Those that were late by its own measure.
    pub late: usize,
    /// Those that timevisord tells of.
    pub told: usize,
    /// Late ones of which it does not tell, as their releases are not known exactly.
    pub unseen: usize,
    /// Of those it tells of: the host is to blame.
    pub by_host: usize,
    /// The guest had more work than declared.
    pub by_guest: usize,
    /// Not known.
    pub unclear: usize,
    /// Late by the guest's measure, although the vCPU got all that was promised.
    pub delivered: usize,
}

/// Compares the jobs of a run with one task. `uncertain`: by so much timevisord may take a release for later than
/// it was, ns. `interrupted`: so long the vCPU may wait between the end of a job and its sleep, ns.
///
/// # Errors
/// When it tells of a job that was in time, calls one later than it was, misses one that was certainly late, or
/// blames the wrong side.
pub fn compare(
    run: &Run,
    told: &[Told],
    reservation: &Reservation,
    deadline: i64,
    (uncertain, interrupted): (i64, i64),
) -> anyhow::Result<Compared> {
    let jobs = run.jobs.first().context("no task")?;
    let late_by = |job: &Job| job.end - job.release - deadline;
    let mut found = Compared { jobs: jobs.len(), told: told.len(), ..Compared::default() };
    let mut matched = BTreeSet::new();
    for one in told {
        let index = of(one, jobs, interrupted)
            .with_context(|| format!("it tells of no job there was: {one:?}"))?;
        let job = &jobs[index];
        ensure!(matched.insert(index), "it tells twice of {job:?}: {one:?}");
        // The guest has read its clock before it slept, and timevisord afterwards.
        let at_most = late_by(job) + (one.ended - job.end).max(0) + CLOCKS;
        ensure!(one.late_by <= at_most, "{job:?} is called later than it was: {one:?}");
        match one.cause.as_deref() {
            Some("host_broke") => found.by_host += 1,
            Some("guest_under_declared") => found.by_guest += 1,
            Some("unclear") | None => found.unclear += 1,
            Some(_) => bail!("the vCPU was busy all the time: {one:?}, {job:?}"),
        }
        let missing = missing(run, job, reservation);
        match one.cause.as_deref() {
            Some("host_broke") => {
                ensure!(missing > 0, "the host is blamed, and has given all: {one:?}, {job:?}");
            }
            Some("guest_under_declared") => {
                // timevisord's samples are 20 ms apart: a budget may lie outside of those it has.
                let unseen = reservation.budget() + TICK;
                ensure!(
                    missing <= i64::try_from(unseen)?,
                    "the guest is blamed, and {missing} ns were missing: {one:?}, {job:?}"
                );
            }
            _ => {}
        }
    }
    for (index, job) in jobs.iter().enumerate().filter(|(_, job)| late_by(job) > 0) {
        found.late += 1;
        found.delivered += usize::from(missing(run, job, reservation) <= i64::try_from(TICK)?);
        if matched.contains(&index) {
            continue;
        }
        // What the first one was released for, nobody has seen.
        let excused = index == 0 || late_by(job) <= uncertain + interrupted + CLOCKS;
        ensure!(excused, "it does not tell of {job:?}, {} ns late", late_by(job));
        found.unseen += 1;
    }
    Ok(found)
}

/// The job that it tells of: the last one that had ended by then, and not long before.
fn of(told: &Told, jobs: &[Job], interrupted: i64) -> Option<usize> {
    let ended = jobs.partition_point(|job| job.end <= told.ended + CLOCKS);
    let index = ended.checked_sub(1)?;
    (told.ended - jobs[index].end <= interrupted).then_some(index)
}

/// What the vCPU did not get while a job was there, ns, of what was promised for that time; below zero if it got
/// more.
fn missing(run: &Run, job: &Job, reservation: &Reservation) -> i64 {
    let length = (job.end - job.release).max(0).unsigned_abs();
    let promised = Worst(*reservation).within(length);
    let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    signed(promised) - signed(run.on.within(job.release, job.end))
}

#[cfg(test)]
mod tests {
    use super::super::runtimes::Runtimes;
    use super::*;

    const MS: i64 = 1_000_000;
    const DEADLINE: i64 = 200 * MS;

    /// Jobs of so many ms every 400 ms, in a vCPU that has 20 ms of every 50 and lacks them from 800 to 1200.
    fn run(responses: &[i64]) -> Run {
        let job = |(n, ms): (i64, &i64)| {
            let release = n * 400 * MS;
            Job { release, begin: release, end: release + ms * MS }
        };
        let jobs = vec![(0..).zip(responses).map(job).collect()];
        let turns = (0..40).map(|n| [n * 50 * MS, (n * 50 + 20) * MS]);
        let on = turns.filter(|[begin, _]| !(800 * MS..1200 * MS).contains(begin)).collect();
        Run { found: Vec::new(), jobs, on: Runtimes::of(on) }
    }

    fn told(released: i64, ended: i64, cause: &str) -> Told {
        let cause = Some(cause.to_owned());
        let late_by = (ended - released) * MS - DEADLINE;
        Told { released: released * MS, ended: ended * MS, late_by, cause }
    }

    fn compared(responses: &[i64], told: &[Told]) -> anyhow::Result<Compared> {
        let reservation = Reservation::alone(20_000_000, 50_000_000)?;
        compare(&run(responses), told, &reservation, DEADLINE, (0, INTERRUPTED))
    }

    #[test]
    fn what_agrees() {
        let all = [told(0, 310, "guest_under_declared"), told(801, 1190, "host_broke")];
        let found = compared(&[310, 100, 390], &all).unwrap();
        assert_eq!((found.late, found.told, found.by_guest, found.by_host), (2, 2, 1, 1));
        assert_eq!((found.unseen, found.delivered), (0, 1));
        // By little, it may be unseen.
        let found = compared(&[100, 250], &[]).unwrap();
        assert_eq!((found.late, found.unseen), (1, 1));
    }

    #[test]
    fn what_does_not() {
        let said =
            |responses: &[i64], told: &[Told]| compared(responses, told).unwrap_err().to_string();
        let one = |cause| [told(400, 790, cause)];
        assert!(said(&[100, 100], &one("guest_under_declared")).contains("no job"));
        assert!(said(&[100, 390], &one("host_broke")).contains("has given all"));
        assert!(said(&[100, 390], &one("guest_policy")).contains("busy"));
        assert!(said(&[100, 390], &[]).contains("does not tell"));
        assert!(said(&[100, 390], &[told(390, 790, "unclear")]).contains("later than"));
        let twice = [told(400, 789, "unclear"), told(400, 790, "unclear")];
        assert!(said(&[100, 390], &twice).contains("twice"));
        let guest = [told(801, 1190, "guest_under_declared")];
        assert!(said(&[100, 100, 390], &guest).contains("the guest is blamed"));
    }

    #[test]
    fn what_timevisord_prints() {
        let row = serde_json::json!({
            "task": "7 lab-rt", "released_ns": 5, "ended_ns": 9, "late_by_ns": 1, "missed": {"cause": "unclear"},
        });
        let read = Told::parse(&row).unwrap();
        let cause = Some("unclear".to_owned());
        assert_eq!(read, Told { released: 5, ended: 9, late_by: 1, cause });
        assert!(Told::parse(&serde_json::json!({"released_ns": 5})).is_err());
    }
}
