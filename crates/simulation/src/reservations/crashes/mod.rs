//! The state machine of `timevisor-reservation` on a simulated host, killed at any moment.
//!
//! | module | owns |
//! | --- | --- |
//! | [`kernel`] | [`kernel::Kernel`]: settings, threads and a journal, which survive the daemon |
//! | [`change`] | [`change::Change`]: one setting, as Linux's cgroup v1 has it |
//! | [`host`] | [`host::SimulatedHost`]: the daemon's view of it, with a moment at which the daemon dies |
//! | [`schedule`] | [`schedule::run`]: random requests, VMs that come and go, and deaths; what must hold after each |
//!
//! What it does not do: schedule threads. The simulator next to this folder checks whether budgets
//! are kept.

pub mod change;
pub mod host;
pub mod kernel;
pub mod schedule;

#[cfg(test)]
mod moves_tests;
#[cfg(test)]
mod tests;
