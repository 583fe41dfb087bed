//! Exit statuses, the same for every command that reads.
//!
//! | status | meaning |
//! | --- | --- |
//! | 0 | done; of a command that reads: what it shows is vouched for and met |
//! | 1 | failed, or what it shows is not vouched for or not met |
//! | 2 | the command line is wrong |
//! | 3 | timevisord does not answer, or there is no clock page |

use std::fmt;
use std::process::ExitCode;

use timevisor_protocols::control::ClockStatus;

/// What a command that reads has found. Everything has been printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Found {
    /// What was shown is vouched for, and meets what was asked for.
    Good,
    /// It is not.
    NotMet,
}

impl Found {
    /// [`Self::Good`] if this is true.
    pub const fn when(good: bool) -> Self {
        if good { Self::Good } else { Self::NotMet }
    }

    /// Of a clock: whether its bounds are vouched for.
    pub const fn of_clock(status: ClockStatus) -> Self {
        Self::when(matches!(status, ClockStatus::Synchronized | ClockStatus::FreeRunning))
    }
}

/// Whether a clock with this status has bounds that are vouched for.
pub fn is_vouched(status: &str) -> bool {
    ["synchronized", "freerunning"].contains(&status)
}

impl From<Found> for ExitCode {
    fn from(found: Found) -> Self {
        match found {
            Found::Good => Self::SUCCESS,
            Found::NotMet => Self::FAILURE,
        }
    }
}

/// Nobody is there who could tell.
#[derive(Debug)]
pub struct NobodyThere(pub String);

/// The exit status of [`NobodyThere`].
pub const NOBODY_THERE: u8 = 3;

impl fmt::Display for NobodyThere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NobodyThere {}

/// What a shell says of a program that SIGPIPE has ended.
pub const CLOSED_PIPE: i32 = 128 + 13;

fn is_closed(text: &str) -> bool {
    text.starts_with("failed printing to stdout") && text.contains("Broken pipe")
}

/// Rust's `println` panics where nothing can be written: a full disk behind `>`.
pub fn say_when_nothing_can_be_printed() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| match info.payload_as_str() {
        // Who reads from us has seen enough: `timevisor now --every 1 | head -3`. As if by SIGPIPE, which
        // would also end us where the daemon closes its socket.
        Some(text) if is_closed(text) => std::process::exit(CLOSED_PIPE),
        Some(text) if text.starts_with("failed printing to stdout") => {
            eprintln!(
                "timevisor: cannot write the output: {}",
                text.trim_start_matches("failed printing to stdout: ")
            );
            std::process::exit(1);
        }
        _ => usual(info),
    }));
}

/// Prints an error, and returns the exit status that says of which kind it is.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("timevisor: {error:#}");
    let nobody = error.is::<NobodyThere>()
        || error.is::<timevisor::ConnectError>()
        || matches!(error.downcast_ref(), Some(timevisor::BindError::NoChannel { .. }));
    if nobody { ExitCode::from(NOBODY_THERE) } else { ExitCode::FAILURE }
}
