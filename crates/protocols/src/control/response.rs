//! What the daemon answers. These shapes are also what the command line prints with `--json`: fields are only ever added.
//!
//! Units are in the names. What is not known is `null` (`None`), never a made-up number; floats are finite.
//!
//! What it does not do: compute anything; the daemon fills these in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use timevisor_time::TimescaleId;

use super::birth::ElapsedSince;
use super::introspect::{IntrospectEvents, Introspections};
use super::request::TimeType;
use super::reserve::{MissedJob, Reservations};

/// One answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// To `status`.
    Status(Box<Status>),
    /// To `now`.
    Now(Now),
    /// To `vm_list`.
    VmList(VmList),
    /// To `vm_add`.
    VmAdded(VmRow),
    /// To `vm_remove`.
    VmRemoved(VmRemoved),
    /// To `vm_prepare`.
    VmPrepared(VmPrepared),
    /// To `reserve_apply`, `reserve_release` and `reserve_list`.
    Reservations(Reservations),
    /// To `reserve_missed`.
    MissedJob(MissedJob),
    /// To `introspect_attach`, `introspect_detach` and `introspect_list`.
    Introspections(Introspections),
    /// To `introspect_trace`.
    IntrospectEvents(IntrospectEvents),
    /// To anything.
    Error(ErrorBody),
}

/// A timescale by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timescale {
    /// UTC as POSIX counts it.
    Utc,
    /// International Atomic Time.
    Tai,
    /// A timeline's own epoch.
    Local,
}

impl From<TimescaleId> for Timescale {
    fn from(id: TimescaleId) -> Self {
        match id {
            TimescaleId::Utc => Self::Utc,
            TimescaleId::Tai => Self::Tai,
            TimescaleId::Local => Self::Local,
        }
    }
}

/// How far a clock can be relied on: the vmclock ABI's `clock_status` by name.
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

/// The time on a timeline; the three instants are absent when the clock has never been set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Now {
    /// Which timeline.
    pub timeline: String,
    /// What the nanoseconds count.
    pub timescale: Timescale,
    /// True time is not earlier; since the timescale's epoch, rounded down.
    pub earliest_ns: Option<i64>,
    /// The best single value.
    pub estimate_ns: Option<i64>,
    /// True time is not later; rounded up.
    pub latest_ns: Option<i64>,
    /// Whether to rely on it.
    pub status: ClockStatus,
    /// One sigma of the estimate; not a bound.
    pub estimated_error_ns: Option<i64>,
    /// Changes when time may have been disrupted, for instance by migration.
    pub disruption: u64,
    /// The counter value at which this was true.
    pub counter: u64,
}

/// The daemon as a whole.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Identity of this host.
    pub host_id: String,
    /// What it counts with.
    pub counter: CounterSummary,
    /// The host's clock.
    pub clock: ClockSummary,
    /// In configuration order.
    pub references: Vec<Reference>,
    /// UTC's offset from TAI.
    pub leap_table: LeapSummary,
    /// The steering of CLOCK_REALTIME, where configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discipline: Option<Discipline>,
    /// The NTP server, where configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerSummary>,
    /// Number of VMs served.
    pub vms: u64,
}

/// The NTP server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerSummary {
    /// Where it listens.
    pub listen: Vec<String>,
    /// What became of requests, by [`crate::ntp::server::Tally::name`].
    pub requests: BTreeMap<String, u64>,
}

/// The steering of CLOCK_REALTIME.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Discipline {
    /// `steering` or `waiting`.
    pub state: String,
    /// Why it waits and what to do about it.
    pub detail: String,
    /// The estimate minus CLOCK_REALTIME at the last update.
    pub offset_ns: Option<i64>,
    /// The rate correction in force.
    pub frequency_ppm: f64,
}

/// The hardware counter behind the clock.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CounterSummary {
    /// Such as `x86-tsc` or `arm-vcnt`.
    pub name: String,
    /// Its measured frequency.
    pub hz: Option<f64>,
    /// Why it is this one; not in answers of daemons before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The host's clock.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ClockSummary {
    /// Whether to rely on it.
    pub status: ClockStatus,
    /// Why it is not synchronized, when it is not.
    pub reason: Option<String>,
    /// What it counts.
    pub timescale: Timescale,
    /// Half of latest minus earliest, now.
    pub half_width_ns: Option<i64>,
    /// One sigma of the estimate; not a bound.
    pub estimated_error_ns: Option<i64>,
    /// Bound on the oscillator's rate error.
    pub rate_bound_ppb: Option<f64>,
    /// Seconds since a reference last narrowed the bounds.
    pub since_update_s: Option<f64>,
    /// How often evidence contradicted the assumptions.
    pub contradictions: u64,
}

/// One reference.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reference {
    /// As configured.
    pub name: String,
    /// Such as `ntp` or `phc`.
    pub kind: String,
    /// One word; for NTP that of [`crate::ntp::Status::name`], or the selection's verdict.
    pub status: String,
    /// What is the case and what to do; for NTP that of [`crate::ntp::Status::describe`].
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
}

/// The leap-second table in force.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeapSummary {
    /// When it expires, Unix seconds.
    pub expires_unix: Option<i64>,
    /// TAI minus UTC now, in seconds.
    pub tai_offset: Option<i16>,
    /// What is wrong with it and what to do, when something is.
    pub problem: Option<String>,
}

/// The VMs served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmList {
    /// By name.
    pub vms: Vec<VmRow>,
}

/// One VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmRow {
    /// Unique on this host.
    pub name: String,
    /// QEMU's process id.
    pub pid: u32,
    /// Such as `kvm` or `tcg`.
    pub accelerator: String,
    /// How the page reaches the guest, such as `vmclock` or `nvdimm`.
    pub delivery: String,
    /// How the guest's counter follows from the host's.
    pub mapping: String,
    /// What the guest is told, or why it is told nothing.
    pub status: String,
    /// Why the status is not the best possible.
    pub reason: Option<String>,
    /// The page's timescale.
    pub time_type: TimeType,
    /// Times the page was written.
    pub pages_published: u64,
    /// The page's marker: it changes when the guest's time was disrupted.
    pub disruption_marker: u64,
    /// `incoming`, `leaving`, `left`, or `failed: ` and why; absent for a VM that is simply here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<String>,
    /// When its elapsed clock read 0; absent until that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_since: Option<ElapsedSince>,
}

/// A VM is no longer served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmRemoved {
    /// Its name.
    pub name: String,
}

/// The files for a VM's command line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmPrepared {
    /// The VM they are for.
    pub name: String,
    /// The page's timescale.
    pub time_type: TimeType,
    /// Path of the page file, for `memory-backend-file`.
    pub page: String,
    /// Path of the ACPI table, for `-acpitable`.
    pub ssdt: String,
}

/// A request failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}; {next_step}")]
pub struct ErrorBody {
    /// For programs.
    pub code: ErrorCode,
    /// What went wrong.
    pub message: String,
    /// What to do about it.
    pub next_step: String,
}

/// Kinds of failure, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request was not understood.
    BadRequest,
    /// The other end speaks another protocol version.
    Version,
    /// There is no such VM.
    NotFound,
    /// There already is such a VM.
    AlreadyExists,
    /// This host, QEMU or guest cannot do it.
    Unsupported,
    /// The daemon lacks a permission.
    Permission,
    /// Not now: try again.
    Unavailable,
    /// Others are giving up what was asked for: try again within a second.
    MakingRoom,
    /// A defect in the daemon.
    Internal,
}
