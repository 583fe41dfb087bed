//! [`Periodic`]: ticks on a grid of the timeline. The grid is the same on every machine,
//! independent of when each starts.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::WaitOptions;
use super::driver::Driver;
use super::machine::{Continuity, Look, Machine, Next, nap};
use crate::error::WaitError;
use crate::reading::Reading;
use crate::timeline::Timeline;

/// What happens to ticks that became due before the program was waiting for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissedTicks {
    /// They are dropped: the next tick is the first one that is not yet due.
    Skip,
    /// They are delivered immediately, one after the other, in order.
    CatchUp,
    /// Only the newest is delivered, immediately.
    Coalesce,
}

/// One tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tick {
    /// When it was due, ns since the timescale's epoch.
    pub scheduled_ns: i64,
    /// The reading's estimate minus `scheduled_ns`, ns, never below 0.
    pub lateness_ns: i64,
    /// Number of ticks between the last one and this one that are not delivered (always 0 with
    /// [`MissedTicks::CatchUp`]).
    pub missed: u64,
    /// The reading that found it due.
    pub reading: Reading,
}

/// Endless ticks: block with [`Self::tick`] or as an iterator, or poll the descriptor and call
/// [`Self::on_ready`].
///
/// After a disruption one call fails with [`WaitError::Disrupted`]; the next one restarts on the
/// grid.
///
/// ```
/// use std::time::Duration;
/// use timevisor::{MissedTicks, manual::Clock};
/// let clock = Clock::new(1_000_000_250);
/// let mut ticks = clock.timeline().periodic(Duration::from_micros(1), 0, MissedTicks::Coalesce)?;
/// assert!(ticks.on_ready()?.is_none());
/// clock.advance(Duration::from_nanos(3_755));
/// let tick = ticks.tick()?;
/// assert_eq!((tick.scheduled_ns, tick.lateness_ns, tick.missed), (1_000_004_000, 5, 3 - 1 + 1));
/// # Ok::<(), timevisor::WaitError>(())
/// ```
pub struct Periodic {
    driver: Driver<Grid>,
}

impl Periodic {
    pub(super) fn new(
        timeline: &Timeline,
        period: Duration,
        phase_ns: i64,
        missed: MissedTicks,
    ) -> Result<Self, WaitError> {
        let period_ns = i64::try_from(period.as_nanos())
            .ok()
            .filter(|ns| *ns > 0)
            .ok_or(WaitError::OutOfRange("a period is at least 1 ns and at most 292 years"))?;
        let driver = Driver::new(timeline, Grid::new(period_ns, phase_ns, missed))?;
        driver.fire()?;
        Ok(Self { driver })
    }

    /// Waits for the next tick.
    ///
    /// # Errors
    /// As [`Timeline::wait_until`].
    pub fn tick(&mut self) -> Result<Tick, WaitError> {
        self.tick_with(&WaitOptions::default())
    }

    /// Waits for the next tick, with all options.
    ///
    /// # Errors
    /// As [`Timeline::wait`].
    pub fn tick_with(&mut self, options: &WaitOptions) -> Result<Tick, WaitError> {
        self.driver.machine_mut().spin = options.spin;
        self.driver.block(options)
    }

    /// Checks whether a tick is due; `None` if not yet. May be called at any time.
    ///
    /// # Errors
    /// As [`Timeline::wait_until`]; the ticks continue.
    pub fn on_ready(&mut self) -> Result<Option<Tick>, WaitError> {
        let outcome = self.driver.step();
        if !matches!(outcome, Ok(None)) {
            self.driver.fire()?;
        }
        outcome
    }
}

impl Iterator for Periodic {
    type Item = Result<Tick, WaitError>;
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.tick())
    }
}

impl AsFd for Periodic {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.as_fd()
    }
}

/// The machine.
#[derive(Debug)]
pub(super) struct Grid {
    period_ns: i64,
    phase_ns: i64,
    policy: MissedTicks,
    spin: Duration,
    continuity: Continuity,
    /// The next tick; `None` if not yet placed on the grid.
    next_ns: Option<i64>,
    /// Whether the program has been waiting for it; if so, it is not missed, however late the
    /// wake-up is.
    waiting: bool,
    dropped: u64,
}

impl Grid {
    fn new(period_ns: i64, phase_ns: i64, policy: MissedTicks) -> Self {
        Self {
            period_ns,
            phase_ns,
            policy,
            spin: Duration::ZERO,
            continuity: Continuity::default(),
            next_ns: None,
            waiting: false,
            dropped: 0,
        }
    }

    /// The first point of the grid after `now`.
    fn after(&self, now_ns: i64) -> Result<i64, WaitError> {
        let (period, phase) = (i128::from(self.period_ns), i128::from(self.phase_ns));
        let past = (i128::from(now_ns) - phase).rem_euclid(period);
        i64::try_from(i128::from(now_ns) - past + period).map_err(|_| END)
    }

    /// How many whole periods `now` is beyond `due`.
    fn periods_beyond(&self, due_ns: i64, now_ns: i64) -> u64 {
        let beyond = (i128::from(now_ns) - i128::from(due_ns)) / i128::from(self.period_ns);
        u64::try_from(beyond).unwrap_or(0)
    }

    fn later(&self, due_ns: i64, periods: u64) -> Result<i64, WaitError> {
        let ns = i128::from(due_ns) + i128::from(periods) * i128::from(self.period_ns);
        i64::try_from(ns).map_err(|_| END)
    }
}

const END: WaitError = WaitError::OutOfRange("the next tick is beyond the year 2262");

impl Machine for Grid {
    type Outcome = Tick;

    fn step(&mut self, look: &Look) -> Result<Next<Tick>, WaitError> {
        let reading = look.reading;
        if self.continuity.is_broken(&reading) {
            (self.next_ns, self.waiting, self.dropped) = (None, false, 0);
            return Err(WaitError::Disrupted { reading });
        }
        if !reading.is_known() {
            return Err(WaitError::Unknown);
        }
        let now = reading.estimate_ns();
        let mut due = match self.next_ns {
            Some(due) => due,
            None => self.after(now)?,
        };
        if !self.waiting && now >= due && self.policy == MissedTicks::Skip {
            let after = self.after(now)?;
            self.dropped += self.periods_beyond(due, after);
            due = after;
        }
        (self.next_ns, self.waiting) = (Some(due), true);
        if now < due {
            return Ok(nap(due.saturating_sub(now), self.spin));
        }
        let mut missed = core::mem::take(&mut self.dropped);
        if self.policy == MissedTicks::Coalesce {
            let older = self.periods_beyond(due, now);
            due = self.later(due, older)?;
            missed += older;
        }
        (self.next_ns, self.waiting) = (Some(self.later(due, 1)?), false);
        let lateness_ns = now.saturating_sub(due);
        Ok(Next::Done(Tick { scheduled_ns: due, lateness_ns, missed, reading }))
    }
}
