//! Introspection: learns from outside what the real-time tasks in a guest request from its kernel,
//! with nothing installed in the guest.
//!
//! | module | owns |
//! | --- | --- |
//! | [`memory`] | guest-physical and guest-virtual reads, and where guest-physical memory is in QEMU's |
//! | [`symbols`] | where functions, variables and members of structures are |
//! | [`point`] | trap points: an instruction, and what is read there |
//! | [`backend`] | ways to trap: QEMU's TCG with our plugin, KVM, QEMU's gdb stub |
//! | [`os`] | guest systems: Linux, FreeRTOS, segments, and those that files describe |
//! | [`registry`] | the one table of guest systems, and the order in which they are tried |
//! | [`tasks`] | events, the tasks that they report, and what these tasks need |
//!
//! What it does not do: open sockets or files (except the journal of patches and the files of
//! [`os::described`], both by crates/linux), stop VMs, or decide what follows from an event. A
//! guest is never trusted: the worst that its data can cause is a false or a missing event.
#![forbid(unsafe_code)]

pub mod backend;
pub mod memory;
pub mod os;
pub mod point;
pub mod registry;
pub mod symbols;
pub mod tasks;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod testing_elf;
