//! The group's errors as exceptions of python/timevisor/_errors.py.

use pyo3::prelude::*;
use timevisor::group::{GroupError, JoinError, ProposeError, Refusal, SecretError};

use crate::errors::{Raise, chain, exception, with};
use crate::words;

impl Raise for JoinError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let plain = |class| exception(py, class, chain(self), None);
        match self {
            Self::Bind(error) => error.raise(py),
            Self::Timeline(error) => error.raise(py),
            Self::Requirement(error) => error.raise(py),
            Self::Name(..) | Self::Address(..) => plain("Invalid"),
            Self::NoBus(tried) => with(py, "NoBus", chain(self), "tried", words::tried(py, tried)),
            Self::Silent => plain("TimedOut"),
            Self::Refused(refusal, _) => {
                with(py, "Refused", chain(self), "code", Ok(code(*refusal)))
            }
            Self::Random(_) | Self::Io(_) => plain("KernelRefused"),
        }
    }
}

impl Raise for GroupError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::Name(..) | Self::Leader(_) => "Invalid",
            Self::TooLong(_) | Self::Propose(ProposeError::TooLong(_)) => "TooLong",
            Self::Disconnected => "Disconnected",
            Self::TimedOut => "TimedOut",
            Self::NoMember(_) => "NoMember",
            Self::WaitsAlready(_) => "WaitsAlready",
            Self::Propose(_) => "CannotPropose",
            Self::Left | Self::Forked => "Left",
            Self::Descriptor(_) => "KernelRefused",
        };
        exception(py, class, chain(self), None)
    }
}

impl Raise for SecretError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let text = format!("{}; make one with `timevisor cluster key FILE`", chain(self));
        exception(py, "Invalid", text, None)
    }
}

/// A use of a group that was left.
pub fn left(py: Python<'_>) -> PyErr {
    GroupError::Left.raise(py)
}

/// A use of the parent process's membership.
pub fn forked(py: Python<'_>) -> PyErr {
    GroupError::Forked.raise(py)
}

fn code(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Version => "version",
        Refusal::Name => "name",
        Refusal::NameTaken => "name_taken",
        Refusal::Timeline => "timeline",
        Refusal::Key => "key",
        Refusal::Full => "full",
        Refusal::Handle => "handle",
        Refusal::Message => "message",
        Refusal::Removed => "removed",
    }
}
