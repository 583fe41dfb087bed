//! From tasks to a reservation.

use anyhow::{Result, bail};
use timevisor_schedule::synthesis::{Search, Sharing, candidate_periods};
use timevisor_schedule::{Aligned, Overheads, Reservation, TaskSet, Verdict};

/// Periods are looked for from here up, in these steps; ns. Shorter ones cost more switches than
/// they save.
const SHORTEST: u64 = 1_000_000;
const STEPS: u64 = 500_000;
/// A budget that a tick enforces is not much shorter than it should be if it has so many of them.
const TICKS: u64 = 3;

/// What is asked; ns.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    pub period: Option<u64>,
    pub budget: Option<u64>,
    pub sharing: Sharing,
    pub overheads: Overheads,
    pub switch: u64,
}

/// The answer.
#[derive(Debug)]
pub enum Plan {
    /// The least reservation, and what to take.
    Found(Box<Found>),
    /// No reservation of this period (or of any) is enough; this one would be on a host without overheads.
    TooMuch { period: Option<u64>, in_theory: Option<Reservation> },
    /// What a given budget gives on this host, and in theory.
    Judged { reservation: Reservation, verdict: Verdict, in_theory: Verdict },
}

/// A reservation and what follows from it.
#[derive(Debug)]
pub struct Found {
    /// In theory: on a host without overheads.
    pub least: Reservation,
    /// On this host.
    pub recommended: Reservation,
    pub sharing: Sharing,
    /// What happens in theory with one ns less.
    pub limit: Verdict,
    /// Each task's worst response in the recommended one on this host, ns.
    pub responses: Vec<u64>,
    /// The greatest cost of each task there, ns.
    pub greatest: Vec<u64>,
}

/// What kernels have for reservations unless told otherwise: sched_rt_runtime_us of
/// sched_rt_period_us, 1/1000 of a core. Debian's 7.2 has all of it, but still
/// refuses a whole core.
pub const KERNEL_SHARE: u64 = 950;

impl Found {
    /// Whether a kernel with the usual settings takes what is recommended.
    pub fn is_usual(&self) -> bool {
        let (budget, period) = (self.recommended.budget(), self.recommended.period());
        u128::from(budget) * 1000 <= u128::from(period) * u128::from(KERNEL_SHARE)
    }
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

/// Budgets are whole microseconds, so that they can be said.
const STEP: u64 = 1000;

pub fn make(set: &TaskSet, question: &Question) -> Result<Plan> {
    let sharing = question.sharing;
    let theory = Search::new(sharing);
    let here = theory.on_host(question.overheads);
    if let (Sharing::Aligned, Some(period)) = (sharing, question.period) {
        let possible = Reservation::alone(period, period)?;
        if !Aligned(possible).holds_for(set) {
            bail!(
                "releases at replenishments need tasks without jitter, of periods that are multiples of the reservation's"
            );
        }
    }
    if let (Some(period), Some(budget)) = (question.period, question.budget) {
        let reservation = match sharing {
            Sharing::Alone | Sharing::Aligned => Reservation::alone(budget, period)?,
            Sharing::Shared => Reservation::shared(budget, period)?,
        };
        let (verdict, in_theory) = (here.judge(set, reservation), theory.judge(set, reservation));
        return Ok(Plan::Judged { reservation, verdict, in_theory });
    }
    let period = match question.period {
        Some(0) => bail!("a period of 0 ns is none"),
        Some(period) => Some(period),
        None => {
            let periods = candidate_periods(set, SHORTEST, STEPS);
            let best = |search: &Search| {
                let smallest = TICKS.saturating_mul(question.overheads.tick);
                search.best_period(set, periods.iter().copied(), question.switch, smallest)
            };
            best(&here).or_else(|| best(&theory)).map(|of| of.period())
        }
    };
    let of = |search: &Search| {
        let budget = search.least_budget(set, period?)?;
        search.reservation(budget, period?)
    };
    let least = of(&theory);
    let Some((least, recommended)) =
        least.and_then(|least| Some((least, here.with_slack(set, least)?)))
    else {
        return Ok(Plan::TooMuch { period: question.period, in_theory: least });
    };
    let whole = recommended.budget().next_multiple_of(STEP).min(recommended.period());
    let recommended = here.reservation(whole, recommended.period()).unwrap_or(recommended);
    let responses = match here.judge(set, recommended) {
        Verdict::Schedulable(responses) => responses,
        _ => bail!("a larger budget is not enough where a smaller one is: please report this"),
    };
    let greatest = here.greatest_costs(set, recommended).unwrap_or_default();
    let limit = theory
        .reservation(least.budget() - 1, least.period())
        .map_or(Verdict::NotKnown, |less| theory.judge(set, less));
    Ok(Plan::Found(Box::new(Found { least, recommended, sharing, limit, responses, greatest })))
}
