//! How good the estimate and the bounds are over whole days of exchanges with known truth, and what
//! an exchange costs.
//!
//! | file | owns |
//! | --- | --- |
//! | `run.rs` | arguments, the three tables, the JSON |
//! | `days.rs` | the traces: recorded ones from a directory, or simulated ones |
//! | `measure.rs` | every estimator over every trace of a condition |
//! | `published.rs` | chrony's, RADclock's and the last sample's published figures |
//! | `clockbound.rs` | ClockBound's bound on the same exchanges |
//! | `cost.rs`, `heap.rs` | CPU time and memory of one reference |
//! | `limits.rs` | what must be reached |
//!
//! Limitations: one reference, one exchange per 16 s, no losses: the scenarios of
//! `timevisor simulate` have those. Published figures belong to the recorded traces; beside
//! simulated ones they show the order of magnitude only.

mod clockbound;
mod cost;
mod days;
mod heap;
mod limits;
mod measure;
mod published;
mod run;

use std::process::ExitCode;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

fn main() -> anyhow::Result<ExitCode> {
    run::run()
}
