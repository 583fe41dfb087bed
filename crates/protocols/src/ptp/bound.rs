//! Derives bounds on "clock minus true time" from a ptp4l's state.
//!
//! ptp4l measures `offset = t2 - t1 - meanPathDelay`: it assumes that the delay from the master is
//! the mean of both directions. Neither one-way delay is negative and their sum is twice the mean,
//! so the offset is wrong by at most one mean path delay, whatever the asymmetry. Between two
//! measurements the servo moves the clock from the measured offset towards zero, so that the offset
//! now lies between zero and the recent ones, and the oscillator drifts. Hence, at an age after the
//! last measurement:
//!
//! ```text
//! clock - true time  in  [min(0, offsets) - e, max(0, offsets) + e]
//! e = meanPathDelay + grandmaster accuracy + hop_error * (stepsRemoved - 1) + drift * age + interface accuracy
//! ```
//!
//! Assumed, not proven: the grandmaster's claim; the boundary clocks' error; that the servo does
//! not overshoot by more than its recent offsets; the drift. What it does not do: read clocks.

use std::collections::VecDeque;

use timevisor_time::{Duration, RateError};

use super::accuracy::clock_accuracy;
use super::datasets::{PortState, State};

/// How many of the last offsets count: enough to include the servo's swing.
pub const OFFSETS: usize = 8;

/// The assumptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assumptions {
    /// Replaces the grandmaster's clockAccuracy.
    pub grandmaster_accuracy: Option<Duration>,
    /// Time error of each boundary clock on the path. ITU-T G.8273.2 allows class A clocks 100 ns;
    /// 1 us has a margin.
    pub hop_error: Duration,
    /// The clock's rate error while ptp4l has it locked (port state SLAVE).
    pub drift: RateError,
    /// The clock's rate error before that (UNCALIBRATED).
    pub drift_unlocked: RateError,
    /// The error of reading the clock: stamp granularity and everything between the clock and the
    /// wire.
    pub accuracy: Duration,
    /// An offset older than this is not used.
    pub max_age: Duration,
    /// Treat a master on an arbitrary timescale as one that serves UTC.
    pub arbitrary_is_utc: bool,
}

/// Why a ptp4l's clock is currently not a reference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refusal {
    /// No port follows a master; the state of one.
    NotFollowing(&'static str),
    /// gmPresent is 0: this clock is its own grandmaster.
    NoGrandmaster,
    /// The grandmaster's timescale is arbitrary.
    ArbitraryTimescale,
    /// The grandmaster claims no accuracy.
    UnknownAccuracy(u8),
    /// No Sync for longer than `max_age`, or a clock that was stepped.
    Stale,
    /// A negative path delay: the stamps are wrong.
    NegativeDelay,
}

impl Refusal {
    /// The name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotFollowing(_) => "not_following",
            Self::NoGrandmaster => "no_grandmaster",
            Self::ArbitraryTimescale => "arbitrary_timescale",
            Self::UnknownAccuracy(_) => "unknown_accuracy",
            Self::Stale => "stale",
            Self::NegativeDelay => "negative_delay",
        }
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotFollowing(state) => write!(
                f,
                "ptp4l follows no master (its port is {state}); check the network and the domain"
            ),
            Self::NoGrandmaster => {
                f.write_str("ptp4l sees no grandmaster but itself; check the network and the domain")
            }
            Self::ArbitraryTimescale => f.write_str(
                "the grandmaster's timescale is arbitrary (ptpTimescale 0); set it up for PTP time, or, if you know \
                 that it serves UTC, set timescale = \"utc\"",
            ),
            Self::UnknownAccuracy(code) => write!(
                f,
                "the grandmaster claims no accuracy (clockAccuracy {code:#04x}); set grandmaster_accuracy"
            ),
            Self::Stale => f.write_str(
                "ptp4l has measured no offset lately; check that Sync and Delay_Resp messages arrive",
            ),
            Self::NegativeDelay => {
                f.write_str("ptp4l measures a negative path delay; check its delay and asymmetry settings")
            }
        }
    }
}

/// The interval of "clock minus true time".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offset {
    /// Lower bound.
    pub least: Duration,
    /// Upper bound.
    pub most: Duration,
}

/// The recent offsets and what follows from them.
#[derive(Clone, Debug)]
pub struct OffsetWindow {
    assumptions: Assumptions,
    recent: VecDeque<(i64, Duration)>,
}

impl OffsetWindow {
    /// A window without offsets.
    #[must_use]
    pub fn new(assumptions: Assumptions) -> Self {
        Self { assumptions, recent: VecDeque::with_capacity(OFFSETS) }
    }

    /// Processes a state; `clock_ns` is a reading of its clock, taken after the state was
    /// requested.
    ///
    /// # Errors
    /// Why no statement is possible.
    pub fn judge(&mut self, state: &State, clock_ns: i64) -> Result<Offset, Refusal> {
        let judged = self.accept(state, clock_ns);
        if judged.is_err() {
            // Whatever came before belongs to another master, or another setting of the clock.
            self.recent.clear();
        }
        judged
    }

    fn accept(&mut self, state: &State, clock_ns: i64) -> Result<Offset, Refusal> {
        let assume = self.assumptions;
        if !state.port.follows() {
            return Err(Refusal::NotFollowing(state.port.name()));
        }
        if !state.grandmaster_present {
            return Err(Refusal::NoGrandmaster);
        }
        if !state.ptp_timescale && !assume.arbitrary_is_utc {
            return Err(Refusal::ArbitraryTimescale);
        }
        let claimed = clock_accuracy(state.grandmaster_accuracy);
        let grandmaster = assume
            .grandmaster_accuracy
            .or(claimed)
            .ok_or(Refusal::UnknownAccuracy(state.grandmaster_accuracy))?;
        let age = Duration::from_nanos(clock_ns) - Duration::from_nanos(state.ingress_ns);
        if age.is_negative() || age > assume.max_age || state.ingress_ns == 0 {
            return Err(Refusal::Stale);
        }
        if state.mean_path_delay.is_negative() {
            return Err(Refusal::NegativeDelay);
        }
        // If asked twice between two Syncs, ptp4l gives the same answer.
        let measured = (state.ingress_ns, Duration::from_nanos(state.master_offset_ns));
        if self.recent.back() != Some(&measured) {
            if self.recent.len() == OFFSETS {
                self.recent.pop_front();
            }
            self.recent.push_back(measured);
        }
        let drift = match state.port {
            PortState::Slave => assume.drift,
            _ => assume.drift_unlocked,
        };
        let hops = i128::from(state.steps_removed.saturating_sub(1));
        let error = state.mean_path_delay
            + grandmaster
            + Duration::from_bits(assume.hop_error.to_bits().saturating_mul(hops))
            + drifted(drift, age)
            + assume.accuracy;
        let offsets = || self.recent.iter().map(|(_, offset)| *offset);
        Ok(Offset {
            least: offsets().fold(Duration::ZERO, Duration::min) - error,
            most: offsets().fold(Duration::ZERO, Duration::max) + error,
        })
    }
}

/// `rate * age`, rounded up.
fn drifted(rate: RateError, age: Duration) -> Duration {
    let coarse = i128::from(rate.to_bits() >> 24) + 1;
    Duration::from_bits(((age.to_bits() >> 16) + 1).saturating_mul(coarse) >> 24)
}

#[cfg(test)]
#[path = "bound_tests.rs"]
mod tests;
