//! The sans-IO state machine behind every wait: it takes an observation of the clock, and returns
//! "look again after this long" or the outcome. The drivers (`driver.rs`) sleep and read the clock.
//!
//! A page has no notification, so no machine ever sleeps for longer than [`NAP`]: changed rates,
//! bounds and disruptions are noticed within that time.

use std::time::Duration;

use super::{Waited, When};
use crate::error::WaitError;
use crate::reading::Reading;
use crate::requirement::Need;
use crate::snapshot::Snapshot;

/// The longest sleep between two looks.
pub(crate) const NAP: Duration = Duration::from_millis(100);

/// A longer sleep ends a little early, by a 512th, so that a rate that differs from
/// CLOCK_MONOTONIC's (by 500 ppm at most) cannot make it late; the rest is slept in one piece.
const ONE_PIECE: Duration = Duration::from_millis(1);

/// A look at the clock.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub(crate) reading: Reading,
    pub(crate) snapshot: Snapshot,
    pub(crate) need: Need,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next<T> {
    /// Look again after this long, or earlier.
    Arm(Duration),
    /// Look again at once: it is due within the spin window.
    Again,
    /// The wait is over.
    Done(T),
}

/// Something that waits.
pub(crate) trait Machine {
    /// What it waits for.
    type Outcome;
    /// Processes an observation.
    fn step(&mut self, look: &Look) -> Result<Next<Self::Outcome>, WaitError>;
}

/// How long to sleep when this many nanoseconds of the timeline remain (above 0), and how long to
/// spin at the end.
pub(crate) fn nap<T>(left_ns: i64, spin: Duration) -> Next<T> {
    let left = Duration::from_nanos(u64::try_from(left_ns).unwrap_or(0));
    match left.checked_sub(spin) {
        Some(rest) if !rest.is_zero() || spin.is_zero() => {
            let early = if rest > ONE_PIECE { rest / 512 } else { Duration::ZERO };
            Next::Arm((rest - early).min(NAP))
        }
        _ => Next::Again,
    }
}

/// Detects that the clock may have stepped since the first look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Continuity(Option<(u64, u64)>);

impl Continuity {
    /// Whether this look is the first one after a disruption. The next one will not be.
    pub(crate) fn is_broken(&mut self, reading: &Reading) -> bool {
        // A timeline that has moved to another entry counts as another clock, whatever the markers
        // are.
        let clock = (reading.origin, reading.disruption);
        self.0.replace(clock).is_some_and(|before| before != clock)
    }
}

/// Waits for one moment.
#[derive(Debug)]
pub(crate) struct Single {
    when: When,
    spin: Duration,
    continuity: Continuity,
}

impl Single {
    pub(crate) fn new(when: When, spin: Duration) -> Self {
        Self { when, spin, continuity: Continuity::default() }
    }
}

impl Machine for Single {
    type Outcome = Waited;

    fn step(&mut self, look: &Look) -> Result<Next<Waited>, WaitError> {
        let reading = look.reading;
        if self.when == When::Met {
            let met = reading.is_known() && reading.met();
            let waited = Waited { lateness_ns: 0, reading };
            return Ok(if met { Next::Done(waited) } else { Next::Arm(NAP) });
        }
        if self.continuity.is_broken(&reading) {
            return Err(WaitError::Disrupted { reading });
        }
        if !reading.is_known() {
            return Err(WaitError::Unknown);
        }
        let (now, target) = match self.when {
            When::For(span) => {
                let ns = i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
                let target = reading.estimate_ns().saturating_add(ns);
                self.when = When::Until(target);
                (reading.estimate_ns(), target)
            }
            When::Past(target) => {
                if !reading.is_trustworthy() {
                    return Err(WaitError::Unreliable { reading });
                }
                // In whole nanoseconds, "after" is at least one more.
                let last = WaitError::OutOfRange("there is no time after the last one");
                (reading.earliest_ns(), target.checked_add(1).ok_or(last)?)
            }
            When::SurelyBefore { t_ns, lead } => {
                return surely_before(&reading, t_ns, lead, self.spin);
            }
            When::Until(target) => (reading.estimate_ns(), target),
            When::Met => (0, 0),
        };
        if now >= target {
            let asked = if let When::Past(asked) = self.when { asked } else { target };
            return Ok(Next::Done(Waited { lateness_ns: now.saturating_sub(asked), reading }));
        }
        Ok(nap(target.saturating_sub(now), self.spin))
    }
}

/// One look of a wait for [`When::SurelyBefore`].
fn surely_before(
    reading: &Reading,
    t_ns: i64,
    lead: Duration,
    spin: Duration,
) -> Result<Next<Waited>, WaitError> {
    let reading = *reading;
    if lead.is_zero() {
        return Err(WaitError::OutOfRange(
            "a lead of zero leaves no time before it; give what the wake-up and the work take, 1 ns or more",
        ));
    }
    if !reading.is_trustworthy() {
        return Err(WaitError::Unreliable { reading });
    }
    // Two instants may be further apart than 64 bits hold, and a lead may be longer.
    let beyond = i128::from(reading.latest_ns()) - i128::from(t_ns);
    if beyond >= 0 {
        return Err(WaitError::TooLate { by_ns: saturated(beyond), reading });
    }
    let late = beyond.saturating_add_unsigned(lead.as_nanos());
    if late >= 0 {
        return Ok(Next::Done(Waited { lateness_ns: saturated(late), reading }));
    }
    Ok(nap(saturated(-late), spin))
}

/// Saturates a non-negative number to 63 bits.
fn saturated(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
