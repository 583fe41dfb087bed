//! Ticks on a grid of the timeline.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;

use timevisor::{Periodic, Tick, WaitError};

use crate::conversions::missed_ticks_from;
use crate::error::{Failure, NOT_YET, guard};
use crate::memory::{In, InOut, Out, give, handle, span};
use crate::pending::Pending;
use crate::timeline::timevisor_timeline;
use crate::types::{timevisor_reading, timevisor_tick, timevisor_wait_options};
use crate::wait::{reading_of, wait_options};

/// Ticks for ever. One thread at a time.
pub struct timevisor_periodic {
    pending: Pending<Periodic>,
}

/// Begins ticks: every period_ns of the timeline, at phase_ns and multiples of the period before
/// and after it, the same on every machine that shares the timeline.
///
/// missed_ticks: a timevisor_missed_ticks.
/// Returns 0; -EMFILE and the like: no descriptors; -EINVAL, also for a period below 1. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_periodic_start(
    timeline: Option<&timevisor_timeline>,
    period_ns: i64,
    phase_ns: i64,
    missed_ticks: c_int,
    periodic: Out<'_, *mut timevisor_periodic>,
) -> c_int {
    guard(|| {
        give(periodic, || {
            let timeline = &handle(timeline, "timeline")?.timeline;
            let period = span(period_ns, "period_ns")?;
            let missed = missed_ticks_from(missed_ticks)?;
            let periodic = timeline.periodic(period, phase_ns, missed)?;
            Ok(timevisor_periodic { pending: Pending::new(periodic) })
        })
    })
}

/// Waits for the next tick. `options` and `tick` may be NULL.
///
/// Returns 0; -ESTALE: the clock may have stepped (tick->reading has the first reading since), and
/// the next call starts over on the grid; -EBUSY: another thread waits with this handle; otherwise
/// as timevisor_wait. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_periodic_tick(
    periodic: Option<&timevisor_periodic>,
    options: In<'_, timevisor_wait_options>,
    mut tick: InOut<'_, timevisor_tick>,
) -> c_int {
    guard(|| {
        tick.check()?;
        let options = wait_options(&options)?;
        let periodic = &handle(periodic, "periodic")?.pending;
        let outcome = periodic.with(|periodic| Ok(periodic.tick_with(&options)))?;
        tell(&mut tick, outcome)
    })
}

/// The descriptor to poll: see timevisor_wait_fd.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_periodic_fd(periodic: Option<&timevisor_periodic>) -> c_int {
    guard(|| Ok(handle(periodic, "periodic")?.pending.fd()))
}

/// Looks whether a tick is due; never blocks. `tick` may be NULL.
///
/// Returns 0; -EAGAIN: not yet, poll again; otherwise as timevisor_periodic_tick, and the ticks go
/// on.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_periodic_on_ready(
    periodic: Option<&timevisor_periodic>,
    mut tick: InOut<'_, timevisor_tick>,
) -> c_int {
    guard(|| {
        tick.check()?;
        let periodic = &handle(periodic, "periodic")?.pending;
        match periodic.with(|periodic| Ok(periodic.on_ready()))?.transpose() {
            Some(outcome) => tell(&mut tick, outcome),
            None => Ok(NOT_YET),
        }
    })
}

/// Ends the ticks. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_periodic_free(periodic: Option<Box<timevisor_periodic>>) {
    drop(periodic);
}

fn tell(
    to: &mut InOut<'_, timevisor_tick>,
    outcome: Result<Tick, WaitError>,
) -> Result<c_int, Failure> {
    match outcome {
        Ok(tick) => {
            to.fill_if_wanted(|to| {
                to.scheduled_ns = tick.scheduled_ns;
                to.lateness_ns = tick.lateness_ns;
                to.missed = tick.missed;
                timevisor_reading::put(to.reading, &tick.reading)
            })?;
            Ok(0)
        }
        Err(error) => {
            if let Some(reading) = reading_of(&error) {
                to.fill_if_wanted(|to| timevisor_reading::put(to.reading, reading))?;
            }
            Err(error.into())
        }
    }
}
