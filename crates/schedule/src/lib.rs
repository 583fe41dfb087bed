//! Reservations of processor time: what they supply, what tasks demand, and whether that fits. Task set in, reservation out.
//!
//! | module | owns |
//! | --- | --- |
//! | [`reservation`] | [`Reservation`]: budget, deadline, period, as sched_setattr(2) takes them |
//! | [`supply`] | [`Supply`]: how much processor time is there in any interval at least |
//! | [`task`] | [`Task`], [`TaskSet`], [`Policy`]; [`Overhead`] |
//! | [`demand`] | what tasks ask for in an interval |
//! | [`fixed_priority`] | response times; exact for constrained deadlines |
//! | [`edf`] | the processor demand test, by QPA |
//! | [`verdict`] | one answer for either policy |
//! | [`synthesis`] | the least budget, the best period, how much a task may grow |
//! | [`admission`] | several reservations on one core |
//! | [`partition`] | tasks of a guest onto its vCPUs |
//!
//! All times are whole nanoseconds; every rounding is against the tasks. What it does not do: measure, enforce, or know where tasks
//! come from.
//!
//! Sources: Easwaran, Anand, Lee, "Compositional analysis framework using EDP resource models" (RTSS 2007) for the supply; Zhang,
//! Burns, "Schedulability analysis for real-time systems with EDF scheduling" (IEEE TC 2009) for QPA; Davis, Burns, "Hierarchical
//! fixed priority pre-emptive scheduling" (RTSS 2005) for response times under a server.
#![forbid(unsafe_code)]

pub mod admission;
pub mod demand;
pub mod edf;
pub mod fixed_priority;
pub mod partition;
pub mod reservation;
pub mod supply;
pub mod synthesis;
pub mod task;
pub mod verdict;

pub use reservation::{InvalidReservation, Reservation};
pub use supply::{Dedicated, Linear, Supply, Ticked, Worst};
pub use task::{InvalidTask, Overhead, Policy, Task, TaskSet};
pub use verdict::{Verdict, judge};

#[cfg(test)]
mod golden_tests;
