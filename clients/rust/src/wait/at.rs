//! [`AtOutcome`]: an action at its time if the clock is good enough then, or not at all.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::driver::Driver;
use super::machine::{Continuity, Look, Machine, Next, nap};
use crate::error::WaitError;
use crate::reading::Reading;

/// The outcome of an action that was scheduled for a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtOutcome {
    /// Do it now.
    Fired {
        /// The estimate, ns since the timescale's epoch: `t_ns` or later.
        actual_ns: i64,
        /// Maximum distance of true time from it, ns.
        error_ns: u64,
        /// The reading.
        reading: Reading,
    },
    /// Do not do it: it is later than the latest allowed time.
    TooLate {
        /// By how much, ns.
        by_ns: i64,
        /// The reading.
        reading: Reading,
    },
    /// Do not do it: the clock is not accurate enough.
    QotViolated {
        /// Maximum distance of true time from the estimate, ns; `u64::MAX` if it is not known or
        /// must not be relied on.
        half_width_ns: u64,
        /// The reading.
        reading: Reading,
    },
    /// Do not do it: the clock may have stepped since this started.
    Disrupted {
        /// The first reading after.
        reading: Reading,
    },
}

impl AtOutcome {
    /// The reading that decided.
    #[must_use]
    pub fn reading(&self) -> &Reading {
        match self {
            Self::Fired { reading, .. }
            | Self::TooLate { reading, .. }
            | Self::QotViolated { reading, .. }
            | Self::Disrupted { reading } => reading,
        }
    }
}

/// An action's time for an event loop: when the descriptor is readable, call [`Self::on_ready`].
/// Dropping it cancels.
pub struct AtFd {
    pub(super) driver: Driver<At>,
    pub(super) over: bool,
}

impl AtFd {
    /// Checks whether there is an outcome. `None` if not yet, and after an outcome was returned.
    /// May be called at any time.
    ///
    /// # Errors
    /// As [`crate::Timeline::at`]; the wait has then ended.
    pub fn on_ready(&mut self) -> Result<Option<AtOutcome>, WaitError> {
        if self.over {
            self.driver.rest()?;
            return Ok(None);
        }
        let outcome = self.driver.step();
        self.over = !matches!(outcome, Ok(None));
        outcome
    }
}

impl AsFd for AtFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.as_fd()
    }
}

/// The machine.
pub(super) struct At {
    t_ns: i64,
    max_error_ns: Option<u64>,
    latest_ns: i64,
    spin: Duration,
    continuity: Continuity,
    armed: bool,
}

impl At {
    pub(super) fn new(
        t_ns: i64,
        max_error: Option<Duration>,
        latest_ns: i64,
        spin: Duration,
    ) -> Result<Self, WaitError> {
        if latest_ns < t_ns {
            return Err(WaitError::OutOfRange("the latest time allowed is before the time itself"));
        }
        let max_error_ns =
            max_error.map(|span| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX - 1));
        let continuity = Continuity::default();
        Ok(Self { t_ns, max_error_ns, latest_ns, spin, continuity, armed: false })
    }
}

impl Machine for At {
    type Outcome = AtOutcome;

    fn step(&mut self, look: &Look) -> Result<Next<AtOutcome>, WaitError> {
        let reading = look.reading;
        if self.continuity.is_broken(&reading) {
            return Ok(Next::Done(AtOutcome::Disrupted { reading }));
        }
        if !reading.is_known() {
            return Err(WaitError::Unknown);
        }
        let now = reading.estimate_ns();
        if now > self.latest_ns {
            let by_ns = now.saturating_sub(self.latest_ns);
            return Ok(Next::Done(AtOutcome::TooLate { by_ns, reading }));
        }
        let trusted = reading.half_width_ns().filter(|_| reading.is_trustworthy());
        let half_width_ns = trusted.unwrap_or(u64::MAX);
        let (first, due) = (!core::mem::replace(&mut self.armed, true), now >= self.t_ns);
        if (first || due) && self.max_error_ns.is_some_and(|most| half_width_ns > most) {
            return Ok(Next::Done(AtOutcome::QotViolated { half_width_ns, reading }));
        }
        if due {
            let fired = AtOutcome::Fired { actual_ns: now, error_ns: half_width_ns, reading };
            return Ok(Next::Done(fired));
        }
        Ok(nap(self.t_ns.saturating_sub(now), self.spin))
    }
}
