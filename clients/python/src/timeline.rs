//! `Timeline`: read, convert, compare, and begin waits.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use timevisor::MissedTicks;

use crate::arguments::{InstantNs, Span};
use crate::errors::OrRaise;
use crate::pins::{PinEvents, edges_from};
use crate::reading::Reading;
use crate::recording::{PacketStamps, Recorder};
use crate::records;
use crate::requirement::Requirement;
use crate::wait::{AtFd, Cancel, Patience, Periodic, WaitFd, Watch, When, once};
use crate::words::{self, Object};

/// A handle to one timeline, for any thread.
#[pyclass(frozen, subclass, module = "timevisor")]
pub struct Timeline(pub timevisor::Timeline);

// Reading keeps the GIL: it is shorter than giving it up, and after giving it up the reading would
// be old. (Where the writer of the page died inside an update, it fails after 200 ms.)
#[pymethods]
impl Timeline {
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Now.
    fn now(&self, py: Python<'_>) -> PyResult<Reading> {
        self.0.now().or_raise(py).map(Reading)
    }

    /// The counter, to be converted later.
    fn stamp(&self) -> u64 {
        self.0.stamp()
    }

    /// The time at which the counter was at `stamp`.
    fn convert(&self, py: Python<'_>, stamp: u64) -> PyResult<Reading> {
        self.0.convert(stamp).or_raise(py).map(Reading)
    }

    /// The time of something that happened while the counter went from `first` to `last`.
    fn convert_between(&self, py: Python<'_>, first: u64, last: u64) -> PyResult<Reading> {
        self.0.convert_between(first, last).or_raise(py).map(Reading)
    }

