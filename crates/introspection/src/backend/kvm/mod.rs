//! Guests under KVM: the NOP at a trap point is replaced by an instruction that KVM has to handle, and BPF programs on this host see it do so.
//!
//! | file | owns |
//! | --- | --- |
//! | `trap.rs` | that instruction: KVM's forced emulation prefix, or a write to a port |
//! | `sites.rs` | where trap points are in QEMU's memory, and which instructions KVM may emulate behind them |
//! | `patches.rs` | bytes put in place and taken away, all or none |
//! | `patch_journal.rs` | what is in place, on disk: a daemon that comes after a crash takes it away |
//! | `layout.rs` | where things are in KVM's structures, by this kernel's BTF |
//! | `codec.rs` | orders to bytes and events from bytes (bpf/introspect.h) |
//! | `orders.rs` | the orders for one VM, checked against this host's KVM |
//! | `session.rs` | the backend: what is wanted, what is in place, and events |
//!
//! No real instruction is overwritten, and no vCPU may run while bytes change. Two conditions keep a guest with the prefix well: the host's switch
//! (`timevisor_linux::kvm::prefix`) is on for as long as a prefix is in any guest, and the instruction behind it is one that KVM is known to emulate
//! exactly. AMD was tested in emulation; Intel's path is written from the kernel's source and NOT VERIFIED ON HARDWARE.

pub mod codec;
pub mod layout;
pub mod orders;
pub mod patch_journal;
pub mod patches;
mod session;
pub mod sites;
pub mod trap;

pub use session::Kvm;
