//! The daemon's answers. The command line prints the same shapes with `--json`: fields are only
//! ever added.
//!
//! Units are in the names. Unknown values are `null` (`None`), never made up; floats are finite.
//!
//! What it does not do: compute anything. The daemon fills these in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use timevisor_time::TimescaleId;

use super::birth::ElapsedSince;
use super::cluster::Clusters;
use super::introspect::{IntrospectEvents, IntrospectPlugins, Introspections};
use super::reserve::{HostCores, MissedJob, Reservations};
use super::sources::{Changed, Clients, Exchanges, Sources, Tracking};
use super::timelines::Timelines;
use super::words::{ClockStatus, Notice, Reference, TimeType};

/// One answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Answers `status`.
    Status(Box<Status>),
    /// Answers `now`.
    Now(Now),
    /// Answers `sources`.
    Sources(Sources),
    /// Answers `exchanges`.
    Exchanges(Exchanges),
    /// Answers `tracking`.
    Tracking(Box<Tracking>),
    /// Answers `clients`.
    Clients(Clients),
    /// Answers `clusters`.
    Clusters(Clusters),
    /// Answers requests that change references or the configuration.
    Changed(Changed),
    /// Answers `timelines`.
    Timelines(Timelines),
    /// Answers `vm_list`.
    VmList(VmList),
    /// Answers `vm_add`.
    VmAdded(VmRow),
    /// Answers `vm_remove`.
    VmRemoved(VmRemoved),
    /// Answers `vm_prepare`.
    VmPrepared(VmPrepared),
    /// Answers `reserve_apply`, `reserve_release` and `reserve_list`.
    Reservations(Reservations),
    /// Answers `reserve_missed`.
    MissedJob(MissedJob),
    /// Answers `reserve_cores`.
    HostCores(HostCores),
    /// Answers `introspect_attach`, `introspect_detach` and `introspect_list`.
    Introspections(Introspections),
    /// Answers `introspect_trace`.
    IntrospectEvents(IntrospectEvents),
    /// Answers `introspect_plugins`.
    IntrospectPlugins(IntrospectPlugins),
    /// Answers any request that failed.
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

/// The time on a timeline; the three instants are absent when the clock has never been set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Now {
    /// Which timeline.
    pub timeline: String,
    /// The timescale of the nanoseconds.
    pub timescale: Timescale,
    /// True time is not earlier than this, in ns since the timescale's epoch; rounded down.
    pub earliest_ns: Option<i64>,
    /// The best single value.
    pub estimate_ns: Option<i64>,
    /// True time is not later than this; rounded up.
    pub latest_ns: Option<i64>,
    /// How reliable the clock is.
    pub status: ClockStatus,
    /// One sigma of the estimate; not a bound.
    pub estimated_error_ns: Option<i64>,
    /// Changes when time may have been disrupted, for instance by migration.
    pub disruption: u64,
    /// The counter value for which this holds.
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
    /// Its counter.
    pub counter: CounterSummary,
    /// The host's clock.
    pub clock: ClockSummary,
    /// The references in configuration order.
    pub references: Vec<Reference>,
    /// UTC's offset from TAI.
    pub leap_table: LeapSummary,
    /// The steering of CLOCK_REALTIME, if configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discipline: Option<Discipline>,
    /// The NTP server, if configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerSummary>,
    /// Ages of threads, where the counter is not invariant and was not chosen by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_ages: Option<ThreadAges>,
    /// Number of VMs served.
    pub vms: u64,
}

/// Ages of threads on a host whose counter is not invariant.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ThreadAges {
    /// `starting`, `serving`, `stopped` (they have parted from CLOCK_MONOTONIC_RAW) or
    /// `unavailable`.
    pub state: String,
    /// `bpf`, or `monotonic-raw` where the programs do not run.
    pub source: String,
    /// Why this source; when stopped or unavailable, also the next step.
    pub reason: String,
    /// Threads registered now.
    pub threads: u64,
    /// Their moves between cores, with those of threads that have left since.
    pub moves: u64,
    /// Changes of frequencies so far, on all cores.
    pub frequency_changes: u64,
    /// Events that the programs missed.
    pub events_missed: u64,
    /// What the ages are ahead of CLOCK_MONOTONIC_RAW since the start, in parts per million of it.
    pub apart_ppm: Option<f64>,
    /// The same over the last second, on one core.
    pub last_apart_ppm: Option<f64>,
    /// The largest of these seconds.
    pub worst_apart_ppm: Option<f64>,
    /// Beyond this they are not served any more.
    pub limit_ppm: f64,
}

/// The NTP server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerSummary {
    /// The addresses on which it listens, or should.
    pub listen: Vec<String>,
    /// Why it does not run, after a reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Requests by outcome, named by [`crate::ntp::server::Tally::name`].
    pub requests: BTreeMap<String, u64>,
    /// Its key establishment, if it serves NTS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nts: Option<NtsSummary>,
}

