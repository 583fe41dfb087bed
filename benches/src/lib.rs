//! What the benchmarks share.
//!
//! | module | owns |
//! | --- | --- |
//! | [`report`] | a table for people and `target/results/NAME.json` for machines |
//! | [`cpu`] | which processor runs a thread |
//! | [`machine`] | what the figures were measured on |
//!
//! The benchmarks themselves are the binaries in `src/bin`. None of them needs /proc or /sys: they also run as the only
//! program of an initramfs.

pub mod cpu;
#[cfg(target_arch = "x86_64")]
pub mod machine;
pub mod report;
