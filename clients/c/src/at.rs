//! An action at its time if the clock is good enough then, or not at all.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;
use std::time::Duration;

use timevisor::{AtFd, AtOutcome, WaitError};

use crate::error::{Failure, NOT_YET, guard};
use crate::memory::{In, InOut, Out, give, handle, ns, span};
use crate::pending::Pending;
use crate::timeline::timevisor_timeline;
use crate::types::{
    TIMEVISOR_ANY_ERROR_NS, timevisor_at_result, timevisor_outcome, timevisor_reading,
    timevisor_wait_options,
};
use crate::wait::wait_options;

/// Waits until the estimate has reached t_ns, provided that true time is then within max_error_ns
/// of it and that it is not later than latest_ns; both are checked at the beginning, too.
///
/// max_error_ns: TIMEVISOR_ANY_ERROR_NS accepts any. `options` and `result` may be NULL.
/// Returns a timevisor_outcome, of which only 0 (TIMEVISOR_OUTCOME_FIRED) says: do it; -ENODATA:
/// the time is not known; -ETIMEDOUT, -ECANCELED: as the options say; -EIO, -EIDRM; -EINVAL, also
/// when latest_ns < t_ns. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_at(
    timeline: Option<&timevisor_timeline>,
    t_ns: i64,
    max_error_ns: i64,
    latest_ns: i64,
    options: In<'_, timevisor_wait_options>,
    mut result: InOut<'_, timevisor_at_result>,
) -> c_int {
    guard(|| {
        result.check()?;
        let timeline = &handle(timeline, "timeline")?.timeline;
        let (most, options) = (max_error(max_error_ns)?, wait_options(&options)?);
        tell(&mut result, timeline.at_with(t_ns, most, latest_ns, &options))
    })
}

/// An action's time for an event loop. One thread at a time.
pub struct timevisor_at_handle {
    pending: Pending<AtFd>,
}

/// Begins to wait for an action's time. An event loop polls a descriptor for the outcome.
///
/// Arguments as for timevisor_at; spin_ns as in timevisor_wait_options.
/// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_at_start(
    timeline: Option<&timevisor_timeline>,
    t_ns: i64,
    max_error_ns: i64,
    latest_ns: i64,
    spin_ns: i64,
    at: Out<'_, *mut timevisor_at_handle>,
) -> c_int {
    guard(|| {
        give(at, || {
            let timeline = &handle(timeline, "timeline")?.timeline;
            let (most, spin) = (max_error(max_error_ns)?, span(spin_ns, "spin_ns")?);
            let at = timeline.at_fd(t_ns, most, latest_ns, spin)?;
            Ok(timevisor_at_handle { pending: Pending::new(at) })
        })
    })
}

/// The descriptor to poll: see timevisor_wait_fd.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_at_fd(at: Option<&timevisor_at_handle>) -> c_int {
    guard(|| Ok(handle(at, "at")?.pending.fd()))
}

/// Looks whether there is an outcome: see timevisor_wait_on_ready. `result` may be NULL.
///
/// Returns a timevisor_outcome, of which only 0 says: do it; -EAGAIN: none yet, poll again (also
/// after there was one); -EBUSY: another thread is in this function; otherwise as timevisor_at.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_at_on_ready(
    at: Option<&timevisor_at_handle>,
    mut result: InOut<'_, timevisor_at_result>,
) -> c_int {
    guard(|| {
        result.check()?;
        let outcome = handle(at, "at")?.pending.with(|at| Ok(at.on_ready()))?;
        match outcome.transpose() {
            Some(outcome) => tell(&mut result, outcome),
            None => Ok(NOT_YET),
        }
    })
}

/// Frees it, which cancels the wait. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_at_free(at: Option<Box<timevisor_at_handle>>) {
    drop(at);
}

fn max_error(max_error_ns: i64) -> Result<Option<Duration>, Failure> {
    match max_error_ns {
        TIMEVISOR_ANY_ERROR_NS => Ok(None),
        most => span(most, "max_error_ns").map(Some),
    }
}

fn tell(
    to: &mut InOut<'_, timevisor_at_result>,
    outcome: Result<AtOutcome, WaitError>,
) -> Result<c_int, Failure> {
    let outcome = outcome?;
    let (kind, actual_ns, error_ns, too_late_by_ns) = match outcome {
        AtOutcome::Fired { actual_ns, error_ns, .. } => {
            (timevisor_outcome::Fired, actual_ns, ns(error_ns), 0)
        }
        AtOutcome::TooLate { by_ns, .. } => (timevisor_outcome::TooLate, 0, 0, by_ns),
        AtOutcome::QotViolated { half_width_ns, .. } => {
            (timevisor_outcome::QotViolated, 0, ns(half_width_ns), 0)
        }
        AtOutcome::Disrupted { .. } => (timevisor_outcome::Disrupted, 0, 0, 0),
    };
    to.fill_if_wanted(|to| {
        to.outcome = kind as i32;
        (to.actual_ns, to.error_ns, to.too_late_by_ns) = (actual_ns, error_ns, too_late_by_ns);
        timevisor_reading::put(to.reading, outcome.reading())
    })?;
    Ok(kind as c_int)
}
