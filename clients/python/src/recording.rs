//! `Recorder` and `Recording`: a timeline's past in a file. `PacketStamps`.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::arguments::InstantNs;
use crate::errors::{self, OrRaise};
use crate::reading::Reading;
use crate::records;
use crate::unhurried::Unhurried;
use crate::words::{Object, make};

/// Appends what a timeline's page says to a file, as a context manager.
#[pyclass(frozen, module = "timevisor")]
pub struct Recorder {
    /// None: closed.
    held: Mutex<Option<Unhurried<timevisor::Recorder>>>,
}

impl Recorder {
    pub fn new(recorder: timevisor::Recorder) -> Self {
        Self { held: Mutex::new(Some(Unhurried::new(recorder))) }
    }

    fn take(&self) -> Option<Unhurried<timevisor::Recorder>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Recorder {
    /// Looks at the page, and appends what it says if that is new.
    fn observe(&self, py: Python<'_>) -> PyResult<bool> {
        // Whoever holds the lock may be writing to a slow disk.
        let done = py.detach(|| {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *held {
                Some(recorder) if !recorder.is_a_forks_copy() => Some(recorder.get_mut().observe()),
                _ => None,
            }
        });
        done.ok_or_else(|| errors::closed(py))?.or_raise(py)
    }

    /// Looks once more, and hands everything to the disk. A second time does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match py.detach(|| self.take()) {
            Some(recorder) if !recorder.is_a_forks_copy() => {
                py.detach(|| recorder.into_inner().close()).or_raise(py)
            }
            _ => Ok(()),
        }
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }
}

/// A timeline's past. It needs no page.
#[pyclass(frozen, module = "timevisor")]
pub struct Recording(timevisor::Recording);

#[pymethods]
impl Recording {
    /// Reads a whole recording.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| timevisor::Recording::open(path)).or_raise(py).map(Self)
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn is_torn(&self) -> bool {
        self.0.is_torn()
    }

    #[getter]
    fn segments<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let each = self
            .0
            .segments()
            .map(|s| make(py, "Segment", (s.since, s.until, s.publications, s.disruption)));
        each.collect()
    }

    /// The time at which the counter was at `stamp`.
    fn convert(&self, py: Python<'_>, stamp: u64) -> PyResult<Reading> {
        self.0.convert(stamp).or_raise(py).map(Reading)
    }

    /// The time of something that happened between two stamps.
    fn convert_between(&self, py: Python<'_>, first: u64, last: u64) -> PyResult<Reading> {
        self.0.convert_between(first, last).or_raise(py).map(Reading)
    }

    /// How much true time went by between two stamps.
    fn span<'py>(&self, py: Python<'py>, from_stamp: u64, to_stamp: u64) -> Object<'py> {
        records::measured_span(py, &self.0.span(from_stamp, to_stamp).or_raise(py)?)
    }
}

/// The kernel's stamps of packets as counter values.
#[pyclass(frozen, module = "timevisor")]
pub struct PacketStamps(pub timevisor::PacketStamps);

#[pymethods]
impl PacketStamps {
    /// The counter values between which the kernel stamped a packet.
    fn stamp_of(&self, py: Python<'_>, realtime_ns: InstantNs) -> PyResult<(u64, u64)> {
        self.0.stamp_of(realtime_ns.0).or_raise(py)
    }
}
