//! How the kernel schedules a thread, and what it got: sched_setattr(2), schedstat.
//!
//! | file | owns |
//! | --- | --- |
//! | `attributes.rs` | a thread's policy with its parameters: read, set |
//! | `change.rs` | one setting that is changed, and how to undo it |
//! | `rt_group.rs` | cgroups without time for SCHED_FIFO |
//! | `threads.rs` | the threads of a process, and the processor time that each had |
//!
//! What it does not do: choose. Which thread gets what is crates/guests' reservation.

mod attributes;
mod change;
mod rt_group;
mod threads;

pub use attributes::{Attributes, Policy};
pub use change::Change;
pub use rt_group::without_real_time;
pub use threads::{
    Schedstat, Thread, accounting_lag, cgroup_of, is_runnable, processor_of, schedstat, threads,
};
