//! The client's four waits behind one trait.

use std::os::fd::AsFd;
use std::time::Duration;

use timevisor::{
    AtFd, AtOutcome, Event, Periodic, Tick, WaitError, WaitFd, WaitOptions, Waited, Watch,
};

/// Something that is looked at when its descriptor is readable.
pub trait Source: AsFd + Send {
    type Outcome: Send;
    /// Looks, for an event loop.
    fn on_ready(&mut self) -> Result<Option<Self::Outcome>, WaitError>;
    /// Looks, for a thread that spins at the end.
    fn look(&mut self, _spin: Duration) -> Result<Option<Self::Outcome>, WaitError> {
        self.on_ready()
    }
}

impl Source for WaitFd {
    type Outcome = Waited;
    fn on_ready(&mut self) -> Result<Option<Waited>, WaitError> {
        self.on_ready()
    }
}

impl Source for AtFd {
    type Outcome = AtOutcome;
    fn on_ready(&mut self) -> Result<Option<AtOutcome>, WaitError> {
        self.on_ready()
    }
}

impl Source for Watch {
    type Outcome = Event;
    fn on_ready(&mut self) -> Result<Option<Event>, WaitError> {
        self.on_ready()
    }
}

impl Source for Periodic {
    type Outcome = Tick;
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
