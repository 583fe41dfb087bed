//! Edges at pins as readings of a timeline.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;

use timevisor::pins::{Edge, PinError, PinEvent, PinEvents};

use super::edges_from;
use super::types::{timevisor_edge, timevisor_pin_event};
use crate::error::{Failure, NOT_YET, guard};
use crate::memory::{In, InOut, Out, Text, give, handle};
use crate::pending::Pending;
use crate::timeline::timevisor_timeline;
use crate::types::{timevisor_reading, timevisor_wait_options};
use crate::wait::wait_options;

/// Edges for ever. One thread at a time.
pub struct timevisor_pin_events {
    pending: Pending<PinEvents>,
}

/// Begins to take edges of a GPIO line. The kernel stamps them in its interrupt handler: after the
/// edge, by the interrupt's latency.
///
/// chip: such as "/dev/gpiochip0"; line: its number there; edges: a timevisor_edge, not
/// TIMEVISOR_EDGE_UNKNOWN.
/// Returns 0; -ENOENT, -ENOTTY: no such chip; -EINVAL: also no such line; -EBUSY: the kernel or
/// another program uses it; -EACCES, -EPERM: this user may not; -ENXIO: also lines that cannot
/// interrupt; -ENOTSUP: a clock for tests; otherwise as timevisor_now. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_line_events_start(
    timeline: Option<&timevisor_timeline>,
    chip: Text<'_>,
    line: u32,
    edges: c_int,
    events: Out<'_, *mut timevisor_pin_events>,
) -> c_int {
    guard(|| {
        give(events, || {
            let timeline = &handle(timeline, "timeline")?.timeline;
            let events = timeline.line_events(chip.require("chip")?, line, edges_from(edges)?)?;
            Ok(timevisor_pin_events { pending: Pending::new(events) })
        })
    })
}

/// Begins to take edges at a channel of a PTP clock, which stamps them itself. Not tested on
/// hardware. The pin must have been given to the channel: timevisor_ptp_pins_set. The clock may be
/// steered, but must not be set meanwhile.
///
/// device: such as "/dev/ptp0".
/// Returns 0; -ENOENT: also no such channel; -ENOTSUP: also a clock that cannot be compared with the
/// counter closely; otherwise as timevisor_line_events_start. Any thread; takes 0.1 s.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_ptp_events_start(
    timeline: Option<&timevisor_timeline>,
    device: Text<'_>,
    channel: u32,
    edges: c_int,
    events: Out<'_, *mut timevisor_pin_events>,
) -> c_int {
    guard(|| {
        give(events, || {
            let timeline = &handle(timeline, "timeline")?.timeline;
            let device = device.require("device")?;
            let events = timeline.ptp_events(device, channel, edges_from(edges)?)?;
            Ok(timevisor_pin_events { pending: Pending::new(events) })
        })
    })
}

/// Waits for the next edge. `options` (spin_ns is not used) and `event` may be NULL.
///
/// Returns 0; -ESTALE, -EBADMSG, -ENOTSUP, or an error of timevisor_now or of the kernel, with
/// `came` 1: there was an edge, but when is not known (`edge` and `lost` are given, later ones may be
/// known again); -ENODEV: the device is gone; -EBUSY: another thread waits with this handle;
/// -ETIMEDOUT, -ECANCELED: as the options say; -EINVAL. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_pin_events_next(
    events: Option<&timevisor_pin_events>,
    options: In<'_, timevisor_wait_options>,
    mut event: InOut<'_, timevisor_pin_event>,
) -> c_int {
    guard(|| {
        event.check()?;
        let options = wait_options(&options)?;
        let events = &handle(events, "events")?.pending;
        tell(&mut event, events.with(|events| Ok(events.event_with(&options)))?)
    })
}

/// The descriptor to poll: readable while there are edges.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_pin_events_fd(events: Option<&timevisor_pin_events>) -> c_int {
    guard(|| Ok(handle(events, "events")?.pending.fd()))
}

/// Takes the next edge; never blocks. `event` may be NULL.
///
/// Returns 0; -EAGAIN: there is none, poll again; otherwise as timevisor_pin_events_next.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_pin_events_on_ready(
    events: Option<&timevisor_pin_events>,
    mut event: InOut<'_, timevisor_pin_event>,
) -> c_int {
    guard(|| {
        event.check()?;
        let events = &handle(events, "events")?.pending;
        match events.with(|events| Ok(events.on_ready()))?.transpose() {
            Some(found) => tell(&mut event, found),
            None => {
                none(&mut event)?;
                Ok(NOT_YET)
            }
        }
    })
}

/// Ends the events, and gives the line back. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_pin_events_free(events: Option<Box<timevisor_pin_events>>) {
    drop(events);
}

fn none(to: &mut InOut<'_, timevisor_pin_event>) -> Result<(), Failure> {
    to.fill_if_wanted(|to| {
        (to.edge, to.lost, to.came) = (timevisor_edge::Unknown as i32, 0, 0);
        (to.first, to.last) = (0, 0);
        Ok(())
    })
}

fn tell(
    to: &mut InOut<'_, timevisor_pin_event>,
    found: Result<PinEvent, PinError>,
) -> Result<c_int, Failure> {
    let code = |edge: Option<Edge>| match edge {
        None => timevisor_edge::Unknown,
        Some(Edge::Rising) => timevisor_edge::Rising,
        Some(Edge::Falling) => timevisor_edge::Falling,
    };
    match &found {
        Ok(event) => to.fill_if_wanted(|to| {
            (to.edge, to.lost, to.came) = (code(event.edge) as i32, event.lost, 1);
            (to.first, to.last) = (event.first, event.last);
            timevisor_reading::put(to.reading, &event.reading)
        })?,
        Err(PinError::Unplaced { edge, lost, .. }) => to.fill_if_wanted(|to| {
            (to.edge, to.lost, to.came) = (code(*edge) as i32, *lost, 1);
            (to.first, to.last) = (0, 0);
            Ok(())
        })?,
        Err(_) => none(to)?,
    }
    found.map(|_| 0).map_err(Failure::from)
}
