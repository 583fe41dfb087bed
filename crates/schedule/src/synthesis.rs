//! The minimum budget, the best period, and how much a task may grow. Supply grows with the budget,
//! so bisection finds the minimum that is enough for any one interval, and the maximum of these is
//! enough for all.

use crate::aligned::Aligned;
use crate::overheads::Overheads;
use crate::reservation::Reservation;
pub use crate::search::last_that_fits;
use crate::sensitivity::greatest_costs;
use crate::supply::{Late, Line, Linear, Supply, Ticked, Worst};
use crate::task::TaskSet;
use crate::tester::Tester;
use crate::together::Together;
use crate::verdict::{Verdict, fits, judge};

/// Minimum margin above what the analysis needs; 1/1000.
const SLACK: u64 = 30;

/// Who else is on the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Nothing precedes it: the budget comes immediately.
    Alone,
    /// As `Alone`, and every release is at a replenishment; [`Aligned`] states the conditions.
    /// Tasks that cannot be released like that fit in no reservation.
    Aligned,
    /// Other reservations: the budget may come at the end of the period.
    Shared,
}

/// How supply is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Model {
    /// Exactly.
    #[default]
    Worst,
    /// By the linear lower bound.
    Linear,
}

/// The parameters of a search for a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Search {
    /// How the core is shared.
    pub sharing: Sharing,
    /// The supply model.
    pub model: Model,
    /// What the host takes from it. Nothing fits in a budget below a tick.
    pub overheads: Overheads,
}

impl Search {
    /// An exact search on a host without overheads.
    #[must_use]
    pub fn new(sharing: Sharing) -> Self {
        Self { sharing, model: Model::Worst, overheads: Overheads::default() }
    }

    /// The same on a host with these.
    #[must_use]
    pub fn on_host(self, overheads: Overheads) -> Self {
        Self { overheads, ..self }
    }

    /// The budget to use on this host if `least` is the minimum in theory: the host's overheads are in it,
    /// and at least 3 % more than in theory, because the tasks' costs were measured, up to the whole period.
    /// `None` if the overheads make any budget insufficient.
    #[must_use]
    pub fn with_slack(&self, set: &TaskSet, least: Reservation) -> Option<Reservation> {
        let here = self.least_budget(set, least.period())?;
        self.reservation(here.max(Self::slackened(least)).min(least.period()), least.period())
    }

    /// The budget that has the least slack above this one.
    pub(crate) fn slackened(least: Reservation) -> u64 {
        least.budget() + (least.budget() * SLACK).div_ceil(1000)
    }

    /// The reservation with this budget.
    #[must_use]
    pub fn reservation(&self, budget: u64, period: u64) -> Option<Reservation> {
        match self.sharing {
            Sharing::Alone | Sharing::Aligned => Reservation::alone(budget, period).ok(),
            Sharing::Shared => Reservation::shared(budget, period).ok(),
        }
    }

    /// Judges the tasks in this reservation.
    #[must_use]
    pub fn judge(&self, set: &TaskSet, of: Reservation) -> Verdict {
        self.on(set, of).map_or(Verdict::NotKnown, |supply| judge(set, &supply))
    }

    /// Whether the tasks meet their deadlines in it: [`Self::judge`] without response times.
    #[must_use]
    pub fn fits(&self, set: &TaskSet, of: Reservation) -> bool {
        self.on(set, of).is_some_and(|supply| fits(set, &supply))
    }

    /// Its minimum supply for these tasks, if it is known.
    fn on(&self, set: &TaskSet, of: Reservation) -> Option<Delivered> {
        self.applies(set, of.period()).then(|| self.supply(of)).flatten()
    }

    /// Whether the supply's conditions hold in a period.
    fn applies(&self, set: &TaskSet, period: u64) -> bool {
        let aligned = |of| Aligned(of).holds_for(set);
        self.sharing != Sharing::Aligned || self.reservation(period, period).is_some_and(aligned)
    }

    /// What this reservation supplies on this host to tasks for which the [`Sharing`] holds. `None` if the
    /// overheads leave less than a tick of its budget.
    #[must_use]
    pub fn delivered(&self, of: Reservation) -> Option<impl Supply + use<>> {
        self.supply(of)
    }

    /// What is left of a budget when interrupts have taken from it, and how much that is. Whatever is
    /// taken in a period may be taken from its budget.
    fn left(&self, of: Reservation) -> Option<(Reservation, u64)> {
        let (tick, taken) = (self.overheads.tick, self.overheads.taken_in(of.period()));
        let usable = of.budget().checked_sub(taken).filter(|usable| *usable >= tick.max(1))?;
        Some((Reservation::new(usable, of.deadline(), of.period()).ok()?, taken))
    }

    /// The time in which this many vCPUs with such a reservation run at once; `None` unless each is
    /// alone on its core, and the releases are not assumed to be at replenishments.
    #[must_use]
    pub fn together(&self, of: Reservation, vcpus: u16) -> Option<Together> {
        let Overheads { tick, latency, burst, .. } = self.overheads;
        let alone = self.sharing == Sharing::Alone;
        let (left, _) = alone.then(|| self.left(of)).flatten()?;
        let (late, once) = (latency.saturating_mul(2), tick.saturating_add(burst));
        Some(Together { of: left, late, once, vcpus })
    }

