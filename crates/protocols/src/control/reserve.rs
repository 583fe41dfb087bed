//! Reservations of processor time over the control socket.

use serde::{Deserialize, Serialize};

/// What is promised of a reservation, strongest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// The budget in every period: SCHED_DEADLINE on a core set apart.
    #[default]
    Core,
    /// Bounded tardiness: SCHED_DEADLINE on all cores.
    Global,
    /// Before everything that is not real-time, without a budget: SCHED_FIFO.
    Fifo,
    /// Nothing: at most the budget in a period, with the greatest weight beside others of its cgroup (cpu.max).
    Limit,
}

/// Asks for a reservation for a vCPU, or for another one in place of what it has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveApply {
    /// The VM, as `vm list` shows it.
    pub vm: String,
    /// QEMU's cpu-index.
    #[serde(default)]
    pub vcpu: u32,
    /// Processor time of every period.
    pub budget_ns: u64,
    /// Soft: the budget follows what is used, from `budget_ns` up to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most_ns: Option<u64>,
    /// By when after the beginning of a period it is there; absent: its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ns: Option<u64>,
    /// How often.
    pub period_ns: u64,
    /// What is promised.
    #[serde(default)]
    pub promise: Promise,
    /// Which core; absent: one that is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u32>,
    /// It was planned to be the only one on its core.
    #[serde(default)]
    pub alone: bool,
    /// Say what would be changed, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Gives a reservation back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveRelease {
    /// Whose; absent: everybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// Which vCPU's; absent: all of the VM's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
}

/// Asks why a job of the guest missed its deadline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveMissed {
    /// Whose.
    pub vm: String,
    /// QEMU's cpu-index.
    #[serde(default)]
    pub vcpu: u32,
    /// When it was released, ns of the host's CLOCK_MONOTONIC.
    pub released_ns: u64,
    /// Until when it was there: its deadline, or its end.
    pub until_ns: u64,
}

/// Who is to blame for a job that was late.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissedCause {
    /// The vCPU got less than it has reserved.
    HostBroke,
    /// It wanted to run all the time and got what it has reserved: the guest had more to do than was declared.
    GuestUnderDeclared,
    /// It slept although the job was there.
    GuestPolicy,
    /// The job was there for too short a time.
    Unclear,
}

/// Why a job was late, and what its vCPU got meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MissedJob {
    /// Who is to blame.
    pub cause: MissedCause,
    /// Of the time that was asked about so much lies between two of timevisord's samples; the rest of this is of that.
    pub looked_at_ns: u64,
    /// How long the vCPU ran.
    pub ran_ns: u64,
    /// How long it could have run and did not.
    pub waited_ns: u64,
    /// What is missing of what it had reserved.
    pub missing_ns: u64,
}

/// Reservations, and what was done.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reservations {
    /// All that are held.
    pub reservations: Vec<ReserveRow>,
    /// What was changed on the host, or would be, in order.
    pub changes: Vec<String>,
    /// What could not be brought back.
    pub problems: Vec<String>,
}

/// Stretches of a second, by what they show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReserveAudit {
    /// The vCPU ran whenever it wanted to.
    pub satisfied: u64,
    /// It wanted to run all the time and got what it has reserved: its guest wants more than that.
    pub exhausted: u64,
    /// It wanted to run all the time and got less: the host has broken its promise.
    pub broken: u64,
    /// It waited and slept now and then: nothing can be said.
    pub unclear: u64,
    /// The most that was missing of what was promised in one of them.
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
    /// What is promised.
    pub promise: Promise,
    /// The core that was set apart.
    pub core: Option<u32>,
    /// Processor time of every period.
    pub budget_ns: u64,
    /// Soft: between these the budget follows what is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_ns: Option<(u64, u64)>,
    /// By when after the beginning of a period.
    pub deadline_ns: u64,
    /// How often.
    pub period_ns: u64,
    /// No other one may come to its core.
    pub alone: bool,
    /// How long it has been held.
    pub held_ns: u64,
    /// What the vCPU has run since.
    pub ran_ns: Option<u64>,
    /// What the stretches of a second since have shown; absent where nothing is promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<ReserveAudit>,
    /// Why the promise does not hold at the moment; absent: it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
