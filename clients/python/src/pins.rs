//! `PinEvents`, `OutputLine`, `OutputFd`, `PtpPins`: events at pins, and outputs at a time.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use timevisor::AtOutcome;
use timevisor::pins::{self, Changed, Edge, Edges, PinError, PinEvent, PinFunction};

use crate::arguments::{InstantNs, Span};
use crate::errors::{OrRaise, Raise, chain, exception, with};
use crate::reading::Reading;
use crate::timeline::Timeline;
use crate::wait::{Cancel, Patience, Shared, Source, once};
use crate::words::{Object, make};

/// How late an output may be unless told otherwise.
const LATE_AT_MOST: Duration = Duration::from_millis(10);

impl Source for pins::PinEvents {
    type Outcome = PinEvent;
    type Error = PinError;
    fn on_ready(&mut self) -> Result<Option<PinEvent>, PinError> {
        self.on_ready()
    }
}

impl Source for pins::OutputFd {
    type Outcome = Changed;
    type Error = PinError;
    fn on_ready(&mut self) -> Result<Option<Changed>, PinError> {
        self.on_ready()
    }
}

impl Raise for PinError {
    fn raise(&self, py: Python<'_>) -> PyErr {
        let plain = |class| exception(py, class, chain(self), None);
        let read = |class, reading| with(py, class, chain(self), "reading", Ok(Reading(reading)));
        match self {
            Self::Wait(error) => error.raise(py),
            Self::Counter(pins::Unplaced::Read(error)) => error.raise(py),
            Self::Counter(pins::Unplaced::Convert(error)) => error.raise(py),
            Self::Counter(_) => plain("PageUnusable"),
            Self::Refused { .. }
            | Self::NoPin { .. }
            | Self::NoComparison(_)
            | Self::NotTaken { .. } => plain("PinUnusable"),
            Self::Unplaced { edge, lost, .. } => unplaced(py, self, *edge, *lost),
            Self::Undated { .. } | Self::MayHaveChanged { .. } => unplaced(py, self, None, 0),
            Self::NotChanged(outcome) => match **outcome {
                AtOutcome::TooLate { by_ns, reading } => {
                    let error = read("TooLateError", reading);
                    error.value(py).setattr("by_ns", by_ns).err().unwrap_or(error)
                }
                AtOutcome::Disrupted { reading } => read("DisruptedError", reading),
                AtOutcome::QotViolated { reading, .. } | AtOutcome::Fired { reading, .. } => {
                    read("NotMet", reading)
                }
            },
            Self::OutOfRange(_) => plain("OutOfRange"),
            Self::System(_) => plain("KernelRefused"),
        }
    }
}

fn unplaced(py: Python<'_>, error: &PinError, edge: Option<Edge>, lost: u32) -> PyErr {
    let made = with(py, "Unplaced", chain(error), "edge", edge_word(py, edge));
    made.value(py).setattr("lost", lost).err().unwrap_or(made)
}

fn edge_word(py: Python<'_>, edge: Option<Edge>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let word = |edge| match edge {
        Edge::Rising => "rising",
        Edge::Falling => "falling",
    };
    edge.map(|edge| make(py, "Edge", (word(edge),))).transpose()
}

fn event(py: Python<'_>, event: PinEvent) -> Object<'_> {
    let edge = edge_word(py, event.edge)?;
    make(py, "PinEvent", (edge, event.lost, event.first, event.last, Reading(event.reading)))
}

fn changed(py: Python<'_>, c: Changed) -> Object<'_> {
    make(py, "Changed", (c.lateness_ns, c.first, c.last, Reading(c.reading)))
}

/// An `Edges` or its word.
pub fn edges_from(word: &str) -> PyResult<Edges> {
    match word {
        "rising" => Ok(Edges::Rising),
        "falling" => Ok(Edges::Falling),
        "both" => Ok(Edges::Both),
        other => {
            let text = format!("'{other}' is no edge: give 'rising', 'falling' or 'both'");
            Err(PyValueError::new_err(text))
        }
    }
}

/// Edges for ever: an iterator, `event`, or a descriptor for an event loop.
#[pyclass(frozen, module = "timevisor")]
pub struct PinEvents {
    events: Shared<pins::PinEvents>,
    patience: Patience,
}

impl PinEvents {
    pub fn new(events: pins::PinEvents, patience: Patience) -> Self {
        Self { events: Shared::new(events), patience }
    }
}

#[pymethods]
impl PinEvents {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> Object<'py> {
        event(py, self.events.block(py, &self.patience)?)
    }

    /// Waits for the next edge.
    #[pyo3(signature = (*, timeout_ns=None, cancel=None))]
    fn event<'py>(
        &self,
        py: Python<'py>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        event(py, self.events.block(py, &Patience::new(None, timeout_ns, cancel))?)
    }

    fn fileno(&self) -> PyResult<RawFd> {
        self.events.fileno()
    }

    /// Takes the next edge; None: there is none, poll again.
    fn on_ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.events.on_ready(py)?.map(|found| event(py, found)).transpose()
    }

    fn close(&self) -> PyResult<()> {
        self.events.close()
    }
}

/// A GPIO line as an output.
#[pyclass(frozen, module = "timevisor")]
pub struct OutputLine(pins::OutputLine);

