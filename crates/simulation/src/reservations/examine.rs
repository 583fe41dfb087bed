//! [`examine`]: one case under one claim: does the analysis's guarantee hold, and how much less
//! budget would suffice?
//!
//! What it does not do: aggregate; [`tally`](super::tally) does.

use timevisor_schedule::Verdict;

use super::attacks::{Found, Plans, linux, theory};
use super::claims::Claim;
use super::sets::{Case, below, part_of};

/// Budgets found by simulation are accurate to this fraction of a period.
const PRECISION: u64 = 4096;

/// The source of the supply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum World {
    /// Any supply that the claim considers possible.
    Theory,
    /// SCHED_DEADLINE, with a guest that sleeps when it has nothing to do.
    Sleeping,
    /// SCHED_DEADLINE, with a hog in the guest that uses up what tasks leave.
    Hog,
}

impl World {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Theory, Self::Sleeping, Self::Hog];

    /// Whether the claim applies to this one.
    #[must_use]
    pub fn has(self, claim: Claim) -> bool {
        match self {
            Self::Theory => true,
            Self::Sleeping => claim != Claim::Dedicated,
            // A guest that never sleeps has no phase in common with its tasks.
            Self::Hog => !matches!(claim, Claim::Dedicated | Claim::Aligned),
        }
    }

    fn attack(self, claim: Claim, case: &Case, plans: &Plans, budget: u64) -> Found {
        match self {
            Self::Theory => theory(claim, case, plans, budget),
            Self::Sleeping => linux(claim, case, plans, budget, false),
            Self::Hog => linux(claim, case, plans, budget, true),
        }
    }
}

/// The findings.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    /// Whether the analysis finds a budget (for a whole processor: finds it enough).
    pub schedulable: bool,
    /// Descriptions of broken guarantees.
    pub broken: Vec<String>,
    /// In [`World::Theory`], with the minimum budget: the observed fraction of each predicted
    /// response.
    pub seen: Vec<f64>,
    /// The ratio of the minimum budget to the smallest one with which the simulator breaks nothing;
    /// by [`World::ALL`].
    pub pessimism: [Option<f64>; 3],
}

/// `None` if the claim does not apply to such tasks. `budgets` states whether to search for the
/// simulator's minimum budgets.
#[must_use]
pub fn examine(case: &Case, claim: Claim, budgets: bool) -> Option<Examined> {
    if claim != Claim::Dedicated {
        claim.reservation(case, case.period)?;
    }
    let mut examined = Examined::default();
    let plans = Plans::new(case, claim);
    let Some(least) = claim.least_budget(case) else { return Some(examined) };
    examined.schedulable = true;
    let more = least + below(&mut case.stream("budget"), case.period - least + 1);
    for budget in [least, more] {
        let Verdict::Schedulable(predicted) = claim.judge(case, budget) else {
            examined.broken.push(format!("a budget of {budget} is too little, {least} is not"));
            continue;
        };
        for world in World::ALL.into_iter().filter(|world| world.has(claim)) {
            let found = world.attack(claim, case, &plans, budget);
            let late = found.worst.iter().zip(&predicted).any(|(seen, most)| seen > most);
            if late || found.missed.is_some() {
                examined.broken.push(format!(
                    "seed {}, {}, {world:?}, budget {budget} of {}: missed {:?}, responses {:?}, promised {predicted:?}; {:?}",
                    case.seed, claim.name(), case.period, found.missed, found.worst, case.set
                ));
            }
            if world == World::Theory && budget == least {
                let seen = found.worst.iter().zip(&predicted);
                examined.seen = seen.map(|(seen, most)| *seen as f64 / *most as f64).collect();
            }
        }
    }
    if budgets && claim != Claim::Dedicated {
        for (ratio, world) in examined.pessimism.iter_mut().zip(World::ALL) {
            if world.has(claim) {
                *ratio =
                    Some(least as f64 / least_unbroken(world, claim, case, &plans, least) as f64);
            }
        }
    }
    Some(examined)
}

/// The minimum budget that survives all attacks, given that `least` does. It uses bisection; with
/// others on the core, a larger budget may occasionally be worse than a smaller one, so some
/// smaller budget might survive as well.
fn least_unbroken(world: World, claim: Claim, case: &Case, plans: &Plans, least: u64) -> u64 {
    let survives = |budget: u64| world.attack(claim, case, plans, budget).missed.is_none();
    let mut good = least;
    // Average demand is always a lower limit, but a violation would show too late to be seen.
    let mut bad = part_of(case.set.utilization(), case.period).min(least - 1);
    if least - bad == 1 || !survives(least - 1) {
        return least;
    }
    while good - bad > 1 + case.period / PRECISION {
        let middle = good.midpoint(bad);
        if survives(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good
}
