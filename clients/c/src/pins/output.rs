//! A GPIO line that changes at a time of a timeline, or not at all.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;

use timevisor::pins::{Changed, OutputFd, OutputLine, PinError};

use super::Refused;
use super::types::timevisor_changed;
use crate::error::{Failure, NOT_YET, guard};
use crate::memory::{In, InOut, Out, Text, give, handle, span};
use crate::pending::Pending;
use crate::timeline::timevisor_timeline;
use crate::types::{timevisor_outcome, timevisor_reading, timevisor_wait_options};
use crate::wait::wait_options;

/// A GPIO line as an output. For any number of threads at once.
pub struct timevisor_output {
    line: OutputLine,
}

/// An output's time for an event loop. One thread at a time.
pub struct timevisor_output_at_handle {
    pending: Pending<OutputFd>,
}

/// Takes a GPIO line as an output that begins active (not 0) or inactive.
///
/// Returns 0; otherwise as timevisor_line_events_start. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_output_open(
    chip: Text<'_>,
    line: u32,
    active: c_int,
    output: Out<'_, *mut timevisor_output>,
) -> c_int {
    guard(|| {
        give(output, || {
            let line = OutputLine::open(chip.require("chip")?, line, active != 0)?;
            Ok(timevisor_output { line })
        })
    })
}

/// Makes it active (not 0) or inactive now.
///
/// Returns 0, or the driver's error. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_output_set(output: Option<&timevisor_output>, active: c_int) -> c_int {
    guard(|| {
        handle(output, "output")?.line.set(active != 0)?;
        Ok(0)
    })
}

/// Whether it is active: 1 or 0, or the driver's error (some cannot read outputs). Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_output_get(output: Option<&timevisor_output>) -> c_int {
    guard(|| Ok(c_int::from(handle(output, "output")?.line.get()?)))
}

/// Waits until the estimate has reached t_ns, and then makes the line active (not 0) or inactive. It
/// does so only if the clock meets the timeline's requirement, at the beginning and then, was not
/// disrupted, and it is not later than late_at_most_ns after t_ns.
///
/// `options` and `changed` may be NULL.
/// Returns a timevisor_outcome, of which only 0 (TIMEVISOR_OUTCOME_FIRED) says that the line has
/// changed; TIMEVISOR_OUTCOME_TOO_LATE also when t_ns has come already. Negative: the line was not
/// changed (-ENODATA, -ETIMEDOUT, -ECANCELED and others, as timevisor_at), unless `first` is not 0:
/// then it has changed, but when is not known, or it reads back as the other value (-EIO). Any
/// thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_output_at(
    output: Option<&timevisor_output>,
    timeline: Option<&timevisor_timeline>,
    t_ns: i64,
    active: c_int,
    late_at_most_ns: i64,
    options: In<'_, timevisor_wait_options>,
    mut changed: InOut<'_, timevisor_changed>,
) -> c_int {
    guard(|| {
        changed.check()?;
        let line = &handle(output, "output")?.line;
        let timeline = &handle(timeline, "timeline")?.timeline;
        let late = span(late_at_most_ns, "late_at_most_ns")?;
        let options = wait_options(&options)?;
        tell(&mut changed, line.at_with(timeline, t_ns, active != 0, late, &options))
    })
}

/// Begins to wait for an output's time. An event loop polls a descriptor; the line changes within
/// timevisor_output_at_on_ready.
///
/// Arguments as for timevisor_output_at; spin_ns as in timevisor_wait_options.
/// Returns 0; -ETIME: t_ns has come already; -ERANGE: the clock does not meet the timeline's
/// requirement; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_output_at_start(
    output: Option<&timevisor_output>,
    timeline: Option<&timevisor_timeline>,
    t_ns: i64,
    active: c_int,
    late_at_most_ns: i64,
    spin_ns: i64,
    at: Out<'_, *mut timevisor_output_at_handle>,
) -> c_int {
    guard(|| {
        give(at, || {
            let line = &handle(output, "output")?.line;
            let timeline = &handle(timeline, "timeline")?.timeline;
            let late = span(late_at_most_ns, "late_at_most_ns")?;
            let spin = span(spin_ns, "spin_ns")?;
            let at = line.at_fd(timeline, t_ns, active != 0, late, spin)?;
            Ok(timevisor_output_at_handle { pending: Pending::new(at) })
        })
    })
}

/// The descriptor to poll: see timevisor_wait_fd.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_output_at_fd(at: Option<&timevisor_output_at_handle>) -> c_int {
    guard(|| Ok(handle(at, "at")?.pending.fd()))
}

/// Changes the line if its time has come. `changed` may be NULL.
///
/// Returns a timevisor_outcome, of which only 0 says that the line has changed; -EAGAIN: not yet,
/// poll again (also after there was an outcome); -EBUSY: another thread is in this function;
/// otherwise as timevisor_output_at.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_output_at_on_ready(
    at: Option<&timevisor_output_at_handle>,
    mut changed: InOut<'_, timevisor_changed>,
) -> c_int {
    guard(|| {
        changed.check()?;
        let outcome = handle(at, "at")?.pending.with(|at| Ok(at.on_ready()))?;
        match outcome.transpose() {
            Some(outcome) => tell(&mut changed, outcome),
            None => Ok(NOT_YET),
        }
    })
}

/// Frees it; before its time the line stays as it is. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_output_at_free(at: Option<Box<timevisor_output_at_handle>>) {
    drop(at);
}

/// Gives the line back, once no timevisor_output_at_handle uses it. NULL is allowed. Not while
/// another thread uses the handle.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_output_free(output: Option<Box<timevisor_output>>) {
    drop(output);
}

fn tell(
    to: &mut InOut<'_, timevisor_changed>,
    outcome: Result<Changed, PinError>,
) -> Result<c_int, Failure> {
    let refused = match outcome {
        Ok(Changed { lateness_ns, first, last, reading }) => {
            to.fill_if_wanted(|to| {
                (to.outcome, to.lateness_ns) = (timevisor_outcome::Fired as i32, lateness_ns);
                (to.too_late_by_ns, to.first, to.last) = (0, first, last);
                timevisor_reading::put(to.reading, &reading)
            })?;
            return Ok(timevisor_outcome::Fired as c_int);
        }
        Err(error) => Refused::new(error),
    };
    to.fill_if_wanted(|to| {
        (to.outcome, to.lateness_ns) = (refused.outcome, 0);
        (to.too_late_by_ns, to.first, to.last) =
            (refused.too_late_by_ns, refused.first, refused.last);
        refused.put_reading(to.reading)
    })?;
    refused.code()
}
