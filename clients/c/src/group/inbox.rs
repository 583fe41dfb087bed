//! What the three kinds of queues have in common: a descriptor, one thread at a time, and the entry
//! that was given last, which the caller's structure points into.

use core::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use timevisor::group::{GroupError, Inbox};

use crate::error::{Failure, NOT_YET};

/// A queue, and what was taken from it last.
pub(super) struct Entries<T> {
    inbox: Inbox<T>,
    last: Option<T>,
}

impl<T> AsFd for Entries<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.descriptor().expect("it was there when this was made")
    }
}

impl<T> Entries<T> {
    pub(super) fn begin(inbox: Inbox<T>) -> Result<Self, Failure> {
        inbox.descriptor().map_err(GroupError::from)?;
        Ok(Self { inbox, last: None })
    }

    /// Waits for the next entry, and gives it to `tell`; it stays until the next call.
    pub(super) fn next(
        &mut self,
        timeout: Duration,
        tell: impl FnOnce(&T) -> Result<(), Failure>,
    ) -> Result<c_int, Failure> {
        match self.inbox.next_within(timeout) {
            Some(entry) => self.give(entry, tell),
            None if self.inbox.is_forked() => Err(GroupError::Forked.into()),
            None if self.inbox.is_over() => Err(GroupError::Left.into()),
            None => Err(GroupError::TimedOut.into()),
        }
    }

    /// The same without waiting.
    pub(super) fn on_ready(
        &mut self,
        tell: impl FnOnce(&T) -> Result<(), Failure>,
    ) -> Result<c_int, Failure> {
        match self.inbox.try_next() {
            Some(entry) => self.give(entry, tell),
            None if self.inbox.is_forked() => Err(GroupError::Forked.into()),
            None if self.inbox.is_over() => Err(GroupError::Left.into()),
            None => Ok(NOT_YET),
        }
    }

    fn give(
        &mut self,
        entry: T,
        tell: impl FnOnce(&T) -> Result<(), Failure>,
    ) -> Result<c_int, Failure> {
        tell(self.last.insert(entry))?;
        Ok(0)
    }

    pub(super) fn last(&self) -> Option<&T> {
        self.last.as_ref()
    }

    /// How many entries were dropped since the last call, because nobody took them.
    pub(super) fn dropped(&self) -> c_int {
        c_int::try_from(self.inbox.dropped()).unwrap_or(c_int::MAX)
    }
}
