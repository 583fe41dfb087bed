//! `Reading`: what a timeline says of one moment.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::prelude::*;

use crate::arguments::InstantNs;
use crate::words::{self, Object};

/// True time was between earliest and latest when the counter was at `counter`. Never changes.
#[pyclass(frozen, eq, from_py_object, module = "timevisor")]
#[derive(Clone, Copy, PartialEq)]
pub struct Reading(pub timevisor::Reading);

#[pymethods]
impl Reading {
    #[getter]
    fn earliest_ns(&self) -> i64 {
        self.0.earliest_ns()
    }

    #[getter]
    fn estimate_ns(&self) -> i64 {
        self.0.estimate_ns()
    }

    #[getter]
    fn latest_ns(&self) -> i64 {
        self.0.latest_ns()
    }

    #[getter]
    fn below_ns(&self) -> Option<u64> {
        self.0.below_ns()
    }

    #[getter]
    fn above_ns(&self) -> Option<u64> {
        self.0.above_ns()
    }

    #[getter]
    fn half_width_ns(&self) -> Option<u64> {
        self.0.half_width_ns()
    }

    #[getter]
    fn estimated_error_ns(&self) -> Option<u64> {
        self.0.estimated_error_ns()
    }

    #[getter]
    fn status<'py>(&self, py: Python<'py>) -> Object<'py> {
        words::make(py, "Status", (self.0.status().name(),))
    }

    #[getter]
    fn timescale<'py>(&self, py: Python<'py>) -> Object<'py> {
        words::make(py, "Timescale", (self.0.timescale().name(),))
    }

    #[getter]
    fn met(&self) -> bool {
        self.0.met()
    }

    #[getter]
    fn is_known(&self) -> bool {
        self.0.is_known()
    }

    #[getter]
    fn counter(&self) -> u64 {
        self.0.counter()
    }

    #[getter]
    fn disruption(&self) -> u64 {
        self.0.disruption()
    }

    #[getter]
    fn tai_offset(&self) -> Option<i16> {
        self.0.tai_offset()
    }

    /// Was this moment surely before `t_ns`, surely after it, or is that not known?
    fn compare_to<'py>(&self, py: Python<'py>, t_ns: InstantNs) -> Object<'py> {
        words::comparison(py, self.0.compare_to(t_ns.0))
    }

    /// Was this moment surely before that of `other`, surely after it, or is that not known?
    fn compare<'py>(&self, py: Python<'py>, other: Self) -> Object<'py> {
        words::comparison(py, self.0.compare(&other.0))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let r = &self.0;
        (r.counter(), r.disruption(), r.estimate().to_bits(), r.latest().to_bits())
            .hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        let r = &self.0;
        format!(
            "Reading(earliest_ns={}, estimate_ns={}, latest_ns={}, status='{}', met={}, timescale='{}')",
            r.earliest_ns(),
            r.estimate_ns(),
            r.latest_ns(),
            r.status().name(),
            if r.met() { "True" } else { "False" },
            r.timescale().name(),
        )
    }
}
