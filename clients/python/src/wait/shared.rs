//! [`Shared`]: a source that Python holds, used by one thread at a time.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, TryLockError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::block::{self, Patience};
use super::source::Source;
use crate::errors::OrRaise;

/// A source that Python holds. Two threads that wait on one source would take each other's
/// outcomes, so the second one gets an error.
pub struct Shared<S> {
    fd: RawFd,
    /// None: closed.
    source: Mutex<Option<S>>,
}

impl<S: Source> Shared<S> {
    pub fn new(source: S) -> Self {
        Self { fd: source.as_fd().as_raw_fd(), source: Mutex::new(Some(source)) }
    }

    pub fn with<T>(&self, work: impl FnOnce(&mut S) -> PyResult<T>) -> PyResult<T> {
        self.with_slot(|slot| match slot {
            Some(source) => work(source),
            None => Err(closed()),
        })
    }

    fn with_slot<T>(&self, work: impl FnOnce(&mut Option<S>) -> PyResult<T>) -> PyResult<T> {
        match self.source.try_lock() {
            Ok(mut slot) => work(&mut slot),
            Err(TryLockError::Poisoned(slot)) => work(&mut slot.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(
                "another thread is waiting on it; give each thread its own, and end waits with Cancel",
            )),
        }
    }

    /// May be called while another thread waits.
    pub fn fileno(&self) -> PyResult<RawFd> {
        match self.source.try_lock() {
            Ok(slot) if slot.is_none() => Err(closed()),
            _ => Ok(self.fd),
        }
    }

    pub fn on_ready(&self, py: Python<'_>) -> PyResult<Option<S::Outcome>> {
        // Without the GIL because it may spin.
        self.with(|source| py.detach(|| source.on_ready()).or_raise(py))
    }

    pub fn block(&self, py: Python<'_>, patience: &Patience) -> PyResult<S::Outcome> {
        self.with(|source| block::until_outcome(py, source, patience))
    }

    pub fn close(&self) -> PyResult<()> {
        self.with_slot(|slot| {
            *slot = None;
            Ok(())
        })
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("it is closed; begin a new one")
}
