//! Introspection over the control socket.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::HostOverheads;

/// Names a VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectVm {
    /// As `vm list` shows it.
    pub vm: String,
}

/// Asks to observe a VM's real-time tasks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectAttach {
    /// As `vm list` shows it.
    pub vm: String,
    /// How to trap; absent: a method that is known to work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<IntrospectBackend>,
    /// Absolute path of the ELF file that runs in the VM; absent: a kernel with symbols in its
    /// memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PathBuf>,
    /// Trap every system call as well, to measure the cost.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub every_system_call: bool,
    /// Reserve the processor time that its tasks need; absent: only observe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<IntrospectReserve>,
}

/// A method of trapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntrospectBackend {
    /// Our plugin in a QEMU that emulates the guest.
    Tcg,
    /// KVM's forced emulation prefix, and BPF programs on the host. Experimental.
    Kvm,
    /// A write to an unused I/O port, and BPF programs on the host. Experimental.
    Port,
    /// QEMU's gdb stub, for debugging only: the VM stops at every event.
    Gdb,
}

/// How a reservation follows a guest's tasks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectReserve {
    /// Its period; absent: half of the shortest deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ns: Option<u64>,
    /// No other reservation may use its core.
    #[serde(default)]
    pub alone: bool,
    /// The vCPU on which the guest keeps its real-time tasks; absent: the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    /// The guest runs them on any of its vCPUs, of which it has so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u16>,
    /// The needs of tasks with fixed priorities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<IntrospectTask>,
    /// What the host takes; absent: as of a host that nobody has measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overheads: Option<HostOverheads>,
}

/// The need of threads with this name under SCHED_FIFO or SCHED_RR, which a guest's kernel does not
/// know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectTask {
    /// Their name (comm).
    pub name: String,
    /// Only threads with this priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Processor time of one job, ns.
    pub cost_ns: u64,
    /// Shortest time between two jobs, and the deadline; ns.
    pub period_ns: u64,
}

/// The reservation that follows from the observed tasks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IntrospectReserved {
    /// Processor time in every period; 0: no reservation.
    pub budget_ns: u64,
    /// The period; 0: no reservation.
    pub period_ns: u64,
    /// Time from the guest's request until the reservation was in force; absent if unknown, or if
    /// it was refused at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ns: Option<u64>,
    /// Why the current need is not reserved; the values above are then older, or zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Asks for events.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectTrace {
    /// As `vm list` shows it.
    pub vm: String,
    /// The first event to return, from [`IntrospectEvents::next`]; absent: only new events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
}

/// Where plugins that files describe are read from.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IntrospectPlugins {
    /// The directory's absolute path; it need not exist.
    pub directory: PathBuf,
}

/// How far an introspection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntrospectState {
    /// A problem prevents it, or the guest is not up yet; the daemon tries again.
    #[default]
    Waiting,
    /// All trap points are in place.
    Attached,
    /// The trap points are being removed. With a problem they could not be; the daemon tries again.
    Detaching,
}

/// A read that failed, without which an event has no meaning.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IntrospectSenseless {
    /// The function that was trapped.
    pub point: String,
    /// The read's name in its plugin's file; its number from 0 on in a built-in guest system.
    pub read: String,
}

/// All introspected VMs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Introspections {
    /// By name.
    pub vms: Vec<IntrospectRow>,
}

/// One VM.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IntrospectRow {
    /// Its name.
    pub vm: String,
    /// How calls are trapped.
    pub backend: String,
    /// Why this method was chosen.
    pub reason: String,
    /// How far it has come.
    pub state: IntrospectState,
    /// The current problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The guest's operating system, once it is known.
    pub guest: Option<String>,
    /// Trap points in place.
    pub points: usize,
    /// Events since the introspection was requested.
    pub events: u64,
    /// Events that QEMU dropped because there were too many.
    pub dropped: u64,
    /// The host's kernel does not count every event that it skips (under KVM, before Linux 6.7).
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub losses_not_counted: bool,
    /// Malformed events.
    pub senseless: u64,
    /// What the last one of them lacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub senseless_last: Option<IntrospectSenseless>,
    /// The reservation that follows the tasks, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<IntrospectReserved>,
    /// The guest's real-time tasks, as docs/reference/introspection.md shows them.
    pub tasks: Vec<Value>,
}

/// Events of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IntrospectEvents {
    /// As docs/reference/introspection.md shows them, in order.
    pub events: Vec<Value>,
    /// The position to ask for next.
    pub next: u64,
    /// How many events between `from` and the first one are no longer stored.
    pub forgotten: u64,
}
