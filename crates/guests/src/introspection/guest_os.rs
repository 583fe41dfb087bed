//! What there is to know about one kind of guest: the interface that `linux/` implements.

use core::fmt::Debug;

use super::event::{Event, RawEvent};
use super::linux;
use super::memory::{GuestMemory, PageTables};
use super::point::Point;
use super::tasks::Tasks;

/// Why a plugin does not know a guest.
#[derive(Debug, thiserror::Error)]
#[error("not {name} {versions}: {reason}")]
pub struct NotThis {
    /// The plugin's name.
    pub name: &'static str,
    /// What it knows.
    pub versions: &'static str,
    /// What is missing.
    pub reason: String,
}

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

    /// Where to trap, and what to read there.
    fn points(&self) -> &[Point];

    /// What a point of [`Self::points`] had to tell. It also keeps the table of tasks.
    ///
    /// # Errors
    /// When it is of no such point, or a read that it needs has failed.
    fn decode(&mut self, raw: &RawEvent) -> Result<Event, DecodeError>;

    /// The real-time tasks that events have told about.
    fn tasks(&self) -> &Tasks;

    /// Forgets what events told: after a detachment, a reboot, or events that were lost.
    fn cleanup(&mut self);
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

/// Looks for one kind of guest in memory: the guest, or why it is none.
pub type Probe = fn(&dyn GuestMemory) -> Result<Box<dyn GuestOs>, String>;

/// One kind of guest.
#[derive(Clone, Copy)]
pub struct Plugin {
    /// Its name.
    pub name: &'static str,
    /// Which versions it was tested with.
    pub versions: &'static str,
    /// Looks for it in memory.
    pub probe: Probe,
}

/// All that there are.
pub const PLUGINS: &[Plugin] = &[linux::PLUGIN];

/// The guest in this memory.
///
/// # Errors
/// Why each plugin does not know it.
pub fn probe(memory: &dyn GuestMemory) -> Result<Box<dyn GuestOs>, Vec<NotThis>> {
    let mut reasons = Vec::new();
    for plugin in PLUGINS {
        match (plugin.probe)(memory) {
            Ok(guest) => return Ok(guest),
            Err(reason) => {
                reasons.push(NotThis { name: plugin.name, versions: plugin.versions, reason });
            }
        }
    }
    Err(reasons)
}
