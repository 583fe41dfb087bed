//! A guest that schedules its tasks over several vCPUs by itself: global EDF, global fixed
//! priorities.
//!
//! The test is that of Bertogna and Cirinei ("Response-time analysis for globally scheduled
//! symmetric multiprocessor platforms", RTSS 2007) with the supply of [`Together`] in place of the
//! processors' time. Consider a job within `w` ns of its release. While all vCPUs run, either it
//! runs, or all of them run others that are more urgent (or a release has just woken one up, below). Each task keeps one vCPU busy at a time, so
//! of the `x` ns in which the job waits like that, each takes at most `min(W_j, x)`, where `W_j`
//! bounds its work in the window. If `sum of min(W_j, x) < vcpus * x` for
//! `x = together(w) - C - B - L + 1`, the job cannot have waited so long, and is done.
//!
//! `L` is for vCPUs that slept. Each release of a more urgent job, and the job's own, may wake some
//! up: for the job itself, and for those that it displaces. Until they run, the host's latency
//! later, jobs wait there.
//!
//! | policy | `W_j`, for the response time `R_j` of the other task |
//! | --- | --- |
//! | both | one job ends at `R_j`, all later ones run at once, as often as they may |
//! | EDF, the least of both | all deadlines are as late as that of the job |
//!
//! It is sufficient, not exact. It needs deadlines up to the period, a guest that runs the most
//! urgent jobs, one on each vCPU, and lets any job run on any vCPU. What a migration or an
//! inter-processor interrupt costs in the guest is its [`Overhead`](crate::Overhead).
//!
//! Why not a test for virtual multiprocessors (Bini, Bertogna, Baruah, "Virtual multiprocessor
//! platforms", RTSS 2009; Bini, Buttazzo, Bertogna, "The multi supply function abstraction for
//! multiprocessors", RTCSA 2009; Shin, Easwaran, Lee, ECRTS 2008): these let a job run wherever
//! there is processor time. A guest does not know where that is. The simulator breaks their promise
//! (`crates/simulation`, `reservations::global`).

use crate::overheads::Overheads;
use crate::reservation::Reservation;
use crate::search::last_that_fits;
use crate::supply::Supply;
use crate::synthesis::{Search, Sharing};
use crate::task::{Policy, Task, TaskSet};
use crate::together::Together;
use crate::verdict::Verdict;

/// How often response times under EDF are improved by those of the others.
const ROUNDS: usize = 16;

/// Judges a set on this many vCPUs, with `supply` as the time in which all run at once. A vCPU that
/// sleeps runs within `wake` ns of a release.
#[must_use]
pub fn judge(set: &TaskSet, vcpus: u16, wake: u64, supply: &impl Supply) -> Verdict {
    let tasks = set.tasks();
    let on = Platform { vcpus, wake, supply };
    if set.policy() != Policy::Edf {
        let mut worst = Vec::with_capacity(tasks.len());
        for (index, task) in tasks.iter().enumerate() {
            let work = |w| tasks[..index].iter().zip(&worst).map(move |(j, r)| begun(j, *r, w));
            let above: Vec<&Task> = tasks[..index].iter().collect();
            match on.response(task, &above, work) {
                Some(response) => worst.push(response),
                None => return Verdict::Late(index),
            }
        }
        return Verdict::Schedulable(worst);
    }
    // No job is late before the first one that is: until then, all of these hold.
    let mut worst: Vec<u64> = tasks.iter().map(|task| task.deadline).collect();
    let mut late = None;
    for _ in 0..ROUNDS {
        late = None;
        let mut better = worst.clone();
        for (index, task) in tasks.iter().enumerate() {
            let others = tasks.iter().zip(&worst).enumerate();
            let others: Vec<(&Task, u64)> =
                others.filter(|(j, _)| *j != index).map(|(_, (j, r))| (j, *r)).collect();
            let work =
                |w| others.iter().map(move |(j, r)| begun(j, *r, w).min(due(j, *r, task.deadline)));
            let all: Vec<&Task> = others.iter().map(|(task, _)| *task).collect();
            match on.response(task, &all, work) {
                Some(response) => better[index] = response.min(better[index]),
                None => late = late.or(Some(index)),
            }
        }
        if better == worst {
            break;
        }
        worst = better;
    }
    late.map_or(Verdict::Schedulable(worst), Verdict::Late)
}

struct Platform<'a, S> {
    vcpus: u16,
    wake: u64,
    supply: &'a S,
}

