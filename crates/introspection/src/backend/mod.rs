//! Ways to trap calls of a guest's kernel.
//!
//! | module | owns |
//! | --- | --- |
//! | `interface.rs` | [`Backend`]: bytes and now in, actions out |
//! | [`choice`] | which backend a VM gets |
//! | `raw_event.rs` | [`RawEvent`]: what was read at a trap point |
//! | [`tcg`] | QEMU's TCG with our plugin |
//! | [`kvm`] | KVM's forced emulation prefix or a write to a port, and BPF on the host |
//! | [`gdb`] | QEMU's gdb stub, for debugging only |

pub mod choice;
pub mod gdb;
mod interface;
pub mod kvm;
mod raw_event;
pub mod tcg;

pub use interface::{Action, Backend, Input, Refused, Site, State};
pub use raw_event::RawEvent;
