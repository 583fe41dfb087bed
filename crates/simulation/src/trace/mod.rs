//! Recorded exchanges with a reference, together with the truth: reading, replaying, scoring.
//!
//! | module | owns |
//! | --- | --- |
//! | `parse` | `NAME.csv` and `NAME.truth.csv` from bytes; errors that name line and column |
//! | `truth` | [`Truth`]: the counter at every whole true second, and which second that was |
//! | `load` | [`Trace`]: both files from disk, plain or gzip |
//! | `method` | [`Method`]: which estimator is replayed |
//! | `last_sample` | [`LastSample`]: the baseline estimator that every other one has to beat |
//! | [`mod@replay`] | [`replay()`]: exchanges in order, a reading at every whole true second |
//! | [`score`] | [`Score`]: errors, half-widths and coverage of the readings |
//!
//! The counter of a trace is nominally 1 GHz. Its time base is Unix nanoseconds, treated as TAI:
//! nothing here depends on the timescale.
//!
//! What it does not do: simulate. The exchanges come from a file of any origin.

mod last_sample;
mod load;
mod method;
mod parse;
pub mod replay;
pub mod score;
mod truth;

pub use last_sample::LastSample;
pub use load::{LoadError, Trace, truth_path};
pub use method::{Method, UnknownMethod};
pub use parse::{Row, TraceError, parse_rows, parse_truth};
pub use replay::{Reading, Replay, ReplayOptions, replay};
pub use score::{Quantiles, Score, half_widths};
pub use truth::Truth;

use timevisor_time::Period;

/// The nominal frequency of a trace's counter, Hz.
pub const COUNTER_HZ: u64 = 1_000_000_000;

/// The nominal period of a trace's counter.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "2^84 / 10^9 takes 55 bits")]
pub const fn nominal_period() -> Period {
    // 2^84 / 10^9, which Period::from_hz computes at run time only.
    Period::from_bits(((1u128 << 84) / COUNTER_HZ as u128) as u64)
}

#[cfg(test)]
mod tests;
