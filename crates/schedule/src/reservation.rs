//! [`Reservation`]: a budget of processor time in every period, by a deadline after each
//! replenishment.

/// `budget` within `deadline` of every replenishment, one each `period`; ns. They are
/// SCHED_DEADLINE's runtime, deadline and period.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Reservation {
    budget: u64,
    deadline: u64,
    period: u64,
}

/// An invalid reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a reservation needs 0 < budget <= deadline <= period, at most a day; not {budget}/{deadline}/{period} ns"
)]
pub struct InvalidReservation {
    /// The given value, ns.
    pub budget: u64,
    /// The given value, ns.
    pub deadline: u64,
    /// The given value, ns.
    pub period: u64,
}

/// The longest period of tasks and reservations: a day. Sums of a few of them stay far below 2^63.
pub(crate) const LONGEST: u64 = 86_400_000_000_000;

impl Reservation {
    /// Builds it from these three values, in ns.
    ///
    /// # Errors
    /// Unless budget <= deadline <= period.
    pub fn new(budget: u64, deadline: u64, period: u64) -> Result<Self, InvalidReservation> {
        let valid = 0 < budget && budget <= deadline && deadline <= period && period <= LONGEST;
        valid.then_some(Self { budget, deadline, period }).ok_or(InvalidReservation {
            budget,
            deadline,
            period,
        })
    }

    /// With other reservations on the core: the budget may come at the end of every period.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn shared(budget: u64, period: u64) -> Result<Self, InvalidReservation> {
        Self::new(budget, period, period)
    }

    /// The only one on its core, or one that precedes all others: the budget comes immediately.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn alone(budget: u64, period: u64) -> Result<Self, InvalidReservation> {
        Self::new(budget, budget, period)
    }

    /// Processor time in every period, ns.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// The time after the replenishment by which it is supplied, ns.
    #[must_use]
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// From one replenishment to the next, ns.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.period
    }

    /// The longest time without any processor time, ns: the budget at the beginning of one period,
    /// then at the end of the next.
    #[must_use]
    pub fn blackout(&self) -> u64 {
        self.period + self.deadline - 2 * self.budget
    }

    /// The bandwidth: the fraction of a processor.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.budget as f64 / self.period as f64
    }
}
