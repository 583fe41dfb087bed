//! Judges every job of a run at the first attempt, from what the same run recorded.
//!
//! A late job is excused only in two cases, both of which the run itself measures:
//! - *longer*: the jobs took more processor time than declared, so that the analysis guarantees no
//!   response before the deadline;
//! - *stalled*: the core lost so much time between the release and the end that without the loss
//!   the job would have been in time.
//!
//! Any other late job is a broken guarantee. A run with more excuses than [`EXCUSED_PERCENT`] says
//! nothing about the reservation, and fails too.

use anyhow::{Context as _, ensure};
use timevisor_schedule::{Reservation, Ticked, Worst};

use super::costs::{self, Job, Run};
use super::runtimes::Runtimes;
use super::witness::Stalls;

/// 1 / CONFIG_HZ for the lowest supported value: the kernel enforces budgets at its ticks. 4 ms
/// covers 250 Hz and more.
pub const TICK_NS: u64 = 4_000_000;
/// The largest share of excused jobs. The costs are calibrated so that one job in a hundred takes
/// longer than declared. If one in five has to be excused, the machine was slower than during the
/// calibration for much of the run.
pub const EXCUSED_PERCENT: usize = 20;

/// The greatest length of the intervals that the audit judges: a second, or more if a busy machine
/// delays its samples.
const JUDGED_NS: i64 = 2_000_000_000;

/// The parameters for which a reservation guarantees one task's deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// Declared processor time of a job, ns.
    pub cost: u64,
    /// Period and deadline, ns.
    pub deadline: u64,
}

/// How many jobs of a run were in time, excused or late without an excuse.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Number of jobs.
    pub jobs: usize,
    /// Number of jobs that were late because the jobs took more than declared.
    pub longer: usize,
    /// Number of jobs that were late because the core was taken away.
    pub stalled: usize,
    /// Jobs that were late without an excuse, one line for each.
    pub broken: Vec<String>,
    /// A description of what the core lost.
    stalls: String,
}

impl Judgement {
    /// Judges a run in `reservation`, the only one on its core. `declared`: the parameters of each
    /// task, the most urgent one first.
    #[must_use]
    pub fn of(run: &Run, declared: &[Declared], reservation: Reservation, stalls: &Stalls) -> Self {
        let supply = Ticked { supply: Worst(reservation), tick: TICK_NS };
        let mut found = Self { stalls: in_words(stalls), ..Self::default() };
        for (task, jobs) in run.jobs.iter().enumerate() {
            let deadline = declared[task].deadline;
            for (index, job) in jobs.iter().enumerate() {
                found.jobs += 1;
                let response = (job.end - job.release).unsigned_abs();
                if response <= deadline {
                    continue;
                }
                let lost = stalls.within(job.release, job.end);
                let promised = run.demand_of_jobs(task, index).response(&supply);
                let is_longer = run
                    .involved(task, index)
                    .into_iter()
                    .any(|(task, index)| run.cost(task, index) > declared[task].cost);
                if response.saturating_sub(lost) <= deadline {
                    found.stalled += 1;
                } else if is_longer && promised > deadline {
                    found.longer += 1;
                } else {
                    found.broken.push(format!(
                        "tau{}'s job {index} took {:.1} ms of processor time and ended after {:.1} ms; promised {:.1} ms, deadline \
                         {:.1} ms, the core lost {:.1} ms",
                        task + 1,
                        ms(run.cost(task, index)),
                        ms(response),
                        ms(promised),
                        ms(deadline),
                        ms(lost)
                    ));
                }
            }
        }
        found
    }

    /// Like [`Self::of`], where the cost of a job is unknown: only stalls excuse a late one.
    #[must_use]
    pub fn of_jobs(jobs: &[Vec<Job>], deadlines: &[u64], stalls: &Stalls) -> Self {
        let mut found = Self { stalls: in_words(stalls), ..Self::default() };
        for (task, jobs) in jobs.iter().enumerate() {
            for (index, job) in jobs.iter().enumerate() {
                found.jobs += 1;
                let response = (job.end - job.release).unsigned_abs();
                let lost = stalls.within(job.release, job.end);
                if response <= deadlines[task] {
                    continue;
                } else if response.saturating_sub(lost) <= deadlines[task] {
                    found.stalled += 1;
                } else {
                    found.broken.push(format!(
                        "tau{}'s job {index} ended after {:.1} ms, deadline {:.1} ms, the core lost {:.1} ms",
                        task + 1,
                        ms(response),
                        ms(deadlines[task]),
                        ms(lost)
                    ));
                }
            }
        }
        found
    }

