//! Requests for a reservation, and refusals.

use timevisor_schedule::Reservation;

/// The requested guarantee. The core is chosen later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// The budget in every period, on an isolated core.
    Core,
    /// Bounded tardiness, on all cores.
    Global,
    /// Precedence, without a budget.
    Fifo,
    /// At most the budget.
    Limit,
}

/// A request. All times are in ns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The VM's name.
    pub vm: String,
    /// QEMU's cpu-index.
    pub vcpu: u32,
    /// Processor time per period.
    pub budget: u64,
    /// If set, the reservation is soft: the budget follows the actual use, from `budget` up to this
    /// value.
    pub at_most: Option<u64>,
    /// The budget is supplied within this time after a replenishment; if absent, within the period.
    pub deadline: Option<u64>,
    /// Time between two replenishments.
    pub period: u64,
    /// The requested guarantee.
    pub promise: Promise,
    /// The requested core; if absent, any core with room.
    pub core: Option<usize>,
    /// No other reservation may share the core.
    pub alone: bool,
    /// Report what would change, but change nothing.
    pub dry_run: bool,
}

impl Request {
    /// The budget, deadline and period as a reservation.
    ///
    /// # Errors
    /// [`Reason::BadRequest`] if the times are not a valid reservation.
    pub fn reservation(&self) -> Result<Reservation, Refusal> {
        let deadline = self.deadline.unwrap_or(self.period);
        Reservation::new(self.budget, deadline, self.period).map_err(|e| bad(e.to_string()))
    }

    /// The minimum and maximum budget of a soft reservation, ns.
    ///
    /// # Errors
    /// [`Reason::BadRequest`] for a promise without a budget, or limits in the wrong order.
    pub fn soft_limits(&self) -> Result<Option<(u64, u64)>, Refusal> {
        let Some(most) = self.at_most else { return Ok(None) };
        if matches!(self.promise, Promise::Fifo | Promise::Limit) {
            return Err(bad(
                "only SCHED_DEADLINE has a budget that can follow the use; take --promise core or global"
                    .to_owned(),
            ));
        }
        if most < self.budget {
            return Err(bad(
                "the greatest budget of a soft reservation is less than the least".to_owned()
            ));
        }
        let deadline = self.deadline.unwrap_or(self.period);
        Reservation::new(most, deadline, self.period).map_err(|e| bad(e.to_string()))?;
        Ok(Some((self.budget, most)))
    }
}

fn bad(text: String) -> Refusal {
    Refusal::new(Reason::BadRequest, text, "see docs/reference/reservations.md")
}

/// Kinds of refusals, for use by programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The request is invalid.
    BadRequest,
    /// There is no such VM, vCPU or reservation.
    NotFound,
    /// The vCPU has a reservation that the request may not replace.
    AlreadyExists,
    /// This host or VM does not support it.
    Unsupported,
    /// Not possible at the moment.
    Unavailable,
    /// Other reservations are making room; it will be available within a second.
    MakingRoom,
    /// Something could not be restored.
    Internal,
}

/// Why a request was not granted, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}; {next_step}")]
pub struct Refusal {
    /// The kind of refusal.
    pub reason: Reason,
    /// The reason, as a message for people.
    pub message: String,
    /// The next step, as a message for people.
    pub next_step: String,
}

impl Refusal {
    /// Creates a refusal.
    #[must_use]
    pub fn new(reason: Reason, message: String, next_step: &str) -> Self {
        Self { reason, message, next_step: next_step.to_owned() }
    }
}