/// The NTP server's key establishment (NTS-KE).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NtsSummary {
    /// The TCP addresses on which it listens.
    pub listen: Vec<String>,
    /// Connections by outcome: `established`, `refused` (by the rules of NTS), `failed` (in TLS),
    /// `late`, `limited` (too many at once), `denied`.
    pub sessions: BTreeMap<String, u64>,
    /// Why a renewed certificate is not in use, and what to do.
    pub problem: Option<String>,
}

/// The steering of CLOCK_REALTIME.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Discipline {
    /// `steering` or `waiting`.
    pub state: String,
    /// Why it waits, and the next step.
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
    /// Why it was chosen; absent in answers of older daemons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it is no longer trusted, and the next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The host's clock.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ClockSummary {
    /// How reliable the clock is.
    pub status: ClockStatus,
    /// Why it is not synchronized.
    pub reason: Option<String>,
    /// The timescale.
    pub timescale: Timescale,
    /// Half of latest minus earliest, now.
    pub half_width_ns: Option<i64>,
    /// True time is at most this far before the estimate, now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below_ns: Option<i64>,
    /// True time is at most this far after the estimate, now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above_ns: Option<i64>,
    /// One sigma of the estimate; not a bound.
    pub estimated_error_ns: Option<i64>,
    /// Bound on the oscillator's rate error.
    pub rate_bound_ppb: Option<f64>,
    /// Seconds since a reference last narrowed the bounds.
    pub since_update_s: Option<f64>,
    /// How often evidence contradicted the assumptions.
    pub contradictions: u64,
    /// What the worst-case bounds assume of the oscillator, in one sentence; absent in answers of
    /// older daemons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assumption: Option<String>,
    /// How fast the oscillator's rate may change in the bounds, 1/s: what is stated, or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wander_per_s: Option<f64>,
    /// How the measured oscillator breaks what is stated of it, and what to set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oscillator_problem: Option<String>,
}

/// The leap-second table in force.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeapSummary {
    /// When it expires, Unix seconds.
    pub expires_unix: Option<i64>,
    /// TAI minus UTC now, in seconds.
    pub tai_offset: Option<i16>,
    /// The problem with it and the next step, if there is one.
    pub problem: Option<String>,
    /// A problem that will come, and the next step: the table expires soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The VMs served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmList {
    /// The VMs by name.
    pub vms: Vec<VmRow>,
    /// Processes that look like VMs and are not served: why, and what to do. Not all, if there are
    /// many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_served: Vec<String>,
}

/// One VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmRow {
    /// The name, unique on this host.
    pub name: String,
    /// QEMU's own name for it (`-name`), where that could not be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_name: Option<String>,
    /// QEMU's process id.
    pub pid: u32,
    /// Such as `kvm` or `tcg`.
    pub accelerator: String,
    /// How the page reaches the guest, such as `vmclock` or `nvdimm`.
    pub delivery: String,
    /// How the guest's counter is computed from the host's.
    pub mapping: String,
    /// The status that the guest sees, or why it sees none.
    pub status: String,
    /// Why the status is not the best one.
    pub reason: Option<String>,
    /// The page's timescale.
    pub time_type: TimeType,
    /// Times the page was written.
    pub pages_published: u64,
    /// The page's marker: it changes when the guest's time was disrupted.
    pub disruption_marker: u64,
    /// What the guest is told of a coming disruption.
    #[serde(default, skip_serializing_if = "Notice::is_none")]
    pub notice: Notice,
    /// `draining`, `incoming`, `leaving`, `left`, or `failed: ` and the reason; absent for a VM without
    /// migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<String>,
    /// It was started with `-incoming`, and QEMU has said that what it waited for has come.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub arrived: bool,
    /// The instant at which its elapsed clock read 0; absent until that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_since: Option<ElapsedSince>,
}

/// A VM is no longer served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmRemoved {
    /// The VM's name.
    pub name: String,
}

/// The files for a VM's command line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmPrepared {
    /// The VM they are for.
    pub name: String,
    /// The page's timescale.
    pub time_type: TimeType,
    /// Path of the page file, for `memory-backend-file`; absent if no files were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// Path of the ACPI table, for `-acpitable`; absent if no files were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssdt: Option<String>,
    /// Path of the folder for the VM's sockets, which belongs to the VM's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<String>,
}

/// A request failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}; {next_step}")]
pub struct ErrorBody {
    /// The kind, for programs.
    pub code: ErrorCode,
    /// The problem.
    pub message: String,
    /// The next step.
    pub next_step: String,
}

/// Kinds of failure, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request could not be parsed.
    BadRequest,
    /// The other end speaks another protocol version.
    Version,
    /// Nothing has this name.
    NotFound,
    /// Something else has this name.
    AlreadyExists,
    /// This host, QEMU or guest cannot do it.
    Unsupported,
    /// The daemon lacks a permission.
    Permission,
    /// Not possible now: try again.
    Unavailable,
    /// Others are giving up the requested resource: try again within a second.
    MakingRoom,
    /// An incoming VM's reservation cannot be made here: send the VM elsewhere.
    NotReserved,
    /// A defect in the daemon.
    Internal,
}
