//! What the host promises, and to which thread.

use serde::{Deserialize, Serialize};
use timevisor_schedule::Reservation;

/// What the host promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// The budget in every period: SCHED_DEADLINE on this core, which is a root domain of its own.
    Core(usize),
    /// Bounded tardiness: SCHED_DEADLINE on all cores.
    Global,
    /// Precedence over everything that is not real-time, without a budget: SCHED_FIFO.
    Fifo,
    /// No promise: at most the budget in a period, and the greatest weight among the siblings of
    /// its cgroup.
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
    /// When that process started. It tells the process from a later one with the same pid.
    pub start_time: u64,
    /// The vCPU's thread.
    pub tid: u32,
    /// TCG runs the guest. QEMU's main loop makes the guest's timer interrupts then.
    pub emulated: bool,
}

/// A reservation for a thread, before the host's changes are planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Whose.
    pub target: Target,
    /// How much.
    pub reservation: Reservation,
    /// What is promised.
    pub guarantee: Guarantee,
}
