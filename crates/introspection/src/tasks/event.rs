//! An event of a trap point, decoded by the guest system.

use serde::Serialize;

#[cfg(doc)]
use crate::backend::RawEvent;

/// A thread of the guest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Thread {
    /// Its thread id in the guest's initial pid namespace.
    pub tid: u32,
    /// Its process id.
    pub pid: u32,
    /// Its name; all characters except printable ASCII are replaced.
    pub comm: String,
    /// Its policy before the event.
    pub policy: Policy,
}

/// A scheduling policy (include/uapi/linux/sched.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// SCHED_NORMAL.
    #[default]
    Normal,
    /// SCHED_FIFO.
    Fifo,
    /// SCHED_RR.
    RoundRobin,
    /// SCHED_BATCH.
    Batch,
    /// SCHED_IDLE.
    Idle,
    /// SCHED_DEADLINE.
    Deadline,
    /// SCHED_EXT.
    Ext,
    /// sched_setparam: the policy stays.
    Keep,
    /// An unknown policy.
    Other(u32),
}

impl Policy {
    /// The policy with this kernel number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        match number {
            0 => Self::Normal,
            1 => Self::Fifo,
            2 => Self::RoundRobin,
            3 => Self::Batch,
            5 => Self::Idle,
            6 => Self::Deadline,
            7 => Self::Ext,
            u32::MAX => Self::Keep,
            other => Self::Other(other),
        }
    }

    /// FIFO, round robin or deadline.
    #[must_use]
    pub const fn is_real_time(self) -> bool {
        matches!(self, Self::Fifo | Self::RoundRobin | Self::Deadline)
    }
}

/// struct sched_attr.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Attributes {
    /// The policy.
    pub policy: Policy,
    /// SCHED_FLAG_*.
    pub flags: u64,
    /// For normal tasks.
    pub nice: i32,
    /// For FIFO and round robin tasks.
    pub priority: u32,
    /// For deadline tasks.
    pub runtime_ns: u64,
    /// For deadline tasks; 0: the period.
    pub deadline_ns: u64,
    /// For deadline tasks; 0: the deadline.
    pub period_ns: u64,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kind {
    /// A request for a policy. Requests are reported even if the kernel rejects them; the next
    /// event of `target` has its policy.
    SetScheduler {
        /// The task whose policy is requested.
        target: Thread,
        /// The requested attributes.
        attributes: Attributes,
    },
    /// sched_yield: the end of a deadline task's job.
    Yield,
    /// nanosleep, clock_nanosleep: usually the end of a job.
    Sleep {
        /// CLOCK_*.
        clock: u32,
        /// Whether `ns` is an instant; otherwise it is a duration.
        absolute: bool,
        /// Nanoseconds.
        ns: i64,
    },
    /// The thread exits.
    Exit {
        /// As in wait(2).
        status: u32,
    },
    /// A system call; reported only where the user asked for all of them.
    SystemCall {
        /// Its number in the 64-bit table.
        number: u32,
    },
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Event {
    /// As [`RawEvent::sequence`].
    pub sequence: u64,
    /// As [`RawEvent::counter`].
    pub counter: Option<u64>,
    /// As [`RawEvent::counter_error`].
    pub counter_error: u64,
    /// The vCPU.
    pub vcpu: u16,
    /// The thread that was running.
    pub thread: Thread,
    /// What happened.
    #[serde(flatten)]
    pub kind: Kind,
}
