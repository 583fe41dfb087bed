//! `GroupWait`: a wait for a group, blocking or for an event loop.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use timevisor::group::{GroupError, Outcome};

use crate::group::records;
use crate::wait::{Patience, Shared, Source, until_outcome};
use crate::words::Object;

/// One of the waits for a group.
pub enum Waiting {
    Members(timevisor::group::GroupWait<()>),
    Barrier(timevisor::group::GroupWait<Duration>),
    Decision(timevisor::group::GroupWait<bool>),
    Outcome(timevisor::group::GroupWait<Outcome>),
}

/// What a wait ended with.
pub enum Happened {
    Members,
    Released(Duration),
    Decided(bool),
    Outcome(Outcome),
}

impl AsFd for Waiting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Members(wait) => wait.as_fd(),
            Self::Barrier(wait) => wait.as_fd(),
            Self::Decision(wait) => wait.as_fd(),
            Self::Outcome(wait) => wait.as_fd(),
        }
    }
}

impl Source for Waiting {
    type Outcome = Happened;
    type Error = GroupError;

    fn on_ready(&mut self) -> Result<Option<Happened>, GroupError> {
        Ok(match self {
            Self::Members(wait) => wait.on_ready()?.map(|()| Happened::Members),
            Self::Barrier(wait) => wait.on_ready()?.map(Happened::Released),
            Self::Decision(wait) => wait.on_ready()?.map(Happened::Decided),
            Self::Outcome(wait) => wait.on_ready()?.map(Happened::Outcome),
        })
    }

    fn give_up(self) -> Option<Happened> {
        match self {
            Self::Barrier(wait) => wait.give_up().map(Happened::Released),
            Self::Members(_) | Self::Decision(_) | Self::Outcome(_) => None,
        }
    }
}

impl Happened {
    pub fn tell(self, py: Python<'_>) -> Object<'_> {
        match self {
            Self::Members => true.into_bound_py_any(py),
            Self::Released(late) => {
                u64::try_from(late.as_nanos()).unwrap_or(u64::MAX).into_bound_py_any(py)
            }
            Self::Decided(commits) => commits.into_bound_py_any(py),
            Self::Outcome(outcome) => records::outcome(py, &outcome),
        }
    }
}

/// Blocks without the GIL.
pub fn block<'py>(py: Python<'py>, mut wait: Waiting, patience: &Patience) -> Object<'py> {
    let happened = match until_outcome(py, &mut wait, patience) {
        Ok(happened) => happened,
        // A release that was accepted at the last moment counts.
        Err(error) => py.detach(|| wait.give_up()).ok_or(error)?,
    };
    happened.tell(py)
}

/// A wait for an event loop: when the descriptor is readable, call `on_ready`. Closing it ends the
/// wait.
#[pyclass(frozen, module = "timevisor.group")]
pub struct GroupWait(Shared<Waiting>);

impl GroupWait {
    pub fn new(wait: Waiting) -> Self {
        Self(Shared::new(wait))
    }
}

#[pymethods]
impl GroupWait {
    fn fileno(&self) -> PyResult<RawFd> {
        self.0.fileno()
    }

    /// Looks whether it has happened; None: not yet, poll again.
    fn on_ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.on_ready(py)?.map(|happened| happened.tell(py)).transpose()
    }

    fn close(&self) -> PyResult<()> {
        self.0.close()
    }
}
