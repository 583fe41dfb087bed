//! Timevisor's client for C and C++: every word of the Rust client, behind `include/timevisor.h`,
//! which is generated from these files (`make -C clients/c header`).
//!
//! | module | owns |
//! | --- | --- |
//! | `error` | codes, the text of the last error; panics stop here |
//! | `memory` | access to a caller's pointers: handles, texts, structures of several versions |
//! | `types`, `conversions` | structures and enumerations |
//! | `client` | finding the page and the channel, the list of timelines |
//! | `timeline` | a handle to a timeline, bound or only read; reading it |
//! | `binding` | requirements |
//! | `elapsed` | how long something has been running |
//! | `recording` | a timeline's past in a file |
//! | `packets` | the kernel's stamps of packets |
//! | `cpu_time` | how much processor time a vCPU has had |
//! | `notice` | what the host announces, and whether the VM was loaded |
//! | `cancel` | ending waits from another thread |
//! | `wait` | waiting |
//! | `at`, `periodic`, `watch` | actions, ticks, changes |
//! | `pins` | events at GPIO lines and PTP pins, outputs at a time |
//! | `group` | members that act together at a time |
//! | `pending` | what the handles that wait have in common |
//! | `manual` | a clock and a bus for tests |
//!
//! Handles and results of fixed size come as nullable references, so that the functions are safe
//! code; what a reference cannot say (structures of another version, texts) comes as a raw pointer
//! and is read in `memory` only.
//!
//! What it does not do: decide anything about time. No constructors, no output, and no signal
//! handlers except for SIGBUS where a program names a page file (`timevisor_survive_truncation`).

// In the order of the header; rustfmt would sort what has no empty lines in between.
mod types;

mod client;

mod timeline;

mod binding;

mod elapsed;

mod recording;

mod packets;

mod cpu_time;

mod notice;

mod cancel;

mod wait;

mod at;

mod periodic;

mod watch;

mod pins;

mod group;

mod manual;

mod error;

mod conversions;
mod memory;
mod pending;
#[cfg(test)]
mod tests;
