//! Judges every job of a run at the first attempt, by a rule that is fixed before the run.
//!
//! A reservation was planned for declared costs on a host with stated overheads ([`Promise`]). What is
//! promised then is that every job is in time, except
//! - one in whose time the core *lost* more than these overheads allow: this machine is itself a VM, and
//!   nobody can promise what its host takes. These are counted whether they were late or not, and a late one is
//!   excused only if the plan, with that much less, promises nothing before the deadline;
//! - one beside which a job took *longer* than declared, so that the plan guarantees no response before the
//!   deadline for what was actually needed;
//! - one that was released, or had to wait for one that was released, *before* the reservation was in force, where it
//!   comes while the tasks run. All of these are counted, late or not.
//!
//! Any other late job is a broken promise. A run in which more than [`APART_PERCENT`] of the jobs lie outside
//! the promise says nothing about it, and fails too.

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_schedule::synthesis::{Search, Sharing};
use timevisor_schedule::{Overheads, Reservation, Supply};

use super::costs::{self, Demand, Job, Run};
use super::runtimes::Runtimes;
use super::witness::Stalls;

/// 1 / CONFIG_HZ for the lowest supported value: the kernel enforces budgets at its ticks. 4 ms
/// covers 250 Hz and more.
pub const TICK_NS: u64 = 4_000_000;
/// The largest share of jobs that may lie outside the promise: with a lost core (late or not), or late
/// because a job took longer than declared.
pub const APART_PERCENT: usize = 5;

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

/// What was planned, before the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// The reservation.
    pub reservation: Reservation,
    /// Whether it is the only one on its core.
    pub sharing: Sharing,
    /// What the plan has in it for the host.
    pub overheads: Overheads,
    /// Each task, the most urgent one first.
    pub tasks: Vec<Declared>,
}

impl Promise {
    /// A reservation that was planned with the overheads of a host that nobody has measured.
    #[must_use]
    pub fn unmeasured(reservation: Reservation, tasks: Vec<Declared>) -> Self {
        Self { reservation, sharing: Sharing::Alone, overheads: Overheads::UNMEASURED, tasks }
    }

    /// What `timevisor reserve plan --json` has recommended for these tasks.
    ///
    /// # Errors
    /// When it has found nothing.
    pub fn planned(plan: &Value, tasks: Vec<Declared>) -> anyhow::Result<Self> {
        let (budget, period) = (ns(plan, "recommended_budget_ns")?, ns(plan, "period_ns")?);
        Ok(Self {
            reservation: Reservation::alone(budget, period)?,
            sharing: Sharing::Alone,
            overheads: overheads(&plan["overheads"])?,
            tasks,
        })
    }

    /// What `timevisor reserve plan --vms --json` has planned for one vCPU of one of its VMs, `vcpu`, on a core
    /// with others, if it runs these tasks.
    ///
    /// # Errors
    /// When something is missing in it.
    pub fn beside_others(plan: &Value, vcpu: &Value, tasks: Vec<Declared>) -> anyhow::Result<Self> {
        let (budget, period) = (ns(vcpu, "budget_ns")?, ns(vcpu, "period_ns")?);
        Ok(Self {
            reservation: Reservation::new(budget, period, period)?,
            sharing: Sharing::Shared,
            overheads: overheads(&plan["overheads"])?,
            tasks,
        })
    }

    /// What is supplied if so much more is lost than was planned for.
    fn after(&self, lost: u64) -> Option<impl Supply + use<>> {
        let burst = self.overheads.burst.saturating_add(lost);
        let search = Search::new(self.sharing).on_host(Overheads { burst, ..self.overheads });
        search.delivered(self.reservation)
    }

    /// Whether nothing is promised then that is in time for this demand of a job of `task`.
    fn is_missed_after(&self, task: usize, demand: &Demand, lost: u64) -> bool {
        let deadline = self.tasks[task].deadline;
        self.after(lost).is_none_or(|supply| demand.response(&supply) > deadline)
    }

    /// The demand of a job of `task` if all jobs cost what was declared and are released at once.
    fn most_demand(&self, task: usize) -> Demand {
        let deadline = self.tasks[task].deadline;
        let again = |more: &Declared| {
            let Declared { cost, deadline: period } = *more;
            (1..=deadline / period).map(move |n| (n * period, cost))
        };
        let mut later: Vec<_> = self.tasks[..task].iter().flat_map(again).collect();
        later.sort_unstable();
        Demand { first: self.tasks[..=task].iter().map(|task| task.cost).sum(), later }
    }

    /// How much more a core lost that lost this much of an interval than was planned for.
    fn beyond(&self, lost: u64, interval: i64) -> u64 {
        let planned = self.overheads.taken_in(interval.max(0).unsigned_abs());
        lost.saturating_sub(self.overheads.burst.saturating_add(planned))
    }
}

