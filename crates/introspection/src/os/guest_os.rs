//! The interface of a recognized guest system, which `linux/`, `freertos/`, `segments/` and
//! `described/` implement.

use core::fmt::Debug;

use crate::backend::RawEvent;
use crate::memory::{GuestMemory, PageTables};
use crate::point::Point;
use crate::tasks::event::Event;
use crate::tasks::table::{Task, Tasks};

/// A recognized guest.
pub trait GuestOs: Debug + Send {
    /// Its system and version: `Linux 6.12.95`.
    fn name(&self) -> String;

    /// The page tables of its kernel; `None` where the guest has no page tables.
    fn address_space(&self) -> Option<PageTables> {
        None
    }

    /// Guest-virtual address of an array with the GS base of each processor, in the order of the
    /// vCPUs; `None` if there is no such array.
    fn processor_bases(&self) -> Option<u64> {
        None
    }

    /// The guest-virtual address at which its kernel maps all memory contiguously, so that
    /// addresses there need no page walk; `None` if there is no such mapping.
    fn linear(&self) -> Option<u64> {
        None
    }

    /// A number that changes while its kernel runs. The heartbeat of an earlier kernel that is
    /// still in memory does not change.
    fn heartbeat(&self, _memory: &dyn GuestMemory) -> Option<u64> {
        None
    }

    /// The real-time tasks that run now, ascending by tid; `None` if they cannot be known. The
    /// guest runs meanwhile, so a single look may see a state that never existed
    /// ([`crate::tasks::initial_scan`]).
    ///
    /// # Errors
    /// Why this look failed.
    fn running(&self, _memory: &dyn GuestMemory) -> Result<Option<Vec<Task>>, String> {
        Ok(None)
    }

    /// Whether this kernel is still in memory at the same address, with no trap at its points. Only
    /// the heartbeat tells whether it also runs. `false` if that cannot be known; the caller then
    /// searches again.
    fn is_there(&self, _memory: &dyn GuestMemory) -> bool {
        false
    }

    /// Its trap points.
    fn points(&self) -> &[Point];

    /// Adds a point at the common entry of all system calls or, for a backend that needs a NOP, a
    /// point at the entry of each. Used only to measure the cost.
    ///
    /// # Errors
    /// When its system calls are unknown.
    fn every_system_call(&mut self, _needs_slot: bool) -> Result<(), String> {
        Err(format!("{} has no system calls that are known here", self.name()))
    }

    /// Decodes an event of one of its points.
    ///
    /// # Errors
    /// When there is no such point, or a read that the event needs has failed.
    fn event(&self, raw: &RawEvent) -> Result<Event, DecodeError>;

    /// What the author of a plugin calls this read of a point, if they name reads.
    fn read_name(&self, _point: u16, _read: usize) -> Option<&str> {
        None
    }

    /// The real-time tasks that events have reported.
    fn tasks(&self) -> &Tasks;

    /// The same tasks, for updates.
    fn tasks_mut(&mut self) -> &mut Tasks;

    /// Decodes an event, and updates the table of tasks.
    ///
    /// # Errors
    /// As [`Self::event`].
    fn decode(&mut self, raw: &RawEvent) -> Result<Event, DecodeError> {
        let event = self.event(raw)?;
        self.tasks_mut().on_event(&event);
        Ok(event)
    }

    /// Forgets all tasks: after a detachment, a reboot, or lost events.
    fn cleanup(&mut self) {
        *self.tasks_mut() = Tasks::default();
    }
}

/// Why an event cannot be decoded.
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
        /// Index of the read.
        read: usize,
    },
}
