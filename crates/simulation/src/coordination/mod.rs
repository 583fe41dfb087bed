//! Random schedules of loss, delay, reordering, partition, crash and failing clocks for the members
//! of a group (`timevisor-coordination`), and what is judged about them.
//!
//! | module | owns |
//! | --- | --- |
//! | [`plan`] | one schedule, drawn from a seed |
//! | `clock` | a member's page: right bounds, sometimes none |
//! | `world` | the event queue |
//! | `judge` | what must hold in every schedule |
//!
//! Members are those that ship. Their messages are encoded and decoded on the way.

mod clock;
mod judge;
pub mod plan;
#[cfg(test)]
mod tests;
mod world;

pub use judge::Judged;
use plan::Plan;

/// Runs the schedule of a seed.
#[must_use]
pub fn run(seed: u64) -> Judged {
    world::World::run(Plan::random(seed), seed)
}