fn ns(of: &Value, name: &str) -> anyhow::Result<u64> {
    of[name].as_u64().with_context(|| format!("no {name} in {of}"))
}

fn overheads(of: &Value) -> anyhow::Result<Overheads> {
    Ok(Overheads {
        tick: ns(of, "tick_ns")?,
        latency: ns(of, "latency_ns")?,
        interference_ppm: u32::try_from(ns(of, "interference_ppm")?)?,
        burst: ns(of, "burst_ns")?,
    })
}

/// How many jobs of a run were in time, outside the promise, or late without an excuse.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Judgement {
    /// Number of jobs.
    pub jobs: usize,
    /// Number of jobs in whose time the core lost more than was planned for, late or not.
    pub lost: usize,
    /// How many of these were late.
    pub lost_and_late: usize,
    /// Number of other jobs that were late because jobs took more than declared.
    pub longer: usize,
    /// Number of jobs that began before the reservation was in force, or waited for one that did, late or not.
    pub before: usize,
    /// Jobs that were late without an excuse, one line for each.
    pub broken: Vec<String>,
    /// The greatest share of its deadline that a job inside the promise took.
    pub most_of_deadline: f64,
    /// The host is emulated here: that its core, a thread of this machine, loses time is usual, and what counts
    /// is whether a job was late for it.
    emulated: bool,
    /// A description of what the core lost.
    stalls: String,
}

impl Judgement {
    /// Judges a run.
    ///
    /// # Errors
    /// When the reservation supplies nothing after the overheads.
    pub fn of(run: &Run, promise: &Promise, stalls: &Stalls) -> anyhow::Result<Self> {
        Self::since(i64::MIN, run, promise, stalls)
    }

