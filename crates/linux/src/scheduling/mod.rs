//! How the kernel schedules a thread, and how much time the thread received: sched_setattr(2),
//! schedstat.
//!
//! | file | owns |
//! | --- | --- |
//! | `attributes.rs` | reads and sets a thread's policy with its parameters |
//! | `change.rs` | a change of one setting, and how to undo it |
//! | `release.rs` | whether a changed process still exists, and threads that it has started since |
//! | `rt_group.rs` | cgroups without a SCHED_FIFO budget |
//! | `sampling.rs` | what a core does to threads that precede everything on it |
//! | `wake.rs` | wakes a sleeping thread, so that it comes to its processor |
//! | `threads.rs` | the threads of a process, and the processor time each has received |
//!
//! What it does not do: choose. crates/reservation decides which thread gets what.

mod attributes;
mod change;
mod release;
mod rt_group;
pub mod sampling;
mod threads;
mod wake;

pub use attributes::{Attributes, Policy};
pub use change::Change;
pub use release::{is_alive, is_thread, widen_new_threads};
pub use rt_group::without_real_time;
pub use threads::{
    Schedstat, SchedstatFile, Thread, accounting_lag, cgroup_of, is_runnable, processor_of,
    schedstat, started, threads,
};
pub use wake::wake;
