//! The client's errors as the exceptions of python/timevisor/_errors.py: the same words, the causes
//! appended.

use pyo3::BoundObject;
use pyo3::prelude::*;
use pyo3::types::PyAny;
use timevisor::{
    BindError, ConnectError, ConvertError, ElapsedError, HostCpuTimeError, InvalidRequirement,
    PacketStampError, ReadError, RecordingError, TimelineError, WaitError,
};

use crate::reading::Reading;
use crate::words;

/// An exception with that text, and one attribute.
pub fn exception(
    py: Python<'_>,
    class: &str,
    text: String,
    more: Option<(&str, Bound<'_, PyAny>)>,
) -> PyErr {
    let make = || {
        let error = py.import("timevisor._errors")?.getattr(class)?.call1((text,))?;
        if let Some((name, value)) = more {
            error.setattr(name, value)?;
        }
        Ok(PyErr::from_value(error))
    };
    make().unwrap_or_else(|error: PyErr| error)
}

/// A use of a binding that was withdrawn.
pub fn withdrawn(py: Python<'_>) -> PyErr {
    exception(py, "Withdrawn", "the requirement was withdrawn; bind again".to_owned(), None)
}

/// A request through a copy of the parent process's channel.
pub fn forked(py: Python<'_>) -> PyErr {
    let text = "the channel belongs to the process that forked this one; connect again in this one";
    exception(py, "ChannelFailed", text.to_owned(), None)
}

/// A use of a recorder that was closed, or is the parent process's.
pub fn closed(py: Python<'_>) -> PyErr {
    let text =
        "the recorder was closed, or belongs to the process that forked this one; record again";
    exception(py, "RecordingUnusable", text.to_owned(), None)
}

/// The text with its causes, unless it contains them already.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(cause) = inner {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        inner = cause.source();
    }
    text
}

/// Made where the GIL is held again.
pub trait Raise {
    fn raise(&self, py: Python<'_>) -> PyErr;
}

/// For `result.or_raise(py)?`.
pub trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Raise> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| error.raise(py))
    }
}

/// Returns `made`, or the exception that was raised while making it.
pub fn with<'py>(
    py: Python<'py>,
    class: &str,
    text: String,
    name: &str,
    made: PyResult<impl IntoPyObject<'py, Error: Into<PyErr>>>,
) -> PyErr {
    let value = made
        .and_then(|v| v.into_pyobject(py).map_err(Into::into).map(|v| v.into_bound().into_any()));
    match value {
        Ok(value) => exception(py, class, text, Some((name, value))),
        Err(error) => error,
    }
}

impl Raise for ConnectError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        with(py, "NoPage", chain(self), "tried", words::tried(py, &self.tried))
    }
}

impl Raise for TimelineError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::NotFound(_) => "NotFound",
            Self::Page(_) | Self::Counter(_) | Self::OtherPage(_) => "PageUnusable",
        };
        exception(py, class, chain(self), None)
    }
}

impl Raise for HostCpuTimeError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Page(error) => error.raise(py),
            Self::Read(error) => error.raise(py),
        }
    }
}

impl Raise for ReadError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::WriterStalled => "WriterStalled",
            Self::OutOfOrder => "OutOfOrder",
            Self::Gone => "Gone",
            Self::Truncated => "PageUnusable",
        };
        exception(py, class, chain(self), None)
    }
}

impl Raise for ConvertError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Read(error) => error.raise(py),
            Self::TooOld { since } => with(py, "TooOld", chain(self), "since", Ok(*since)),
            Self::TooNew { until } => with(py, "TooNew", chain(self), "until", Ok(*until)),
            Self::Unobserved { from, until } => {
                let error = with(py, "Unobserved", chain(self), "since", Ok(*from));
                error.value(py).setattr("until", *until).err().unwrap_or(error)
            }
            Self::Disrupted { since } => {
                with(py, "AcrossDisruption", chain(self), "since", Ok(*since))
            }
            Self::Ambiguous { .. } => exception(py, "Ambiguous", chain(self), None),
            Self::WrongOrder => exception(py, "OutOfRange", chain(self), None),
            Self::Unknown => exception(py, "Unknown", chain(self), None),
            Self::Contradiction => exception(py, "Contradiction", chain(self), None),
        }
    }
}

impl Raise for RecordingError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::Read(error) => return error.raise(py),
            Self::File { .. } => "KernelRefused",
            Self::NotARecording
            | Self::Version(_)
            | Self::Damaged { .. }
            | Self::OtherClock(_)
            | Self::Busy(_) => "RecordingUnusable",
        };
        exception(py, class, chain(self), None)
    }
}

impl Raise for PacketStampError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::Read(error) => return error.raise(py),
            Self::ClockWasSet => "ClockWasSet",
            Self::TooOld | Self::Future => "OutOfRange",
            Self::NoCounter(_) => "PageUnusable",
            Self::System(_) => "KernelRefused",
        };
        exception(py, class, chain(self), None)
    }
}

impl Raise for ElapsedError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Read(error) => error.raise(py),
            Self::Unknown => exception(py, "Unknown", chain(self), None),
            Self::Timescale(_) | Self::Saved(_) => exception(py, "Invalid", chain(self), None),
        }
    }
}

impl Raise for WaitError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let plain = |class| exception(py, class, chain(self), None);
        let read = |class, reading| with(py, class, chain(self), "reading", Ok(Reading(reading)));
        match self {
            Self::Read(error) => error.raise(py),
            Self::Disrupted { reading } => read("DisruptedError", *reading),
            Self::Unreliable { reading } => read("Unreliable", *reading),
            Self::TooLate { by_ns, reading } => {
                let error = read("TooLateError", *reading);
                error.value(py).setattr("by_ns", *by_ns).err().unwrap_or(error)
            }
            Self::Unknown => plain("Unknown"),
            Self::Cancelled => plain("Cancelled"),
            Self::TimedOut => plain("TimedOut"),
            Self::OutOfRange(_) => plain("OutOfRange"),
            Self::System(_) => plain("KernelRefused"),
        }
    }
}

impl Raise for InvalidRequirement {
    fn raise(&self, py: Python<'_>) -> PyErr {
        exception(py, "Invalid", chain(self), None)
    }
}

impl Raise for BindError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let plain = |class| exception(py, class, chain(self), None);
        match self {
            Self::Timeline(error) => error.raise(py),
            Self::Invalid(_) | Self::Name(_) => plain("Invalid"),
            Self::NoChannel { tried } => {
                with(py, "NoChannel", chain(self), "tried", words::tried(py, tried))
            }
            Self::CannotBeMet { achievable, .. } => {
                with(py, "CannotBeMet", chain(self), "achievable", words::achieved(py, achievable))
            }
            Self::Refused(problem) => {
                let code = words::problem_code(problem.code);
                let class = if code == "not_found" { "NotFound" } else { "Refused" };
                with(py, class, chain(self), "code", Ok(code))
            }
            Self::Channel(_) => plain("ChannelFailed"),
            Self::TimedOut(_) => plain("TimedOut"),
        }
    }
}
