//! RVEC with BPF, for hosts whose counter is not invariant: programs in the kernel track the age of
//! every core and of registered threads (bpf/elapsed.bpf.c), and a thread computes its own age from
//! shared memory and a TSC read.
//!
//! | module | owns |
//! | --- | --- |
//! | [`record`] | the records' layout, and how to read them consistently |
//! | [`reader`] | [`AgeReader`]: reads the calling thread's age; in every program, without the feature `bpf` |
//! | `elapsed` | `ElapsedBpf`: loads, attaches, registers |
//! | `own_age` | `OwnAge`: the age of a thread of the process that loaded the programs |
//! | `core_counter` | each core's TSC as the kernel's perf event reads it, and the length of a tick |
//! | `call` | the bpf(2) calls for which aya has no method |
//! | `guest_traps` | `GuestTraps`: what programs in a KVM guest request from the guest's kernel (bpf/introspect.bpf.c) |
//! | `kprobe_link` | how they are attached, so that skipped ones are counted |
//! | `event_ring` | how its events are delivered |
//! | `settings` | the sizes of its settings |
//! | `error` | `BpfError`: why a host does not support it, and what to do |
//!
//! Once the programs are attached they alone can write the records: the maps are frozen. So their
//! descriptors may be given to every process.
//!
//! What it does not do: count time while the machine is suspended; support processors that go
//! online or offline after the start; find out the id in the initial pid namespace of another
//! process's thread (the kernel's programs identify a thread by it); release a thread that ended
//! without dropping its `OwnAge`.

#[cfg(feature = "bpf")]
mod call;
#[cfg(feature = "bpf")]
mod core_counter;
#[cfg(feature = "bpf")]
pub mod elapsed;
#[cfg(feature = "bpf")]
pub mod error;
#[cfg(feature = "bpf")]
mod event_ring;
#[cfg(feature = "bpf")]
pub mod guest_traps;
#[cfg(feature = "bpf")]
mod kprobe_link;
#[cfg(feature = "bpf")]
pub mod own_age;
pub mod reader;
pub mod record;
#[cfg(feature = "bpf")]
pub mod settings;

#[cfg(feature = "bpf")]
pub use elapsed::{ElapsedBpf, Event};
#[cfg(feature = "bpf")]
pub use error::BpfError;
#[cfg(feature = "bpf")]
pub use guest_traps::GuestTraps;
#[cfg(feature = "bpf")]
pub use own_age::OwnAge;
pub use reader::{AgeReader, ReadError, Records};

#[cfg(test)]
#[cfg(feature = "bpf")]
mod refusal_tests;
#[cfg(test)]
#[cfg(feature = "bpf")]
mod sharing_tests;
