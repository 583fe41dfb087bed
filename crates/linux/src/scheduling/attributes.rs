//! [`Attributes`]: `struct sched_attr` of a thread (include/uapi/linux/sched/types.h), size 48: the fields of Linux 3.14.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// A scheduling policy by its number in sched(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Policy(pub u32);

impl Policy {
    /// SCHED_OTHER, the default.
    pub const OTHER: Self = Self(0);
    /// SCHED_FIFO: first in, first out, by priority.
    pub const FIFO: Self = Self(1);
    /// SCHED_DEADLINE: by deadline, within a budget.
    pub const DEADLINE: Self = Self(6);
}

/// How a thread is scheduled. Times in ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attributes {
    /// Which policy.
    pub policy: Policy,
    /// SCHED_FLAG_*.
    pub flags: u64,
    /// Nice value, for SCHED_OTHER.
    pub nice: i32,
    /// Priority, for SCHED_FIFO and SCHED_RR.
    pub priority: u32,
    /// For SCHED_DEADLINE: the budget per period.
    pub runtime: u64,
    /// For SCHED_DEADLINE: the deadline relative to the replenishment.
    pub deadline: u64,
    /// For SCHED_DEADLINE: the period.
    pub period: u64,
}

/// Children begin as SCHED_OTHER. Without it, a SCHED_DEADLINE thread cannot start threads at all
/// (EAGAIN), but QEMU's threads must; and those of a SCHED_FIFO thread, such as QEMU's main loop
/// during a reservation, stay SCHED_FIFO for ever.
const RESET_ON_FORK: u64 = 1;

#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = 48;
const _: () = assert!(size_of::<SchedAttr>() == 48);

impl Attributes {
    /// A reservation, without SCHED_FLAG_DL_OVERRUN, whose SIGXCPU would kill QEMU, and without
    /// SCHED_FLAG_RECLAIM.
    #[must_use]
    pub fn deadline(runtime: u64, deadline: u64, period: u64) -> Self {
        let flags = RESET_ON_FORK;
        Self { policy: Policy::DEADLINE, flags, nice: 0, priority: 0, runtime, deadline, period }
    }

    /// SCHED_FIFO at this priority (1 to 99); threads that it starts are SCHED_OTHER.
    #[must_use]
    pub fn fifo(priority: u32) -> Self {
        Self { policy: Policy::FIFO, priority, flags: RESET_ON_FORK, ..Self::other() }
    }

    /// SCHED_OTHER, nice 0.
    #[must_use]
    pub fn other() -> Self {
        let policy = Policy::OTHER;
        Self { policy, flags: 0, nice: 0, priority: 0, runtime: 0, deadline: 0, period: 0 }
    }

    /// The attributes of this thread; 0 means the calling one.
    ///
    /// # Errors
    /// The kernel's: ESRCH when the thread has ended.
    pub fn of(tid: u32) -> io::Result<Self> {
        let mut raw = SchedAttr::default();
        // SAFETY: `raw` is a live struct of SIZE bytes for the call to fill; the kernel writes no
        // more than that.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut raw, SIZE, 0u32) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            policy: Policy(raw.policy),
            flags: raw.flags,
            nice: raw.nice,
            priority: raw.priority,
            runtime: raw.runtime,
            deadline: raw.deadline,
            period: raw.period,
        })
    }

    /// Applies the attributes to a thread; 0 means the calling one.
    ///
    /// # Errors
    /// The kernel's (sched_setattr(2)); timevisord explains them.
    pub fn set(&self, tid: u32) -> io::Result<()> {
        let raw = SchedAttr {
            size: SIZE,
            policy: self.policy.0,
            flags: self.flags,
            nice: self.nice,
            priority: self.priority,
            runtime: self.runtime,
            deadline: self.deadline,
            period: self.period,
        };
        // SAFETY: `raw` is a live struct of the size that it says; the kernel only reads it.
        let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const raw, 0u32) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Whether two are equal for their policy; fields of other policies are ignored.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let times = |a: &Self| (a.runtime, a.deadline, a.period);
        self.policy == other.policy
            && match self.policy {
                Policy::DEADLINE => times(self) == times(other),
                Policy::FIFO | Policy(2) => self.priority == other.priority,
                _ => self.nice == other.nice,
            }
    }
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        match self.policy {
            Policy::OTHER => write!(f, "SCHED_OTHER, nice {}", self.nice),
            Policy::FIFO => write!(f, "SCHED_FIFO {}", self.priority),
            Policy::DEADLINE => write!(
                f,
                "SCHED_DEADLINE {}ms of {}ms within {}ms",
                ms(self.runtime),
                ms(self.period),
                ms(self.deadline)
            ),
            Policy(number) => write!(f, "policy {number}, priority {}", self.priority),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nice value of the lowest priority.
    const LOWEST: i32 = 19;

    /// Runs on a new thread, so that a failure does not affect the test's thread.
    fn on_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(body).join().unwrap()
    }

    #[test]
    fn what_was_set_is_read() {
        let (before, nicer, after) = on_thread(|| {
            let before = Attributes::of(0).unwrap();
            let nice = (before.nice.max(0) + 3).min(LOWEST);
            let nicer = Attributes { nice, ..Attributes::other() };
            nicer.set(0).unwrap();
            (before, nicer, Attributes::of(0).unwrap())
        });
        assert!(after.is_same(&nicer), "{after:?}");
        // The test itself may run at the lowest priority, below which there is none.
        assert_eq!(after.is_same(&before), before.nice == LOWEST, "{before:?}");
        assert!(!after.is_same(&Attributes::fifo(1)));
    }

    #[test]
    fn threads_that_a_real_time_thread_starts_are_ordinary() {
        let child = on_thread(|| {
            // Takes CAP_SYS_NICE, and a cgroup with time for it.
            Attributes::fifo(1).set(0).ok()?;
            let child = on_thread(|| Attributes::of(0).unwrap());
            Attributes::other().set(0).unwrap();
            Some(child)
        });
        assert!(child.is_none_or(|child| child.policy == Policy::OTHER), "{child:?}");
    }

    #[test]
    fn what_the_kernel_refuses() {
        let code = |tid: u32, attributes: Attributes| {
            on_thread(move || attributes.set(tid).unwrap_err().raw_os_error())
        };
        // The budget is longer than the deadline.
        assert_eq!(
            code(0, Attributes::deadline(3_000_000, 2_000_000, 4_000_000)),
            Some(libc::EINVAL)
        );
        // The budget is below the kernel's minimum of 1024 ns.
        assert_eq!(code(0, Attributes::deadline(1_023, 1_000_000, 1_000_000)), Some(libc::EINVAL));
        assert_eq!(code(4_194_000, Attributes::other()), Some(libc::ESRCH));
        // The thread is confined to a part of its root domain, or lacks CAP_SYS_NICE.
        let online = crate::affinity::online().unwrap();
        if online.len() > 1 {
            let confined = on_thread(move || {
                crate::affinity::allow(0, &online[..1]).unwrap();
                let usual = Attributes::deadline(1_000_000, 10_000_000, 10_000_000);
                usual.set(0).unwrap_err().raw_os_error()
            });
            assert_eq!(confined, Some(libc::EPERM));
        }
    }
}
