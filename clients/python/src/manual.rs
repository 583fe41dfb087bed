//! `Clock`: a clock that a test drives by hand. `Bus`: a bus in the test's process.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use timevisor::{Status, TimescaleId};

use crate::arguments::{InstantNs, Span};
use crate::errors::exception;
use crate::timeline::Timeline;

/// A bus in this process, which loses, delays and cuts as it is told.
#[pyclass(frozen, module = "timevisor.manual")]
pub struct Bus(pub timevisor::manual::Bus);

#[pymethods]
impl Bus {
    /// Starts one.
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        timevisor::manual::Bus::new().map(Self).map_err(|error| {
            exception(py, "KernelRefused", format!("no thread or descriptor: {error}"), None)
        })
    }

    /// Loses so many of a thousand messages from now on.
    #[pyo3(signature = (per_mille, seed=0))]
    fn lose(&self, per_mille: u32, seed: u64) {
        self.0.lose(per_mille, seed);
    }

    /// Messages come so much later from now on.
    fn delay(&self, by_ns: Span) {
        self.0.delay(by_ns.0);
    }

    /// Nothing comes from this member or to it from now on.
    fn cut(&self, member: &str) {
        self.0.cut(member);
    }

    /// Nobody is cut off any more, nothing is lost and nothing is late.
    fn heal(&self) {
        self.0.heal();
    }

    /// Ends all connections, and forgets what was kept.
    fn restart(&self) {
        self.0.restart();
    }
}

/// A clock that stands still until it is moved. Waits on it wake at once and never sleep.
#[pyclass(frozen, module = "timevisor.manual")]
pub struct Clock(timevisor::manual::Clock);

#[pymethods]
impl Clock {
    #[new]
    #[pyo3(signature = (now_ns, timescale="tai"))]
    fn new(now_ns: InstantNs, timescale: &str) -> PyResult<Self> {
        let id = [TimescaleId::Tai, TimescaleId::Utc, TimescaleId::Local];
        let id = id.into_iter().find(|id| id.name() == timescale).ok_or_else(|| {
            PyValueError::new_err(format!(
                "'{timescale}' is no timescale: give 'tai', 'utc' or 'local'"
            ))
        })?;
        Ok(Self(timevisor::manual::Clock::on(id, now_ns.0)))
    }

    /// A handle, as to a real timeline.
    fn timeline(&self) -> Timeline {
        Timeline(self.0.timeline())
    }

    /// Where it stands; None after `forget`.
    #[getter]
    fn now_ns(&self) -> Option<i64> {
        self.0.now_ns()
    }

    /// Advances time, and the counter with it.
    fn advance(&self, span_ns: Span) {
        self.0.advance(span_ns.0);
    }

    /// True time is within this of the estimate, on either side; at least 1 ns.
    fn set_error(&self, half_width_ns: Span) {
        self.0.set_error(half_width_ns.0);
    }

    /// True time is at most so much before and after the estimate; at least 1 ns each.
    fn set_errors(&self, below_ns: Span, above_ns: Span) {
        self.0.set_errors(below_ns.0, above_ns.0);
    }

    /// The bounds move out at this rate, parts per billion.
    fn set_growth_ppb(&self, ppb: u32) {
        self.0.set_growth_ppb(ppb);
    }

    /// One sigma of the estimate.
    fn set_estimated_error(&self, sigma_ns: Span) {
        self.0.set_estimated_error(sigma_ns.0);
    }

    /// Sets the clock's status.
    fn set_status(&self, status: &str) -> PyResult<()> {
        let all = [
            Status::Unknown,
            Status::Initializing,
            Status::Synchronized,
            Status::FreeRunning,
            Status::Unreliable,
        ];
        let Some(found) = all.into_iter().find(|known| known.name() == status) else {
            let names = all.map(Status::name).join(", ");
            return Err(PyValueError::new_err(format!(
                "'{status}' is no status: give one of {names}"
            )));
        };
        self.0.set_status(found);
        Ok(())
    }

    /// The clock steps, ahead or back, and signals a disruption.
    fn step(&self, to_ns: InstantNs) {
        self.0.step(to_ns.0);
    }

    /// Forgets the time, which is a disruption. `step` ends it.
    fn forget(&self) {
        self.0.forget();
    }

    fn __repr__(&self) -> String {
        match self.0.now_ns() {
            Some(now_ns) => format!("<timevisor.manual.Clock at {now_ns} ns>"),
            None => "<timevisor.manual.Clock, time unknown>".to_owned(),
        }
    }
}
