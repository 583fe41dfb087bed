//! [`cross_check`]: a guest that schedules its tasks over several vCPUs by itself, each with a reservation
//! that is alone on its core.
//!
//! A [`Sight::Blind`] guest is what real ones are: it runs the most urgent jobs, one on each vCPU,
//! and does not know which vCPUs the host holds back just now. Jobs stay where they are until one is
//! displaced, or change places whenever a more urgent one comes; the least urgent one gets the vCPU that is held
//! back longest. A [`Sight::Seeing`] one is what the theory of virtual multiprocessors assumes: it moves
//! jobs to vCPUs that have processor time, at no cost.
//!
//! What it does not do: charge for migrations, block (less urgent work never delays a job), or share
//! cores.

use timevisor_schedule::global::GlobalSearch;
use timevisor_schedule::{Overheads, Policy, Reservation, Task, TaskSet, Verdict};

use super::guest::Outcome;
use super::releases::{Plan, Span, anyhow, apart, due_together, together};
use super::server::Server;
use super::sets::{MS, below, one_of, part_of, uunifast};
use crate::random::Random;

/// What the guest knows of its vCPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    /// Nothing.
    Blind,
    /// Which of them may run now.
    Seeing,
}

/// How the host departs from theory; ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// Budgets are enforced by it, unless it is 0. Each core has its own phase.
    pub tick: u64,
    /// Releases, replenishments and wake-ups are late by up to this.
    pub latency: u64,
}

/// One question to the analysis.
#[derive(Clone, Debug)]
pub struct Case {
    /// The tasks.
    pub set: TaskSet,
    /// Number of vCPUs.
    pub vcpus: u16,
    /// The period of their reservations, ns.
    pub period: u64,
    /// Their host.
    pub host: Host,
}

const PERIODS: [u64; 13] = [4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 120];
/// The jobs' releases begin here; before it, a guest that never sleeps uses up budgets.
const ORIGIN: u64 = 120 * MS;
const SPAN: Span = Span { origin: ORIGIN, end: ORIGIN + 480 * MS };

impl Case {
    /// The case of a seed.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let mut random = Random::stream(seed, "global");
        let vcpus = one_of(&mut random, &[2u16, 2, 3, 4]);
        let most = f64::from(vcpus) * 0.7;
        let count = 1 + u32::try_from(below(&mut random, u64::from(2 * vcpus + 3))).unwrap_or(0);
        let policies = [Policy::Edf, Policy::Edf, Policy::RateMonotonic, Policy::Listed];
        let policy = one_of(&mut random, &policies);
        let total = most * (0.1 + 0.9 * random.uniform());
        let (constrained, late) = (random.chance(0.3), random.chance(0.3));
        let parts = uunifast(&mut random, count, total);
        let task = |(index, part): (usize, f64)| {
            let period = one_of(&mut random, &PERIODS) * MS;
            let cost = part_of(part.min(0.9), period).max(1000);
            let room = period - cost;
            let early = if constrained { below(&mut random, room / 2 + 1) } else { 0 };
            let deadline = period - early;
            let jitter = if late { below(&mut random, (deadline - cost) / 4 + 1) } else { 0 };
            Task { deadline, jitter, ..Task::new(&index.to_string(), cost, period) }
        };
        let tasks = parts.into_iter().enumerate().map(task).collect();
        let set = TaskSet::new(tasks, policy).expect("cost <= deadline <= period");
        let period = one_of(&mut random, &[500, 1000, 1500, 2000, 3000, 5000]) * 1000;
        let host = match below(&mut random, 3) {
            0 => Host { tick: one_of(&mut random, &[MS / 10, MS / 4]), latency: 0 },
            1 => Host { tick: 0, latency: one_of(&mut random, &[MS / 50, MS / 10]) },
            _ => Host::default(),
        };
        Self { set, vcpus, period, host }
    }

    /// When its jobs may come.
    #[must_use]
    pub fn plans(&self, random: &mut Random) -> Vec<Plan> {
        let mut all = vec![together(&self.set, SPAN)];
        for target in 0..self.set.tasks().len() {
            if self.set.policy() == Policy::Edf {
                all.push(due_together(&self.set, SPAN, target, random));
            }
            let periods: Vec<u64> = self.set.tasks().iter().map(|task| task.period).collect();
            all.push(apart(&self.set, SPAN, |index| below(random, periods[index])));
        }
        all.extend((0..3).map(|_| anyhow(&self.set, SPAN, random)));
        all
    }

    /// The worst of these with a budget for each vCPU: of a guest that sleeps where it has nothing to
    /// do, and of one that never does.
    #[must_use]
    pub fn attack(&self, budget: u64, sight: Sight, sleeps: bool, random: &mut Random) -> Outcome {
        let mut worst = Outcome { worst: vec![0; self.set.tasks().len()], ..Outcome::default() };
        for plan in self.plans(random) {
            let found = run(self, &plan, budget, sight, sleeps, random);
            for (worst, seen) in worst.worst.iter_mut().zip(&found.worst) {
                *worst = (*worst).max(*seen);
            }
            worst.missed = worst.missed.or(found.missed);
            if worst.missed.is_some() {
                break;
            }
        }
        worst
    }
}

