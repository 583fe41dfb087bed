//! [`Supply`]: how much processor time there is in every interval of a length, whenever it begins.

use crate::reservation::Reservation;

/// At least so much processor time.
pub trait Supply {
    /// In any interval of `t` ns.
    fn within(&self, t: u64) -> u64;

    /// The shortest interval with `work` ns in it; saturates.
    fn time_for(&self, work: u64) -> u64;

    /// A line below it: `numerator / denominator * (t - delay)`.
    fn line(&self) -> Line;
}

/// A rate after a delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// ns of processor time...
    pub numerator: u64,
    /// ... in so many ns.
    pub denominator: u64,
    /// ns.
    pub delay: u64,
}

/// A processor of one's own.
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
        // The last of the budgets that it takes is used in part: 1 ns to all of it.
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

/// The line below [`Worst`]: simpler, and needs a larger budget.
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

/// Enforced by the timer's tick: without HRTICK a reservation may run on until the next one, and
/// has as much less afterwards.
///
/// Holds for budgets of a tick or more (with less, the kernel pays an overrun back over several
/// periods, in which nothing comes), and where admission has [room for the overruns of all
/// others](crate::admission::Host::tick).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticked<S> {
    /// As promised.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reservation() -> impl Strategy<Value = Reservation> {
        (1..1000u64, 0..1000u64, 0..1000u64)
            .prop_map(|(b, d, p)| Reservation::new(b, b + d, b + d + p).unwrap())
    }

    /// One ns after the other: the budget at the beginning of one period, at the end of all others.
    fn by_hand(of: &Reservation, t: u64) -> u64 {
        let (budget, deadline, period) = (of.budget(), of.deadline(), of.period());
        let runs = |at: u64| {
            let of_period = (at + budget) % period;
            at + budget >= period && (deadline - budget..deadline).contains(&of_period)
        };
        (0..t).filter(|at| runs(*at)).count() as u64
    }

    proptest! {
        #[test]
        fn supply_is_what_the_worst_case_gives(of in reservation(), t in 0..8000u64) {
            let supply = Worst(of);
            prop_assert_eq!(supply.within(t), by_hand(&of, t));
            prop_assert!(Linear(of).within(t) <= supply.within(t));
        }

        #[test]
        fn the_inverse_is_the_shortest(of in reservation(), work in 0..5000u64, tick in 0..50u64) {
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
            check(&Ticked { supply: Worst(of), tick }, work)?;
            check(&Dedicated, work)?;
        }
    }
}
