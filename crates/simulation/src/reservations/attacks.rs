//! Attempts to break a claim: releases and supplies that it must survive.
//!
//! | attack | supply | by whose rules |
//! | --- | --- | --- |
//! | [`theory`] | the windows of the worst case, and random ones that keep the guarantee | the analysis, which considers them possible |
//! | [`linux`] | SCHED_DEADLINE's, with others on the core if the claim allows them, with and without a hog in the guest | the kernel |
//!
//! What it does not do: prove anything. A surviving claim was tested only against these attempts.

use timevisor_schedule::Reservation;
use timevisor_schedule::TaskSet;
use timevisor_schedule::admission::{Host, core_keeps};
use timevisor_schedule::edf::Demand;

use super::claims::Claim;
use super::guest::{Guest, Outcome};
use super::processor::{Enforcement, Member, run};
use super::releases::{Plan, Span, anyhow, apart, blocked, due_together, together};
use super::rivals::Rivals;
use super::sets::{Case, REPEAT, below};
use super::windows::{self, Window};
use crate::random::Random;

/// The origin of the jobs' releases; before it, budgets are used up.
const ORIGIN: u64 = 2 * REPEAT;
/// Twice the repetition interval, plus the longest blackout and deadline.
const SPAN: Span = Span { origin: ORIGIN, end: ORIGIN + 4 * REPEAT };

/// The release plans, computed once per case.
pub struct Plans {
    /// From the critical instant on, for the worst supply.
    critical: Vec<Plan>,
    /// Plans for any supply.
    other: Vec<Plan>,
}

/// The worst of all attempts.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// As in [`Outcome`].
    pub worst: Vec<u64>,
    /// As in [`Outcome`].
    pub missed: Option<usize>,
}

impl Found {
    fn add(&mut self, outcome: &Outcome) -> bool {
        self.worst.resize(outcome.worst.len(), 0);
        for (worst, seen) in self.worst.iter_mut().zip(&outcome.worst) {
            *worst = (*worst).max(*seen);
        }
        self.missed = self.missed.or(outcome.missed);
        self.missed.is_some()
    }
}

impl Plans {
    /// The plans of a case.
    #[must_use]
    pub fn new(case: &Case, claim: Claim) -> Self {
        let (set, mut random) = (&case.set, case.stream("releases"));
        let mut critical = vec![together(set, SPAN)];
        let waiting = (0..set.tasks().len()).filter(|index| set.tasks()[*index].blocking > 0);
        critical.extend(waiting.map(|index| blocked(set, SPAN, index)));
        if claim == Claim::Aligned {
            let multiple = |index: usize, random: &mut Random| {
                below(random, set.tasks()[index].period / case.period) * case.period
            };
            let other = (0..2).map(|_| apart(set, SPAN, |index| multiple(index, &mut random)));
            return Self { critical, other: other.collect() };
        }
        if set.policy() == timevisor_schedule::Policy::Edf && set.tasks().len() > 1 {
            let targets = (0..set.tasks().len()).map(|t| due_together(set, SPAN, t, &mut random));
            critical.extend(targets);
        }
        Self { critical, other: (0..2).map(|_| anyhow(set, SPAN, &mut random)).collect() }
    }

    fn all(&self) -> impl Iterator<Item = &Plan> {
        self.critical.iter().chain(&self.other)
    }
}

/// Attacks with supplies that the claim considers possible.
#[must_use]
pub fn theory(claim: Claim, case: &Case, plans: &Plans, budget: u64) -> Found {
    let mut found = Found::default();
    let mut random = case.stream("windows");
    let withheld = match claim {
        Claim::SharedTicked | Claim::AloneTicked => case.tick,
        _ => 0,
    };
    for plan in plans.all() {
        let mut try_windows = |windows: &mut dyn Iterator<Item = Window>| {
            let mut guest = Guest::new(&case.set, plan, false);
            windows::run(&mut guest, windows);
            found.add(&guest.outcome)
        };
        let broken = match claim.reservation(case, budget) {
            None => claim == Claim::Dedicated && try_windows(&mut windows::dedicated().into_iter()),
            Some(of) if claim == Claim::Aligned => {
                try_windows(&mut windows::at_once(of, ORIGIN, withheld))
            }
            Some(of) => {
                let phase = ORIGIN - REPEAT - below(&mut random, of.period());
                try_windows(&mut windows::worst(of, ORIGIN, withheld))
                    || try_windows(&mut windows::anywhere(of, phase, &mut random))
            }
        };
        if broken {
            break;
        }
    }
    found
}

