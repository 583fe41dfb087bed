//! Derives a bound on "clock minus true time" from a ptp4l's state.
//!
//! ptp4l measures `offset = t2 - t1 - meanPathDelay`, where meanPathDelay is the median of the last
//! ten measurements (`delay_filter`). The forward delay is not negative, so the clock is ahead of
//! the master by at most offset + meanPathDelay. How far it may be behind, a single offset does not
//! say: it hides behind a Sync that was delayed. But two delays that add up to twice a mean differ
//! from it by at most that mean, and while the path's delay rises, so do the measured offsets before
//! the servo has followed them and the median has caught up. So the largest of the recent offsets, with
//! either sign, covers a path that changed, and also the servo's swing to the other side while it
//! converges. Hence, at an age after the last measurement:
//!
//! ```text
//! |clock - true time| <= max |offset| + e
//! e = max meanPathDelay + grandmaster accuracy + hop_error * (stepsRemoved - 1) + drift * age + interface accuracy
//! ```
//!
//! Recent are those of [`SPAN`], and at least [`OFFSETS`]; before so many are known, nothing is stated: after a
//! step that a delayed Sync asked for, the offset of the next delayed Sync is small, and the clock is off by
//! their delay. The delay beside an offset is the present
//! median, not the one with which it was measured, so the longest of [`SPAN`] counts. With P2P, meanPathDelay is the delay to
//! the neighbour.
//!
//! Assumed, not proven: the grandmaster's claim; the boundary clocks' error; that the servo swings
//! to the other side by no more than its recent offsets; the drift; that transparent clocks tell
//! their residence times right. What it does not do: read clocks.

use std::collections::VecDeque;

use timevisor_time::{Duration, RateError};

use super::accuracy::clock_accuracy;
use super::datasets::{PortState, State};
use super::refusal::Refusal;
use super::settling::Settling;

/// At least so many of the last offsets count, however rare Syncs are: enough to include the servo's
/// swing, and Syncs that were delayed one after another.
pub const OFFSETS: usize = 8;

/// Offsets of this time count: ptp4l's median of ten delays, at one Delay_Req a second, follows a
/// path that changed within it.
pub const SPAN: Duration = Duration::from_secs(16);

/// No more than this are kept; with more polls, the oldest two are joined.
const KEPT: usize = 256;

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

/// The recent offsets and what follows from them.
#[derive(Clone, Debug)]
pub struct OffsetWindow {
    assumptions: Assumptions,
    settling: Settling,
    /// Ingress time in nanoseconds of the clock, and the offset's size.
    recent: VecDeque<(i64, Duration)>,
    /// When a meanPathDelay was first told, by the clock, and the delay: an offset was measured with
    /// the one of its own time.
    delays: VecDeque<(i64, Duration)>,
}

impl OffsetWindow {
    /// A window without offsets.
    #[must_use]
    pub fn new(assumptions: Assumptions) -> Self {
        Self {
            assumptions,
            settling: Settling::default(),
            recent: VecDeque::with_capacity(OFFSETS),
            delays: VecDeque::new(),
        }
    }

    /// Processes a state; `clock_ns` is a reading of its clock, taken after the state was received.
    /// Returns the largest possible distance of the clock from true time, on the clock's own
    /// timescale.
    ///
    /// # Errors
    /// Why no statement is possible.
    pub fn judge(&mut self, state: &State, clock_ns: i64) -> Result<Duration, Refusal> {
        let judged = self.accept(state, clock_ns);
        match judged {
            // Whatever came before belongs to another master, or another setting of the clock.
            Err(Refusal::NewMaster(_) | Refusal::NewTimescale | Refusal::Unmeasured) => {
                self.recent.clear();
            }
            Ok(_) | Err(Refusal::FewOffsets { .. }) => {}
            Err(_) => self.restart(),
        }
        judged
    }

    /// Forgets the offsets: the clock was stepped, or ptp4l was not heard for a while.
    pub fn restart(&mut self) {
        self.recent.clear();
        self.delays.clear();
        self.settling.restart();
    }

    fn accept(&mut self, state: &State, clock_ns: i64) -> Result<Duration, Refusal> {
        let assume = self.assumptions;
        if !state.port.follows() {
            return Err(Refusal::NotFollowing(state.port.name()));
        }
        if !state.grandmaster_present {
            return Err(Refusal::NoGrandmaster);
        }
        if !state.time.ptp_timescale && !assume.arbitrary_is_utc {
            return Err(Refusal::ArbitraryTimescale);
        }
        let delay = self.longest_delay(state.mean_path_delay, clock_ns);
        let claimed = clock_accuracy(state.grandmaster_accuracy);
        let grandmaster = assume
            .grandmaster_accuracy
            .or(claimed)
            .ok_or(Refusal::UnknownAccuracy(state.grandmaster_accuracy))?;
        // Before the other checks: what they would look at may be the former master's.
        self.settling.observe(state)?;
        let age = Duration::from_nanos(clock_ns) - Duration::from_nanos(state.ingress_ns);
        if age.is_negative() || age > assume.max_age || state.ingress_ns == 0 {
            return Err(Refusal::Stale);
        }
        if state.mean_path_delay.is_negative() {
            return Err(Refusal::NegativeDelay);
        }
        if state.mean_path_delay == Duration::ZERO {
            return Err(Refusal::NoDelay);
        }
        self.remember(state);
        if self.recent.len() < OFFSETS {
            return Err(Refusal::FewOffsets { have: self.recent.len(), need: OFFSETS });
        }
        let drift = match state.port {
            PortState::Slave => assume.drift,
            _ => assume.drift_unlocked,
        };
        let hops = i128::from(state.steps_removed.saturating_sub(1));
        let largest =
            self.recent.iter().map(|(_, offset)| *offset).fold(Duration::ZERO, Duration::max);
        Ok(largest
            + delay
            + grandmaster
            + Duration::from_bits(assume.hop_error.to_bits().saturating_mul(hops))
            + drifted(drift, age)
            + assume.accuracy)
    }

    /// The longest meanPathDelay of the last [`SPAN`]. ptp4l tells the present median beside an offset
    /// that was measured with an earlier one.
    fn longest_delay(&mut self, now: Duration, clock_ns: i64) -> Duration {
        let age = |at: i64| Duration::from_nanos(clock_ns) - Duration::from_nanos(at);
        if self.delays.back().is_none_or(|(_, delay)| *delay != now) {
            self.delays.push_back((clock_ns, now));
        }
        while self.delays.len() > 1
            && (self.delays.len() > KEPT
                || self.delays.get(1).is_some_and(|(at, _)| age(*at) > SPAN))
        {
            self.delays.pop_front();
        }
        self.delays.iter().map(|(_, delay)| *delay).fold(now, Duration::max)
    }

    /// If asked twice between two Syncs, ptp4l gives the same answer.
    fn remember(&mut self, state: &State) {
        let measured = (state.ingress_ns, Duration::from_nanos(state.master_offset_ns).abs());
        if self.recent.back() == Some(&measured) {
            return;
        }
        self.recent.push_back(measured);
        let age = |at: i64| Duration::from_nanos(measured.0) - Duration::from_nanos(at);
        while self.recent.len() > OFFSETS
            && self.recent.front().is_some_and(|(at, _)| age(*at) > SPAN)
        {
            self.recent.pop_front();
        }
        if self.recent.len() > KEPT {
            let joined = self.recent.pop_front().map_or(Duration::ZERO, |(_, offset)| offset);
            if let Some((_, oldest)) = self.recent.front_mut() {
                *oldest = Duration::max(*oldest, joined);
            }
        }
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
