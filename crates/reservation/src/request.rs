//! A request for a reservation, and the refusal of one.

use timevisor_schedule::Reservation;

/// Which guarantee somebody asks for. The core is chosen later.
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

/// A request. Times in ns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The VM's name.
    pub vm: String,
    /// QEMU's cpu-index.
    pub vcpu: u32,
    /// Processor time in every period.
    pub budget: u64,
    /// The reservation is soft: the budget follows the use, from `budget` up to this.
    pub at_most: Option<u64>,
    /// The budget is supplied within this time after a replenishment; absent: within the period.
    pub deadline: Option<u64>,
    /// From one replenishment to the next.
    pub period: u64,
    /// What is promised.
    pub promise: Promise,
    /// Which core; absent: any that has room.
    pub core: Option<usize>,
    /// No other reservation may share the core.
    pub alone: bool,
    /// Say what would change, and change nothing.
    pub dry_run: bool,
}

impl Request {
    /// The budget, deadline and period as a reservation.
    ///
    /// # Errors
    /// [`Reason::BadRequest`] for times that are no reservation.
    pub fn reservation(&self) -> Result<Reservation, Refusal> {
        let deadline = self.deadline.unwrap_or(self.period);
        Reservation::new(self.budget, deadline, self.period).map_err(|e| bad(e.to_string()))
    }

    /// The least and the greatest budget of a soft reservation, ns.
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

/// Kinds of refusals, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The request makes no sense.
    BadRequest,
    /// There is no such VM, vCPU or reservation.
    NotFound,
    /// The vCPU has a reservation that the request may not replace.
    AlreadyExists,
    /// This host or VM cannot do it.
    Unsupported,
    /// Not now.
    Unavailable,
    /// Others are giving up what was asked for; it is there within a second.
    MakingRoom,
    /// Something could not be brought back.
    Internal,
}

/// Why a request was not granted, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}; {next_step}")]
pub struct Refusal {
    /// Of which kind.
    pub reason: Reason,
    /// Why, for people.
    pub message: String,
    /// What to do, for people.
    pub next_step: String,
}

impl Refusal {
    /// A refusal.
    #[must_use]
    pub fn new(reason: Reason, message: String, next_step: &str) -> Self {
        Self { reason, message, next_step: next_step.to_owned() }
    }
}
