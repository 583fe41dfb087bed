//! The QEMU machine protocol over a byte stream (QEMU docs/interop/qmp-spec).
//!
//! | module | owns |
//! | --- | --- |
//! | [`session`] | greeting, capability negotiation, commands and their replies |
//! | [`message`] | one line of the stream, decoded |
//! | [`event`] | the events that matter to a VM's clock |
//! | [`run_state`] | the answer to `query-status` |
//! | [`cpus`] | the answer to `query-cpus-fast` |
//!
//! What it does not do: connect, time out, use out-of-band commands, or know more of QEMU's schema
//! than these.

pub mod cpus;
pub mod event;
pub mod message;
pub mod run_state;
pub mod session;

pub use cpus::{CpuThread, cpu_threads};
pub use event::{MigrationStatus, VmEvent};
pub use message::{Message, QemuVersion, QmpError, QmpEvent, QmpFault};
pub use run_state::{QueryStatus, RunState};
pub use session::{QmpItem, Session};
