//! `Cancel`: ends waits from another thread.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use pyo3::prelude::*;

/// Ends waits from another thread. Once cancelled it stays so.
#[pyclass(frozen, from_py_object, module = "timevisor")]
#[derive(Clone)]
pub struct Cancel(pub timevisor::Cancel);

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(timevisor::Cancel::new()?))
    }

    /// Ends all waits that were given this, now and later.
    fn cancel(&self) {
        self.0.cancel();
    }

    /// Readable once cancelled.
    fn fileno(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}
