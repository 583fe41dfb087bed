//! [`Watch`]: reports when a timeline becomes or stops being good enough, so that a program can
//! degrade in time.
//!
//! It looks at the page every 100 ms, and at the moment when the bounds will have grown too wide.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use timevisor_clock_page::ClockStatus;

use super::WaitOptions;
use super::driver::Driver;
use super::machine::{Continuity, Look, Machine, NAP, Next};
use crate::error::WaitError;
use crate::reading::Reading;
use crate::timeline::{Timeline, ValidUntil};

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The handle's requirement is met now (also reported at the start). Only with a requirement.
    Met,
    /// The handle's requirement is not met now (also reported at the start). Only with a
    /// requirement.
    Violated,
    /// The clock lost its references or its daemon: bounds hold and grow.
    Holdover,
    /// The clock follows its references again.
    Synchronized,
    /// The clock may have stepped.
    Disrupted,
}

/// A change and what is known at that moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub change: Change,
    /// Until when the requirement stays met if nothing new is learned.
    pub valid_until: ValidUntil,
    /// The reading that noticed it.
    pub reading: Reading,
}

/// Endless events: block with [`Self::event`] or as an iterator, or poll the descriptor and call
/// [`Self::on_ready`].
///
/// ```
/// use std::time::Duration;
/// use timevisor::{Change, Requirement, manual::Clock};
/// let clock = Clock::new(0);
/// let need = Requirement::within(Duration::from_micros(10));
/// let mut watch = clock.timeline().with_requirement(&need)?.watch()?;
/// assert_eq!(watch.event()?.change, Change::Met);
/// clock.set_error(Duration::from_micros(11));
/// assert_eq!(watch.event()?.change, Change::Violated);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Watch {
    driver: Driver<Edges>,
}

impl Watch {
    pub(super) fn new(timeline: &Timeline) -> Result<Self, WaitError> {
        let driver = Driver::new(timeline, Edges::default())?;
        driver.fire()?;
        Ok(Self { driver })
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// When the page cannot be read; the watch continues.
    pub fn event(&mut self) -> Result<Event, WaitError> {
        self.event_with(&WaitOptions::default())
    }

    /// Waits for the next event, with all options.
    ///
    /// # Errors
    /// As [`Self::event`], and those that the options add.
    pub fn event_with(&mut self, options: &WaitOptions) -> Result<Event, WaitError> {
        self.driver.block(options)
    }

    /// Checks whether something happened; `None` if not. May be called at any time.
    ///
    /// # Errors
    /// As [`Self::event`].
    pub fn on_ready(&mut self) -> Result<Option<Event>, WaitError> {
        let outcome = self.driver.step();
        if !matches!(outcome, Ok(None)) {
            self.driver.fire()?;
        }
        outcome
    }
}

impl Iterator for Watch {
    type Item = Result<Event, WaitError>;
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.event())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.driver.as_fd()
    }
}

/// The state machine, with the state at the last look.
#[derive(Default)]
struct Edges {
    continuity: Continuity,
    met: Option<bool>,
    holdover: bool,
    waiting: VecDeque<Event>,
}

impl Machine for Edges {
    type Outcome = Event;

    fn step(&mut self, look: &Look) -> Result<Next<Event>, WaitError> {
        let reading = look.reading;
        let valid_until = ValidUntil::of(&look.need, &reading, &look.snapshot);
        let mut say = |change| self.waiting.push_back(Event { change, valid_until, reading });
        if self.continuity.is_broken(&reading) {
            say(Change::Disrupted);
        }
        let holdover = reading.status() == ClockStatus::FreeRunning;
        if holdover && !self.holdover {
            say(Change::Holdover);
        } else if self.holdover && reading.status() == ClockStatus::Synchronized {
            say(Change::Synchronized);
        }
        // Holdover ends with synchronization, not with doubts about an assumption.
        self.holdover = holdover || self.holdover && reading.status() != ClockStatus::Synchronized;
        let met = (!look.need.is_none()).then_some(reading.met());
        if let Some(met) = met.filter(|_| met != self.met) {
            say(if met { Change::Met } else { Change::Violated });
        }
        self.met = met;
        if let Some(event) = self.waiting.pop_front() {
            return Ok(Next::Done(event));
        }
        Ok(Next::Arm(until(&valid_until, &reading)))
    }
}

/// Time until just after the requirement will be violated, or a nap.
fn until(valid: &ValidUntil, reading: &Reading) -> Duration {
    let left = valid.estimate_ns().map(|end| end.saturating_sub(reading.estimate_ns()));
    match left.and_then(|ns| u64::try_from(ns).ok()) {
        Some(ns) => Duration::from_nanos(ns.saturating_add(1)).min(NAP),
        None => NAP,
    }
}