struct Vcpu {
    server: Server,
    /// It may run from then on.
    ready: u64,
    /// The next tick of its core is at a multiple of the tick, less this.
    phase: u64,
    /// A guest that never sleeps begins then.
    begins: u64,
}

struct Job {
    urgency: (u64, u64),
    task: usize,
    arrival: u64,
    left: u64,
    vcpu: Option<usize>,
}

/// Runs a plan to its end, or to the first job that is late.
#[must_use]
pub fn run(
    case: &Case,
    plan: &Plan,
    budget: u64,
    sight: Sight,
    sleeps: bool,
    random: &mut Random,
) -> Outcome {
    let Case { set, vcpus, period, host } = case;
    let mut outcome = Outcome { worst: vec![0; set.tasks().len()], ..Outcome::default() };
    // Alone on its core, a reservation precedes everything, whatever its deadline.
    let of = match random.chance(0.5) {
        true => Reservation::shared(budget, *period),
        false => Reservation::alone(budget, *period),
    };
    let Ok(of) = of else { return outcome };
    // Whether jobs change places whenever one comes.
    let restless = random.chance(0.7);
    // The host's timer is late, sometimes by all it may be.
    let always = random.chance(0.5);
    let late = |random: &mut Random| {
        if always { host.latency } else { below(random, host.latency + 1) }
    };
    let mut all: Vec<Vcpu> = (0..*vcpus)
        .map(|_| Vcpu {
            server: Server::new(of),
            ready: 0,
            phase: below(random, host.tick.max(1)),
            begins: ORIGIN - 2 * period - below(random, *period),
        })
        .collect();
    let mut releases: Vec<_> =
        plan.releases.iter().map(|release| (release.at + late(random), *release)).collect();
    releases.sort_by_key(|(at, _)| core::cmp::Reverse(*at));
    let mut jobs: Vec<Job> = Vec::new();
    let mut now = 0;
    while outcome.missed.is_none() && !(jobs.is_empty() && releases.is_empty()) {
        let mut next = u64::MAX;
        for vcpu in &mut all {
            if let Some(timer) = vcpu.server.timer().filter(|timer| *timer <= now) {
                vcpu.server.replenish(now);
                // What is due already needs no timer.
                vcpu.ready = now + if timer == now { late(random) } else { 0 };
            }
        }
        let known = jobs.len();
        while let Some((_, release)) = releases.pop_if(|(at, _)| *at <= now) {
            let task = &set.tasks()[release.task];
            let first = match set.policy() {
                Policy::Edf => release.arrival + task.deadline,
                _ => release.task as u64,
            };
            // Of those that are equally urgent, any may be first.
            let urgency = (first, random.bits());
            let (task, arrival, left) = (release.task, release.arrival, release.cost);
            jobs.push(Job { urgency, task, arrival, left, vcpu: None });
        }
        // No job moves because of a less urgent one.
        let come = jobs[known..].iter().map(|job| job.urgency).min();
        if let Some(come) = come.filter(|_| restless) {
            let less = jobs.iter_mut().filter(|job| job.urgency > come);
            less.for_each(|job| job.vcpu = None);
        }
        jobs.sort_by_key(|job| job.urgency);
        assign(&mut jobs, &all, sight, now);
        let holds = |jobs: &[Job], of: usize| jobs.iter().position(|job| job.vcpu == Some(of));
        for (index, vcpu) in all.iter_mut().enumerate() {
            let job = holds(&jobs, index);
            let wants = job.is_some() || (!sleeps && now >= vcpu.begins);
            if wants && !vcpu.server.queued() {
                vcpu.server.wake(now);
                vcpu.ready = now + late(random);
            } else if !wants && vcpu.server.queued() {
                vcpu.server.sleep();
            }
            if !sleeps && now < vcpu.begins {
                next = next.min(vcpu.begins);
            }
            next = vcpu.server.timer().map_or(next, |timer| next.min(timer));
            if vcpu.server.urgency().is_none() {
                continue;
            }
            if vcpu.ready > now {
                next = next.min(vcpu.ready);
                continue;
            }
            next = next.min(gone(vcpu, host.tick, now));
            if let Some(job) = job {
                next = next.min(now + jobs[job].left);
            }
        }
        // A budget that is found to be used up after its period comes back at once.
        next = releases.last().map_or(next, |(at, _)| next.min(*at)).max(now);
        for (index, vcpu) in all.iter_mut().enumerate() {
            if vcpu.server.urgency().is_none() || vcpu.ready > now {
                continue;
            }
            if let Some(job) = holds(&jobs, index) {
                jobs[job].left -= next - now;
            }
            let gone = gone(vcpu, host.tick, now);
            vcpu.server.spend(next - now);
            outcome.delivered += next - now;
            if next == gone {
                vcpu.server.account();
            }
        }
        now = next;
        for job in jobs.extract_if(.., |job| job.left == 0) {
            let response = now - job.arrival;
            outcome.worst[job.task] = outcome.worst[job.task].max(response);
            if response > set.tasks()[job.task].deadline {
                outcome.missed.get_or_insert(job.task);
            }
        }
        let late = jobs.iter().find(|job| now > job.arrival + set.tasks()[job.task].deadline);
        outcome.missed = outcome.missed.or(late.map(|job| job.task));
    }
    outcome
}

