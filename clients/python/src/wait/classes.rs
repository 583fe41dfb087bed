//! What Python holds of a wait: `WaitFd`, `AtFd`, `Periodic`, `Watch`; and `When`.

use std::os::fd::RawFd;

use pyo3::prelude::*;

use super::block::Patience;
use super::cancel::Cancel;
use super::shared::Shared;
use crate::arguments::{InstantNs, Span};
use crate::records;
use crate::words::Object;

/// What to wait for.
#[pyclass(frozen, eq, from_py_object, module = "timevisor")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct When(pub timevisor::When);

#[pymethods]
impl When {
    /// The estimate has reached this.
    #[staticmethod]
    fn until(t_ns: InstantNs) -> Self {
        Self(timevisor::When::Until(t_ns.0))
    }

    /// This has surely passed: earliest is after it.
    #[staticmethod]
    fn past(t_ns: InstantNs) -> Self {
        Self(timevisor::When::Past(t_ns.0))
    }

    /// This long before the last moment that is surely before it: latest + lead has reached it, and
    /// latest has not.
    #[staticmethod]
    fn surely_before(t_ns: InstantNs, lead_ns: Span) -> Self {
        Self(timevisor::When::SurelyBefore { t_ns: t_ns.0, lead: lead_ns.0 })
    }

    /// This long on the timeline, counted from the beginning of the wait.
    #[staticmethod]
    fn sleep(span_ns: Span) -> Self {
        Self(timevisor::When::For(span_ns.0))
    }

    /// The time is known and meets the handle's requirement.
    #[staticmethod]
    fn met() -> Self {
        Self(timevisor::When::Met)
    }

    fn __repr__(&self) -> String {
        match self.0 {
            timevisor::When::Until(t_ns) => format!("When.until({t_ns})"),
            timevisor::When::Past(t_ns) => format!("When.past({t_ns})"),
            timevisor::When::SurelyBefore { t_ns, lead } => {
                format!("When.surely_before({t_ns}, {})", lead.as_nanos())
            }
            timevisor::When::For(span) => format!("When.sleep({})", span.as_nanos()),
            timevisor::When::Met => "When.met()".to_owned(),
        }
    }
}

/// A wait for an event loop: when the descriptor is readable, call `on_ready`. Closing it cancels
/// the wait.
#[pyclass(frozen, module = "timevisor")]
pub struct WaitFd(Shared<timevisor::WaitFd>);

impl WaitFd {
    pub fn new(wait: timevisor::WaitFd) -> Self {
        Self(Shared::new(wait))
    }
}

#[pymethods]
impl WaitFd {
    fn fileno(&self) -> PyResult<RawFd> {
        self.0.fileno()
    }

    /// Looks whether the time has come; None: not yet, poll again.
    fn on_ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.on_ready(py)?.map(|waited| records::waited(py, waited)).transpose()
    }

    fn close(&self) -> PyResult<()> {
        self.0.close()
    }
}

/// An action's time for an event loop: when the descriptor is readable, call `on_ready`. Closing it
/// cancels.
#[pyclass(frozen, module = "timevisor")]
pub struct AtFd(Shared<timevisor::AtFd>);

impl AtFd {
    pub fn new(at: timevisor::AtFd) -> Self {
        Self(Shared::new(at))
    }
}

#[pymethods]
impl AtFd {
    fn fileno(&self) -> PyResult<RawFd> {
        self.0.fileno()
    }

    /// Looks whether there is an outcome; None: not yet, poll again.
    fn on_ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.on_ready(py)?.map(|outcome| records::outcome(py, outcome)).transpose()
    }

    fn close(&self) -> PyResult<()> {
        self.0.close()
    }
}

/// Ticks for ever: an iterator, `tick`, or a descriptor for an event loop.
#[pyclass(frozen, module = "timevisor")]
pub struct Periodic {
    ticks: Shared<timevisor::Periodic>,
    patience: Patience,
}

impl Periodic {
    pub fn new(ticks: timevisor::Periodic, patience: Patience) -> Self {
        Self { ticks: Shared::new(ticks), patience }
    }
}

#[pymethods]
impl Periodic {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> Object<'py> {
        records::tick(py, self.ticks.block(py, &self.patience)?)
    }

    /// Waits for the next tick.
    #[pyo3(signature = (*, spin_ns=None, timeout_ns=None, cancel=None))]
    fn tick<'py>(
        &self,
        py: Python<'py>,
        spin_ns: Option<Span>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        records::tick(py, self.ticks.block(py, &Patience::new(spin_ns, timeout_ns, cancel))?)
    }

    fn fileno(&self) -> PyResult<RawFd> {
        self.ticks.fileno()
    }

    /// Looks whether a tick is due; None: not yet, poll again.
    fn on_ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.ticks.on_ready(py)?.map(|tick| records::tick(py, tick)).transpose()
    }

    fn close(&self) -> PyResult<()> {
        self.ticks.close()
    }
}

/// Changes for ever: an iterator, `event`, or a descriptor for an event loop.
#[pyclass(frozen, module = "timevisor")]
pub struct Watch {
    changes: Shared<timevisor::Watch>,
    patience: Patience,
}

impl Watch {
    pub fn new(watch: timevisor::Watch, patience: Patience) -> Self {
        Self { changes: Shared::new(watch), patience }
    }
}

#[pymethods]
impl Watch {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> Object<'py> {
        records::event(py, self.changes.block(py, &self.patience)?)
    }

    /// Waits for the next change.
    #[pyo3(signature = (*, timeout_ns=None, cancel=None))]
    fn event<'py>(
        &self,
        py: Python<'py>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        let patience = Patience::new(None, timeout_ns, cancel);
        records::event(py, self.changes.block(py, &patience)?)
    }

    fn fileno(&self) -> PyResult<RawFd> {
        self.changes.fileno()
    }

    /// Looks whether something happened; None: nothing, poll again.
    fn on_ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.changes.on_ready(py)?.map(|event| records::event(py, event)).transpose()
    }

    fn close(&self) -> PyResult<()> {
        self.changes.close()
    }
}