    /// Passes if no job was late without an excuse, and few enough were excused.
    ///
    /// # Errors
    /// With the late jobs.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.jobs > 0, "no job has run");
        ensure!(
            self.broken.is_empty(),
            "late without an excuse: {} of {} jobs ({}): {}",
            self.broken.len(),
            self.jobs,
            self.stalls,
            self.broken.join("; ")
        );
        ensure!(
            (self.longer + self.stalled) * 100 <= self.jobs * EXCUSED_PERCENT,
            "this machine could not be measured: {self}, and at most {EXCUSED_PERCENT} % may be excused"
        );
        Ok(())
    }
}

impl std::fmt::Display for Judgement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of {} jobs late, {} excused (longer than declared {}, stalled {}; the core: {})",
            self.longer + self.stalled + self.broken.len(),
            self.jobs,
            self.longer + self.stalled,
            self.longer,
            self.stalled,
            self.stalls
        )
    }
}

/// The parameters that [`super::TASKS`] declare.
#[must_use]
pub fn declared() -> Vec<Declared> {
    let one = |task| Declared { cost: costs::declared_ns(task), deadline: costs::period_ns(task) };
    (0..super::TASKS.len()).map(one).collect()
}

/// Checks the audit of a reservation (`timevisor reserve audit`): it may report a broken interval
/// only where the core was taken away.
///
/// # Errors
/// When there are more new broken intervals than recorded stalls, or when more was missing in one
/// interval than the core lost in any interval of that length. `before`: the same audit at the
/// start of the run, because the audit counts from the first reservation on.
pub fn owes_nothing(
    before: &serde_json::Value,
    audit: &serde_json::Value,
    stalls: &Stalls,
) -> anyhow::Result<()> {
    let of = |audit: &serde_json::Value| audit["broken"].as_u64().context("no audit");
    let broken = of(audit)?.saturating_sub(of(before)?);
    let (count, ..) = stalls.summary();
    let missing = audit["most_missing_ns"].as_u64().context("no audit")?;
    let explained = stalls.most_in(JUDGED_NS) + TICK_NS;
    ensure!(
        usize::try_from(broken)? <= count && (broken == 0 || missing <= explained),
        "the host owes: {audit}; the core: {}",
        in_words(stalls)
    );
    Ok(())
}

/// Passes if a run without a reservation was late for lack of processor time: the vCPU got less
/// than the jobs needed, and most jobs of some task were late.
///
/// # Errors
/// When the vCPU had enough, or the jobs were in time.
pub fn is_starved(run: &Run, declared: &[Declared]) -> anyhow::Result<String> {
    let needed: f64 = declared.iter().map(|task| task.cost as f64 / task.deadline as f64).sum();
    let (from, to) = run.span();
    let share = run.on.within(from, to) as f64 / (to - from).max(1) as f64;
    let said =
        format!("needed {:.0} % of a processor and got {:.0} %", needed * 100.0, share * 100.0);
    ensure!(share < needed, "the load left it enough: {said}");
    let late = run.found.iter().any(|task| task.misses() * 2 > task.ms.len());
    ensure!(late, "in time without a reservation: {}; {said}", super::text(&run.found));
    Ok(said)
}

/// How long the vCPU ran between two moments while any of these spans lasted, ns; overlaps count
/// once.
pub(super) fn within_any(on: &Runtimes, spans: &mut [[i64; 2]], from: i64, to: i64) -> u64 {
    spans.sort_unstable();
    let (mut sum, mut until) = (0, from);
    for [begin, end] in spans.iter() {
        let (begin, end) = ((*begin).max(until), (*end).min(to));
        if begin < end {
            sum += on.within(begin, end);
            until = end;
        }
    }
    sum
}

