//! [`examine`]: one case under one claim: is what the analysis promises kept, and how much less would do?
//!
//! What it does not do: sum up; [`tally`](super::tally) does.

use timevisor_schedule::Verdict;

use super::attacks::{Found, Plans, linux, theory};
use super::claims::Claim;
use super::sets::{Case, below, part_of};

/// Budgets that simulation looks for are found to this part of a period.
const PRECISION: u64 = 4096;

/// Who supplies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum World {
    /// Whatever the claim calls possible.
    Theory,
    /// SCHED_DEADLINE, the guest sleeps when it has nothing to do.
    Sleeping,
    /// SCHED_DEADLINE, a hog in the guest uses up what tasks leave.
    Hog,
}

impl World {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Theory, Self::Sleeping, Self::Hog];

    /// Whether the claim is about this one.
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

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    /// Whether the analysis finds a budget (for a whole processor: finds it enough).
    pub schedulable: bool,
    /// What was promised and not kept, in words.
    pub broken: Vec<String>,
    /// In [`World::Theory`], by the least budget: what was seen of each predicted response.
    pub seen: Vec<f64>,
    /// The least budget over the least one with which the simulator breaks nothing; by
    /// [`World::ALL`].
    pub pessimism: [Option<f64>; 3],
}

/// `None` where the claim is not about such tasks. `budgets`: whether to look for the simulator's
/// least budgets.
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

/// The least budget that survives all attacks, where `least` does. By halving: with others on the
/// core more budget may, in single cases, be worse than less, and some smaller one would survive,
/// too.
fn least_unbroken(world: World, claim: Claim, case: &Case, plans: &Plans, least: u64) -> u64 {
    let survives = |budget: u64| world.attack(claim, case, plans, budget).missed.is_none();
    let mut good = least;
    // What average demand wants is wanted in any case, and shows too late to be seen.
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
