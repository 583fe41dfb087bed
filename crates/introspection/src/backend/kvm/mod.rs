//! Guests under KVM: an instruction that KVM has to handle replaces the NOP at a trap point, and
//! BPF programs on this host observe how KVM handles it.
//!
//! | file | owns |
//! | --- | --- |
//! | `trap.rs` | that instruction: KVM's forced emulation prefix, or a write to a port |
//! | `sites.rs` | where trap points are in QEMU's memory, and which instructions KVM may emulate behind them |
//! | `patches.rs` | changes of the guest's code, all or none |
//! | `patch_journal.rs` | these changes on disk, for the daemon that starts after a crash |
//! | `layout.rs` | offsets in KVM's structures, by this kernel's BTF |
//! | `codec.rs` | orders to bytes and events from bytes (bpf/introspect.h) |
//! | `orders.rs` | the orders for one VM, checked against this host's KVM |
//! | `session.rs` | the backend: points that are wanted, traps that are in place, and events |
//!
//! Only NOPs are overwritten, and no vCPU may run while bytes change. The prefix works under two
//! conditions: the host's switch (`timevisor_linux::kvm::prefix`) stays on while any guest has a
//! prefix, and the instruction after the prefix is one that KVM is known to emulate exactly. AMD
//! was tested in emulation; Intel's path was written from the kernel's source and is NOT VERIFIED
//! ON HARDWARE.

pub mod codec;
pub mod layout;
pub mod orders;
pub mod patch_journal;
pub mod patches;
mod session;
pub mod sites;
pub mod trap;

pub use session::Kvm;
