//! [`Supply`]: the processor time available in any interval of a given length, whenever it starts.

use crate::reservation::Reservation;

/// A minimum of processor time.
pub trait Supply {
    /// The minimum in any interval of `t` ns.
    fn within(&self, t: u64) -> u64;

    /// The length of interval that always contains `work` ns; saturates.
    fn time_for(&self, work: u64) -> u64;

    /// A linear lower bound: `numerator / denominator * (t - delay)`.
    fn line(&self) -> Line;
}

/// A rate after a delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// The rate's numerator: ns of processor time...
    pub numerator: u64,
    /// ... per this many ns.
    pub denominator: u64,
    /// The delay in ns.
    pub delay: u64,
}

impl Line {
    /// Of a supply that never gives anything.
    pub(crate) const NONE: Self = Self { numerator: 0, denominator: 1, delay: 0 };
}

/// A dedicated processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dedicated;

impl Supply for Dedicated {
    fn within(&self, t: u64) -> u64 {
        t
    }

    fn time_for(&self, work: u64) -> u64 {
        work
    }

    fn line(&self) -> Line {
        Line { numerator: 1, denominator: 1, delay: 0 }
    }
}

/// What a reservation supplies in the worst case (the paper's and EDP's supply bound function).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Worst(pub Reservation);

impl Supply for Worst {
    fn within(&self, t: u64) -> u64 {
        let Some(late) = t.checked_sub(self.0.deadline() - self.0.budget()) else { return 0 };
        let periods = late / self.0.period();
        let begun = t.saturating_sub(self.0.blackout() + periods * self.0.period());
        periods * self.0.budget() + begun
    }

    fn time_for(&self, work: u64) -> u64 {
        if work == 0 {
            return 0;
        }
        // Of the last budget needed, anywhere from 1 ns to all of it is used.
        let whole = (work - 1) / self.0.budget();
        let begun = work - whole * self.0.budget();
        whole
            .checked_mul(self.0.period())
            .and_then(|t| t.checked_add(self.0.blackout() + begun))
            .unwrap_or(u64::MAX)
    }

    fn line(&self) -> Line {
        Linear(self.0).line()
    }
}

/// The linear lower bound of [`Worst`]: simpler, but needs a larger budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Linear(pub Reservation);

impl Supply for Linear {
    fn within(&self, t: u64) -> u64 {
        let after = u128::from(t.saturating_sub(self.0.blackout()));
        let supplied = after * u128::from(self.0.budget()) / u128::from(self.0.period());
        u64::try_from(supplied).unwrap_or(u64::MAX)
    }

    fn time_for(&self, work: u64) -> u64 {
        if work == 0 {
            return 0;
        }
        let time = u128::from(work) * u128::from(self.0.period());
        let time = time.div_ceil(u128::from(self.0.budget())) + u128::from(self.0.blackout());
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    fn line(&self) -> Line {
        Line { numerator: self.0.budget(), denominator: self.0.period(), delay: self.0.blackout() }
    }
}

/// A supply enforced by the timer tick: without HRTICK, a reservation may overrun until the next
/// tick, and then has that much less.
///
/// Holds for budgets of a tick or more (with less, an overrun is paid back over several periods
/// without any supply), and if admission has [room for the overruns of all
/// others](crate::admission::Host::tick).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticked<S> {
    /// The nominal supply.
    pub supply: S,
    /// 1 / HZ, ns.
    pub tick: u64,
}

impl<S: Supply> Supply for Ticked<S> {
    fn within(&self, t: u64) -> u64 {
        self.supply.within(t).saturating_sub(self.tick)
    }

    fn time_for(&self, work: u64) -> u64 {
        if work == 0 { 0 } else { self.supply.time_for(work.saturating_add(self.tick)) }
    }

    fn line(&self) -> Line {
        // numerator / denominator * (t - delay) - tick, with the tick in the delay.
        let line = self.supply.line();
        let more = u128::from(self.tick) * u128::from(line.denominator);
        let more = more.div_ceil(u128::from(line.numerator));
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        Line { delay: line.delay.saturating_add(more), ..line }
    }
}

