//! `Requirement`: what a program needs of a timeline.

use pyo3::prelude::*;

use crate::arguments::Span;
use crate::errors::OrRaise;

/// How far true time may be from the estimate, and how surely. Checked when it is made.
#[pyclass(frozen, eq, from_py_object, module = "timevisor")]
#[derive(Clone, Copy, PartialEq)]
pub struct Requirement(pub timevisor::Requirement);

impl Requirement {
    fn checked(py: Python<'_>, requirement: timevisor::Requirement) -> PyResult<Self> {
        requirement.validate().or_raise(py)?;
        Ok(Self(requirement))
    }
}

#[pymethods]
impl Requirement {
    /// True time is within this of the estimate, by the hard bounds.
    #[staticmethod]
    fn within(py: Python<'_>, half_width_ns: Span) -> PyResult<Self> {
        Self::checked(py, timevisor::Requirement::within(half_width_ns.0))
    }

    /// True time is at most this much before and after the estimate, by the hard bounds.
    #[staticmethod]
    fn between(py: Python<'_>, below_ns: Span, above_ns: Span) -> PyResult<Self> {
        Self::checked(py, timevisor::Requirement::between(below_ns.0, above_ns.0))
    }

    /// The clock must also tell instants apart that are this far from each other.
    fn with_resolution(&self, py: Python<'_>, resolution_ns: Span) -> PyResult<Self> {
        Self::checked(py, self.0.with_resolution(resolution_ns.0))
    }

    /// By the estimated error with this probability (0.5 <= p < 1) instead of by the hard bounds.
    fn with_probability(&self, py: Python<'_>, probability: f64) -> PyResult<Self> {
        Self::checked(py, self.0.with_probability(probability))
    }

    #[getter]
    fn below_ns(&self) -> u64 {
        self.0.below_ns()
    }

    #[getter]
    fn above_ns(&self) -> u64 {
        self.0.above_ns()
    }

    #[getter]
    fn resolution_ns(&self) -> Option<u64> {
        self.0.resolution_ns()
    }

    #[getter]
    fn probability(&self) -> Option<f64> {
        self.0.probability()
    }

    fn __repr__(&self) -> String {
        let mut text = format!("Requirement.between({}, {})", self.0.below_ns(), self.0.above_ns());
        if let Some(ns) = self.0.resolution_ns() {
            text += &format!(".with_resolution({ns})");
        }
        if let Some(p) = self.0.probability() {
            text += &format!(".with_probability({p})");
        }
        text
    }
}
