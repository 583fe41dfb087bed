//! What is recorded.

use serde::{Deserialize, Serialize};

use crate::stamp::Interval;

/// The version of the format, in the first line of each file.
pub const FORMAT: u32 = 1;

/// One event. Readers ignore events and fields that they do not know.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A file begins.
    File {
        /// [`FORMAT`].
        format: u32,
        /// The file before; `None` where the log begins.
        previous: Option<String>,
    },
    /// The daemon starts.
    Start {
        /// Its version.
        version: String,
        /// Its process.
        pid: u32,
        /// The host's machine id.
        host: String,
        /// The counter.
        counter: String,
        /// What is assumed of the oscillator; the bounds hold while it does.
        assumption: String,
    },
    /// The daemon ends because it was asked to.
    Stop {},
    /// Bytes right before this line are no line: the machine or the daemon stopped while they were
    /// written, or the disk was full. They count for nothing.
    Torn {
        /// How many, with the line feed that ends them.
        bytes: u64,
        /// Their SHA-256.
        sha256: String,
    },
    /// Records are missing here because they could not be written.
    Gap {
        /// How many.
        lost: u64,
        /// When the first of them would have been recorded.
        since: Interval,
        /// When the last of them would have been.
        until: Interval,
        /// Why.
        reason: String,
    },
    /// What the clock was worth since the record of this kind before; one at least each minute.
    Bound {
        /// When this span began. It ends with the line's own time.
        since: Interval,
        /// Whether the clock vouched for `since`.
        since_vouched: bool,
        /// The clock's status during the whole span.
        status: String,
        /// The larger side of the bound where it was worst, ns: true time was never further from the clock's estimate.
        /// `None` where there was no bound for a part of the span.
        worst_ns: Option<i64>,
        /// The reference that counted most in the end.
        reference: Option<String>,
        /// What that reference states of its own distance from UTC, at most, ns. It is part of `worst_ns`.
        reference_error_ns: Option<i64>,
    },
    /// The clock's status has changed.
    Status {
        /// Before; `None` after a start.
        before: Option<String>,
        /// Now.
        status: String,
        /// Why it is not synchronized.
        reason: Option<String>,
    },
    /// A reference has come, gone or changed.
    Reference {
        /// Its name.
        name: String,
        /// Before; `None` if there was none of this name.
        before: Option<String>,
        /// Now: `reachable`, `unreachable`, `falseticker` and so on; `None` if it is not configured any more.
        state: Option<String>,
        /// Details for people.
        detail: String,
    },
    /// References contradicted bounds: what was published before may have been wrong.
    Contradiction {
        /// How often since the daemon started.
        count: u64,
    },
    /// TAI - UTC, or what is known of the next leap second.
    Leap {
        /// s; `None` where it is not known.
        tai_utc: Option<i16>,
        /// `normal`, `insert` or `delete` at the end of the day, `now` within seconds of it, or `unknown`.
        next: String,
    },
    /// A VM has come, moved or gone.
    Vm {
        /// Its name.
        name: String,
        /// QEMU's process.
        pid: u32,
        /// The user id of that process.
        uid: u32,
        /// Before; `None` if it was not served here.
        before: Option<String>,
        /// Now: `here`, `incoming`, `leaving`, `left`, `failed`; `None` when it has ended.
        state: Option<String>,
    },
    /// A reservation of processor time was made, changed or given back.
    Reservation {
        /// The VM.
        vm: String,
        /// QEMU's cpu-index.
        vcpu: u32,
        /// The user id of the VM's process; `None` if the VM has gone.
        uid: Option<u32>,
        /// `made`, `changed` or `released`.
        change: String,
        /// What is promised: `core 3`, `global`, `fifo` or `limit`.
        promise: String,
        /// ns in each period.
        budget_ns: u64,
        /// ns.
        period_ns: u64,
        /// ns.
        deadline_ns: u64,
    },
    /// Of a later version.
    #[serde(other)]
    Unknown,
}
