//! Reservations of processor time over the control socket.

use serde::{Deserialize, Serialize};

/// The guarantee of a reservation, strongest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// The budget in every period: SCHED_DEADLINE on an isolated core.
    #[default]
    Core,
    /// Bounded tardiness: SCHED_DEADLINE on all cores.
    Global,
    /// Priority over everything that is not real-time, without a budget: SCHED_FIFO.
    Fifo,
    /// No guarantee: at most the budget in a period, with the greatest weight in its cgroup
    /// (cpu.max).
    Limit,
}

/// Asks for a reservation for a vCPU, replacing its current one, if any.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveApply {
    /// The VM, as `vm list` shows it.
    pub vm: String,
    /// QEMU's cpu-index.
    #[serde(default)]
    pub vcpu: u32,
    /// Processor time in every period.
    pub budget_ns: u64,
    /// Soft: the budget follows the vCPU's use, from `budget_ns` up to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most_ns: Option<u64>,
    /// Deadline of the budget after the start of a period; absent: the period's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ns: Option<u64>,
    /// Length of the period.
    pub period_ns: u64,
    /// The guarantee.
    #[serde(default)]
    pub promise: Promise,
    /// The core; absent: a free one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u32>,
    /// The reservation was planned to have its core alone.
    #[serde(default)]
    pub alone: bool,
    /// Report the changes without making them.
    #[serde(default)]
    pub dry_run: bool,
}

/// Moves a vCPU's reservation to another core.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveMove {
    /// The VM.
    pub vm: String,
    /// QEMU's cpu-index.
    #[serde(default)]
    pub vcpu: u32,
    /// The new core.
    pub core: u32,
    /// Report the changes without making them.
    #[serde(default)]
    pub dry_run: bool,
}

/// Gives a reservation back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveRelease {
    /// The VM; absent: all VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The vCPU; absent: all vCPUs of the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
}

/// Asks why a job of the guest missed its deadline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveMissed {
    /// The VM.
    pub vm: String,
    /// QEMU's cpu-index.
    #[serde(default)]
    pub vcpu: u32,
    /// The release of the job, ns of the host's CLOCK_MONOTONIC.
    pub released_ns: u64,
    /// The end of the time to examine: the job's deadline, or its completion.
    pub until_ns: u64,
}

/// The cause of a late job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissedCause {
    /// The vCPU got less than its reservation.
    HostBroke,
    /// The vCPU was always runnable and got its reservation: the guest had more work than declared.
    GuestUnderDeclared,
    /// The vCPU slept although the job was ready.
    GuestPolicy,
    /// The time between release and deadline was too short to tell, or the vCPU got a little less than its
    /// reservation and may have slept unseen.
    Unclear,
}

/// Why a job was late, and the processor time of its vCPU during that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MissedJob {
    /// The cause.
    pub cause: MissedCause,
    /// The part of the examined time that lies between two samples of timevisord; the other values
    /// refer to it.
    pub looked_at_ns: u64,
    /// How long the vCPU ran.
    pub ran_ns: u64,
    /// How long it was runnable but did not run.
    pub waited_ns: u64,
    /// The part of its reservation that it did not get.
    pub missing_ns: u64,
}

/// Late jobs that introspection has seen, by the cause that the host's samples show; since the VM is there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LateJobs {
    /// The vCPU got less than its reservation.
    pub host_broke: u64,
    /// The guest had more work than declared.
    pub guest_under_declared: u64,
    /// The vCPU slept although the job was ready.
    pub guest_policy: u64,
    /// The cause is not known.
    pub unclear: u64,
    /// The last ones, the newest last.
    pub recent: Vec<LateJob>,
}

/// A late job that introspection has seen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LateJob {
    /// Its task: its thread id and name.
    pub task: String,
    /// When it was released, at the latest; ns of the host's CLOCK_MONOTONIC.
    pub released_ns: u64,
    /// When it ended; ns of the host's CLOCK_MONOTONIC.
    pub ended_ns: u64,
    /// How long after its deadline it ended, at least.
    pub late_by_ns: u64,
    /// Why, as for [`super::Request::ReserveMissed`] from its release until its end; absent: the vCPU had no
    /// reservation all that time, or samples of it came too late.
    pub missed: Option<MissedJob>,
}

