//! [`Asked`]: one analysis for tasks on one vCPU, and another for tasks on any of several.

use anyhow::{Result, ensure};
use timevisor_schedule::global::GlobalSearch;
use timevisor_schedule::synthesis::{Search, Sharing};
use timevisor_schedule::{Overheads, Reservation, TaskSet, Verdict};

use super::plan::{On, Question};

#[derive(Clone, Copy, Debug)]
pub enum Asked {
    One(Search),
    AnyOf(GlobalSearch),
}

impl Asked {
    /// In theory.
    pub fn of(question: &Question) -> Result<Self> {
        let On::AnyOf(vcpus) = question.on else {
            return Ok(Self::One(Search::new(question.sharing)));
        };
        ensure!(
            question.sharing == Sharing::Alone,
            "--global needs --alone: beside other reservations, a vCPU that sleeps while others run loses its turn; or divide the tasks among the vCPUs (without --global)"
        );
        Ok(Self::AnyOf(GlobalSearch::new(vcpus)))
    }

    pub fn on_host(self, overheads: Overheads) -> Self {
        match self {
            Self::One(search) => Self::One(search.on_host(overheads)),
            Self::AnyOf(search) => Self::AnyOf(search.on_host(overheads)),
        }
    }

    pub fn reservation(&self, budget: u64, period: u64) -> Option<Reservation> {
        match self {
            Self::One(search) => search.reservation(budget, period),
            Self::AnyOf(_) => Reservation::alone(budget, period).ok(),
        }
    }

    pub fn judge(&self, set: &TaskSet, of: Reservation) -> Verdict {
        match self {
            Self::One(search) => search.judge(set, of),
            Self::AnyOf(search) => search.judge(set, of.budget(), of.period()),
        }
    }

    pub fn least_budget(&self, set: &TaskSet, period: u64) -> Option<u64> {
        match self {
            Self::One(search) => search.least_budget(set, period),
            Self::AnyOf(search) => search.least_budget(set, period),
        }
    }

    pub fn best_period(
        &self,
        set: &TaskSet,
        periods: &[u64],
        switch: u64,
        smallest: u64,
    ) -> Option<Reservation> {
        let periods = periods.iter().copied();
        match self {
            Self::One(search) => search.best_period(set, periods, switch, smallest),
            Self::AnyOf(search) => search.best_period(set, periods, switch, smallest),
        }
    }

    pub fn with_slack(&self, set: &TaskSet, least: Reservation) -> Option<Reservation> {
        match self {
            Self::One(search) => search.with_slack(set, least),
            Self::AnyOf(search) => search.with_slack(set, least),
        }
    }

    /// The greatest cost of each task; empty where that is not computed.
    pub fn greatest_costs(&self, set: &TaskSet, of: Reservation) -> Vec<u64> {
        match self {
            Self::One(search) => search.greatest_costs(set, of).unwrap_or_default(),
            Self::AnyOf(_) => Vec::new(),
        }
    }
}
