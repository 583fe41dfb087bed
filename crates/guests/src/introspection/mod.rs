//! Introspection: what the real-time tasks in a guest ask of its kernel, learned from outside, without anything in the guest.
//!
//! | module | owns |
//! | --- | --- |
//! | [`memory`] | guest-physical and guest-virtual reads |
//! | [`ram`] | where guest-physical memory is in QEMU's backend |
//! | [`kallsyms`] | a kernel's own symbol table, found in memory |
//! | [`btf`] | where members of its structures are |
//! | [`image`] | the ELF file of a guest that carries no symbols |
//! | [`point`] | trap points: an instruction, and what is read there |
//! | [`event`] | what was read, and what it means |
//! | [`guest_os`] | the interface of guest-OS plugins, and the list of them |
//! | [`linux`] | stock Linux |
//! | [`freertos`] | FreeRTOS |
//! | [`segments`] | programs that say where real-time work begins and ends |
//! | [`tasks`] | the real-time tasks that events tell of |
//! | [`begun`] | those that began before anybody was watching |
//! | [`pulse`] | whether it is still the same kernel that runs |
//! | [`demand`] | what these need of a vCPU |
//! | [`backend`] | the interface of ways to trap: bytes and now in, actions out |
//! | [`gdb`] | QEMU's gdb stub, for debugging only |
//! | [`tcg`] | QEMU's TCG with our plugin |
//! | [`kvm`] | KVM's forced emulation prefix, and BPF on the host |
//!
//! What it does not do: open sockets or files, stop VMs, or decide what follows from an event. A guest is not trusted anywhere: whatever
//! it writes leads to an event that is not true, or to none, and never further.

pub mod backend;
pub mod begun;
pub mod btf;
pub mod demand;
pub mod event;
pub mod freertos;
pub mod gdb;
pub mod guest_os;
pub mod image;
pub mod kallsyms;
pub mod kvm;
pub mod linux;
pub mod memory;
pub mod point;
pub mod pulse;
pub mod ram;
mod reads;
pub mod segments;
pub mod tasks;
pub mod tcg;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod testing_elf;
