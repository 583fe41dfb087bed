//! Reservations of processor time: what they supply, what tasks demand, and whether that fits. Task
//! set in, reservation out.
//!
//! | module | owns |
//! | --- | --- |
//! | [`reservation`] | [`Reservation`]: budget, deadline, period, as sched_setattr(2) takes them |
//! | [`supply`] | [`Supply`]: how much processor time is there in any interval at least |
//! | [`aligned`] | [`Aligned`]: the supply of a reservation whose replenishments are the releases |
//! | [`task`] | [`Task`], [`TaskSet`], [`Policy`]; [`Overhead`] |
//! | [`demand`] | what tasks ask for in an interval |
//! | [`fixed_priority`] | response times; exact for constrained deadlines |
//! | [`edf`] | the processor demand test, by QPA |
//! | [`edf_response`] | response times under it |
//! | [`verdict`] | one answer for either policy |
//! | `search` | searches by halving |
//! | [`synthesis`] | the least budget, the best period |
//! | [`sensitivity`] | how much a task may grow |
//! | [`admission`] | several reservations on one core |
//! | [`adaptive`] | budgets that follow what is used, for VMs without deadlines |
//! | [`audit`] | whether a reservation got what was promised |
//! | [`partition`] | tasks of a guest onto its vCPUs |
//!
//! All times are whole nanoseconds; every rounding is against the tasks. What it does not do:
//! measure, enforce, or know where tasks come from.
//!
//! Sources: Easwaran, Anand, Lee, "Compositional analysis framework using EDP resource models"
//! (RTSS 2007) for the supply; Zhang, Burns, "Schedulability analysis for real-time systems with
//! EDF scheduling" (IEEE TC 2009) for QPA; Davis, Burns, "Hierarchical fixed priority pre-emptive
//! scheduling" (RTSS 2005) and Spuri, "Analysis of deadline scheduled real-time systems" (1996) for
//! response times, with a server's supply in the processor's place.
#![forbid(unsafe_code)]

pub mod adaptive;
pub mod admission;
pub mod aligned;
pub mod audit;
pub mod demand;
pub mod edf;
pub mod edf_response;
pub mod fixed_priority;
mod horizon;
mod missed;
mod moments;
pub mod partition;
pub mod reservation;
mod search;
pub mod sensitivity;
mod staircase;
pub mod supply;
pub mod synthesis;
pub mod task;
mod tester;
pub mod verdict;

pub use aligned::Aligned;
pub use reservation::{InvalidReservation, Reservation};
pub use supply::{Dedicated, Linear, Supply, Ticked, Worst};
pub use task::{InvalidTask, Overhead, Policy, Task, TaskSet};
pub use verdict::{Verdict, judge};

#[cfg(test)]
mod golden_tests;
