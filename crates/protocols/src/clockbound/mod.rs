//! ClockBound's shared memory: what programs linked with AWS's clients read.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the segments' names and versions, statuses, and segments that say nothing |
//! | `line.rs` | layout 3 (`shm1`): a line over the counter, which holds our bounds exactly |
//! | `realtime.rs` | layout 2 (`shm0`): a bound on the error of CLOCK_REALTIME |
//!
//! Source: clock-bound 3.0.0-rc.0 (`src/shm.rs`, `src/shm/shm_header.rs`, `src/client_impl.rs`) and
//! clock-bound-shm 2.0.3 (`src/lib.rs`). Those files are the only specification.
//!
//! A segment is a header of 16 bytes (`timevisor-linux`, `clockbound_segment`) and a body, which is here
//! an array of native words.
//!
//! What it does not do: read a page, a counter or a clock, or write memory.

mod line;
mod realtime;

pub use line::{Bounded, line};
pub use realtime::{Disciplined, realtime};

/// Where ClockBound's daemon has its segments, and its clients look for them.
pub const DIRECTORY: &str = "/var/run/clockbound";
/// The device that clients compare markers with.
pub const VMCLOCK: &str = "/dev/vmclock0";

/// The segment of layout 2.
pub const NAME_2: &str = "shm0";
/// The header's version of layout 2.
pub const VERSION_2: u16 = 2;
/// Words in the body of layout 2.
pub const WORDS_2: usize = 8;

/// The segment of layout 3.
pub const NAME_3: &str = "shm1";
/// The header's version of layout 3: the least and the newest layout that it can be read as.
pub const VERSION_3: u16 = 0x0303;
/// Words in the body of layout 3.
pub const WORDS_3: usize = 11;

/// A bound that excludes nothing between 1881 and 2116 or so, for clients whose callers do not look at the
/// status: about 146 years, in ns. Larger ones would overflow a client's arithmetic.
const BOUNDLESS_NS: i64 = i64::MAX / 2;
/// What truncations in a client may take off its interval, twice over: a client drops fractions of a ns of
/// its time and of its bound.
const ROUNDING_NS: i64 = 4;
const NANOS: i64 = 1_000_000_000;

/// `ClockStatus` of the clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The interval means nothing.
    Unknown = 0,
    /// The interval holds and is being renewed.
    Synchronized = 1,
    /// The interval holds and grows.
    FreeRunning = 2,
    /// The clock was disrupted, and the interval means nothing.
    Disrupted = 3,
}

/// The bodies of both segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bodies {
    /// Of layout 2.
    pub older: [u64; WORDS_2],
    /// Of layout 3.
    pub newer: [u64; WORDS_3],
}

impl Bodies {
    /// Nothing is known; `marker` as in [`line()`].
    #[must_use]
    pub fn unknown(marker: Option<u64>) -> Self {
        Self { older: unknown_2(marker), newer: unknown_3(marker) }
    }

    /// What is known: with `bounded`, of the counter that clients read; with `disciplined`, of
    /// CLOCK_REALTIME. A layout that cannot say it says "unknown".
    #[must_use]
    pub fn of(
        status: Status,
        marker: Option<u64>,
        bounded: Option<&Bounded>,
        disciplined: Option<&Disciplined>,
    ) -> Self {
        let unknown = Self::unknown(marker);
        let newer = bounded.and_then(|bounded| line(bounded, status, marker));
        let older = disciplined.and_then(|seen| realtime(seen, status, marker));
        Self { older: older.unwrap_or(unknown.older), newer: newer.unwrap_or(unknown.newer) }
    }

    /// Whether layout 2 says anything.
    #[must_use]
    pub fn tells_realtime(&self) -> bool {
        self.older[..4] != [0; 4]
    }
}

/// The body of layout 3 while nothing is known; its interval excludes nothing. `marker`: as in
/// [`line()`].
#[must_use]
pub fn unknown_3(marker: Option<u64>) -> [u64; WORDS_3] {
    let end = last_words(0, Status::Unknown, marker, [0, 0]);
    let bound = BOUNDLESS_NS.cast_unsigned();
    [0, 0, 0, 0, 0, 0, 0, bound, marker.unwrap_or(0), end[0], end[1]]
}

/// The body of layout 2 while nothing is known of CLOCK_REALTIME.
#[must_use]
pub fn unknown_2(marker: Option<u64>) -> [u64; WORDS_2] {
    let end = last_words(0, Status::Unknown, marker, [0, 0]);
    let bound = BOUNDLESS_NS.cast_unsigned();
    [0, 0, 0, 0, bound, marker.unwrap_or(0), end[0], end[1]]
}

/// `max_drift_ppb`, `clock_status`, `clock_disruption_support_enabled`, and in layout 3 the shifts of the
/// period and of its error.
fn last_words(drift_ppb: u32, status: Status, marker: Option<u64>, shifts: [u8; 2]) -> [u64; 2] {
    let mut first = [0; 8];
    first[..4].copy_from_slice(&drift_ppb.to_ne_bytes());
    first[4..].copy_from_slice(&(status as i32).to_ne_bytes());
    let second = [u8::from(marker.is_some()), shifts[0], shifts[1], 0, 0, 0, 0, 0];
    [u64::from_ne_bytes(first), u64::from_ne_bytes(second)]
}

/// A `struct timespec`; fractions below zero count from the second before.
fn timespec(nanos: i64) -> [u64; 2] {
    [nanos.div_euclid(NANOS), nanos.rem_euclid(NANOS)].map(i64::cast_unsigned)
}
