//! What the host guarantees, and to which thread.

use serde::{Deserialize, Serialize};
use timevisor_schedule::Reservation;

/// What the host guarantees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// The budget in every period: SCHED_DEADLINE on this core, which forms a separate root domain.
    Core(usize),
    /// Bounded tardiness: SCHED_DEADLINE on all cores.
    Global,
    /// Precedence over everything that is not real-time, without a budget: SCHED_FIFO.
    Fifo,
    /// No guarantee: at most the budget in each period, and the greatest weight among the siblings
    /// of its cgroup.
    Limit,
}

impl Guarantee {
    /// Whether the thread runs under SCHED_DEADLINE.
    #[must_use]
    pub const fn is_by_deadline(self) -> bool {
        matches!(self, Self::Core(_) | Self::Global)
    }

    /// The core that is isolated for the thread.
    #[must_use]
    pub const fn core(self) -> Option<usize> {
        match self {
            Self::Core(core) => Some(core),
            Self::Global | Self::Fifo | Self::Limit => None,
        }
    }
}

/// The thread that runs a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// QEMU's process.
    pub pid: u32,
    /// When that process started: distinguishes it from a later one with the same pid.
    pub start_time: u64,
    /// The vCPU's thread.
    pub tid: u32,
    /// The guest runs under TCG, so QEMU's main loop generates its timer interrupts.
    pub emulated: bool,
}

/// A reservation for a thread, before the host's changes have been planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The thread.
    pub target: Target,
    /// Budget, deadline and period.
    pub reservation: Reservation,
    /// The guarantee.
    pub guarantee: Guarantee,
}
