//! The QEMU machine protocol over a byte stream (QEMU docs/interop/qmp-spec).
//!
//! | module | owns |
//! | --- | --- |
//! | [`session`] | greeting, capability negotiation, commands and their replies |
//! | [`message`] | one line of the stream, decoded |
//! | [`event`] | the events that matter to a VM's clock |
//! | [`run_state`] | the answer to `query-status` |
//! | [`cpus`] | the answer to `query-cpus-fast` |
//! | [`dialogue`] | what a QEMU is asked and told, and what its answers mean: bytes in, actions out |
//! | [`orders`] | the messages between the daemon and the helper that holds dialogues for it |
//! | [`allowance`] | how much a QEMU may send |
//!
//! What it does not do: connect, time out, use out-of-band commands, or know more of QEMU's schema
//! than these.

pub mod allowance;
pub mod cpus;
pub mod dialogue;
pub mod event;
pub mod message;
pub mod orders;
pub mod run_state;
pub mod session;

pub use cpus::{CpuThread, cpu_threads};
pub use dialogue::{Action, Dialogue};
pub use event::{MigrationStatus, VmEvent};
pub use message::{Message, QemuVersion, QmpError, QmpEvent, QmpFault};
pub use orders::{Command, News, Order, Report};
pub use run_state::{QueryStatus, RunState};
pub use session::{QmpItem, Session};
