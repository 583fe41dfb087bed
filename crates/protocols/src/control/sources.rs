//! What is asked and told of references ("sources"), of the clock behind them, and of changes while
//! the daemon runs.
//!
//! The terms are those of NTP (RFC 5905) where it has them; units are in the names, and unknown
//! values are absent, never made up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::words::{ClockStatus, Reference};

/// Names references; none: all of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceNames {
    /// As `timevisor sources` shows them; a pool's name stands for all of its members.
    #[serde(default)]
    pub names: Vec<String>,
}

/// Adds a reference until the daemon ends or its configuration is read again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceAdd {
    /// The keys of a `[[reference]]` table, in TOML.
    pub reference: String,
}

/// Answers `sources`: the references in configuration order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sources {
    /// One for each reference.
    pub sources: Vec<Source>,
}

/// One reference with everything that is known of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Source {
    /// What `timevisor status` says of it.
    #[serde(flatten)]
    pub reference: Reference,
    /// How the vote uses it.
    pub selection: Selection,
    /// What its answers say, all together; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
    /// The last answer of an NTP server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ntp: Option<NtpData>,
    /// The keys of an authenticated NTP server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nts: Option<NtsData>,
}

/// Answers `exchanges`: the last ones with any reference, in the order in which they ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Exchanges {
    /// At most a few hundred.
    pub exchanges: Vec<RecentExchange>,
}

/// One exchange with a reference, before anybody judged it. The counter is converted to nanoseconds by one
/// factor for the life of the daemon, outwards: as a counter of 1 GHz would have counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecentExchange {
    /// Counts exchanges since the daemon started, from 1.
    pub number: u64,
    /// The reference's name.
    pub source: String,
    /// Our counter before the request left, ns.
    pub ta_ns: u64,
    /// The reference's time when it received the request, ns of TAI since 1970.
    pub tb_ns: i64,
    /// The reference's time when it sent the answer, ns of TAI since 1970.
    pub te_ns: i64,
    /// Our counter after the answer arrived, ns.
    pub tf_ns: u64,
    /// The error that the reference states of itself, ns.
    pub error_ns: i64,
}

/// The mark of a reference: one character in tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// `*`: weighs most in the estimate.
    Selected,
    /// `+`: contributes to the estimate.
    Combined,
    /// `-`: its bounds count, but not its estimate, because it contradicted itself lately.
    Rebuilding,
    /// `x`: the others outvote it.
    Falseticker,
    /// `?`: has said nothing that can be used.
    Unusable,
}

impl Mark {
    /// The character, those of chronyc and ntpq where these have it.
    #[must_use]
    pub const fn character(self) -> char {
        match self {
            Self::Selected => '*',
            Self::Combined => '+',
            Self::Rebuilding => '-',
            Self::Falseticker => 'x',
            Self::Unusable => '?',
        }
    }
}

/// How the vote uses a reference.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Selection {
    /// The verdict.
    pub mark: Mark,
    /// What it contributes to the estimate, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

/// What all answers of a reference say together, now.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Statistics {
    /// Answers that were used.
    pub samples: u64,
    /// Seconds since the last one.
    pub last_sample_s: f64,
    /// Its estimate minus our clock.
    pub offset_ns: i64,
    /// One sigma of its estimate; not a bound.
    pub estimated_error_ns: i64,
    /// Its earliest possible time minus our clock.
    pub earliest_ns: i64,
    /// Its latest possible time minus our clock.
    pub latest_ns: i64,
    /// The rate of its time minus that of our clock, ppm; positive where it gains.
    pub frequency_ppm: f64,
    /// Half the width of the rate's bounds, ppm.
    pub skew_ppm: f64,
    /// How often it contradicted its own bounds.
    pub contradictions: u64,
}

