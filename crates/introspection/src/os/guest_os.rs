//! The interface of a guest system that was recognized: `linux/`, `freertos/` and `segments/` implement it.

use core::fmt::Debug;

use crate::backend::RawEvent;
use crate::memory::{GuestMemory, PageTables};
use crate::point::Point;
use crate::tasks::event::Event;
use crate::tasks::table::{Task, Tasks};

/// A guest that was recognized.
pub trait GuestOs: Debug + Send {
    /// What it is, with its version: `Linux 6.12.95`.
    fn name(&self) -> String;

    /// What its kernel's addresses are mapped by; `None` where the guest has no page tables.
    fn address_space(&self) -> Option<PageTables> {
        None
    }

    /// Address of an array with the GS_BASE of each of its processors, in the order of the vCPUs; `None` where it has none.
    fn processor_bases(&self) -> Option<u64> {
        None
    }

    /// The address of guest-physical 0 where its kernel has all of its memory in order, so that nothing needs to be walked there; `None` where
    /// it has none.
    fn linear(&self) -> Option<u64> {
        None
    }

    /// A number that changes as long as its kernel runs: what an earlier kernel left in memory looks the same, and stands still.
    fn heartbeat(&self, _memory: &dyn GuestMemory) -> Option<u64> {
        None
    }

    /// Its real-time tasks now, ascending by tid, whoever saw them begin; `None` where there is no way to know. The guest runs meanwhile, and one
    /// look may see what never was: [`begun`](crate::tasks::initial_scan).
    ///
    /// # Errors
    /// Why this look saw nothing.
    fn running(&self, _memory: &dyn GuestMemory) -> Result<Option<Vec<Task>>, String> {
        Ok(None)
    }

    /// Whether this very kernel is still where it was found, with nothing at its points: what can be read at once. That it runs is said by its
    /// heartbeat only. `false` where that cannot be known: then it is looked for anew.
    fn is_there(&self, _memory: &dyn GuestMemory) -> bool {
        false
    }

    /// Where to trap, and what to read there.
    fn points(&self) -> &[Point];

    /// Adds a point at the entry of all system calls, or, for a backend that needs a NOP, at the beginnings of all of them. Nobody needs it: it
    /// shows what that would cost.
    ///
    /// # Errors
    /// Where there is none.
    fn every_system_call(&mut self, _needs_slot: bool) -> Result<(), String> {
        Err(format!("{} has no system calls that are known here", self.name()))
    }

    /// What a point of [`Self::points`] had to tell.
    ///
    /// # Errors
    /// When it is of no such point, or a read that it needs has failed.
    fn event(&self, raw: &RawEvent) -> Result<Event, DecodeError>;

    /// The real-time tasks that events have told about.
    fn tasks(&self) -> &Tasks;

    /// The same, to be kept up to date.
    fn tasks_mut(&mut self) -> &mut Tasks;

    /// [`Self::event`], which the table of tasks learns of.
    ///
    /// # Errors
    /// The same.
    fn decode(&mut self, raw: &RawEvent) -> Result<Event, DecodeError> {
        let event = self.event(raw)?;
        self.tasks_mut().on_event(&event);
        Ok(event)
    }

    /// Forgets what events told: after a detachment, a reboot, or events that were lost.
    fn cleanup(&mut self) {
        *self.tasks_mut() = Tasks::default();
    }
}

/// An event that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// No point has this id.
    #[error("an event of point {0}, which does not exist")]
    Point(u16),
    /// A read failed.
    #[error("an event of point {point} without its read {read}: the guest's memory was not there")]
    Read {
        /// The point.
        point: u16,
        /// Which one.
        read: usize,
    },
}
