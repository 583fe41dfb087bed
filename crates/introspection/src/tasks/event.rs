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

/// struct sched_attr, and what ChronOS adds to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Attributes {
    /// The policy.
    pub policy: Policy,
    /// SCHED_FLAG_*.
    pub flags: u64,
    /// For normal tasks.
    pub nice: i32,
    /// For FIFO and round robin tasks; of a segment, its program's own priority.
    pub priority: u32,
    /// For deadline tasks.
    pub runtime_ns: u64,
    /// For deadline tasks; 0: the period.
    pub deadline_ns: u64,
    /// For deadline tasks; 0: the deadline.
    pub period_ns: u64,
    /// What a job is worth if it ends in time, in the guest's own unit; 0: not stated.
    pub utility: u64,
}

/// By what a guest orders its segments: ChronOS's single-processor schedulers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// First in, first out.
    Fifo,
    /// Rate monotonic: the shortest period first.
    Rma,
    /// The earliest deadline first.
    Edf,
    /// The highest value density first: utility by remaining processor time.
    Hvdf,
    /// Locke's best-effort scheduling algorithm: the earliest deadline first; in an overload, the
    /// lowest value densities are dropped.
    Lbesa,
    /// [`Self::Dasa`] without dependencies.
    DasaNd,
    /// Dependent activity scheduling algorithm: the highest value densities are chosen first, as
    /// long as all chosen ones meet their deadlines.
    Dasa,
    /// An unknown scheduler.
    Other(u32),
}

impl Scheduler {
    /// The known schedulers, by their numbers from 0 on, with the names that plugins' files and
    /// JSON use.
    pub const ALL: [(&str, Self); 7] = [
        ("fifo", Self::Fifo),
        ("rma", Self::Rma),
        ("edf", Self::Edf),
        ("hvdf", Self::Hvdf),
        ("lbesa", Self::Lbesa),
        ("dasa_nd", Self::DasaNd),
        ("dasa", Self::Dasa),
    ];

    /// The scheduler with this number (enum timevisor_scheduler; ChronOS has the same numbers).
    #[must_use]
    pub fn new(number: u32) -> Self {
        let known = usize::try_from(number).ok().and_then(|number| Self::ALL.get(number));
        known.map_or(Self::Other(number), |(_, scheduler)| *scheduler)
    }
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
    /// A job exceeded its deadline, and the guest gives it up.
    Abort,
    /// The guest chooses by what it orders its tasks of one priority. This concerns no task, and no
    /// reservation uses it.
    ChooseScheduler {
        /// The scheduler.
        scheduler: Scheduler,
        /// The priority of the tasks that it orders.
        priority: u32,
        /// Bit n: on processor n; 0: on all.
        processors: u32,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every serde format has the names of JSON; this one is at hand.
    fn serialized(value: impl Serialize) -> toml::Value {
        toml::Value::try_from(value).unwrap()
    }

    #[test]
    fn schedulers_have_one_name_everywhere() {
        for (number, (name, scheduler)) in (0..).zip(Scheduler::ALL) {
            assert_eq!(Scheduler::new(number), scheduler);
            assert_eq!(serialized(scheduler).as_str(), Some(name));
        }
        assert_eq!(Scheduler::new(7), Scheduler::Other(7));
        assert_eq!(Scheduler::new(u32::MAX), Scheduler::Other(u32::MAX));
    }

    #[test]
    fn events_by_their_names() {
        let kind =
            Kind::ChooseScheduler { scheduler: Scheduler::Other(9), priority: 2, processors: 1 };
        let expected =
            "kind = 'choose_scheduler'\npriority = 2\nprocessors = 1\nscheduler = { other = 9 }";
        assert_eq!(serialized(kind), toml::from_str(expected).unwrap());
        assert_eq!(serialized(Kind::Abort), toml::from_str("kind = 'abort'").unwrap());
    }
}