#[pymethods]
impl OutputLine {
    /// Takes a line of a chip as an output that begins active or not.
    #[new]
    #[pyo3(signature = (chip, line, active=false))]
    fn new(py: Python<'_>, chip: PathBuf, line: u32, active: bool) -> PyResult<Self> {
        pins::OutputLine::open(chip, line, active).or_raise(py).map(Self)
    }

    /// Makes it active or inactive now.
    fn set(&self, py: Python<'_>, active: bool) -> PyResult<()> {
        self.0.set(active).or_raise(py)
    }

    /// Whether it is active.
    fn get(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.get().or_raise(py)
    }

    /// Waits until the estimate has reached `t_ns`, and then makes it active or inactive.
    #[pyo3(signature = (timeline, t_ns, active, *, late_at_most_ns=None, spin_ns=None, timeout_ns=None, cancel=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn at<'py>(
        &self,
        py: Python<'py>,
        timeline: &Timeline,
        t_ns: InstantNs,
        active: bool,
        late_at_most_ns: Option<Span>,
        spin_ns: Option<Span>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        let patience = Patience::new(spin_ns, timeout_ns, cancel);
        let late = late_at_most_ns.map_or(LATE_AT_MOST, |span| span.0);
        let at = self.0.at_fd(&timeline.0, t_ns.0, active, late, patience.spin).or_raise(py)?;
        changed(py, once(py, at, &patience)?)
    }

    /// The same as a descriptor for an event loop.
    #[pyo3(signature = (timeline, t_ns, active, *, late_at_most_ns=None, spin_ns=None))]
    fn at_fd(
        &self,
        py: Python<'_>,
        timeline: &Timeline,
        t_ns: InstantNs,
        active: bool,
        late_at_most_ns: Option<Span>,
        spin_ns: Option<Span>,
    ) -> PyResult<OutputFd> {
        let late = late_at_most_ns.map_or(LATE_AT_MOST, |span| span.0);
        let spin = spin_ns.map_or(Duration::ZERO, |span| span.0);
        let at = self.0.at_fd(&timeline.0, t_ns.0, active, late, spin).or_raise(py)?;
        Ok(OutputFd(Shared::new(at)))
    }
}

/// An output's time for an event loop: when the descriptor is readable, call `on_ready`. Closing it
/// leaves the line as it is.
#[pyclass(frozen, module = "timevisor")]
pub struct OutputFd(Shared<pins::OutputFd>);

#[pymethods]
impl OutputFd {
    fn fileno(&self) -> PyResult<RawFd> {
        self.0.fileno()
    }

    /// Changes the line if its time has come; None: not yet, poll again.
    fn on_ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.on_ready(py)?.map(|found| changed(py, found)).transpose()
    }

    fn close(&self) -> PyResult<()> {
        self.0.close()
    }
}

/// The pins of a PTP clock. Not tested on hardware.
#[pyclass(frozen, module = "timevisor")]
pub struct PtpPins(pins::PtpPins);

#[pymethods]
impl PtpPins {
    /// Opens a clock.
    #[new]
    fn new(py: Python<'_>, device: PathBuf) -> PyResult<Self> {
        pins::PtpPins::open(device).or_raise(py).map(Self)
    }

    /// How many pins have a function that can be chosen.
    #[getter]
    fn count(&self) -> u32 {
        self.0.count()
    }

    /// A pin, counted from 0.
    fn pin<'py>(&self, py: Python<'py>, index: u32) -> Object<'py> {
        let pin = self.0.pin(index).or_raise(py)?;
        let function =
            pin.function.map(|f| make(py, "PinFunction", (function_word(f),))).transpose()?;
        make(py, "Pin", (pin.name, pin.index, function, pin.channel))
    }

    /// Uses a pin for a channel of a function.
    fn set_pin(&self, py: Python<'_>, index: u32, function: &str, channel: u32) -> PyResult<()> {
        let all =
            [PinFunction::None, PinFunction::Timestamp, PinFunction::Output, PinFunction::PhySync];
        let found = all.into_iter().find(|known| function_word(*known) == function);
        let found = found.ok_or_else(|| {
            let words = all.map(function_word).join("', '");
            PyValueError::new_err(format!("'{function}' is no function: give one of '{words}'"))
        })?;
        self.0.set_pin(index, found, channel).or_raise(py)
    }

    /// Has an output's channel make one pulse, which begins when the estimate is `t_ns`.
    fn pulse_at<'py>(
        &self,
        py: Python<'py>,
        timeline: &Timeline,
        channel: u32,
        t_ns: InstantNs,
        width_ns: Span,
    ) -> Object<'py> {
        let (pins, timeline) = (&self.0, &timeline.0);
        let made = py.detach(|| pins.pulse_at(timeline, channel, t_ns.0, width_ns.0));
        let pulse = made.or_raise(py)?;
        make(py, "Pulse", (pulse.device_ns, pulse.first, pulse.last, Reading(pulse.reading)))
    }

    /// Ends what an output's channel does, or is to do.
    fn end_output(&self, py: Python<'_>, channel: u32) -> PyResult<()> {
        self.0.end_output(channel).or_raise(py)
    }
}

fn function_word(function: PinFunction) -> &'static str {
    match function {
        PinFunction::None => "none",
        PinFunction::Timestamp => "timestamp",
        PinFunction::Output => "output",
        PinFunction::PhySync => "phy_sync",
    }
}
