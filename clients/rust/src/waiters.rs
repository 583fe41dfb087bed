//! [`Waiters`]: wakes the waits on a manually driven clock when it is moved.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use timevisor_linux::event_fd::EventFd;

use crate::unpoisoned;

/// All waits on a manually driven clock.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    flags: Mutex<Vec<Weak<EventFd>>>,
    /// How often one of them looked and continued to wait.
    #[cfg(test)]
    pub(crate) looks: core::sync::atomic::AtomicUsize,
}

impl Waiters {
    /// A flag that is set whenever the clock changes.
    pub(crate) fn register(&self) -> io::Result<Arc<EventFd>> {
        let flag = Arc::new(EventFd::new()?);
        unpoisoned(self.flags.lock()).push(Arc::downgrade(&flag));
        Ok(flag)
    }

    pub(crate) fn wake(&self) {
        unpoisoned(self.flags.lock()).retain(|waiter| match waiter.upgrade() {
            // Setting a flag cannot fail (see EventFd::set).
            Some(flag) => flag.set().is_ok(),
            None => false,
        });
    }

    /// How many waits are under way.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        let waiters = unpoisoned(self.flags.lock());
        waiters.iter().filter(|waiter| waiter.strong_count() > 0).count()
    }
}
