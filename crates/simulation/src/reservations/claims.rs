//! [`Claim`]: each kind of supply that the analysis knows, as a claim about a reservation on a core.
//!
//! What it does not do: test them; [`attacks`](super::attacks) does.

use timevisor_schedule::synthesis::{Model, Search, Sharing, last_that_fits};
use timevisor_schedule::verdict::fits;
use timevisor_schedule::{Aligned, Dedicated, Overheads, Reservation, Verdict, Worst, judge};

use super::sets::Case;

/// A claim about the supply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Claim {
    /// The whole processor.
    Dedicated,
    /// Other reservations share the core: the periodic resource.
    Shared,
    /// The linear lower bound of [`Claim::Shared`].
    Linear,
    /// A deadline between budget and period.
    Constrained,
    /// Precedes all others.
    Alone,
    /// [`Claim::Shared`], enforced by the tick.
    SharedTicked,
    /// [`Claim::Alone`], enforced by the tick.
    AloneTicked,
    /// Alone, and every release at a replenishment.
    Aligned,
}

impl Claim {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Dedicated,
        Self::Shared,
        Self::Linear,
        Self::Constrained,
        Self::Alone,
        Self::SharedTicked,
        Self::AloneTicked,
        Self::Aligned,
    ];

    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dedicated => "dedicated",
            Self::Shared => "shared",
            Self::Linear => "shared, linear",
            Self::Constrained => "constrained",
            Self::Alone => "alone",
            Self::SharedTicked => "shared, tick",
            Self::AloneTicked => "alone, tick",
            Self::Aligned => "aligned",
        }
    }

    /// The reservation of this budget; `None` for a whole processor, and if the claim does not
    /// apply to such tasks.
    #[must_use]
    pub fn reservation(self, case: &Case, budget: u64) -> Option<Reservation> {
        let period = case.period;
        let of = match self {
            Self::Dedicated => return None,
            Self::Shared | Self::Linear | Self::SharedTicked => Reservation::shared(budget, period),
            Self::Constrained => {
                Reservation::new(budget, case.deadline.max(budget).min(period), period)
            }
            Self::Alone | Self::AloneTicked | Self::Aligned => Reservation::alone(budget, period),
        };
        of.ok().filter(|of| self != Self::Aligned || Aligned(*of).holds_for(&case.set))
    }

    /// The search as production does it; `None` for the two claims without one.
    fn search(self, case: &Case) -> Option<Search> {
        let exact = |sharing| Some(Search::new(sharing));
        let ticked = |sharing| Some(Search::new(sharing).on_host(Overheads::of_tick(case.tick)));
        match self {
            Self::Dedicated | Self::Constrained => None,
            Self::Shared => exact(Sharing::Shared),
            Self::Linear => Some(Search { model: Model::Linear, ..Search::new(Sharing::Shared) }),
            Self::Alone => exact(Sharing::Alone),
            Self::SharedTicked => ticked(Sharing::Shared),
            Self::AloneTicked => ticked(Sharing::Alone),
            Self::Aligned => exact(Sharing::Aligned),
        }
    }

    /// The verdict of the analysis.
    #[must_use]
    pub fn judge(self, case: &Case, budget: u64) -> Verdict {
        match (self.search(case), self.reservation(case, budget)) {
            (Some(search), Some(of)) => search.judge(&case.set, of),
            (None, Some(of)) => judge(&case.set, &Worst(of)),
            (_, None) => judge(&case.set, &Dedicated),
        }
    }

    /// Whether the analysis finds the tasks schedulable.
    #[must_use]
    pub fn holds(self, case: &Case, budget: u64) -> bool {
        match (self.search(case), self.reservation(case, budget)) {
            (Some(search), Some(of)) => search.fits(&case.set, of),
            (None, Some(of)) => fits(&case.set, &Worst(of)),
            (_, None) => fits(&case.set, &Dedicated),
        }
    }

    /// The minimum budget with which it does.
    #[must_use]
    pub fn least_budget(self, case: &Case) -> Option<u64> {
        if let Some(search) = self.search(case) {
            return search.least_budget(&case.set, case.period);
        }
        let holds = |budget| self.holds(case, budget);
        holds(case.period).then(|| last_that_fits(case.period, 0, holds))
    }
}
