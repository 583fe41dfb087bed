//! What the handles that wait have in common: a descriptor, and one user at a time.

use core::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, TryLockError};

use crate::error::Failure;

/// Something that is waited for.
pub(crate) struct Pending<T> {
    fd: RawFd,
    inner: Mutex<T>,
}

impl<T: AsFd> Pending<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { fd: inner.as_fd().as_raw_fd(), inner: Mutex::new(inner) }
    }

    /// For poll.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// Never waits for another thread: an event loop would stand still.
    pub(crate) fn with<R>(
        &self,
        then: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        match self.inner.try_lock() {
            Ok(mut inner) => then(&mut inner),
            Err(TryLockError::Poisoned(inner)) => then(&mut inner.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                libc::EBUSY,
                "another thread waits with this handle; give every thread its own handle",
            )),
        }
    }
}
