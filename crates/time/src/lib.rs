//! Timevisor's vocabulary of time: instants, durations, rates and error intervals in integers.
//!
//! Every quantity is fixed point with 2^-64 s resolution (the unit of the vmclock ABI), so absolute
//! time never passes through a float. The timescale is part of an instant's type: mixing UTC and
//! TAI does not compile.
//!
//! | module | owns |
//! | --- | --- |
//! | [`counter_ratio`] | [`CounterRatio`]: guest ticks per host tick |
//! | [`duration`] | [`Duration`]: signed spans of time |
//! | [`instant`] | [`Instant`], the timescales [`Tai`], [`Utc`], [`Local`] |
//! | [`interval`] | [`Interval`] and its three-way [`Comparison`] |
//! | [`rate`] | [`Period`] of a counter, [`RateError`] of an oscillator |
//! | [`leap`] | [`LeapTable`]: UTC <-> TAI from the system's leap-seconds.list |
//!
//! What it does not do: read clocks, allocate, or know about pages and networks.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod counter_ratio;
pub mod duration;
pub mod instant;
pub mod interval;
pub mod leap;
pub mod rate;

pub use counter_ratio::CounterRatio;
pub use duration::Duration;
pub use instant::{Instant, Local, Tai, Timescale, TimescaleId, Utc};
pub use interval::{Comparison, Interval};
pub use leap::{LeapError, LeapSecond, LeapTable, Leaps};
pub use rate::{Period, RateError};

/// Nanoseconds in a second.
pub const NANOS_PER_SEC: i128 = 1_000_000_000;
