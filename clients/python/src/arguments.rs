//! Instants and spans out of what Python passes: integers of nanoseconds, and `datetime.timedelta`
//! for spans.
//!
//! A float cannot hold today's nanoseconds (it is off by up to 128 of them), so floats are refused
//! everywhere, even where they would be exact enough.

use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDelta, PyDeltaAccess, PyFloat};

/// An instant, ns since the timeline's epoch.
#[derive(Clone, Copy)]
pub struct InstantNs(pub i64);

impl FromPyObject<'_, '_> for InstantNs {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        integer(&value, "an instant is an int of nanoseconds since the timeline's epoch", "")
            .map(Self)
    }
}

/// A span, ns or a timedelta, never below 0.
#[derive(Clone, Copy)]
pub struct Span(pub Duration);

impl FromPyObject<'_, '_> for Span {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let negative =
            || PyValueError::new_err("a span cannot be negative; subtract in the other order");
        if let Ok(delta) = value.cast::<PyDelta>() {
            // Python keeps 0 <= seconds < 86400 and 0 <= microseconds < 10^6; only days has a sign.
            let days = u64::try_from(delta.get_days()).map_err(|_| negative())?;
            let seconds = days * 86_400 + u64::try_from(delta.get_seconds())?;
            let microseconds = u64::try_from(delta.get_microseconds())?;
            return Ok(Self(Duration::from_secs(seconds) + Duration::from_micros(microseconds)));
        }
        let what = "a span is an int of nanoseconds or a datetime.timedelta";
        let ns = integer(&value, what, "; 10 ms are 10_000_000 or timedelta(milliseconds=10)")?;
        u64::try_from(ns).map(|ns| Self(Duration::from_nanos(ns))).map_err(|_| negative())
    }
}

fn integer(value: &Bound<'_, PyAny>, what: &str, example: &str) -> PyResult<i64> {
    let py = value.py();
    if value.is_instance_of::<PyFloat>() {
        let text = format!("{what}, not a float, which cannot hold nanoseconds{example}");
        return Err(PyTypeError::new_err(text));
    }
    value.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyTypeError>(py) {
            let got =
                value.get_type().name().map_or_else(|_| "something else".into(), |n| n.to_string());
            PyTypeError::new_err(format!("{what}, not {got}{example}"))
        } else if error.is_instance_of::<PyOverflowError>(py) {
            PyOverflowError::new_err(format!("{what}, within 292 years (64 bits)"))
        } else {
            error
        }
    })
}
