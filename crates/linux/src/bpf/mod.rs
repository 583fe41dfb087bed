//! RVEC by BPF, for hosts whose counter is not invariant: programs in the kernel keep the age of
//! every core and of registered threads (bpf/elapsed.bpf.c), and a thread reads its own from shared
//! memory with a read of the TSC.
//!
//! | module | owns |
//! | --- | --- |
//! | [`elapsed`] | [`ElapsedBpf`]: loads, attaches, registers |
//! | [`own_age`] | [`OwnAge`]: a thread's own age |
//! | [`record`] | the records' layout, and how to read one that is being written |
//! | `core_counter` | each core's TSC: as the kernel's perf event reads it, and what a tick lasts |
//! | `call` | bpf(2), as far as aya has no method for it |
//! | [`guest_traps`] | [`GuestTraps`]: what a guest under KVM asks of its kernel (bpf/introspect.bpf.c) |
//! | `event_ring` | how its events come |
//! | [`settings`] | the sizes of its settings |
//! | [`error`] | [`BpfError`]: why a host cannot have it, and what to do |
//!
//! What it does not do: time that the machine was suspended; processors that come or go after the
//! start; threads of other pid namespaces (the kernel's programs know a thread by its pid in the
//! first one); forget a thread that ended without dropping its [`OwnAge`].

mod call;
mod core_counter;
pub mod elapsed;
pub mod error;
mod event_ring;
pub mod guest_traps;
pub mod own_age;
pub mod record;
pub mod settings;

pub use elapsed::{ElapsedBpf, Event};
pub use error::BpfError;
pub use guest_traps::GuestTraps;
pub use own_age::{OwnAge, ReadError};

#[cfg(test)]
mod refusal_tests;
