//! How the kernel schedules a thread, and what it got: sched_setattr(2), schedstat.
//!
//! | file | owns |
//! | --- | --- |
//! | `attributes.rs` | a thread's policy with its parameters: read, set |
//! | `change.rs` | one setting that is changed, and how to undo it |
//! | `release.rs` | whether a changed process is still there, and threads that it has started since |
//! | `rt_group.rs` | cgroups without time for SCHED_FIFO |
//! | `threads.rs` | the threads of a process, and the processor time that each had |
//!
//! What it does not do: choose. crates/reservation decides which thread gets what.

mod attributes;
mod change;
mod release;
mod rt_group;
mod threads;

pub use attributes::{Attributes, Policy};
pub use change::Change;
pub use release::{is_alive, widen_new_threads};
pub use rt_group::without_real_time;
pub use threads::{
    Schedstat, Thread, accounting_lag, cgroup_of, is_runnable, processor_of, schedstat, threads,
};
