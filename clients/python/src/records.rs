//! The dataclasses of python/timevisor/_words.py that contain a [`Reading`] or a [`Requirement`].

use pyo3::prelude::*;
use timevisor::{AtOutcome, Change, Event, MeasuredSpan, Tick, TimelineRow, Waited};

use crate::reading::Reading;
use crate::requirement::Requirement;
use crate::words::{Object, achieved, epoch, make, valid_until};

pub fn row<'py>(py: Python<'py>, row: TimelineRow) -> Object<'py> {
    let required = row.required.map(|r| Requirement(r.into()));
    let (epoch, achieved) = (epoch(py, row.epoch)?, achieved(py, &row.achieved)?);
    make(py, "TimelineRow", (row.name, epoch, row.members, required, achieved, row.temporary))
}

pub fn waited(py: Python<'_>, waited: Waited) -> Object<'_> {
    make(py, "Waited", (waited.lateness_ns, Reading(waited.reading)))
}

pub fn measured_span<'py>(py: Python<'py>, span: &MeasuredSpan) -> Object<'py> {
    let status = make(py, "Status", (span.status().name(),))?;
    let fields = (span.shortest_ns(), span.estimate_ns(), span.longest_ns(), status);
    make(py, "MeasuredSpan", fields)
}

pub fn tick(py: Python<'_>, t: Tick) -> Object<'_> {
    make(py, "Tick", (t.scheduled_ns, t.lateness_ns, t.missed, Reading(t.reading)))
}

pub fn event(py: Python<'_>, event: Event) -> Object<'_> {
    let value = match event.change {
        Change::Met => "met",
        Change::Violated => "violated",
        Change::Holdover => "holdover",
        Change::Synchronized => "synchronized",
        Change::Disrupted => "disrupted",
    };
    let change = make(py, "Change", (value,))?;
    make(py, "Event", (change, valid_until(py, event.valid_until)?, Reading(event.reading)))
}

pub fn outcome(py: Python<'_>, outcome: AtOutcome) -> Object<'_> {
    match outcome {
        AtOutcome::Fired { actual_ns, error_ns, reading } => {
            // All ones mean unknown, which is None in Python.
            let error_ns = Some(error_ns).filter(|ns| *ns != u64::MAX);
            make(py, "Fired", (actual_ns, error_ns, Reading(reading)))
        }
        AtOutcome::TooLate { by_ns, reading } => make(py, "TooLate", (by_ns, Reading(reading))),
        AtOutcome::QotViolated { half_width_ns, reading } => {
            let half_width_ns = Some(half_width_ns).filter(|ns| *ns != u64::MAX);
            make(py, "QotViolated", (half_width_ns, Reading(reading)))
        }
        AtOutcome::Disrupted { reading } => make(py, "Disrupted", (Reading(reading),)),
    }
}
