//! [`Rivals`]: other reservations on the core, all of which pass admission together.
//!
//! What it does not do: check their own deadlines.

use timevisor_schedule::admission::{Host, core_keeps};
use timevisor_schedule::edf::Demand;
use timevisor_schedule::{Policy, Reservation, Task, TaskSet};

use super::guest::Guest;
use super::processor::Member;
use super::releases::{Plan, Release, Span};
use super::sets::{below, part_of};
use crate::random::Random;

/// Up to two other reservations.
#[derive(Clone, Debug, Default)]
pub struct Rivals {
    all: Vec<Rival>,
}

#[derive(Clone, Debug)]
struct Rival {
    of: Reservation,
    set: TaskSet,
    plan: Plan,
    hog: bool,
}

impl Rivals {
    /// Draws others for this reservation: with implicit deadlines, they take nearly all that it
    /// leaves.
    #[must_use]
    pub fn beside(
        beside: Reservation,
        constrained: bool,
        host: &Host,
        random: &mut Random,
    ) -> Vec<Reservation> {
        let mut kept = vec![beside];
        for last in [false, true] {
            let period = (beside.period() / 2).max(1) + below(random, beside.period() * 3);
            let deadline =
                if constrained { period / 3 + below(random, period * 2 / 3) } else { period };
            let most = period
                - u64::try_from(
                    u128::from(beside.budget()) * u128::from(period) / u128::from(beside.period()),
                )
                .unwrap_or(period);
            let with = |budget: u64| {
                let mut all = kept.clone();
                all.push(Reservation::new(budget, deadline.max(budget), period).ok()?);
                (core_keeps(&all, host) == Demand::Supplied).then_some(all)
            };
            // Bisection: if a budget is refused, larger ones are, too.
            let (mut fits, mut not) = (0, most + 1);
            while not - fits > 1 + period / 2000 {
                let middle = fits.midpoint(not);
                if with(middle).is_some() { fits = middle } else { not = middle }
            }
            let part = if last { 1.0 } else { random.uniform() };
            if let Some(all) = with(part_of(part, fits)) {
                kept = all;
            }
        }
        kept
    }

    /// Gives them work: each either never sleeps, or occasionally does something.
    #[must_use]
    pub fn of(all: &[Reservation], span: Span, random: &mut Random) -> Self {
        let one = |of: &Reservation| {
            let hog = random.chance(0.3);
            let task = Task::new("", 1, of.period());
            let set = TaskSet::new(vec![task], Policy::Listed).expect("1 ns of a period");
            let mut plan = Plan { releases: Vec::new(), judged: 0, last: None };
            let mut at = below(random, of.period());
            // As regular as a task that takes all of its budget, or random; in one piece, or in
            // several with sleep between them, which exercises the server's wakeup rule.
            let (regular, pieces) = (random.chance(0.5), 1 + 4 * below(random, 2));
            while !hog && at < span.end {
                let cost = 1 + below(random, of.budget() + of.budget() / 2) / pieces;
                plan.releases.push(Release { at, arrival: at, task: 0, cost, blocks: false });
                let apart = if regular { of.period() } else { 1 + below(random, 2 * of.period()) };
                at += (apart / pieces).max(1);
            }
            Rival { of: *of, set, plan, hog }
        };
        Self { all: all.iter().map(one).collect() }
    }

    /// The members to run.
    pub fn members(&self) -> impl Iterator<Item = Member<'_>> {
        self.all
            .iter()
            .map(|rival| Member::new(rival.of, Guest::new(&rival.set, &rival.plan, rival.hog)))
    }
}
