//! Introspection over the control socket.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Names a VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectVm {
    /// As `vm list` shows it.
    pub vm: String,
}

/// Asks to learn what a VM's real-time tasks do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectAttach {
    /// As `vm list` shows it.
    pub vm: String,
    /// How to trap; absent: what is known to work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<IntrospectBackend>,
    /// The ELF file that runs in it, an absolute path; absent: a kernel that carries its symbols in its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PathBuf>,
    /// Trap every system call, too, to see what that costs.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub every_system_call: bool,
    /// Reserve for its vCPU what they need; absent: only learn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<IntrospectReserve>,
}

/// A way of trapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntrospectBackend {
    /// Our plugin in a QEMU that emulates the guest.
    Tcg,
    /// KVM's forced emulation prefix, and BPF programs on the host. Experimental.
    Kvm,
    /// A write to an I/O port where nobody listens, and BPF programs on the host. Experimental.
    Port,
    /// QEMU's gdb stub, for debugging only: the VM stands still at every event.
    Gdb,
}

/// How a reservation is to follow the tasks of a guest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectReserve {
    /// Its period; absent: half of the shortest deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ns: Option<u64>,
    /// No other reservation may come to its core.
    #[serde(default)]
    pub alone: bool,
    /// What tasks with fixed priorities need.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<IntrospectTask>,
}

/// What threads of this name under SCHED_FIFO or SCHED_RR need: nothing in a guest tells.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectTask {
    /// As they call themselves (comm).
    pub name: String,
    /// Only those with this priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Processor time of a job, ns.
    pub cost_ns: u64,
    /// Between two jobs, at least; the deadline. ns.
    pub period_ns: u64,
}

/// What is reserved for what was learned.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IntrospectReserved {
    /// In every period; 0: nothing.
    pub budget_ns: u64,
    /// How often; 0: nothing.
    pub period_ns: u64,
    /// It was in force so long after the guest had asked; absent where that is not known, or it was refused at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ns: Option<u64>,
    /// Why what the tasks need now is not reserved; what is above is older, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Asks for events.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectTrace {
    /// As `vm list` shows it.
    pub vm: String,
    /// From this one on, as [`IntrospectEvents::next`] said; absent: none of those before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
}

/// How far an introspection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntrospectState {
    /// Something is in the way, or the guest is not up yet; it is tried again.
    Waiting,
    /// All trap points are in place.
    Attached,
}

/// All that are introspected.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Introspections {
    /// By name.
    pub vms: Vec<IntrospectRow>,
}

/// One VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IntrospectRow {
    /// Its name.
    pub vm: String,
    /// How calls are trapped.
    pub backend: String,
    /// Why this way.
    pub reason: String,
    /// How far it is.
    pub state: IntrospectState,
    /// What is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What runs in the guest, once it is known.
    pub guest: Option<String>,
    /// Trap points that are in place.
    pub points: usize,
    /// Events since it was asked for.
    pub events: u64,
    /// Events that were dropped in QEMU, because there were too many.
    pub dropped: u64,
    /// Events that made no sense.
    pub senseless: u64,
    /// Where a reservation follows them.
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
    /// What to ask for next.
    pub next: u64,
    /// So many between `from` and the first one are not remembered any more.
    pub forgotten: u64,
}