    /// Like [`Self::of`], where the reservation was in force at this moment, by CLOCK_MONOTONIC, ns.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn since(
        since: i64,
        run: &Run,
        promise: &Promise,
        stalls: &Stalls,
    ) -> anyhow::Result<Self> {
        let supply = promise.after(0).context("nothing is left of the budget")?;
        let mut found = Self { stalls: in_words(stalls), ..Self::default() };
        for (task, jobs) in run.jobs.iter().enumerate() {
            for (index, job) in jobs.iter().enumerate() {
                // Less urgent jobs change nothing for this one.
                let mut involved = run.involved(task, index);
                involved.retain(|(other, _)| *other <= task);
                let began = |(task, index): &(usize, usize)| run.jobs[*task][*index].release;
                let from = involved.iter().map(began).min().unwrap_or(job.release);
                if from < since {
                    found.jobs += 1;
                    found.before += 1;
                    continue;
                }
                let what = Judged { task, index, job: *job, from };
                let is_longer = || {
                    let longer = |(task, index): &(usize, usize)| {
                        run.cost(*task, *index) > promise.tasks[*task].cost
                    };
                    let promised = run.demand_of_jobs(task, index).response(&supply);
                    involved.iter().any(longer) && promised > promise.tasks[task].deadline
                };
                let is_too_little = |lost| {
                    let demand = run.demand_of_jobs(task, index);
                    promise.is_missed_after(task, &demand, lost)
                };
                let took =
                    || format!(" took {:.1} ms of processor time and", ms(run.cost(task, index)));
                found.add(&what, promise, stalls, (is_longer, is_too_little), took);
            }
        }
        Ok(found)
    }

    /// Like [`Self::of`], on an emulated host, where the cost of a job is unknown: only a lost core excuses a
    /// late one.
    #[must_use]
    pub fn of_jobs(jobs: &[Vec<Job>], promise: &Promise, stalls: &Stalls) -> Self {
        let mut found = Self { stalls: in_words(stalls), emulated: true, ..Self::default() };
        for (task, jobs) in jobs.iter().enumerate() {
            for (index, job) in jobs.iter().enumerate() {
                let what = Judged { task, index, job: *job, from: job.release };
                let is_too_little =
                    |lost| promise.is_missed_after(task, &promise.most_demand(task), lost);
                found.add(&what, promise, stalls, (|| false, is_too_little), String::new);
            }
        }
        found
    }

    /// Like [`Self::of_jobs`], of a guest that runs its tasks on any of its vCPUs. `stalls`: of all their cores.
    /// No supply says there what a lost core excuses: any loss beyond what was planned for does.
    #[must_use]
    pub fn of_jobs_anywhere(jobs: &[Vec<Job>], promise: &Promise, stalls: &Stalls) -> Self {
        let mut found = Self { stalls: in_words(stalls), emulated: true, ..Self::default() };
        for (task, jobs) in jobs.iter().enumerate() {
            for (index, job) in jobs.iter().enumerate() {
                let what = Judged { task, index, job: *job, from: job.release };
                found.add(&what, promise, stalls, (|| false, |_| true), String::new);
            }
        }
        found
    }

    fn add(
        &mut self,
        what: &Judged,
        promise: &Promise,
        stalls: &Stalls,
        (is_longer, is_too_little): (impl FnOnce() -> bool, impl FnOnce(u64) -> bool),
        took: impl FnOnce() -> String,
    ) {
        let Judged { task, index, job, from } = *what;
        self.jobs += 1;
        let deadline = promise.tasks[task].deadline;
        let response = (job.end - job.release).unsigned_abs();
        let is_late = response > deadline;
        let lost = stalls.within(from, job.end);
        let beyond = promise.beyond(lost, job.end - from);
        let is_lost = beyond > 0;
        self.lost += usize::from(is_lost);
        if is_lost && is_late && is_too_little(beyond) {
            self.lost_and_late += 1;
        } else if !is_late {
            if !is_lost {
                let share = response as f64 / deadline as f64;
                self.most_of_deadline = self.most_of_deadline.max(share);
            }
        } else if is_longer() {
            self.longer += 1;
        } else {
            self.broken.push(format!(
                "tau{}'s job {index}{} ended after {:.1} ms; deadline {:.1} ms, the core lost {:.1} ms",
                task + 1,
                took(),
                ms(response),
                ms(deadline),
                ms(lost)
            ));
        }
    }

    /// Passes if no job was late without an excuse, and few enough lie outside the promise.
    ///
    /// # Errors
    /// With the late jobs.
    pub fn check(&self) -> anyhow::Result<()> {
        self.is_kept()?;
        let lost = if self.emulated { self.lost_and_late } else { self.lost };
        ensure!(
            (self.longer + lost + self.before) * 100 <= self.jobs * APART_PERCENT,
            "this machine could not be measured: {self}, and at most {APART_PERCENT} % may lie outside the promise"
        );
        Ok(())
    }

    /// Passes if no job was late without an excuse, however many lie outside the promise: where a test is about
    /// more than deadlines, and this machine may be too busy to say anything about those.
    ///
    /// # Errors
    /// With the late jobs.
    pub fn is_kept(&self) -> anyhow::Result<()> {
        ensure!(self.jobs > 0, "no job has run");
        ensure!(
            self.broken.is_empty(),
            "late without an excuse: {} of {} jobs ({}): {}",
            self.broken.len(),
            self.jobs,
            self.stalls,
            self.broken.join("; ")
        );
        Ok(())
    }

    /// Both runs as one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.jobs += other.jobs;
        self.lost += other.lost;
        self.lost_and_late += other.lost_and_late;
        self.longer += other.longer;
        self.before += other.before;
        self.broken.extend(other.broken);
        self.emulated |= other.emulated;
        self.most_of_deadline = self.most_of_deadline.max(other.most_of_deadline);
        self.stalls =
            if self.stalls.is_empty() { other.stalls } else { "of several runs".to_owned() };
        self
    }
}

/// One job, and since when its time is looked at.
#[derive(Clone, Copy)]
struct Judged {
    task: usize,
    index: usize,
    job: Job,
    from: i64,
}

impl std::fmt::Display for Judgement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of {} jobs late inside the promise; outside it {} with a lost core, of which {} late, and {} late with longer costs than \
             declared (the core: {})",
            self.broken.len(),
            self.jobs,
            self.lost,
            self.lost_and_late,
            self.longer,
            self.stalls
        )?;
        match self.before {
            0 => Ok(()),
            count => write!(f, "; {count} before the reservation"),
        }
    }
}