/// `jobs` are sorted, the most urgent first.
fn assign(jobs: &mut [Job], all: &[Vcpu], sight: Sight, now: u64) {
    let held_back = |of: &Vcpu| of.server.timer().unwrap_or(0).max(of.ready) > now;
    let usable: Vec<usize> =
        (0..all.len()).filter(|index| sight == Sight::Blind || !held_back(&all[*index])).collect();
    let (chosen, others) = jobs.split_at_mut(usable.len().min(jobs.len()));
    others.iter_mut().for_each(|job| job.vcpu = None);
    for job in chosen.iter_mut() {
        job.vcpu = job.vcpu.filter(|vcpu| usable.contains(vcpu));
    }
    // The least urgent one gets the worst.
    for index in (0..chosen.len()).rev() {
        if chosen[index].vcpu.is_some() {
            continue;
        }
        let free = usable.iter().filter(|vcpu| chosen.iter().all(|job| job.vcpu != Some(**vcpu)));
        chosen[index].vcpu = free
            .max_by_key(|vcpu| {
                let of = &all[**vcpu];
                // Out of budget, or soon.
                let left = core::cmp::Reverse(of.server.runtime());
                (of.server.timer().unwrap_or(0).max(of.ready).max(now), left)
            })
            .copied();
    }
}

/// When a server that runs from now on is stopped.
fn gone(vcpu: &Vcpu, tick: u64, now: u64) -> u64 {
    let gone = now + vcpu.server.runtime().max(0).unsigned_abs();
    if tick == 0 { gone } else { (gone + vcpu.phase).next_multiple_of(tick) - vcpu.phase }
}

/// What was found of many cases.
#[derive(Clone, Debug)]
pub struct GlobalTally {
    /// Examined.
    pub cases: u64,
    /// Of these, the analysis finds a budget.
    pub schedulable: u64,
    /// The broken promises.
    pub told: Vec<String>,
    /// The least ratio of a predicted response to what was seen.
    pub tightest: f64,
}

/// Examines the cases of these seeds: the least budget of the analysis, and a random larger one.
#[must_use]
pub fn cross_check(seeds: impl IntoIterator<Item = u64>) -> GlobalTally {
    let mut tally =
        GlobalTally { cases: 0, schedulable: 0, told: Vec::new(), tightest: f64::INFINITY };
    for seed in seeds {
        let case = Case::random(seed);
        tally.cases += 1;
        let Host { tick, latency } = case.host;
        let overheads = Overheads { tick, latency, ..Overheads::default() };
        let search = GlobalSearch { vcpus: case.vcpus, overheads };
        let Some(least) = search.least_budget(&case.set, case.period) else { continue };
        tally.schedulable += 1;
        let mut random = Random::stream(seed, "attack");
        let more = least + below(&mut random, case.period - least + 1);
        for (budget, sleeps) in [(least, true), (least, false), (more, true), (more, false)] {
            let verdict = search.judge(&case.set, budget, case.period);
            let found = case.attack(budget, Sight::Blind, sleeps, &mut random);
            let kept = match &verdict {
                Verdict::Schedulable(predicted) => {
                    for (seen, most) in found.worst.iter().zip(predicted) {
                        tally.tightest = tally.tightest.min(*most as f64 / *seen as f64);
                    }
                    found.worst.iter().zip(predicted).all(|(seen, most)| seen <= most)
                }
                _ => false,
            };
            if !kept || found.missed.is_some() {
                tally.told.push(format!(
                    "seed {seed}, budget {budget}, sleeps {sleeps}: {found:?}, promised {verdict:?}; {case:?}"
                ));
            }
        }
    }
    tally
}

#[cfg(test)]
#[path = "global_tests.rs"]
mod tests;
