//! [`timevisor_elapsed`]: how long something has been running, also over migrations and
//! checkpoints.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::{c_char, c_int};

use timevisor::Elapsed;

use crate::conversions::blackouts_from;
use crate::error::guard;
use crate::memory::{InOut, Out, Text, give, handle, put_text};
use crate::timeline::timevisor_timeline;
use crate::types::timevisor_reading;

/// An age that has begun. For any number of threads at once.
pub struct timevisor_elapsed {
    elapsed: Elapsed,
}

/// Begins an age now. `timeline` is `tai`, and may be freed before the age.
///
/// blackouts: a timevisor_blackouts.
/// Returns 0; -ENODATA: the time is not known yet; -EINVAL: also for another timeline; otherwise as
/// timevisor_now. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_elapsed_begin(
    timeline: Option<&timevisor_timeline>,
    blackouts: c_int,
    elapsed: Out<'_, *mut timevisor_elapsed>,
) -> c_int {
    guard(|| {
        give(elapsed, || {
            let timeline = &handle(timeline, "timeline")?.timeline;
            let elapsed = Elapsed::begin(timeline, blackouts_from(blackouts)?)?;
            Ok(timevisor_elapsed { elapsed })
        })
    })
}

/// Resumes an age that timevisor_elapsed_save has written, here or on another host.
///
/// Returns 0; -EINVAL: not a saved age, or another timeline than `tai`; otherwise as timevisor_now.
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_elapsed_resume(
    timeline: Option<&timevisor_timeline>,
    saved: Text<'_>,
    elapsed: Out<'_, *mut timevisor_elapsed>,
) -> c_int {
    guard(|| {
        give(elapsed, || {
            let timeline = &handle(timeline, "timeline")?.timeline;
            let elapsed = Elapsed::resume(timeline, saved.require("saved age")?)?;
            Ok(timevisor_elapsed { elapsed })
        })
    })
}

/// The age now, in ns since it began, on its own timescale. It never goes back.
///
/// Returns as timevisor_now; 0 also while the age is not known, after a disruption: see `known` and
/// `status`. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_elapsed_now(
    elapsed: Option<&timevisor_elapsed>,
    mut reading: InOut<'_, timevisor_reading>,
) -> c_int {
    guard(|| {
        let now = handle(elapsed, "elapsed")?.elapsed.now()?;
        reading.fill(|reading| {
            reading.set(&now);
            Ok(())
        })?;
        Ok(0)
    })
}

/// The age as text, for a file or another machine: one line of ASCII, at most 1024 bytes with the
/// zero byte at its end.
///
/// Returns the length without the zero byte; the buffer gets as much as there is room for, as with
/// snprintf. Otherwise as timevisor_now. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_elapsed_save(
    elapsed: Option<&timevisor_elapsed>,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    guard(|| {
        let saved = handle(elapsed, "elapsed")?.elapsed.save()?;
        // SAFETY: the caller says that the buffer has so many bytes.
        unsafe { put_text(buffer, size, &saved) }
    })
}

/// Ends the age. NULL is allowed. Not while another thread uses the handle.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_elapsed_free(elapsed: Option<Box<timevisor_elapsed>>) {
    drop(elapsed);
}
