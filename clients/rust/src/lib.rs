//! Timevisor's client: bind to a timeline, read it as an interval, wait on it. The same program
//! runs on a host, in a container and in a guest, without flags.
//!
//! ```no_run
//! use std::time::Duration;
//! use timevisor::{Client, Requirement};
//! let client = Client::connect()?;
//! let tai = client.bind("tai", &Requirement::within(Duration::from_millis(1)))?;
//! let now = tai.now()?; // no system call, nearly always
//! println!("{} .. {} ns, {}", now.earliest_ns(), now.latest_ns(), now.status().name());
//! tai.wait_past(now.latest_ns())?; // now surely later than when we read it, on every right clock
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | owns |
//! | --- | --- |
//! | `client` | [`Client`], [`Options`]: which page, which channel |
//! | `binding` | [`Binding`]: a requirement in force, withdrawn on drop |
//! | `timeline` | [`Timeline`]: read, compare; [`ValidUntil`] |
//! | `conversions` | stamps to times and spans |
//! | `reading` | [`Reading`] |
//! | `requirement` | [`Requirement`] and whether it is met |
//! | [`wait`] | waiting: for a moment, periods, actions, changes |
//! | [`group`] | [`group::Group`]: members that act together at a time |
//! | `elapsed` | [`Elapsed`]: how long something has been running, across migrations and checkpoints |
//! | `thread_age` | [`ThreadAge`]: the age of a thread, where the counter is not invariant |
//! | [`manual`] | [`manual::Clock`]: a manually driven clock for tests |
//! | `source` | finding the page |
//! | `tried` | [`Tried`]: a place that was tried and skipped, and why |
//! | `waiters` | wakes waits on a manually driven clock |
//! | `snapshot`, `history` | recent publications, for conversions |
//! | `difference` | what publications together imply about stamps and spans |
//! | `measured_span` | [`MeasuredSpan`]: the time between two stamps |
//! | `recording` | [`Recording`], [`Recorder`]: publications in a file |
//! | `packets` | [`PacketStamps`]: the kernel's stamps of packets as counter values |
//! | [`pins`] | events at GPIO lines and PTP pins, outputs at a time |
//! | `channel` | the connection to timevisord: requirements only, never time |
//! | `error` | why something did not work, and what to do |
//!
//! Units: instants are nanoseconds since the timeline's epoch (`i64`; for `tai` 1970-01-01 00:00:00
//! TAI), spans are [`std::time::Duration`] or nanoseconds, stamps are counter ticks. Every handle
//! can be used from multiple threads.
//!
//! What it does not do: discipline anything, or open a network connection.
#![forbid(unsafe_code)]

mod binding;
mod channel;
mod client;
mod conversions;
mod difference;
mod elapsed;
mod error;
pub mod group;
mod history;
pub mod manual;
mod measured_span;
mod packets;
pub mod pins;
mod reading;
mod recording;
mod requirement;
mod snapshot;
mod source;
#[cfg(test)]
mod testing;
mod thread_age;
mod timeline;
mod tried;
pub mod wait;
mod waiters;

use std::sync::{LockResult, PoisonError};

pub use binding::Binding;
pub use channel::stream::ChannelAddress;
pub use channel::{ChannelChoice, Lease};
pub use client::{BindOptions, Client, Options};
pub use elapsed::{Blackouts, Elapsed};
pub use error::{
    BindError, ConnectError, ConvertError, ElapsedError, HostCpuTimeError, ReadError,
    TimelineError, WaitError,
};
pub use measured_span::MeasuredSpan;
pub use packets::{PacketStampError, PacketStamps};
pub use reading::Reading;
pub use recording::{Recorder, Recording, RecordingError, Segment};
pub use requirement::Requirement;
pub use source::PageChoice;
pub use thread_age::{ThreadAge, ThreadAgeError};
pub use timeline::{Timeline, ValidUntil};
pub use tried::Tried;
pub use wait::at::{AtFd, AtOutcome};
pub use wait::periodic::{MissedTicks, Periodic, Tick};
pub use wait::watch::{Change, Event, Watch};
pub use wait::{Cancel, WaitFd, WaitOptions, Waited, When};

pub use timevisor_clock_page::{ClockStatus as Status, HostCpuTime, Notice};
pub use timevisor_protocols::channel::{
    Achieved, Epoch, InvalidRequirement, Problem, ProblemCode, TimelineRow,
};
pub use timevisor_time::{Comparison, Instant, Interval, Local, Tai, TimescaleId, Utc};

/// From now on, in the whole process, reading a page whose file was truncated is
/// [`ReadError::Truncated`] instead of the end of the process by SIGBUS.
///
/// [`Options::page`] does this, too. Without it nothing is installed: the pages that
/// [`Client::connect`] finds are made by timevisord, which never makes them shorter, so only root
/// can truncate them. Call this once, before the first read, where that should be survived as well.
///
/// It installs a handler of SIGBUS, which deals with faults inside of mapped pages only, and passes
/// everything else on to the action that was there before. If the program installs a handler of its
/// own later, that one should do likewise.
///
/// # Errors
/// When the kernel refuses the handler.
pub fn survive_truncation() -> std::io::Result<()> {
    timevisor_linux::truncation::survive()
}

/// The data behind every lock here is consistent between two statements, so a panic elsewhere
/// cannot corrupt it.
fn unpoisoned<T>(lock: LockResult<T>) -> T {
    lock.unwrap_or_else(PoisonError::into_inner)
}