impl<S: Supply> Platform<'_, S> {
    /// The worst response of a task, if it is at most its deadline. `work` bounds what each of the
    /// more urgent tasks does within a time.
    fn response<I: Iterator<Item = u128>>(
        &self,
        task: &Task,
        more_urgent: &[&Task],
        work: impl Fn(u64) -> I,
    ) -> Option<u64> {
        let own = task.cost.checked_add(task.blocking)?.checked_add(self.wake)?;
        let limit = task.deadline.checked_sub(task.jitter)?;
        let mut w = self.supply.time_for(own);
        loop {
            if w > limit {
                return None;
            }
            let all: Vec<u128> = work(w).collect();
            let releases = |task: &&Task| w.saturating_add(task.jitter).div_ceil(task.period);
            let releases: u64 = more_urgent.iter().map(releases).sum();
            let woken = releases.checked_mul(self.wake)?;
            let waits = waits(&all, self.vcpus)? - 1;
            let next = self.supply.time_for(own.checked_add(woken)?.checked_add(waits)?);
            if next <= w {
                return Some(task.jitter + w);
            }
            w = next;
        }
    }
}

/// The least `x` with `sum of min(work, x) < vcpus * x`: a job waits for less. The difference is
/// convex, so all greater ones do, too.
fn waits(work: &[u128], vcpus: u16) -> Option<u64> {
    let most = work.iter().sum::<u128>() / u128::from(vcpus) + 1;
    let most = u64::try_from(most).ok()?;
    let enough = |x: u64| {
        let x = u128::from(x);
        work.iter().map(|work| x.min(*work)).sum::<u128>() < u128::from(vcpus) * x
    };
    Some(last_that_fits(most, 0, enough))
}

/// What a task does at most in `w` ns if its first job there is done as late as `response` after its
/// arrival.
fn begun(task: &Task, response: u64, w: u64) -> u128 {
    let span = u128::from(w) + u128::from(response.saturating_sub(task.cost));
    let (jobs, rest) = (span / u128::from(task.period), span % u128::from(task.period));
    jobs * u128::from(task.cost) + rest.min(u128::from(task.cost))
}

/// What jobs of a task with deadlines up to `deadline` after a release do between the two.
fn due(task: &Task, response: u64, deadline: u64) -> u128 {
    // A guest may count deadlines from late releases: they are closer to each other.
    let span = u128::from(deadline) + u128::from(task.jitter);
    let jobs = match span.checked_sub(u128::from(task.deadline)) {
        Some(after) => after / u128::from(task.period) + 1,
        None => 0,
    };
    let rest = span.saturating_sub(jobs * u128::from(task.period));
    let early = u128::from(task.deadline.saturating_sub(response));
    jobs * u128::from(task.cost) + rest.saturating_sub(early).min(u128::from(task.cost))
}

/// A search for equal budgets of several vCPUs, each alone on its core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GlobalSearch {
    /// Number of vCPUs, above 0.
    pub vcpus: u16,
    /// What the host takes.
    pub overheads: Overheads,
}

impl GlobalSearch {
    /// On a host without overheads.
    #[must_use]
    pub fn new(vcpus: u16) -> Self {
        Self { vcpus, overheads: Overheads::default() }
    }

    /// The same on a host with these.
    #[must_use]
    pub fn on_host(self, overheads: Overheads) -> Self {
        Self { overheads, ..self }
    }

    /// Judges the tasks with this budget for each vCPU in every period.
    #[must_use]
    pub fn judge(&self, set: &TaskSet, budget: u64, period: u64) -> Verdict {
        let Some(set) = self.late(set) else { return Verdict::NotKnown };
        self.supply(budget, period).map_or(Verdict::NotKnown, |supply| self.on(&set, &supply))
    }

    /// The least budget of each vCPU in this period, ns; `None` if whole processors are too little.
    #[must_use]
    pub fn least_budget(&self, set: &TaskSet, period: u64) -> Option<u64> {
        let set = self.late(set)?;
        self.least_of(&set, period, period)
    }

