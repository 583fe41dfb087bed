//! What the benchmarks share.
//!
//! | module | owns |
//! | --- | --- |
//! | [`report`] | a table for people, and the same as timevisor-results' JSON for machines |
//! | [`daemon`] | a timevisord of the benchmark's own |
//! | [`cpu`] | which processor runs a thread, and what it can do |
//!
//! The benchmarks themselves are the binaries in `src/bin`. None of them needs /proc or /sys: they
//! also run as the only program of an initramfs.

pub mod cpu;
pub mod daemon;
pub mod report;
