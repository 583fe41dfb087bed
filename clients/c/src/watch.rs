//! When a timeline begins or ceases to be good enough.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;

use timevisor::{Event, Watch};

use crate::conversions::change;
use crate::error::{Failure, NOT_YET, guard};
use crate::memory::{In, InOut, Out, give, handle};
use crate::pending::Pending;
use crate::timeline::timevisor_timeline;
use crate::types::{timevisor_event, timevisor_reading, timevisor_wait_options};
use crate::wait::wait_options;

/// Events for ever. One thread at a time.
pub struct timevisor_watch {
    pending: Pending<Watch>,
}

/// Begins to watch a timeline and the handle's requirement. The page is looked at every 100 ms, and
/// when the bounds will have grown too wide.
///
/// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_watch_start(
    timeline: Option<&timevisor_timeline>,
    watch: Out<'_, *mut timevisor_watch>,
) -> c_int {
    guard(|| {
        give(watch, || {
            let watch = handle(timeline, "timeline")?.timeline.watch()?;
            Ok(timevisor_watch { pending: Pending::new(watch) })
        })
    })
}

/// Waits for the next event. `options` and `event` may be NULL.
///
/// Returns 0; -EBUSY: another thread waits with this handle; -ETIMEDOUT, -ECANCELED: as the options
/// say; -EIO, -EIDRM: the page cannot be read, the watch goes on; -EINVAL. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_watch_event(
    watch: Option<&timevisor_watch>,
    options: In<'_, timevisor_wait_options>,
    mut event: InOut<'_, timevisor_event>,
) -> c_int {
    guard(|| {
        event.check()?;
        let options = wait_options(&options)?;
        let watch = &handle(watch, "watch")?.pending;
        tell(&mut event, &watch.with(|watch| Ok(watch.event_with(&options)?))?)
    })
}

/// The descriptor to poll: see timevisor_wait_fd.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_watch_fd(watch: Option<&timevisor_watch>) -> c_int {
    guard(|| Ok(handle(watch, "watch")?.pending.fd()))
}

/// Looks whether something happened; never blocks. `event` may be NULL.
///
/// Returns 0; -EAGAIN: nothing, poll again; otherwise as timevisor_watch_event.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_watch_on_ready(
    watch: Option<&timevisor_watch>,
    mut event: InOut<'_, timevisor_event>,
) -> c_int {
    guard(|| {
        event.check()?;
        let watch = &handle(watch, "watch")?.pending;
        match watch.with(|watch| Ok(watch.on_ready()?))? {
            Some(found) => tell(&mut event, &found),
            None => Ok(NOT_YET),
        }
    })
}

/// Ends the watch. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_watch_free(watch: Option<Box<timevisor_watch>>) {
    drop(watch);
}

fn tell(to: &mut InOut<'_, timevisor_event>, event: &Event) -> Result<c_int, Failure> {
    to.fill_if_wanted(|to| {
        to.change = change(event.change) as i32;
        // SAFETY: from a structure of the caller's; the header has the same rules for it.
        let mut valid_until = unsafe { InOut::new(to.valid_until) };
        valid_until.fill_if_wanted(|until| {
            until.set(&event.valid_until);
            Ok(())
        })?;
        timevisor_reading::put(to.reading, &event.reading)
    })?;
    Ok(0)
}