    /// How much true time went by between two stamps.
    fn span<'py>(&self, py: Python<'py>, from_stamp: u64, to_stamp: u64) -> Object<'py> {
        records::measured_span(py, &self.0.span(from_stamp, to_stamp).or_raise(py)?)
    }

    /// Records the timeline from now on into a file.
    fn record_to(&self, py: Python<'_>, path: PathBuf) -> PyResult<Recorder> {
        py.detach(|| self.0.record_to(path)).or_raise(py).map(Recorder::new)
    }

    /// Begins to watch CLOCK_REALTIME, so that stamps of packets can be placed on the counter.
    fn packet_stamps(&self, py: Python<'_>) -> PyResult<PacketStamps> {
        self.0.packet_stamps().or_raise(py).map(PacketStamps)
    }

    /// Edges of a GPIO line, from now on.
    #[pyo3(signature = (chip, line, edges="both", *, cancel=None))]
    fn line_events(
        &self,
        py: Python<'_>,
        chip: PathBuf,
        line: u32,
        edges: &str,
        cancel: Option<Cancel>,
    ) -> PyResult<PinEvents> {
        let events = self.0.line_events(chip, line, edges_from(edges)?).or_raise(py)?;
        Ok(PinEvents::new(events, Patience::new(None, None, cancel)))
    }

    /// Edges at a channel of a PTP clock, from now on. Not tested on hardware.
    #[pyo3(signature = (device, channel, edges="both", *, cancel=None))]
    fn ptp_events(
        &self,
        py: Python<'_>,
        device: PathBuf,
        channel: u32,
        edges: &str,
        cancel: Option<Cancel>,
    ) -> PyResult<PinEvents> {
        let edges = edges_from(edges)?;
        let events = py.detach(|| self.0.ptp_events(device, channel, edges)).or_raise(py)?;
        Ok(PinEvents::new(events, Patience::new(None, None, cancel)))
    }

    /// Records the present publication for later conversions.
    fn observe(&self, py: Python<'_>) -> PyResult<()> {
        self.0.observe().or_raise(py)
    }

    fn compare_to<'py>(&self, py: Python<'py>, t_ns: InstantNs) -> Object<'py> {
        words::comparison(py, self.0.compare_to(t_ns.0).or_raise(py)?)
    }

    fn is_surely_before(&self, py: Python<'_>, t_ns: InstantNs) -> PyResult<bool> {
        self.0.is_surely_before(t_ns.0).or_raise(py)
    }

    fn is_surely_past(&self, py: Python<'_>, t_ns: InstantNs) -> PyResult<bool> {
        self.0.is_surely_past(t_ns.0).or_raise(py)
    }

    /// Until when true time stays within `half_width_ns` of the estimate if nothing new is learned.
    fn valid_until<'py>(&self, py: Python<'py>, half_width_ns: Span) -> Object<'py> {
        words::valid_until(py, self.0.valid_until(half_width_ns.0).or_raise(py)?)
    }

    /// The same timeline, judged by another requirement; nobody is told.
    fn with_requirement(&self, py: Python<'_>, requirement: Requirement) -> PyResult<Self> {
        self.0.with_requirement(&requirement.0).or_raise(py).map(Self)
    }

    /// Waits until the estimate has reached `t_ns`.
    #[pyo3(signature = (t_ns, *, spin_ns=None, timeout_ns=None, cancel=None))]
    fn wait_until<'py>(
        &self,
        py: Python<'py>,
        t_ns: InstantNs,
        spin_ns: Option<Span>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        let when = timevisor::When::Until(t_ns.0);
        self.wait_for(py, when, &Patience::new(spin_ns, timeout_ns, cancel))
    }

    /// Waits until `t_ns` has surely passed on every right clock.
    #[pyo3(signature = (t_ns, *, spin_ns=None, timeout_ns=None, cancel=None))]
    fn wait_past<'py>(
        &self,
        py: Python<'py>,
        t_ns: InstantNs,
        spin_ns: Option<Span>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        let when = timevisor::When::Past(t_ns.0);
        self.wait_for(py, when, &Patience::new(spin_ns, timeout_ns, cancel))
    }

    /// Waits until `lead_ns` before the last moment that is surely before `t_ns`.
    #[pyo3(signature = (t_ns, lead_ns, *, spin_ns=None, timeout_ns=None, cancel=None))]
    fn wait_surely_before<'py>(
        &self,
        py: Python<'py>,
        t_ns: InstantNs,
        lead_ns: Span,
        spin_ns: Option<Span>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        let when = timevisor::When::SurelyBefore { t_ns: t_ns.0, lead: lead_ns.0 };
        self.wait_for(py, when, &Patience::new(spin_ns, timeout_ns, cancel))
    }

    /// Sleeps for this long on this timeline.
    #[pyo3(signature = (span_ns, *, spin_ns=None, timeout_ns=None, cancel=None))]
    fn sleep<'py>(
        &self,
        py: Python<'py>,
        span_ns: Span,
        spin_ns: Option<Span>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        let when = timevisor::When::For(span_ns.0);
        self.wait_for(py, when, &Patience::new(spin_ns, timeout_ns, cancel))
    }

    /// Waits until the time is known and meets the handle's requirement.
    #[pyo3(signature = (timeout_ns=None, *, cancel=None))]
    fn wait_met<'py>(
        &self,
        py: Python<'py>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        self.wait_for(py, timevisor::When::Met, &Patience::new(None, timeout_ns, cancel))
    }

    /// The same waits as a descriptor for an event loop.
    #[pyo3(signature = (when, *, spin_ns=None))]
    fn wait_fd(&self, py: Python<'_>, when: When, spin_ns: Option<Span>) -> PyResult<WaitFd> {
        let spin = spin_ns.map_or(Duration::ZERO, |span| span.0);
        self.0.wait_fd(when.0, spin).or_raise(py).map(WaitFd::new)
    }

    /// Waits until the estimate has reached `t_ns`, provided that the clock is then within
    /// `max_error_ns` and that it is not yet later than `latest_ns`.
    #[pyo3(signature = (t_ns, *, latest_ns, max_error_ns=None, spin_ns=None, timeout_ns=None, cancel=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn at<'py>(
        &self,
        py: Python<'py>,
        t_ns: InstantNs,
        latest_ns: InstantNs,
        max_error_ns: Option<Span>,
        spin_ns: Option<Span>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        let patience = Patience::new(spin_ns, timeout_ns, cancel);
        let max_error = max_error_ns.map(|span| span.0);
        let source = self.0.at_fd(t_ns.0, max_error, latest_ns.0, patience.spin).or_raise(py)?;
        records::outcome(py, once(py, source, &patience)?)
    }

    /// The same as a descriptor for an event loop.
    #[pyo3(signature = (t_ns, *, latest_ns, max_error_ns=None, spin_ns=None))]
    fn at_fd(
        &self,
        py: Python<'_>,
        t_ns: InstantNs,
        latest_ns: InstantNs,
        max_error_ns: Option<Span>,
        spin_ns: Option<Span>,
    ) -> PyResult<AtFd> {
        let max_error = max_error_ns.map(|span| span.0);
        let spin = spin_ns.map_or(Duration::ZERO, |span| span.0);
        self.0.at_fd(t_ns.0, max_error, latest_ns.0, spin).or_raise(py).map(AtFd::new)
    }

    /// Every period of the timeline, at `phase_ns` and multiples of the period before and after it.
    #[pyo3(signature = (period_ns, phase_ns=InstantNs(0), missed="skip", *, spin_ns=None, cancel=None),
        text_signature = "($self, period_ns, phase_ns=0, missed='skip', *, spin_ns=None, cancel=None)")]
    fn periodic(
        &self,
        py: Python<'_>,
        period_ns: Span,
        phase_ns: InstantNs,
        missed: &str,
        spin_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> PyResult<Periodic> {
        let missed = match missed {
            "skip" => MissedTicks::Skip,
            "catch_up" => MissedTicks::CatchUp,
            "coalesce" => MissedTicks::Coalesce,
            other => {
                let text = format!("'{other}' is no policy: give 'skip', 'catch_up' or 'coalesce'");
                return Err(PyValueError::new_err(text));
            }
        };
        let ticks = self.0.periodic(period_ns.0, phase_ns.0, missed).or_raise(py)?;
        Ok(Periodic::new(ticks, Patience::new(spin_ns, None, cancel)))
    }

    /// What happens to the timeline and to its requirement, from now on.
    #[pyo3(signature = (*, cancel=None))]
    fn watch(&self, py: Python<'_>, cancel: Option<Cancel>) -> PyResult<Watch> {
        let watch = self.0.watch().or_raise(py)?;
        Ok(Watch::new(watch, Patience::new(None, None, cancel)))
    }

    fn __repr__(&self) -> String {
        format!("<timevisor.Timeline {:?}>", self.0.name())
    }
}

impl Timeline {
    fn wait_for<'py>(
        &self,
        py: Python<'py>,
        when: timevisor::When,
        patience: &Patience,
    ) -> Object<'py> {
        let source = self.0.wait_fd(when, patience.spin).or_raise(py)?;
        records::waited(py, once(py, source, patience)?)
    }
}
