//! `Elapsed`: how long something has been running, also over migrations and checkpoints.

use pyo3::prelude::*;
use timevisor::Blackouts;

use crate::errors::OrRaise;
use crate::reading::Reading;
use crate::timeline::Timeline;

/// An age that has begun, for any thread.
#[pyclass(frozen, module = "timevisor")]
pub struct Elapsed(timevisor::Elapsed);

#[pymethods]
impl Elapsed {
    /// Begins now.
    #[new]
    #[pyo3(signature = (timeline, *, exclude_blackouts=false))]
    fn new(py: Python<'_>, timeline: &Timeline, exclude_blackouts: bool) -> PyResult<Self> {
        let blackouts = if exclude_blackouts { Blackouts::Exclude } else { Blackouts::Count };
        timevisor::Elapsed::begin(&timeline.0, blackouts).or_raise(py).map(Self)
    }

    /// Resumes a saved age.
    #[staticmethod]
    fn resume(py: Python<'_>, timeline: &Timeline, saved: &str) -> PyResult<Self> {
        timevisor::Elapsed::resume(&timeline.0, saved).or_raise(py).map(Self)
    }

    /// The age now.
    fn now(&self, py: Python<'_>) -> PyResult<Reading> {
        self.0.now().or_raise(py).map(Reading)
    }

    /// As text.
    fn save(&self, py: Python<'_>) -> PyResult<String> {
        self.0.save().or_raise(py)
    }
}