impl LateJobs {
    /// All of them.
    #[must_use]
    pub fn count(&self) -> u64 {
        let guests = self.guest_under_declared.saturating_add(self.guest_policy);
        self.host_broke.saturating_add(guests).saturating_add(self.unclear)
    }
}

/// Asks which cores could serve a vCPU, in the order in which they would be tried.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveCores {
    /// The VM; absent: one that is pinned to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// QEMU's cpu-index.
    #[serde(default)]
    pub vcpu: u32,
    /// The wanted budget; absent: asks only what is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_ns: Option<u64>,
    /// Its period.
    pub period_ns: u64,
    /// It is to have its core alone.
    #[serde(default)]
    pub alone: bool,
}

/// All cores of the host: those that would be tried, and then the others.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostCores {
    /// The cores.
    pub cores: Vec<HostCore>,
}

/// One core.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostCore {
    /// Its number.
    pub core: u32,
    /// In which order it would be tried, from 1 on; absent: not without `--core`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
    /// Why it would not be tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// It is online.
    pub online: bool,
    /// The vCPU may run there as it is.
    pub allowed: bool,
    /// The kernel puts nothing there by itself (isolcpus).
    pub isolated: bool,
    /// The kernel's own work is little there (isolcpus, nohz_full).
    pub quiet: bool,
    /// Its memory is as near as that of the processor on which the vCPU ran last.
    pub near: bool,
    /// The other hardware threads of the same core.
    pub siblings: Vec<u32>,
    /// The cpuset that has it for itself, or `shared` if several have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<String>,
    /// The reservations there.
    pub reserved: Vec<String>,
    /// The greatest budget in the period that it could keep beside them. The kernel may take less.
    pub left_ns: u64,
}

/// The reservations, and the changes made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reservations {
    /// All reservations.
    pub reservations: Vec<ReserveRow>,
    /// Changes on the host, made or planned, in order.
    pub changes: Vec<String>,
    /// Changes that could not be undone.
    pub problems: Vec<String>,
}

/// Counts of one-second intervals by their result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReserveAudit {
    /// The vCPU ran whenever it wanted to.
    pub satisfied: u64,
    /// It was always runnable and got its reservation: the guest wants more.
    pub exhausted: u64,
    /// It was always runnable and got less: the host broke the guarantee.
    pub broken: u64,
    /// It slept at times, so nothing can be concluded.
    pub unclear: u64,
    /// The greatest shortfall from the guarantee in one interval.
    pub most_missing_ns: u64,
}

/// One reservation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReserveRow {
    /// The VM.
    pub vm: String,
    /// QEMU's cpu-index.
    pub vcpu: u32,
    /// The vCPU's thread.
    pub tid: u32,
    /// The guarantee.
    pub promise: Promise,
    /// The isolated core.
    pub core: Option<u32>,
    /// Processor time in every period.
    pub budget_ns: u64,
    /// Soft: the budget follows the use between these two values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_ns: Option<(u64, u64)>,
    /// Deadline of the budget after the start of a period.
    pub deadline_ns: u64,
    /// Length of the period.
    pub period_ns: u64,
    /// No other reservation may use its core.
    pub alone: bool,
    /// It follows what introspection sees of the guest's tasks.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub followed: bool,
    /// How long the reservation has existed.
    pub held_ns: u64,
    /// Processor time of the vCPU since then.
    pub ran_ns: Option<u64>,
    /// How long its thread has been runnable without running since it began: out of budget, or behind others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ns: Option<u64>,
    /// Results of the one-second intervals since then; absent without a guarantee.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<ReserveAudit>,
    /// Jobs of introspected tasks on this vCPU that were late; absent: none was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<LateJobs>,
    /// Why the guarantee does not hold at present; absent: it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What a host takes from reservations (`timevisor reserve measure`); ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostOverheads {
    /// The timer tick by which budgets are enforced; 0 where it does not.
    pub tick_ns: u64,
    /// How late a replenishment or a wake-up may be.
    pub latency_ns: u64,
    /// Of each budget, what interrupts take, in parts per million.
    pub interference_ppm: u32,
    /// How much more of it may come at once.
    pub burst_ns: u64,
}