    fn supply(&self, of: Reservation) -> Option<Delivered> {
        let Overheads { tick, latency, burst, .. } = self.overheads;
        let (left, taken) = self.left(of)?;
        // A job's wake-up may be late, during which a budget is used up, and then the next one.
        let twice = latency.saturating_mul(2);
        let (supply, late) = match (self.sharing, self.model) {
            // A linear bound is of no use here, because the exact supply is just as simple. What is taken
            // of a budget may be its beginning. The wake-up and the replenishment are one.
            (Sharing::Aligned, _) => {
                (Modelled::Aligned(Aligned(left)), latency.saturating_add(taken))
            }
            (_, Model::Worst) => (Modelled::Worst(Worst(left)), twice),
            (_, Model::Linear) => (Modelled::Linear(Linear(left)), twice),
        };
        // What comes at once is missing once, as an overrun is.
        let supply = Ticked { supply, tick: tick.saturating_add(burst) };
        Some(Late { supply, by: late })
    }

    /// The supply as a function of the budget in a period.
    fn supplies(&self, period: u64) -> impl Fn(u64) -> Option<Delivered> {
        move |budget| self.supply(self.reservation(budget, period)?)
    }

    /// The minimum budget in this period, ns; `None` if even the whole processor is too little.
    #[must_use]
    pub fn least_budget(&self, set: &TaskSet, period: u64) -> Option<u64> {
        let supplies = self.supplies(period);
        self.applies(set, period).then(|| Tester::new(set).least(1, period, &supplies)).flatten()
    }

    /// The cheapest of these periods. The cost is its budget, at least `smallest` ns, plus a switch
    /// of `switch` ns in every period. If two cost the same, the longer is chosen.
    #[must_use]
    pub fn best_period(
        &self,
        set: &TaskSet,
        periods: impl IntoIterator<Item = u64>,
        switch: u64,
        smallest: u64,
    ) -> Option<Reservation> {
        let mut tester = Tester::new(set);
        let mut best: Option<(u128, u64, Reservation)> = None;
        for period in spread(periods) {
            if smallest > period || !self.applies(set, period) {
                continue;
            }
            let supplies = self.supplies(period);
            let mut passes = |budget| supplies(budget).is_some_and(|on| tester.fits(&on));
            let mut most = period;
            // If the tasks do not fit in a budget that would cost as much as the best, this period
            // is not better: one test instead of a search.
            if let Some((cost, in_period, _)) = best {
                let same = cost * u128::from(period) / u128::from(in_period);
                let same = u64::try_from(same).unwrap_or(u64::MAX);
                most = same.saturating_sub(switch).min(period);
                if most < smallest || !passes(most) {
                    continue;
                }
            }
            if smallest > 1 && passes(smallest - 1) {
                continue;
            }
            let Some(budget) = tester.least(smallest.max(1), most, &supplies) else { continue };
            let Some(of) = self.reservation(budget, period) else { continue };
            // Fractions of a processor, compared by cross-multiplication: a / b < c / d.
            let cost = u128::from(budget) + u128::from(switch);
            let better = best.is_none_or(|(least, in_period, _)| {
                let (this, that) = (cost * u128::from(in_period), least * u128::from(period));
                this < that || (this == that && period > in_period)
            });
            if better {
                best = Some((cost, period, of));
            }
        }
        best.map(|(_, _, of)| of)
    }

    /// The greatest cost of each task with which all still meet their deadlines in this
    /// reservation, with the others unchanged, ns; `None` if they do not meet them now.
    #[must_use]
    pub fn greatest_costs(&self, set: &TaskSet, of: Reservation) -> Option<Vec<u64>> {
        greatest_costs(set, &self.on(set, of)?)
    }
}

/// What arrives of a supply.
type Delivered = Late<Ticked<Modelled>>;

/// Any of the supplies.
#[derive(Clone, Copy, Debug)]
enum Modelled {
    Worst(Worst),
    Linear(Linear),
    Aligned(Aligned),
}

impl Supply for Modelled {
    fn within(&self, t: u64) -> u64 {
        match self {
            Self::Worst(supply) => supply.within(t),
            Self::Linear(supply) => supply.within(t),
            Self::Aligned(supply) => supply.within(t),
        }
    }

    fn time_for(&self, work: u64) -> u64 {
        match self {
            Self::Worst(supply) => supply.time_for(work),
            Self::Linear(supply) => supply.time_for(work),
            Self::Aligned(supply) => supply.time_for(work),
        }
    }

    fn line(&self) -> Line {
        match self {
            Self::Worst(supply) => supply.line(),
            Self::Linear(supply) => supply.line(),
            Self::Aligned(supply) => supply.line(),
        }
    }
}

/// The same values in another order: wherever the best ones are, some nearly as good come early and
/// rule out most others.
fn spread(all: impl IntoIterator<Item = u64>) -> impl Iterator<Item = u64> {
    let mut all: Vec<(usize, u64)> = all.into_iter().enumerate().collect();
    all.sort_by_key(|(index, _)| index.reverse_bits());
    all.into_iter().map(|(_, period)| period)
}

/// Candidate periods: a grid up to the shortest deadline, and the tasks' periods divided by 1 to
/// 16; ns, ascending.
#[must_use]
pub fn candidate_periods(set: &TaskSet, shortest: u64, step: u64) -> Vec<u64> {
    let most = set.tasks().iter().map(|task| task.deadline).min().unwrap_or(0);
    let grid = (0..).map(|n: u64| shortest + n * step.max(1)).take_while(|p| *p <= most);
    let parts = set.tasks().iter().flat_map(|task| (1..=16).map(|n| task.period / n));
    let mut all: Vec<u64> = grid.chain(parts.filter(|p| (shortest..=most).contains(p))).collect();
    all.sort_unstable();
    all.dedup();
    all
}