/// The parameters that [`super::TASKS`] declare, with `percent` of their costs.
#[must_use]
pub fn declared(percent: u64) -> Vec<Declared> {
    let one = |task| Declared {
        cost: costs::declared_ns(task) * percent / 100,
        deadline: costs::period_ns(task),
    };
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

    fn promise() -> Promise {
        let of = Reservation::alone(32_000_000, 50_000_000).unwrap();
        Promise::unmeasured(of, vec![Declared { cost: 30_000_000, deadline: 150_000_000 }])
    }

    fn judge(run: &Run, stalls: &Stalls) -> Judgement {
        Judgement::of(run, &promise(), stalls).unwrap()
    }

    #[test]
    fn a_late_job_needs_an_excuse() {
        // 30 ms of work that ends 160 ms after its release: the vCPU did not get its budget.
        let starved = run(vec![[0, 10], [140, 160]], vec![vec![[0, 0, 160]]]);
        let found = judge(&starved, &Stalls::default());
        assert_eq!((found.jobs, found.longer, found.lost, found.broken.len()), (1, 0, 0, 1));
        assert!(found.check().is_err());
        // The response is as long, but the job itself took 120 ms.
        let longer = run(vec![[0, 40], [50, 90], [120, 160]], vec![vec![[0, 0, 160]]]);
        let found = judge(&longer, &Stalls::default());
        assert_eq!((found.longer, found.broken.len()), (1, 0));
        assert!(format!("{:#}", found.check().unwrap_err()).contains("could not be measured"));
        // The reservation came 20 ms after the release, or at once.
        let at = |ms: i64| {
            let found =
                Judgement::since(ms * MS, &starved, &promise(), &Stalls::default()).unwrap();
            (found.before, found.broken.len(), format!("{:#}", found.check().unwrap_err()))
        };
        let (before, broken, said) = at(20);
        assert_eq!((before, broken), (1, 0));
        assert!(said.contains("could not be measured"), "{said}");
        assert_eq!(at(0).0, 0);
        assert_eq!(at(0).1, 1);
        // A guest that runs something else first has no excuse: that time belongs to no job.
        let other = run(vec![[0, 40], [50, 90], [120, 160]], vec![vec![[0, 130, 160]]]);
        assert_eq!(judge(&other, &Stalls::default()).broken.len(), 1);
    }

    #[test]
    fn a_lost_core_is_counted_whether_the_job_was_late_or_not() {
        let lost =
            |ms: i64| Stalls::of(Some(vec![[50 * MS, (52 + ms) * MS]]), &Runtimes::default());
        let starved = run(vec![[0, 10], [140, 160]], vec![vec![[0, 0, 160]]]);
        // The plan can bear that its core loses 40 ms and has 2 ms in it: it still promises 30 ms in time.
        let found = judge(&starved, &lost(40));
        assert_eq!((found.lost, found.lost_and_late, found.broken.len()), (1, 0, 1));
        let found = judge(&starved, &lost(65));
        assert_eq!((found.lost, found.lost_and_late, found.broken.len()), (1, 1, 0));
        let task = promise();
        assert_eq!(task.most_demand(0), Demand { first: 30_000_000, later: Vec::new() });
        // What was planned for is no excuse: 0.5 ms and 1 % of 160 ms.
        let found = judge(&starved, &lost(2));
        assert_eq!((found.lost, found.broken.len()), (0, 1));
        let in_time = run(vec![[0, 10], [80, 100]], vec![vec![[0, 0, 100]]]);
        let found = judge(&in_time, &lost(3));
        assert_eq!((found.lost, found.lost_and_late), (1, 0));
        assert!(found.check().is_err(), "all of one job");
    }

    #[test]
    fn on_any_vcpu_only_a_core_that_lost_more_than_planned_excuses() {
        let late = vec![vec![Job { release: 0, begin: 0, end: 160 * MS }]];
        let lost =
            |ms: i64| Stalls::of(Some(vec![[50 * MS, (52 + ms) * MS]]), &Runtimes::default());
        let judge = |stalls: &Stalls| Judgement::of_jobs_anywhere(&late, &promise(), stalls);
        assert_eq!(judge(&lost(2)).broken.len(), 1);
        let both = lost(2).and(lost(5));
        assert_eq!((judge(&both).broken.len(), judge(&both).lost_and_late), (0, 1));
        assert!(judge(&both).check().is_err(), "all of one job");
        let none = Judgement::default().and(judge(&both));
        assert!(none.emulated && none.jobs == 1);
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
        let mut jobs: Vec<_> = (1..20).map(|n| [n * 200, n * 200, n * 200 + 30]).collect();
        jobs.insert(0, [0, 0, 160]);
        let run = run(vec![[0, 40], [50, 90], [120, 160]], vec![jobs]);
        let found = judge(&run, &Stalls::default());
        found.check().unwrap();
        assert!((found.most_of_deadline - 0.2).abs() < 1e-9, "{found:?}");
        let twice = found.clone().and(found);
        assert_eq!((twice.jobs, twice.longer), (40, 2));
        assert!(twice.to_string().starts_with("0 of 40 jobs late inside the promise"), "{twice}");
    }

    #[test]
    fn what_was_planned_is_promised() {
        let plan = serde_json::json!({
            "recommended_budget_ns": 29_167_000, "period_ns": 50_000_000,
            "overheads": {"tick_ns": 4, "latency_ns": 3, "interference_ppm": 2, "burst_ns": 1},
        });
        let found = Promise::planned(&plan, declared(110)).unwrap();
        assert_eq!(found.reservation.budget(), 29_167_000);
        assert_eq!(found.overheads.burst, 1);
        assert_eq!(found.tasks[1], Declared { cost: 55_000_000, deadline: 200_000_000 });
        assert!(Promise::planned(&serde_json::json!({"schedulable": false}), Vec::new()).is_err());
    }
}
