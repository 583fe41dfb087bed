//! The clock page: how one host's clock reaches every reader at the cost of a counter read.
//!
//! | module | owns |
//! | --- | --- |
//! | [`abi`] | offsets, magic numbers and status values (docs/reference/page-abi.md has them byte by byte) |
//! | [`counter`] | trait [`Counter`], the counter ids |
//! | [`lines`] | [`Lines`]: earliest, estimate and latest as functions of the counter; nesting and monotonicity |
//! | [`policy`] | [`Policy`]: from what is known to lines, and when to publish |
//! | [`seqlock`] | the sequence lock with real fences, proven under loom |
//! | [`page`] | [`Page`]: the 4 KiB of atomics |
//! | [`writer`] | [`PageWriter`]: publishes, repairs after a writer's death, disrupts, announces, retires |
//! | [`host_cpu_time`] | how much processor time the host has given each vCPU |
//! | [`reader`] | [`Reader`]: one snapshot, one counter read, three multiplications |
//!
//! What it does not do: map memory, read counters (crates/linux does both) or estimate anything.
#![cfg_attr(not(any(test, loom)), no_std)]

pub mod counter;
pub mod seqlock;
mod sync;

#[cfg(not(loom))]
pub mod abi;
#[cfg(not(loom))]
pub mod host_cpu_time;
#[cfg(not(loom))]
pub mod lines;
#[cfg(not(loom))]
pub mod page;
#[cfg(not(loom))]
pub mod policy;
#[cfg(not(loom))]
pub mod reader;
#[cfg(not(loom))]
pub mod writer;

pub use counter::{Counter, CounterId};

#[cfg(not(loom))]
pub use {
    abi::{ClockStatus, LeapIndicator, Notice},
    host_cpu_time::{HostCpuTime, Sample},
    lines::{Line, Lines, Slew, renewal},
    page::{Page, WritablePage},
    policy::{Known, Policy},
    reader::{EntryWords, OpenError, Promise, ReadError, Reader, Reading, decode, find},
    writer::{
        EntryIdentity, EntryUpdate, Identity, NotedBirth, PageWriter, Update, timescale_left_on,
    },
};
