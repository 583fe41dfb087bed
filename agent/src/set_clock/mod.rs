//! Steps and slews the guest's CLOCK_REALTIME from the page after a boot, a resume, a migration or
//! a restore, which the kernel's clock cannot detect by itself.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the agent's options |
//! | `beside.rs` | CLOCK_REALTIME against the page, in UTC, or why they cannot be compared; pure |
//! | `law.rs` | when to step, when to slew, by how much; pure |
//! | `view.rs` | reading both clocks |
//! | `saved_clock.rs` | the kernel's settings: saving, changing and restoring them |
//! | `keeper.rs` | `--set-clock`: the agent's part |
//! | `once.rs` | `set-clock` |
//!
//! What it does not do: hold back programs that are already running. From the resume until the
//! step, they see a clock that is late (docs/how-to/guest-clock.md). Programs for which that is too
//! long read the page, or are held (`hold/`).

mod beside;
mod keeper;
pub mod law;
mod once;
mod saved_clock;
pub mod view;

use std::time::Duration;

pub use keeper::Keeper;
pub use law::Mode;
pub use once::SetClock;
pub use saved_clock::clean_up;

/// What the agent does about CLOCK_REALTIME.
#[derive(clap::Args, Clone, Copy)]
pub struct Options {
    /// Keep CLOCK_REALTIME with the page: `step` sets it at the start and whenever the page was
    /// disrupted (a resume, a migration, a restore), and slews otherwise; `slew` never sets it
    #[arg(long, value_name = "MODE", value_enum)]
    set_clock: Option<Mode>,
    /// Step only where CLOCK_REALTIME is surely this far off; less is slewed away
    #[arg(long, value_name = "SPAN", value_parser = crate::span::parse, default_value = "1ms", requires = "set_clock")]
    step_threshold: Duration,
    /// Begin even though somebody else keeps CLOCK_REALTIME
    #[arg(long, requires = "set_clock")]
    force: bool,
}