    /// The cheapest of these periods, as [`Search::best_period`].
    #[must_use]
    pub fn best_period(
        &self,
        set: &TaskSet,
        periods: impl IntoIterator<Item = u64>,
        switch: u64,
        smallest: u64,
    ) -> Option<Reservation> {
        let set = self.late(set)?;
        let mut best: Option<(u128, Reservation)> = None;
        for period in periods {
            let mut most = period;
            if let Some((cost, of)) = best {
                // No more than the best costs.
                let same = cost * u128::from(period) / u128::from(of.period());
                most = u64::try_from(same).unwrap_or(u64::MAX).saturating_sub(switch).min(period);
            }
            if smallest > most {
                continue;
            }
            let Some(budget) = self.least_of(&set, period, most) else { continue };
            let Ok(of) = Reservation::alone(budget.max(smallest), period) else { continue };
            best = Some((u128::from(of.budget()) + u128::from(switch), of));
        }
        best.map(|(_, of)| of)
    }

    /// The budget to use on this host if `least` is the least in theory, as [`Search::with_slack`].
    #[must_use]
    pub fn with_slack(&self, set: &TaskSet, least: Reservation) -> Option<Reservation> {
        let here = self.least_budget(set, least.period())?;
        let budget = Search::slackened(least).max(here).min(least.period());
        Reservation::alone(budget, least.period()).ok()
    }

    fn least_of(&self, late: &TaskSet, period: u64, most: u64) -> Option<u64> {
        let fits = |budget| {
            self.supply(budget, period)
                .is_some_and(|supply| self.on(late, &supply).is_schedulable())
        };
        (most > 0 && fits(most)).then(|| last_that_fits(most, 0, fits))
    }

    fn supply(&self, budget: u64, period: u64) -> Option<Together> {
        let of = Reservation::alone(budget, period).ok()?;
        Search::new(Sharing::Alone).on_host(self.overheads).together(of, self.vcpus)
    }

    fn on(&self, late: &TaskSet, supply: &Together) -> Verdict {
        judge(late, self.vcpus, self.overheads.latency, supply)
    }

