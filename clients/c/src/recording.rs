//! [`timevisor_recording`]: a timeline's past in a file, and [`timevisor_recorder`], which writes
//! one.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use timevisor::{Recorder, Recording};

use crate::error::guard;
use crate::memory::{InOut, Out, Text, give, handle};
use crate::timeline::timevisor_timeline;
use crate::types::{timevisor_measured_span, timevisor_reading};

/// Appends to a recording. For any number of threads at once.
pub struct timevisor_recorder {
    recorder: Mutex<Recorder>,
}

/// What was recorded, in memory. For any number of threads at once.
pub struct timevisor_recording {
    recording: Recording,
}

/// Records the timeline from now on into a file, so that stamps of any age can be converted later,
/// on any machine. A file that is there already is continued. It is made with mode 0644, and not
/// through a symbolic link. The timeline may be freed before the recorder.
///
/// Returns 0; -EBUSY: another program records into the file; -EILSEQ: it is no recording, or
/// damaged; -ENOTSUP: it is one of a newer version; -EINVAL: also for a recording of another
/// timeline or machine; the kernel's code for a file that cannot be written; otherwise as
/// timevisor_now. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_record_to(
    timeline: Option<&timevisor_timeline>,
    path: Text<'_>,
    recorder: Out<'_, *mut timevisor_recorder>,
) -> c_int {
    guard(|| {
        give(recorder, || {
            let timeline = &handle(timeline, "timeline")?.timeline;
            let recorder = timeline.record_to(path.require("path")?)?;
            Ok(timevisor_recorder { recorder: Mutex::new(recorder) })
        })
    })
}

/// Looks at the page, and appends what it says if that is new. Call it about every 100 ms.
/// Publications that are missed for up to a minute make conversions wider. After longer, stamps
/// from inside the gap are refused, and a span across it is only the difference of two conversions.
///
/// Returns 1 when something was appended, otherwise 0; the kernel's code for a file that cannot be
/// written; -EINVAL: also when the page is another machine's now; -EIO, -EIDRM. Any thread; a lock.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_recorder_observe(recorder: Option<&timevisor_recorder>) -> c_int {
    guard(|| {
        let recorder = &handle(recorder, "recorder")?.recorder;
        let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(recorder.observe()?.into())
    })
}

/// Looks once more, hands everything to the disk, and frees the recorder, whatever it returns. NULL
/// is allowed. Not while another thread uses the handle.
///
/// Returns 0, or a code as timevisor_recorder_observe.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_recorder_close(recorder: Option<Box<timevisor_recorder>>) -> c_int {
    guard(|| {
        if let Some(recorder) = recorder {
            recorder.recorder.into_inner().unwrap_or_else(PoisonError::into_inner).close()?;
        }
        Ok(0)
    })
}

/// Reads a whole recording, of this machine or another one. It needs no page.
///
/// Returns 0; -EILSEQ: it is no recording, or damaged; -ENOTSUP: it is one of a newer version; the
/// kernel's code for a file that cannot be read; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_recording_open(
    path: Text<'_>,
    recording: Out<'_, *mut timevisor_recording>,
) -> c_int {
    guard(|| {
        give(recording, || {
            Ok(timevisor_recording { recording: Recording::open(path.require("path")?)? })
        })
    })
}

/// The time at which the counter was at `stamp`.
///
/// Returns 0; -ESTALE: a stamp from before or after what was recorded, from where the clock was
/// disrupted, or from where nobody recorded it for more than a minute; -ENODATA: nothing was
/// recorded; -EBADMSG: bounds contradict each other; -ENOTUNIQ: the counter had this value more than
/// once; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_recording_convert(
    recording: Option<&timevisor_recording>,
    stamp: u64,
    mut reading: InOut<'_, timevisor_reading>,
) -> c_int {
    guard(|| {
        let then = handle(recording, "recording")?.recording.convert(stamp)?;
        reading.fill(|reading| {
            reading.set(&then);
            Ok(())
        })?;
        Ok(0)
    })
}

/// The time of something that happened while the counter went from `first` to `last`: see
/// timevisor_convert_between.
///
/// Returns as timevisor_recording_convert; -ESTALE also for a disruption between the two. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_recording_convert_between(
    recording: Option<&timevisor_recording>,
    first: u64,
    last: u64,
    mut reading: InOut<'_, timevisor_reading>,
) -> c_int {
    guard(|| {
        let then = handle(recording, "recording")?.recording.convert_between(first, last)?;
        reading.fill(|reading| {
            reading.set(&then);
            Ok(())
        })?;
        Ok(0)
    })
}

/// How much true time went by between two stamps: see timevisor_span.
///
/// Returns as timevisor_recording_convert_between. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_recording_span(
    recording: Option<&timevisor_recording>,
    from: u64,
    to: u64,
    mut span: InOut<'_, timevisor_measured_span>,
) -> c_int {
    guard(|| {
        let found = handle(recording, "recording")?.recording.span(from, to)?;
        span.fill(|span| {
            span.set(&found);
            Ok(())
        })?;
        Ok(0)
    })
}

/// Frees a recording. NULL is allowed. Not while another thread uses the handle.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_recording_free(recording: Option<Box<timevisor_recording>>) {
    drop(recording);
}
