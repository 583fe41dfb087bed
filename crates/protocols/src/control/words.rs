//! What several messages say: a clock's status, a VM's timescale, a reference.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The timescale of the VM's page. It is chosen once, because the guest's driver reads it when it
/// probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeType {
    /// For guest kernels from 7.0 on.
    Tai,
    /// For guest kernels before 7.0.
    Utc,
}

/// What a VM's guest is told of a coming disruption: two flags of the vmclock ABI by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Notice {
    /// Nothing.
    #[default]
    None,
    /// It will be disrupted.
    Soon,
    /// The disruption begins.
    Imminent,
}

impl Notice {
    /// Nothing is announced.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// The reliability of a clock: the vmclock ABI's `clock_status` by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockStatus {
    /// Nothing is known.
    Unknown,
    /// Not yet set.
    Initializing,
    /// Bounds hold and are being renewed.
    Synchronized,
    /// Bounds hold but grow: no reference at present.
    FreeRunning,
    /// An assumption behind the bounds was contradicted.
    Unreliable,
}

/// One reference.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reference {
    /// The name as configured.
    pub name: String,
    /// Such as `ntp` or `phc`.
    pub kind: String,
    /// One word; for NTP that of [`crate::ntp::Status::name`], or the selection's verdict.
    pub status: String,
    /// The state and the next step; for NTP that of [`crate::ntp::Status::describe`].
    pub detail: String,
    /// NTP stratum of the last answer.
    pub stratum: Option<u8>,
    /// Reference minus our clock at the last answer.
    pub offset_ns: Option<i64>,
    /// Round trip of the last answer.
    pub rtt_ns: Option<i64>,
    /// Answers accepted.
    pub accepted: u64,
    /// Answers rejected, by [`crate::ntp::RejectReason::name`].
    pub rejected: BTreeMap<String, u64>,
    /// The last eight requests in octal, `377` when all were answered.
    pub reach: String,
    /// Interval between requests.
    pub poll_s: f64,
    /// Why an NTP reference is polled at this interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<Polling>,
    /// The other references with the same source of time: all of them have one vote together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares_vote_with: Vec<String>,
    /// Lines for timevisord's configuration that solve the problem, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

/// Why an NTP server is polled as often as it is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Polling {
    /// `own-server`, `public-server`, `pool`, `configured` or `requirement`.
    pub reason: String,
    /// The tightest half-width that is required of the clock.
    pub required_ns: Option<i64>,
    /// The longest poll interval that keeps it, whatever the limits; absent without a requirement,
    /// or when no interval does.
    pub needed_s: Option<f64>,
    /// Why the requirement cannot be kept, and the keys to change.
    pub problem: Option<String>,
}
