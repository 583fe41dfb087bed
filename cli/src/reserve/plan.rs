//! From tasks to a reservation.

use anyhow::{Result, bail};
use timevisor_schedule::synthesis::{Search, Sharing, candidate_periods};
use timevisor_schedule::{Reservation, TaskSet, Verdict, Worst, judge};

/// Periods are looked for from here up, in these steps; ns. Shorter ones cost more switches than they save.
const SHORTEST: u64 = 1_000_000;
const STEP: u64 = 500_000;
/// A budget that a tick enforces is not much shorter than it should be if it has so many of them.
const TICKS: u64 = 3;
/// At least this much above what the analysis needs: its inputs were measured. 1/1000.
const SLACK: u64 = 30;

/// What is asked; ns.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    pub period: Option<u64>,
    pub budget: Option<u64>,
    pub alone: bool,
    pub tick: u64,
    pub switch: u64,
}

/// The answer.
#[derive(Debug)]
pub enum Plan {
    /// The least reservation, and what to take.
    Found(Box<Found>),
    /// No reservation of this period (or of any) is enough.
    TooMuch { period: Option<u64> },
    /// What a given budget gives.
    Judged { reservation: Reservation, verdict: Verdict },
}

/// A reservation and what follows from it.
#[derive(Debug)]
pub struct Found {
    pub least: Reservation,
    pub recommended: Reservation,
    pub sharing: Sharing,
    /// What happens with one ns less.
    pub limit: Verdict,
    /// Each task's worst response in the recommended one, ns; empty under EDF.
    pub responses: Vec<u64>,
    /// The greatest cost of each task there, ns.
    pub greatest: Vec<u64>,
}

impl Plan {
    pub fn fits(&self) -> bool {
        match self {
            Self::Found(_) => true,
            Self::TooMuch { .. } => false,
            Self::Judged { verdict, .. } => verdict.is_schedulable(),
        }
    }
}

pub fn make(set: &TaskSet, question: &Question) -> Result<Plan> {
    let sharing = if question.alone { Sharing::Alone } else { Sharing::Shared };
    let search = Search::new(sharing);
    if let (Some(period), Some(budget)) = (question.period, question.budget) {
        let reservation = match sharing {
            Sharing::Alone => Reservation::alone(budget, period)?,
            Sharing::Shared => Reservation::shared(budget, period)?,
        };
        let verdict = judge(set, &Worst(reservation));
        return Ok(Plan::Judged { reservation, verdict });
    }
    let least = match question.period {
        Some(0) => bail!("a period of 0 ns is none"),
        Some(period) => {
            let budget = search.least_budget(set, period);
            budget.and_then(|budget| search.reservation(budget, period))
        }
        None => {
            let periods = candidate_periods(set, SHORTEST, STEP);
            search.best_period(set, periods, question.switch, TICKS * question.tick)
        }
    };
    let Some(least) = least else { return Ok(Plan::TooMuch { period: question.period }) };
    let recommended = with_slack(set, &search, least, question.tick);
    let responses = match judge(set, &Worst(recommended)) {
        Verdict::Schedulable(responses) => responses,
        _ => bail!("a larger budget is not enough where a smaller one is: please report this"),
    };
    let greatest = (0..set.tasks().len())
        .filter_map(|index| search.greatest_cost(set, index, recommended))
        .collect();
    let limit = search
        .reservation(least.budget() - 1, least.period())
        .map_or(Verdict::NotKnown, |less| judge(set, &Worst(less)));
    Ok(Plan::Found(Box::new(Found { least, recommended, sharing, limit, responses, greatest })))
}

/// What the tick withholds, and at least 3 %; at most the whole period.
fn with_slack(set: &TaskSet, search: &Search, least: Reservation, tick: u64) -> Reservation {
    let ticked = Search { tick, ..*search }.least_budget(set, least.period());
    let slack = least.budget() + (least.budget() * SLACK).div_ceil(1000);
    let budget = ticked.unwrap_or(least.period()).max(slack).min(least.period());
    search.reservation(budget, least.period()).unwrap_or(least)
}
