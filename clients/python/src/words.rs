//! The dataclasses and enums of python/timevisor/_words.py, made from the client's values; those
//! that contain a reading or a requirement are in `records`.

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyTuple};
use timevisor::{Achieved, Comparison, Epoch, Lease, ProblemCode, Tried, ValidUntil};

pub type Object<'py> = PyResult<Bound<'py, PyAny>>;

/// An instance of one of the classes, or a member (by value) of one of the enums.
pub fn make<'py>(py: Python<'py>, class: &str, fields: impl PyCallArgs<'py>) -> Object<'py> {
    static WORDS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let words = WORDS.get_or_try_init(py, || py.import("timevisor._words").map(Bound::unbind))?;
    words.bind(py).getattr(class)?.call1(fields)
}

pub fn comparison(py: Python<'_>, order: Comparison) -> Object<'_> {
    let value = match order {
        Comparison::Before => "before",
        Comparison::After => "after",
        Comparison::Uncertain => "uncertain",
    };
    make(py, "Comparison", (value,))
}

pub fn epoch(py: Python<'_>, epoch: Epoch) -> Object<'_> {
    let value = match epoch {
        Epoch::Tai => "tai",
        Epoch::Utc => "utc",
        Epoch::Local => "local",
    };
    make(py, "Epoch", (value,))
}

pub fn achieved<'py>(py: Python<'py>, a: &Achieved) -> Object<'py> {
    make(py, "Achieved", (a.below_ns, a.above_ns, a.estimated_error_ns, a.resolution_ns))
}

pub fn lease<'py>(py: Python<'py>, lease: &Lease) -> Object<'py> {
    match lease {
        Lease::Held => make(py, "Held", ()),
        Lease::Lost(why) => make(py, "Lost", (why,)),
    }
}

pub fn tried<'py>(py: Python<'py>, all: &[Tried]) -> PyResult<Bound<'py, PyTuple>> {
    let each: PyResult<Vec<_>> =
        all.iter().map(|t| make(py, "Tried", (&t.place, &t.why))).collect();
    PyTuple::new(py, each?)
}

pub fn valid_until(py: Python<'_>, valid: ValidUntil) -> Object<'_> {
    match valid {
        ValidUntil::Exceeded => make(py, "Exceeded", ()),
        ValidUntil::Until { estimate_ns, counter } => make(py, "Until", (estimate_ns, counter)),
        ValidUntil::Unlimited => make(py, "Unlimited", ()),
    }
}

pub fn problem_code(code: ProblemCode) -> &'static str {
    match code {
        ProblemCode::BadRequest => "bad_request",
        ProblemCode::Version => "version",
        ProblemCode::Session => "session",
        ProblemCode::NotFound => "not_found",
        ProblemCode::Exists => "exists",
        ProblemCode::CannotBeMet => "cannot_be_met",
        ProblemCode::Quota => "quota",
        ProblemCode::RateLimited => "rate_limited",
        ProblemCode::Unavailable => "unavailable",
    }
}
