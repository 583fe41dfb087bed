//! Reservations of processor time: what they supply, what tasks demand, and whether the demand
//! fits. The input is a task set, the output a reservation.
//!
//! | module | owns |
//! | --- | --- |
//! | [`reservation`] | [`Reservation`]: budget, deadline, period, as sched_setattr(2) takes them |
//! | [`supply`] | [`Supply`]: the minimum processor time in any interval |
//! | [`overheads`] | [`Overheads`]: what a host takes from it |
//! | [`measured`] | from what a host was seen to do to its overheads |
//! | [`speed`] | [`Speed`]: what costs of one host are on another |
//! | [`aligned`] | [`Aligned`]: the supply of a reservation whose replenishments are the releases |
//! | [`task`] | [`Task`], [`TaskSet`], [`Policy`]; [`Overhead`] |
//! | [`demand`] | the demand of tasks in an interval |
//! | [`fixed_priority`] | response times; exact for constrained deadlines |
//! | [`edf`] | the processor demand test, by QPA |
//! | [`edf_response`] | response times under EDF |
//! | [`together`] | [`Together`]: the time in which all vCPUs of a guest run at once |
//! | [`global`] | a guest's tasks on any of its vCPUs |
//! | [`verdict`] | one answer for either policy |
//! | `search` | searches by bisection |
//! | [`synthesis`] | the least budget, the best period |
//! | [`sensitivity`] | how much a task may grow |
//! | [`admission`] | several reservations on one core |
//! | [`adaptive`] | budgets that follow what is used, for VMs without deadlines |
//! | [`audit`] | whether a reservation got what it was guaranteed |
//! | [`partition`] | assigns a guest's tasks to its vCPUs |
//! | [`fleet`] | assigns the vCPUs of several VMs to cores |
//!
//! All times are whole nanoseconds; all rounding is conservative, that is, against the tasks. What
//! it does not do: measure, enforce, or know where tasks come from.
//!
//! Sources: Easwaran, Anand, Lee, "Compositional analysis framework using EDP resource models"
//! (RTSS 2007) for the supply; Zhang, Burns, "Schedulability analysis for real-time systems with
//! EDF scheduling" (IEEE TC 2009) for QPA; Davis, Burns, "Hierarchical fixed priority pre-emptive
//! scheduling" (RTSS 2005) and Spuri, "Analysis of deadline scheduled real-time systems" (1996) for
//! response times, with a server's supply in place of the processor.
#![forbid(unsafe_code)]

pub mod adaptive;
pub mod admission;
pub mod aligned;
pub mod audit;
pub mod demand;
pub mod edf;
pub mod edf_response;
pub mod fixed_priority;
pub mod fleet;
pub mod global;
mod horizon;
pub mod measured;
mod missed;
mod moments;
pub mod overheads;
pub mod partition;
pub mod reservation;
mod search;
pub mod sensitivity;
pub mod speed;
mod staircase;
pub mod supply;
pub mod synthesis;
pub mod task;
mod tester;
pub mod together;
pub mod verdict;

pub use aligned::Aligned;
pub use overheads::Overheads;
pub use reservation::{InvalidReservation, Reservation};
pub use speed::Speed;
pub use supply::{Dedicated, Late, Linear, Supply, Ticked, Worst};
pub use task::{InvalidTask, Overhead, Policy, Task, TaskSet};
pub use together::Together;
pub use verdict::{Verdict, judge};

#[cfg(test)]
mod golden_tests;
