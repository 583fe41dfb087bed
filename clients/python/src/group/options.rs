//! How to join, out of Python's arguments.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use timevisor::group::{BusAddress, Secret};

use crate::arguments::Span;
use crate::errors::OrRaise;
use crate::manual;
use crate::requirement::Requirement;

/// The text of a key's file, as str or bytes.
pub struct Key(Secret);

impl FromPyObject<'_, '_> for Key {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let secret = match value.cast::<PyBytes>() {
            Ok(bytes) => Secret::parse(bytes.as_bytes()),
            Err(_) => Secret::parse(value.extract::<String>()?.as_bytes()),
        };
        secret.or_raise(value.py()).map(Self)
    }
}

/// What Python gives as a bus: where it listens, or one for tests.
pub enum AnyBus {
    At(PathBuf),
    Manual(timevisor::manual::Bus),
}

impl FromPyObject<'_, '_> for AnyBus {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match value.cast::<manual::Bus>() {
            Ok(bus) => Ok(Self::Manual(bus.get().0.clone())),
            Err(_) => value.extract().map(Self::At),
        }
    }
}

/// Where a bus listens.
pub struct Bus(BusAddress);

impl Bus {
    /// A socket's path, `tls://HOST:PORT` with the file of its certificate's authority, or a bus for tests.
    pub fn new(
        py: Python<'_>,
        at: Option<AnyBus>,
        authority: Option<&Path>,
    ) -> PyResult<Option<Self>> {
        let path = match at {
            None => return Ok(None),
            Some(AnyBus::Manual(_)) if authority.is_some() => {
                return Err(PyValueError::new_err("a manual.Bus has no authority; leave it out"));
            }
            Some(AnyBus::Manual(bus)) => return Ok(Some(Self(bus.into()))),
            Some(AnyBus::At(path)) => path,
        };
        let address = match path.to_str() {
            Some(text) => BusAddress::parse(text, authority).or_raise(py)?,
            None => path.into(),
        };
        Ok(Some(Self(address)))
    }
}

/// What both ways to join have in common.
pub struct JoinOptions {
    pub requirement: Option<Requirement>,
    pub bus: Option<Bus>,
    pub key: Option<Key>,
    pub lease: Option<Span>,
}

impl JoinOptions {
    pub fn into_rust(self, timeline: &str) -> timevisor::group::JoinOptions {
        let usual = timevisor::group::JoinOptions::default();
        timevisor::group::JoinOptions {
            timeline: timeline.to_owned(),
            requirement: self.requirement.map(|requirement| requirement.0),
            bus: self.bus.map(|bus| bus.0),
            key: self.key.map(|key| key.0),
            lease: self.lease.map_or(usual.lease, |lease| lease.0),
        }
    }
}

/// A span, or what is usual.
pub fn span_or(span: Option<Span>, usual: Duration) -> Duration {
    span.map_or(usual, |span| span.0)
}
