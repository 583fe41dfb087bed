//! [`Aligned`]: the supply of a reservation whose replenishments are the tasks' releases.
//!
//! What it does not do: ensure the alignment. That is up to the guest, and the host cannot check
//! it.

use crate::reservation::Reservation;
use crate::supply::{Line, Supply};
use crate::task::TaskSet;

/// What a reservation supplies from a *replenishment* on, when it precedes everything else on its
/// core: the budget immediately, in every period. This does not hold in any interval, as with
/// [`Worst`](crate::Worst), but in those in which tasks wait, because their busy periods start with
/// a release.
///
/// It may be relied on only if all of these hold:
///
/// - every release is at a replenishment: the tasks' periods are multiples of the reservation's,
///   they are released together or by multiples of it apart, and never late ([`Aligned::holds_for`]
///   checks what can be seen of this);
/// - nothing else wakes the vCPU. A sleeping reservation takes its phase from whatever wakes it
///   (the wakeup rule of the constant bandwidth server): from the first release, or otherwise from
///   a timer or an interrupt of the guest. A guest that never sleeps (background work, polling) has
///   the phase of its boot;
/// - the reservation is the only one on its core, or preempts all others.
///
/// If any of them fails, use [`Worst`](crate::Worst) with [`Reservation::alone`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aligned(pub Reservation);

impl Aligned {
    /// Whether these tasks can be released at replenishments only: no jitter, and periods that are
    /// multiples of the reservation's.
    #[must_use]
    pub fn holds_for(&self, set: &TaskSet) -> bool {
        let period = self.0.period();
        set.tasks().iter().all(|task| task.jitter == 0 && task.period % period == 0)
    }
}

impl Supply for Aligned {
    fn within(&self, t: u64) -> u64 {
        let (budget, period) = (self.0.budget(), self.0.period());
        t / period * budget + (t % period).min(budget)
    }

    fn time_for(&self, work: u64) -> u64 {
        let Some(before) = work.checked_sub(1) else { return 0 };
        let (budget, period) = (self.0.budget(), self.0.period());
        // Of the last budget needed, anywhere from 1 ns to all of it is used.
        let whole = before / budget;
        let begun = work - whole * budget;
        whole.checked_mul(period).and_then(|t| t.checked_add(begun)).unwrap_or(u64::MAX)
    }

    fn line(&self) -> Line {
        // The budget comes at the start of each period, so supply is never below its average.
        Line { numerator: self.0.budget(), denominator: self.0.period(), delay: 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::supply::Worst;
    use crate::task::{Policy, Task};

    proptest! {
        #[test]
        fn the_budget_comes_at_once(budget in 1..40u64, idle in 0..40u64, t in 0..400u64, work in 0..400u64) {
            let of = Reservation::alone(budget, budget + idle).unwrap();
            let supply = Aligned(of);
            let by_hand = (0..t).filter(|at| at % of.period() < budget).count() as u64;
            prop_assert_eq!(supply.within(t), by_hand);
            prop_assert!(Worst(of).within(t) <= by_hand);
            prop_assert!(t * budget <= by_hand * of.period());
            let needed = supply.time_for(work);
            prop_assert!(supply.within(needed) == work);
            prop_assert!(needed == 0 || supply.within(needed - 1) < work);
        }
    }

    #[test]
    fn only_for_releases_that_can_be_aligned() {
        let aligned = Aligned(Reservation::alone(2, 5).unwrap());
        let holds = |task| aligned.holds_for(&TaskSet::new(vec![task], Policy::Edf).unwrap());
        assert!(holds(Task::new("a", 1, 15)));
        assert!(!holds(Task::new("a", 1, 16)));
        assert!(!holds(Task { jitter: 1, ..Task::new("a", 1, 15) }));
    }
}
