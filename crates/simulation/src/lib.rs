//! Simulated and recorded worlds for the code that production runs.
//!
//! | module | owns |
//! | --- | --- |
//! | [`random_worlds`] | worlds inside the assumptions, drawn from a seed, and what they show |
//! | [`random`] | [`random::Random`]: the same numbers on every machine, one stream per purpose |
//! | [`oscillator`] | [`oscillator::Oscillator`]: frequency noise and the counter it drives |
//! | [`link`](mod@link) | [`link::Link`]: delays, losses, bursts and route changes of one direction |
//! | [`calendar`] | [`calendar::Calendar`]: true time as TAI and UTC, leap seconds |
//! | [`server`] | [`server::Server`]: NTP answers from clocks that are right, wrong or silent |
//! | [`host`] | [`host::HostModel`]: stamping noise, timers, restarts |
//! | [`machine`] | [`machine::Machine`]: counter, page and journal, which outlive a daemon |
//! | [`utc_page`] | [`utc_page::UtcPage`]: a VM's page on UTC, against true UTC |
//! | [`checks`] | [`checks::Checks`]: what readers see, against truth |
//! | [`calibration`] | [`calibration::Calibration`]: estimated errors, against the true ones |
//! | [`scenario`] | [`Scenario`]: deltas and limits, from a file |
//! | [`world`] | [`world::World`]: the event queue that runs it all |
//! | [`report`] | [`Report`]: figures and verdict |
//! | [`summary`] | [`Summary`]: one scenario over several seeds |
//! | [`cluster`] | a cluster of nodes with one clock, up to millions |
//! | [`coordination`] | groups of members that act together, over a network that fails |
//! | [`conditions`] | the seven standard conditions as traces from our own generators |
//! | [`reservations`] | reservations of processor time, compared with the analysis of `timevisor-schedule` |
//! | [`trace`] | recorded exchanges with truth: reading, replaying, scoring |
//!
//! The simulated host runs production's NTP client, estimate, publisher (`timevisor-host-clock`),
//! page writer and page reader. Nothing is reimplemented for the simulator.
//!
//! What it does not do: simulate kernels, VMs, or CPU time, except in [`reservations`].
#![forbid(unsafe_code)]

pub mod calendar;
pub mod calibration;
pub mod checks;
pub mod cluster;
pub mod conditions;
pub mod coordination;
pub mod host;
pub mod link;
pub mod machine;
pub mod oscillator;
pub mod random;
pub mod random_worlds;
pub mod report;
pub mod reservations;
pub mod scenario;
pub mod server;
pub mod summary;
pub mod trace;
pub mod utc_page;
pub mod world;

use timevisor_estimate::Ensemble;

pub use report::{Report, Verdict};
pub use scenario::{Scenario, ScenarioError};
pub use summary::Summary;

use checks::Point;
use world::{MakeSynchronizer, World};

/// Runs a scenario with the production estimate.
#[must_use]
pub fn run(scenario: &Scenario) -> Report {
    record(scenario).0
}

/// As [`run`], with what a reader saw at every true second.
#[must_use]
pub fn record(scenario: &Scenario) -> (Report, Vec<Point>) {
    run_with(scenario, &|parameters, names, nominal, error| {
        Box::new(Ensemble::new(parameters, names, nominal, error))
    })
}

/// As [`run`], with another synchronizer in place of the estimate.
#[must_use]
pub fn run_with(scenario: &Scenario, make: MakeSynchronizer<'_>) -> (Report, Vec<Point>) {
    let outcomes = World::new(scenario, make).run();
    let report = Report::new(scenario, &outcomes);
    (report, outcomes.checks.points)
}

#[cfg(test)]
mod tests;
