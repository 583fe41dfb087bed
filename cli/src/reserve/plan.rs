//! From tasks to a reservation.

use super::asked::Asked;
use super::because::Because;
use anyhow::{Result, bail};
use timevisor_schedule::synthesis::{Sharing, candidate_periods};
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
    pub on: On,
}

/// Where the tasks run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    /// On the only vCPU.
    One,
    /// On this one of several.
    Vcpu(u16),
    /// On any of so many, as the guest likes.
    AnyOf(u16),
}

/// The answer.
#[derive(Debug)]
pub enum Plan {
    /// The least reservation, and what to take.
    Found(Box<Found>),
    /// No reservation of this period (or of any) is enough; this one would be on a host without overheads.
    TooMuch { period: Option<u64>, in_theory: Option<Reservation>, because: Because },
    /// What a given budget gives on this host, and in theory.
    Judged { reservation: Reservation, verdict: Verdict, in_theory: Verdict, because: Because },
}

/// A reservation and what follows from it.
#[derive(Debug)]
pub struct Found {
    /// In theory: on a host without overheads.
    pub least: Reservation,
    /// On this host.
    pub recommended: Reservation,
    pub sharing: Sharing,
    pub on: On,
    /// What happens in theory with one ns less.
    pub limit: Verdict,
    /// Each task's worst response in the recommended one on this host, ns.
    pub responses: Vec<u64>,
    /// The greatest cost of each task there, ns; not of tasks on any of several vCPUs.
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
    let theory = Asked::of(question)?;
    let here = theory.on_host(question.overheads);
    if let (Sharing::Aligned, Some(period)) = (question.sharing, question.period) {
        let possible = Reservation::alone(period, period)?;
        if !Aligned(possible).holds_for(set) {
            bail!(
                "releases at replenishments need tasks without jitter, of periods that are multiples of the reservation's"
            );
        }
    }
    if let (Some(period), Some(budget)) = (question.period, question.budget) {
        let reservation = match question.sharing {
            Sharing::Alone | Sharing::Aligned => Reservation::alone(budget, period)?,
            Sharing::Shared => Reservation::shared(budget, period)?,
        };
        let (verdict, in_theory) = (here.judge(set, reservation), theory.judge(set, reservation));
        let because = if in_theory.is_schedulable() && !verdict.is_schedulable() {
            let fits = |asked: &Asked| asked.judge(set, reservation).is_schedulable();
            let mut because = Because::of(&theory, question.overheads, fits);
            let enough = here.least_budget(set, period);
            because.instead = enough.and_then(|budget| here.reservation(budget, period));
            because
        } else {
            Because::default()
        };
        return Ok(Plan::Judged { reservation, verdict, in_theory, because });
    }
    if question.period == Some(0) {
        bail!("a period of 0 ns is none");
    }
    let best = |asked: &Asked, tick: u64| {
        let smallest = TICKS.saturating_mul(tick);
        let periods = candidate_periods(set, SHORTEST, STEPS);
        asked.best_period(set, &periods, question.switch, smallest)
    };
    let best_here = || best(&here, question.overheads.tick);
    let period =
        question.period.or_else(|| best_here().or_else(|| best(&theory, 0)).map(|of| of.period()));
    let of = |asked: &Asked| {
        let budget = asked.least_budget(set, period?)?;
        asked.reservation(budget, period?)
    };
    let least = of(&theory);
    let Some((least, recommended)) =
        least.and_then(|least| Some((least, here.with_slack(set, least)?)))
    else {
        let mut because = Because::default();
        if let Some(of) = least {
            let fits = |asked: &Asked| asked.least_budget(set, of.period()).is_some();
            because = Because::of(&theory, question.overheads, fits);
        }
        because.instead = question.period.and_then(|_| best_here());
        return Ok(Plan::TooMuch { period: question.period, in_theory: least, because });
    };
    let whole = recommended.budget().next_multiple_of(STEP).min(recommended.period());
    let recommended = here.reservation(whole, recommended.period()).unwrap_or(recommended);
    let responses = match here.judge(set, recommended) {
        Verdict::Schedulable(responses) => responses,
        _ => bail!("a larger budget is not enough where a smaller one is: please report this"),
    };
    let greatest = here.greatest_costs(set, recommended);
    let limit = theory
        .reservation(least.budget() - 1, least.period())
        .map_or(Verdict::NotKnown, |less| theory.judge(set, less));
    let (sharing, on) = (question.sharing, question.on);
    Ok(Plan::Found(Box::new(Found { least, recommended, sharing, on, limit, responses, greatest })))
}
