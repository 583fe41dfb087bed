//! Sleeping for a machine: blocking in poll(2), or as a descriptor in the caller's event loop. No
//! thread, no signal.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use timevisor_linux::event_fd::EventFd;
use timevisor_linux::poll::{self, PollFd};
use timevisor_linux::timer_fd::TimerFd;

use super::WaitOptions;
use super::machine::{Look, Machine, Next};
use crate::error::WaitError;
use crate::timeline::Timeline;

/// Becomes readable when it is time to look again.
enum Alarm {
    /// A page: a timer.
    Timer(TimerFd),
    /// A manually driven clock: a flag that it sets.
    Flag(Arc<EventFd>),
}

impl Alarm {
    fn arm(&self, after: Duration) -> io::Result<()> {
        match self {
            Self::Timer(timer) => timer.arm(after),
            Self::Flag(_) => Ok(()),
        }
    }

    /// Makes it readable at once.
    fn fire(&self) -> io::Result<()> {
        match self {
            Self::Timer(timer) => timer.arm(Duration::ZERO),
            Self::Flag(flag) => flag.set(),
        }
    }

    fn clear(&self) -> io::Result<bool> {
        match self {
            Self::Timer(timer) => timer.clear(),
            Self::Flag(flag) => flag.clear(),
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Timer(timer) => timer.as_fd(),
            Self::Flag(flag) => flag.as_fd(),
        }
    }
}

/// A machine with its timeline and its alarm. Dropping it ends the wait.
pub(crate) struct Driver<M> {
    timeline: Timeline,
    alarm: Alarm,
    machine: M,
}

impl<M: Machine> Driver<M> {
    /// Creates it unarmed; call [`Self::step`] first.
    pub(crate) fn new(timeline: &Timeline, machine: M) -> Result<Self, WaitError> {
        let alarm = match &timeline.shared.waiters {
            Some(waiters) => Alarm::Flag(waiters.register()?),
            None => Alarm::Timer(TimerFd::new()?),
        };
        Ok(Self { timeline: timeline.clone(), alarm, machine })
    }

    /// Looks; arms the alarm unless there is an outcome.
    pub(crate) fn step(&mut self) -> Result<Option<M::Outcome>, WaitError> {
        // In this order, so that anything that happens after the look sets the alarm again.
        self.alarm.clear()?;
        loop {
            let (reading, snapshot) = self.timeline.look()?;
            let look = Look { reading, snapshot, need: self.timeline.need() };
            match self.machine.step(&look)? {
                Next::Arm(after) => {
                    self.alarm.arm(after)?;
                    self.goes_on();
                    return Ok(None);
                }
                Next::Again if matches!(self.alarm, Alarm::Timer(_)) => core::hint::spin_loop(),
                // A manually driven clock would not move while we spin.
                Next::Again => {
                    self.goes_on();
                    return Ok(None);
                }
                Next::Done(outcome) => return Ok(Some(outcome)),
            }
        }
    }

    /// For tests that drive a clock: counts the looks that ended in further waiting.
    fn goes_on(&self) {
        #[cfg(test)]
        if let Some(waiters) = &self.timeline.shared.waiters {
            waiters.looks.fetch_add(1, core::sync::atomic::Ordering::SeqCst);
        }
    }

    pub(crate) fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// Makes the descriptor unreadable, because nothing more is due.
    pub(crate) fn rest(&self) -> Result<(), WaitError> {
        self.alarm.clear()?;
        Ok(())
    }

    /// Makes the descriptor readable at once, because more is due.
    pub(crate) fn fire(&self) -> Result<(), WaitError> {
        Ok(self.alarm.fire()?)
    }

    /// Sleeps until there is an outcome.
    pub(crate) fn block(&mut self, options: &WaitOptions) -> Result<M::Outcome, WaitError> {
        // Timeouts use this machine's own clock: they limit the wait, and are not instants of the
        // timeline.
        let deadline = options.timeout.and_then(|span| Instant::now().checked_add(span));
        loop {
            if let Some(outcome) = self.step()? {
                return Ok(outcome);
            }
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(WaitError::TimedOut);
            }
            let alarm = PollFd::readable(self.alarm.as_fd());
            let cancelled = match &options.cancel {
                None => {
                    poll::wait(&mut [alarm], left)?;
                    false
                }
                Some(cancel) => {
                    let mut fds = [alarm, PollFd::readable(cancel.as_fd())];
                    poll::wait(&mut fds, left)?;
                    fds[1].ready().readable
                }
            };
            if cancelled {
                return Err(WaitError::Cancelled);
            }
        }
    }
}

impl<M> AsFd for Driver<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }
}
