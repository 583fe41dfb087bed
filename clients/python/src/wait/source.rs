//! The client's waits behind one trait; those of groups are in `group`.

use std::os::fd::AsFd;
use std::time::Duration;

use timevisor::{
    AtFd, AtOutcome, Event, Periodic, Tick, WaitError, WaitFd, WaitOptions, Waited, Watch,
};

use crate::errors::Raise;

/// Something that is looked at when its descriptor is readable.
pub trait Source: AsFd + Send {
    type Outcome: Send;
    type Error: Raise + Send;
    /// Looks, for an event loop.
    fn on_ready(&mut self) -> Result<Option<Self::Outcome>, Self::Error>;
    /// Looks, for a thread that spins at the end.
    fn look(&mut self, _spin: Duration) -> Result<Option<Self::Outcome>, Self::Error> {
        self.on_ready()
    }
    /// Ends a wait that has failed; what came nevertheless.
    fn give_up(self) -> Option<Self::Outcome>
    where
        Self: Sized,
    {
        None
    }
}

impl Source for WaitFd {
    type Outcome = Waited;
    type Error = WaitError;
    fn on_ready(&mut self) -> Result<Option<Waited>, WaitError> {
        self.on_ready()
    }
}

impl Source for AtFd {
    type Outcome = AtOutcome;
    type Error = WaitError;
    fn on_ready(&mut self) -> Result<Option<AtOutcome>, WaitError> {
        self.on_ready()
    }
}

impl Source for Watch {
    type Outcome = Event;
    type Error = WaitError;
    fn on_ready(&mut self) -> Result<Option<Event>, WaitError> {
        self.on_ready()
    }
}

impl Source for Periodic {
    type Outcome = Tick;
    type Error = WaitError;
    fn on_ready(&mut self) -> Result<Option<Tick>, WaitError> {
        self.on_ready()
    }
    fn look(&mut self, spin: Duration) -> Result<Option<Tick>, WaitError> {
        // The only way to tell it the window, which may change from tick to tick.
        match self.tick_with(&WaitOptions::default().spin(spin).timeout(Duration::ZERO)) {
            Ok(tick) => Ok(Some(tick)),
            Err(WaitError::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