    /// The host's timers release jobs late.
    fn late(&self, set: &TaskSet) -> Option<TaskSet> {
        let late = |task: &Task| Task {
            jitter: task.jitter.saturating_add(self.overheads.latency),
            ..task.clone()
        };
        TaskSet::new(set.tasks().iter().map(late).collect(), set.policy()).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::supply::Dedicated;

    fn set(policy: Policy, all: &[(u64, u64)]) -> TaskSet {
        let tasks = all.iter().map(|(cost, period)| Task::new("", *cost, *period));
        TaskSet::new(tasks.collect(), policy).unwrap()
    }

    /// By hand, on two processors that are always there: fewer other tasks than processors never
    /// wait. A third waits for what both others do at the same time. Of the first two, in `w` from
    /// a critical release: (10, 50), done at 10: 10 in up to 50. (20, 60), done at 20: 20.
    #[test]
    fn fixed_priorities_on_two_processors() {
        let three = set(Policy::Listed, &[(10, 50), (20, 60), (15, 100)]);
        // The third waits while both run: at most 10, so 15 + 10, and 25 < 40.
        assert_eq!(judge(&three, 2, 0, &Dedicated), Verdict::Schedulable(vec![10, 20, 25]));
        // A wake-up takes 1: one for the first, two for the second, and for the third three.
        assert_eq!(judge(&three, 2, 1, &Dedicated), Verdict::Schedulable(vec![11, 22, 28]));
        let two = set(Policy::Listed, &[(10, 50), (50, 60)]);
        assert_eq!(judge(&two, 2, 0, &Dedicated), Verdict::Schedulable(vec![10, 50]));
        // Dhall's effect: two light tasks and one that wants nearly a processor. With 2 of 10 the
        // last would run from 2 to 10 and from 12 to 13.
        let dhall = |light| set(Policy::RateMonotonic, &[(light, 10), (light, 10), (9, 11)]);
        assert_eq!(judge(&dhall(1), 2, 0, &Dedicated), Verdict::Schedulable(vec![1, 1, 10]));
        assert_eq!(judge(&dhall(2), 2, 0, &Dedicated), Verdict::Late(2));
    }

    /// By hand: under EDF on two processors. The last waits while both others run. In its 11 each of
    /// them has one job of 2, and is done with the one before, which was due 1 after the release: they
    /// take at most 4 of their 10, of which they wait for 2 while the last runs beside the other.
    #[test]
    fn deadlines_on_two_processors() {
        let three = set(Policy::Edf, &[(2, 10), (2, 10), (8, 11)]);
        assert_eq!(
            judge(&three, 2, 0, &Dedicated),
            Verdict::Schedulable(vec![2 + 2, 2 + 2, 8 + 2])
        );
        let three = set(Policy::Edf, &[(3, 10), (3, 10), (9, 11)]);
        assert_eq!(judge(&three, 2, 0, &Dedicated), Verdict::Late(2));
        assert!(judge(&set(Policy::Edf, &[(9, 10), (9, 10)]), 2, 0, &Dedicated).is_schedulable());
    }

    /// One vCPU: the uniprocessor's test is exact, this one is not below it.
    #[test]
    fn budgets_by_hand() {
        let ms = 1_000_000;
        let two = set(Policy::Listed, &[(40 * ms, 100 * ms), (40 * ms, 100 * ms)]);
        // Each has a vCPU. 40 of 100 are left if the two are held back for 60 in turn: 30 each, in
        // ten periods of 10, so 3 in each.
        let search = GlobalSearch::new(2);
        assert_eq!(search.least_budget(&two, 10 * ms), Some(7 * ms));
        assert!(search.judge(&two, 7 * ms, 10 * ms).is_schedulable());
        assert_eq!(search.judge(&two, 7 * ms - 1, 10 * ms), Verdict::Late(0));
        // A tick of 1 ms is missing once from each: 2 (10 b - 1) - 100 = 40.
        let here = search.on_host(Overheads::of_tick(ms));
        assert_eq!(here.least_budget(&two, 10 * ms), Some(7_100_000));
        // Timers late by 0.1 ms: the release leaves 99.9, of which each vCPU is late by 0.2, and the
        // second job may wait for two wake-ups, at both releases: 2 (10 b - 0.3) - 99.9 = 40.2.
        let here = search.on_host(Overheads { latency: ms / 10, ..Overheads::default() });
        assert_eq!(here.least_budget(&two, 10 * ms), Some(7_035_000));
    }

    proptest! {
        #[test]
        fn more_budget_is_never_worse(
            tasks in prop::collection::vec((1..30u64, 0..60u64, 0..60u64, 0..9u64, 0..9u64), 1..7),
            budget in 1..60u64, idle in 0..10u64, vcpus in 1..4u16, edf: bool,
        ) {
            let task = |(cost, more, early, jitter, blocking): (u64, u64, u64, u64, u64)| {
                let period = cost * 6 + more;
                let deadline = cost + 5 + (period - cost - 5).saturating_sub(early);
                Task { deadline, jitter: jitter.min(deadline - 1), blocking: blocking.min(deadline - 1), ..Task::new("", cost, period) }
            };
            let policy = if edf { Policy::Edf } else { Policy::DeadlineMonotonic };
            let set = TaskSet::new(tasks.into_iter().map(task).collect(), policy).unwrap();
            let of = |budget| judge(&set, vcpus, 0, &Together { of: Reservation::alone(budget, 60 + idle).unwrap(), late: 0, once: 0, vcpus });
            if let Verdict::Schedulable(worst) = of(budget) {
                let Verdict::Schedulable(better) = of(budget + 1) else { panic!("no more") };
                prop_assert!(better.iter().zip(&worst).all(|(better, worst)| better <= worst), "{better:?} {worst:?}");
            }
        }

        /// The exact test of one processor never says less.
        #[test]
        fn one_vcpu_is_judged_no_better_than_exactly(
            tasks in prop::collection::vec((1..30u64, 0..60u64, 0..60u64, 0..9u64), 1..6),
            budget in 1..60u64, idle in 0..10u64,
        ) {
            let task = |(cost, more, early, jitter): (u64, u64, u64, u64)| {
                let period = cost * 6 + more;
                let deadline = cost + 5 + (period - cost - 5).saturating_sub(early);
                Task { deadline, jitter: jitter.min(deadline - 1), ..Task::new("", cost, period) }
            };
            let of = Reservation::alone(budget, budget + idle).unwrap();
            for policy in [Policy::DeadlineMonotonic, Policy::Edf] {
                let set = TaskSet::new(tasks.iter().copied().map(task).collect(), policy).unwrap();
                let supply = Together { of, late: 0, once: 0, vcpus: 1 };
                if let Verdict::Schedulable(global) = judge(&set, 1, 0, &supply) {
                    let Verdict::Schedulable(exact) = crate::judge(&set, &crate::Worst(of)) else { panic!("late") };
                    prop_assert!(global.iter().zip(&exact).all(|(global, exact)| global >= exact), "{global:?} {exact:?}");
                }
            }
        }
    }
}