/// A supply that begins late. The lateness of replenishments does not add up, as SCHED_DEADLINE counts periods
/// from when each was due (kernel/sched/deadline.c, `replenish_dl_entity`). That of a job's own wake-up comes
/// before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Late<S> {
    /// The supply without it.
    pub supply: S,
    /// ns.
    pub by: u64,
}

impl<S: Supply> Supply for Late<S> {
    fn within(&self, t: u64) -> u64 {
        self.supply.within(t.saturating_sub(self.by))
    }

    fn time_for(&self, work: u64) -> u64 {
        if work == 0 { 0 } else { self.supply.time_for(work).saturating_add(self.by) }
    }

    fn line(&self) -> Line {
        let line = self.supply.line();
        Line { delay: line.delay.saturating_add(self.by), ..line }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reservation() -> impl Strategy<Value = Reservation> {
        (1..1000u64, 0..1000u64, 0..1000u64)
            .prop_map(|(b, d, p)| Reservation::new(b, b + d, b + d + p).unwrap())
    }

    /// Counts ns by ns: the budget comes at the start of one period, and at the end of all others.
    fn by_hand(of: &Reservation, t: u64) -> u64 {
        let (budget, deadline, period) = (of.budget(), of.deadline(), of.period());
        let runs = |at: u64| {
            let of_period = (at + budget) % period;
            at + budget >= period && (deadline - budget..deadline).contains(&of_period)
        };
        (0..t).filter(|at| runs(*at)).count() as u64
    }

    /// Counts ns by ns what a job gets within `t` of its release, if its wake-up and each replenishment are up to
    /// `late` late, others use what comes before it wakes up, and the first `taken` of each budget is gone; of
    /// the supplies that a host can give, the worst ones.
    fn arrives(of: &Reservation, late: u64, taken: u64, t: u64) -> u64 {
        let (budget, deadline, period) = (of.budget(), of.deadline(), of.period());
        // The first budget comes at once, as early as it can; the others as late as they can.
        let first = |at: u64| (taken..budget).contains(&at);
        let later = |at: u64| {
            let start = deadline - budget + late;
            let in_period = at.checked_sub(period + start).map(|since| since % period);
            in_period.is_some_and(|since| (taken..budget).contains(&since))
        };
        (0..=budget)
            .map(|from| {
                let awake = (from..from + t).skip(usize::try_from(late).unwrap());
                awake.filter(|at| first(*at) || later(*at)).count() as u64
            })
            .min()
            .unwrap_or(0)
    }

    proptest! {
        #[test]
        fn no_host_gives_less_than_is_promised_after_its_overheads(
            of in reservation(),
            (late, taken) in (0..50u64, 0..50u64),
            t in 0..4000u64,
        ) {
            prop_assume!(taken < of.budget() && of.deadline() + late <= of.period());
            let left = Reservation::new(of.budget() - taken, of.deadline(), of.period()).unwrap();
            let promised = Late { supply: Worst(left), by: 2 * late }.within(t);
            let given = arrives(&of, late, taken, t);
            prop_assert!(promised <= given, "{promised} of {given}");
        }

        #[test]
        fn supply_is_what_the_worst_case_gives(of in reservation(), t in 0..8000u64) {
            let supply = Worst(of);
            prop_assert_eq!(supply.within(t), by_hand(&of, t));
            prop_assert!(Linear(of).within(t) <= supply.within(t));
        }

        #[test]
        fn the_inverse_is_the_shortest(of in reservation(), work in 0..5000u64, tick in 0..50u64, late in 0..50u64) {
            fn check(supply: &impl Supply, work: u64) -> Result<(), TestCaseError> {
                let t = supply.time_for(work);
                prop_assert!(supply.within(t) >= work);
                prop_assert!(t == 0 || supply.within(t - 1) < work);
                let Line { numerator, denominator, delay } = supply.line();
                let line = u128::from(t.saturating_sub(delay)) * u128::from(numerator);
                prop_assert!(line / u128::from(denominator) <= u128::from(supply.within(t)));
                Ok(())
            }
            check(&Worst(of), work)?;
            check(&Linear(of), work)?;
            let ticked = Ticked { supply: Worst(of), tick };
            check(&ticked, work)?;
            check(&Late { supply: ticked, by: late }, work)?;
            check(&Dedicated, work)?;
        }
    }
}
