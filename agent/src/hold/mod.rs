//! `--hold`: stops a workload while the guest does not know the time, by freezing its control group.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the agent's options |
//! | `law.rs` | when the workload has to stand still; pure |
//! | `sight.rs` | one look at the page, of one era |
//! | `holder.rs` | looks, freezes and thaws |
//! | `held.rs` | what is frozen now, in a file: the next agent finds what a killed one left |
//! | `guard.rs` | a process that thaws when the agent dies |
//!
//! What it does not do: hold a workload before the first look after a resume that nobody announced.
//! Looks are 10 ms apart, and the freeze takes its time (docs/how-to/guest-clock.md).

pub mod guard;
mod held;
mod holder;
mod law;
mod sight;

use std::time::Duration;

pub use holder::Holder;

/// What the agent does about a workload.
#[derive(clap::Args, Clone)]
#[group(id = "hold_options")]
pub struct Options {
    /// Freeze this cgroup or systemd unit while the page does not vouch for the time, CLOCK_REALTIME
    /// is not right by it, or the host announces a disruption that begins; may be given several
    /// times
    #[arg(long, value_name = "CGROUP|UNIT")]
    hold: Vec<String>,
    /// CLOCK_REALTIME may surely be this far off while a held workload runs
    #[arg(long, value_name = "SPAN", value_parser = crate::span::parse, default_value = "1ms", requires = "hold")]
    hold_within: Duration,
    /// A notice alone holds for this time at most
    #[arg(long, value_name = "SPAN", value_parser = crate::span::parse, default_value = "10m", requires = "hold")]
    hold_notice: Duration,
}
