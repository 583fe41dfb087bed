//! RVEC with BPF, for hosts whose counter is not invariant: programs in the kernel track the age of
//! every core and of registered threads (bpf/elapsed.bpf.c), and a thread computes its own age from
//! shared memory and a TSC read.
//!
//! | module | owns |
//! | --- | --- |
//! | [`elapsed`] | [`ElapsedBpf`]: loads, attaches, registers |
//! | [`own_age`] | [`OwnAge`]: a thread's own age |
//! | [`record`] | the records' layout, and how to read them consistently |
//! | `core_counter` | each core's TSC as the kernel's perf event reads it, and the length of a tick |
//! | `call` | the bpf(2) calls for which aya has no method |
//! | [`guest_traps`] | [`GuestTraps`]: what programs in a KVM guest request from the guest's kernel (bpf/introspect.bpf.c) |
//! | `event_ring` | how its events are delivered |
//! | [`settings`] | the sizes of its settings |
//! | [`error`] | [`BpfError`]: why a host does not support it, and what to do |
//!
//! What it does not do: count time while the machine is suspended; support processors that go
//! online or offline after the start, or threads of other pid namespaces (the kernel's programs
//! identify a thread by its pid in the initial one); release a thread that ended without dropping
//! its [`OwnAge`].

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