/// An NTP server's last answer, and the way to it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NtpData {
    /// The server's address and port, once known.
    pub remote: Option<String>,
    /// Our own address on the way to it.
    pub local: Option<String>,
    /// Seconds since the last answer.
    pub answered_s: Option<f64>,
    /// NTP version of the last answer.
    pub version: u8,
    /// `normal`, `insert`, `delete` or `unsynchronized`.
    pub leap: String,
    /// Stratum.
    pub stratum: u8,
    /// The server's own source: an address, or a name of four letters.
    pub reference_id: String,
    /// When the server's clock was last set or corrected, UTC seconds since 1970.
    pub reference_time_unix_s: Option<f64>,
    /// Precision of the server's clock, log2 s.
    pub precision: i8,
    /// Round trip from the server to its reference clock.
    pub root_delay_ns: i64,
    /// Error of the server against its reference clock.
    pub root_dispersion_ns: i64,
    /// The error of the server's clock that an answer proves: half the root delay and the root
    /// dispersion, or the precise bounds.
    pub error_ns: i64,
    /// How long the server took to answer.
    pub response_ns: i64,
    /// Interleaved mode: the departure was measured, not predicted.
    pub interleaved: bool,
    /// With bounds in nanoseconds (docs/reference/precise-ntp.md).
    pub precise: bool,
    /// Whose stamp the last request and the last answer have: `kernel` or `daemon`.
    pub stamps: [String; 2],
    /// Requests that were sent.
    pub sent: u64,
    /// Requests without an answer in time.
    pub lost: u64,
    /// Kisses of death by the server.
    pub kisses: u64,
}

/// The keys of an authenticated NTP server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NtsData {
    /// The key establishment server.
    pub server: String,
    /// The AEAD algorithm's name; absent without keys.
    pub algorithm: Option<String>,
    /// Unused cookies.
    pub cookies: u64,
    /// Seconds since the last key establishment.
    pub established_s: Option<f64>,
    /// Key establishments begun.
    pub exchanges: u64,
    /// Key establishments that succeeded.
    pub established: u64,
    /// Answers that were authentic.
    pub authenticated: u64,
    /// Datagrams that were refused, by [`crate::nts::Refusal::name`].
    pub refused: BTreeMap<String, u64>,
}

/// Answers `tracking`: how well this host knows the time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Tracking {
    /// How far to trust it.
    pub status: ClockStatus,
    /// Why it is not synchronized.
    pub reason: Option<String>,
    /// The reference that weighs most.
    pub reference: Option<String>,
    /// What an NTP client sees as our reference id, in hexadecimal; absent where we follow no NTP
    /// server.
    pub reference_id: Option<String>,
    /// Our stratum as an NTP server.
    pub stratum: Option<u8>,
    /// When the newest answer arrived, TAI ns since 1970.
    pub reference_time_ns: Option<i64>,
    /// Seconds since then.
    pub last_update_s: Option<f64>,
    /// CLOCK_REALTIME minus our estimate of UTC: positive where the system's clock is ahead.
    pub system_offset_ns: Option<i64>,
    /// One sigma of the estimate; not a bound.
    pub estimated_error_ns: Option<i64>,
    /// True time is at most this far before the estimate.
    pub below_ns: Option<i64>,
    /// True time is at most this far after the estimate.
    pub above_ns: Option<i64>,
    /// The largest error that an NTP client has to assume: its root distance here.
    pub root_distance_ns: Option<i64>,
    /// The counter's rate minus its nominal one (that of CLOCK_MONOTONIC_RAW), ppm; positive where
    /// the counter is fast.
    pub frequency_ppm: Option<f64>,
    /// Half the width of the rate's bounds, ppm.
    pub skew_ppm: Option<f64>,
    /// How fast the rate may change in the bounds, 1/s.
    pub wander_per_s: f64,
    /// `normal`, `insert`, `delete` (at the end of this UTC day), or `unknown`.
    pub leap: String,
    /// TAI - UTC now, s.
    pub tai_offset: Option<i16>,
}

/// Asks for the clients of the NTP server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientsQuery {
    /// The list's number in an earlier answer: a newer one is wanted.
    #[serde(default)]
    pub after: Option<u64>,
}

/// Answers `clients`. The server's thread makes a list when one is asked for; until then the last
/// one is told.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Clients {
    /// Counts the lists; 0: none was made yet.
    pub number: u64,
    /// The addresses, the one that asked last first.
    pub clients: Vec<Client>,
    /// How many addresses are remembered at most.
    pub places: u64,
}

/// A client of the NTP server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Client {
    /// Its address.
    pub address: String,
    /// Requests since it was first seen.
    pub requests: u64,
    /// Those that were not answered, because they came too often.
    pub limited: u64,
    /// Seconds since the last one.
    pub last_s: f64,
    /// Mean seconds between its requests; absent before the second.
    pub interval_s: Option<f64>,
}

/// Answers what changes references or the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Changed {
    /// What is in force now, one line each.
    pub changes: Vec<String>,
    /// What differs in the file and takes a restart, one line each.
    pub restart: Vec<String>,
}