fn in_words(stalls: &Stalls) -> String {
    let (count, lost, longest) = stalls.summary();
    if stalls.watched {
        format!("{count} stalls, {:.0} ms in all, {:.1} ms at most", ms(lost), ms(longest))
    } else {
        "could not be watched".to_owned()
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn run(ran: Vec<[i64; 2]>, jobs: Vec<Vec<[i64; 3]>>) -> Run {
        let job = |[release, begin, end]: [i64; 3]| Job {
            release: release * MS,
            begin: begin * MS,
            end: end * MS,
        };
        let jobs = jobs.into_iter().map(|task| task.into_iter().map(job).collect()).collect();
        let on = Runtimes::of(ran.into_iter().map(|turn| turn.map(|ms| ms * MS)).collect());
        Run { found: Vec::new(), jobs, on }
    }

    fn judge(run: &Run, stalls: &Stalls) -> Judgement {
        let declared = [Declared { cost: 30_000_000, deadline: 150_000_000 }];
        let of = Reservation::alone(32_000_000, 50_000_000).unwrap();
        Judgement::of(run, &declared, of, stalls)
    }

    #[test]
    fn a_late_job_needs_an_excuse() {
        // 30 ms of work that ends 160 ms after its release: the vCPU did not get its budget.
        let starved = run(vec![[0, 10], [140, 160]], vec![vec![[0, 0, 160]]]);
        let found = judge(&starved, &Stalls::default());
        assert_eq!((found.jobs, found.longer, found.stalled, found.broken.len()), (1, 0, 0, 1));
        assert!(found.check().is_err());
        // The response is as long, but the job itself took 120 ms.
        let longer = run(vec![[0, 40], [50, 90], [120, 160]], vec![vec![[0, 0, 160]]]);
        let found = judge(&longer, &Stalls::default());
        assert_eq!((found.longer, found.broken.len()), (1, 0));
        assert!(format!("{:#}", found.check().unwrap_err()).contains("could not be measured"));
        // A guest that runs something else first has no excuse: that time belongs to no job.
        let other = run(vec![[0, 40], [50, 90], [120, 160]], vec![vec![[0, 130, 160]]]);
        assert_eq!(judge(&other, &Stalls::default()).broken.len(), 1);
    }

    #[test]
    fn the_audit_needs_a_stall_of_its_size() {
        let audit = |broken: u64, missing_ms: u64| serde_json::json!({"broken": broken, "most_missing_ns": missing_ms * 1_000_000});
        // 18 ms were lost.
        let stalls = Stalls::of(Some(vec![[50 * MS, 70 * MS]]), &Runtimes::default());
        let none = Stalls::default();
        owes_nothing(&audit(1, 90), &audit(1, 90), &none).unwrap();
        owes_nothing(&audit(1, 20), &audit(2, 20), &stalls).unwrap();
        assert!(owes_nothing(&audit(1, 20), &audit(2, 20), &none).is_err());
        assert!(owes_nothing(&audit(1, 90), &audit(2, 90), &stalls).is_err());
        assert!(owes_nothing(&audit(1, 20), &audit(3, 20), &stalls).is_err());
    }

    #[test]
    fn few_excuses_pass() {
        let mut jobs: Vec<_> = (1..10).map(|n| [n * 200, n * 200, n * 200 + 30]).collect();
        jobs.insert(0, [0, 0, 160]);
        let run = run(vec![[0, 40], [50, 90], [120, 160]], vec![jobs]);
        let found = judge(&run, &Stalls::default());
        found.check().unwrap();
        assert!(found.to_string().starts_with("1 of 10 jobs late, 1 excused"), "{found}");
    }

    #[test]
    fn the_reserved_tasks_of_the_lab_tests_pass_the_analysis_with_a_tick() {
        // The critical instant, with jobs that take 10 % more than declared.
        let supply = Ticked {
            supply: Worst(Reservation::alone(32_000_000, 50_000_000).unwrap()),
            tick: TICK_NS,
        };
        let demand = super::super::costs::Demand {
            first: 88_000_000,
            later: vec![(150_000_000, 33_000_000)],
        };
        assert!(demand.response(&supply) <= 200_000_000);
        let first = super::super::costs::Demand { first: 33_000_000, later: Vec::new() };
        assert!(first.response(&supply) <= 150_000_000);
    }
}
