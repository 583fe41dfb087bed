//! What backends tell: raw, as it was read at a point, and decoded by a guest-OS plugin.

use serde::Serialize;

/// What a backend read at a point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawEvent {
    /// Of this attachment's backend; without gaps, in the order of the events over all vCPUs.
    pub sequence: u64,
    /// The host's counter at that moment, where the backend has it.
    pub counter: Option<u64>,
    /// It may have been so many ticks more or less.
    pub counter_error: u64,
    /// The point's id.
    pub point: u16,
    /// The vCPU.
    pub vcpu: u16,
    /// Bit n: read n could not be made; its bytes are zero.
    pub failed: u16,
    /// All reads' bytes.
    pub data: Vec<u8>,
}

impl RawEvent {
    /// The bytes of read `n` of `lens`; none if it failed.
    #[must_use]
    pub fn read(&self, lens: &[u16], n: usize) -> Option<&[u8]> {
        if self.failed & 1u16.checked_shl(u32::try_from(n).ok()?)? != 0 {
            return None;
        }
        let start: usize = lens.get(..n)?.iter().map(|len| usize::from(*len)).sum();
        self.data.get(start..start + usize::from(*lens.get(n)?))
    }
}

/// A thread of the guest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Thread {
    /// In the guest's initial pid namespace.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// What it calls itself; what is no printable ASCII is replaced.
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
    /// sched_setparam: what it has.
    Keep,
    /// Unknown here.
    Other(u32),
}

impl Policy {
    /// By the kernel's number.
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
    /// Of normal tasks.
    pub nice: i32,
    /// Of FIFO and round robin.
    pub priority: u32,
    /// Of deadline tasks.
    pub runtime_ns: u64,
    /// Of deadline tasks; 0: the period.
    pub deadline_ns: u64,
    /// Of deadline tasks; 0: the deadline.
    pub period_ns: u64,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kind {
    /// Somebody asks for a policy. The kernel may still refuse; the next event of `target` tells its policy.
    SetScheduler {
        /// Whose policy.
        target: Thread,
        /// The policy.
        attributes: Attributes,
    },
    /// sched_yield: the end of a deadline task's job.
    Yield,
    /// nanosleep, clock_nanosleep: usually the end of a job.
    Sleep {
        /// CLOCK_*.
        clock: u32,
        /// Until `ns`, else for so long.
        absolute: bool,
        /// Nanoseconds.
        ns: i64,
    },
    /// It ends.
    Exit {
        /// As wait(2) tells it.
        status: u32,
    },
    /// Any system call, where that was asked for.
    SystemCall {
        /// Of the 64-bit table.
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
    /// Who.
    pub thread: Thread,
    /// What.
    #[serde(flatten)]
    pub kind: Kind,
}
