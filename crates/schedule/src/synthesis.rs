//! The least budget, the best period, how much a task may grow. Supply grows with the budget, so that halving finds the least one.

use crate::reservation::Reservation;
use crate::supply::{Linear, Supply, Ticked, Worst};
use crate::task::TaskSet;
use crate::verdict::judge;

/// Who else is on the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Nobody before it: the budget comes at once.
    Alone,
    /// Other reservations: the budget may come at the end of the period.
    Shared,
}

/// How supply is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Model {
    /// Exactly.
    #[default]
    Worst,
    /// By the line below.
    Linear,
}

/// What budgets are looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Search {
    /// On the core.
    pub sharing: Sharing,
    /// Of supply.
    pub model: Model,
    /// 1 / HZ where budgets are enforced by the tick, else 0; ns.
    pub tick: u64,
}

impl Search {
    /// Exact, with nothing lost to ticks.
    #[must_use]
    pub fn new(sharing: Sharing) -> Self {
        Self { sharing, model: Model::Worst, tick: 0 }
    }

    /// The reservation of this budget.
    #[must_use]
    pub fn reservation(&self, budget: u64, period: u64) -> Option<Reservation> {
        match self.sharing {
            Sharing::Alone => Reservation::alone(budget, period).ok(),
            Sharing::Shared => Reservation::shared(budget, period).ok(),
        }
    }

    /// Whether the tasks meet their deadlines in it.
    #[must_use]
    pub fn fits(&self, set: &TaskSet, of: Reservation) -> bool {
        fn ok(set: &TaskSet, supply: impl Supply, tick: u64) -> bool {
            if tick == 0 {
                judge(set, &supply).is_schedulable()
            } else {
                judge(set, &Ticked { supply, tick }).is_schedulable()
            }
        }
        match self.model {
            Model::Worst => ok(set, Worst(of), self.tick),
            Model::Linear => ok(set, Linear(of), self.tick),
        }
    }

    /// The least budget in this period, ns; `None` when even the whole processor is too little.
    #[must_use]
    pub fn least_budget(&self, set: &TaskSet, period: u64) -> Option<u64> {
        let fits = |budget| self.reservation(budget, period).is_some_and(|of| self.fits(set, of));
        if !fits(period) {
            return None;
        }
        Some(last_that_fits(period, 0, fits))
    }

    /// Of these periods the one that costs least: its budget, of at least `smallest` ns, and a switch of `switch` ns in every
    /// period. The longer of two that cost the same.
    #[must_use]
    pub fn best_period(
        &self,
        set: &TaskSet,
        periods: impl IntoIterator<Item = u64>,
        switch: u64,
        smallest: u64,
    ) -> Option<Reservation> {
        let mut best: Option<(u128, u64, Reservation)> = None;
        for period in periods {
            let Some(budget) = self.least_budget(set, period) else { continue };
            if budget < smallest {
                continue;
            }
            let Some(of) = self.reservation(budget, period) else { continue };
            // Parts of a processor, compared crosswise: a / b < c / d.
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

    /// The greatest cost of task `index` with which all tasks still meet their deadlines in this reservation, ns; `None` when they
    /// do not now.
    #[must_use]
    pub fn greatest_cost(&self, set: &TaskSet, index: usize, of: Reservation) -> Option<u64> {
        let task = set.tasks().get(index)?;
        let fits = |cost| set.with_cost(index, cost).is_some_and(|set| self.fits(&set, of));
        if !fits(task.cost) {
            return None;
        }
        Some(last_that_fits(task.cost, task.deadline + 1, fits))
    }
}

/// From `fitting`, which fits, towards `not`, which does not: the last one that does, by halving.
fn last_that_fits(mut fitting: u64, mut not: u64, fits: impl Fn(u64) -> bool) -> u64 {
    while fitting.abs_diff(not) > 1 {
        let middle = fitting.midpoint(not);
        if fits(middle) {
            fitting = middle;
        } else {
            not = middle;
        }
    }
    fitting
}

/// Periods worth a try: a grid up to the shortest deadline, and the tasks' periods divided by 1 to 16; ns, ascending.
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