/// Attacks with SCHED_DEADLINE's supply when the claim holds. `hog` states whether the guest never
/// sleeps.
#[must_use]
pub fn linux(claim: Claim, case: &Case, plans: &Plans, budget: u64, hog: bool) -> Found {
    let mut found = Found::default();
    let mut random = case.stream("linux");
    let Some(mut of) = claim.reservation(case, budget) else { return found };
    let alone = matches!(claim, Claim::Alone | Claim::AloneTicked | Claim::Aligned);
    if alone && random.chance(0.5) {
        // A reservation alone on its core precedes all others, whatever its deadline.
        of = Reservation::shared(of.budget(), of.period()).unwrap_or(of);
    }
    let (enforcement, tick) = match claim {
        Claim::SharedTicked | Claim::AloneTicked => (Enforcement::Tick(case.tick), case.tick),
        _ => (Enforcement::Exact, 0),
    };
    let host = Host { tick, ..Host::default() };
    let core = if alone {
        vec![of]
    } else {
        Rivals::beside(of, claim == Claim::Constrained, &host, &mut random)
    };
    for plan in plans.all() {
        let rivals = Rivals::of(&core[1..], SPAN, &mut random);
        // The guest wakes so early that a hog has used up a budget by the critical instant.
        let early = if random.chance(0.5) { of.budget() } else { below(&mut random, of.period()) };
        let shifted = shift(plan, REPEAT + early % of.period());
        let mut members = vec![Member::new(of, Guest::new(&case.set, &shifted, hog))];
        members.extend(rivals.members());
        run(&mut members, enforcement, u64::MAX >> 1);
        if found.add(&members[0].guest.outcome) {
            break;
        }
    }
    found
}

/// The same plan with its critical instant at `at`.
fn shift(plan: &Plan, at: u64) -> Plan {
    let mut plan = plan.clone();
    for release in &mut plan.releases {
        release.at = release.at + at - ORIGIN;
        release.arrival = release.arrival + at - ORIGIN;
    }
    plan
}

/// Checks that a core's reservations get what they were guaranteed: the first one's guest is never
/// done, and the others behave arbitrarily. Returns the first interval in which less was supplied:
/// its length and its supply.
#[must_use]
pub fn short_of_promise(
    of: &[Reservation],
    random: &mut Random,
    promised: impl Fn(u64) -> u64,
) -> Option<(u64, u64)> {
    debug_assert!(core_keeps(of, &Host::default()) == Demand::Supplied);
    let end = SPAN.end / 2;
    let never_done = timevisor_schedule::Task::new("", 1, end);
    let set = TaskSet::new(vec![never_done], timevisor_schedule::Policy::Listed).ok()?;
    let plan = together(&set, Span { origin: end - 1, end: 3 * end });
    let rivals = Rivals::of(&of[1..], Span { origin: 0, end }, random);
    let mut members = vec![Member::new(of[0], Guest::new(&set, &plan, true))];
    members.extend(rivals.members());
    run(&mut members, Enforcement::Exact, end);
    let ran = &members[0].ran;
    // The worst interval starts when it stops running and ends before it runs again.
    for (index, (_, from)) in ran.iter().enumerate() {
        let mut had = 0;
        for (start, stop) in &ran[index + 1..] {
            if promised(start - from) > had {
                return Some((start - from, had));
            }
            had += stop - start;
        }
    }
    None
}
