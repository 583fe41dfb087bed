//! Functions of PTP pins, and a pulse at a time. Not tested on hardware.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::{c_char, c_int};

use timevisor::pins::{PinFunction, PtpPins, Pulse};

use super::Refused;
use super::types::{
    TIMEVISOR_PIN_NAME_SIZE, timevisor_pin_function, timevisor_ptp_pin, timevisor_pulse,
};
use crate::conversions::no_such;
use crate::error::{Failure, guard};
use crate::memory::{InOut, Out, Text, give, handle, span};
use crate::timeline::timevisor_timeline;
use crate::types::{timevisor_outcome, timevisor_reading};

/// The pins of a PTP clock. For any number of threads at once. Not tested on hardware.
pub struct timevisor_ptp_pins {
    pins: PtpPins,
}

/// Opens a PTP clock such as "/dev/ptp0". Not tested on hardware.
///
/// Returns 0; -ENOENT, -ENOTTY: no such clock; -EACCES, -EPERM: this user may not write to it;
/// -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_ptp_pins_open(
    device: Text<'_>,
    pins: Out<'_, *mut timevisor_ptp_pins>,
) -> c_int {
    guard(|| {
        give(pins, || {
            let pins = PtpPins::open(device.require("device")?)?;
            Ok(timevisor_ptp_pins { pins })
        })
    })
}

/// How many pins have a function that can be chosen; a negative code: NULL. Any thread. Not tested
/// on hardware.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_ptp_pins_count(pins: Option<&timevisor_ptp_pins>) -> c_int {
    guard(|| Ok(c_int::try_from(handle(pins, "pins")?.pins.count()).unwrap_or(c_int::MAX)))
}

/// A pin, counted from 0. Not tested on hardware.
///
/// Returns 0; -ENOENT: no such pin; -EINVAL; the driver's errors. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_ptp_pins_get(
    pins: Option<&timevisor_ptp_pins>,
    index: u32,
    mut pin: InOut<'_, timevisor_ptp_pin>,
) -> c_int {
    guard(|| {
        pin.check()?;
        let found = handle(pins, "pins")?.pins.pin(index)?;
        pin.fill(|to| {
            to.function = found.function.map_or(timevisor_pin_function::Unknown, function) as i32;
            to.channel = found.channel;
            to.name = [0; TIMEVISOR_PIN_NAME_SIZE];
            let room = &mut to.name[..TIMEVISOR_PIN_NAME_SIZE - 1];
            for (to, byte) in room.iter_mut().zip(found.name.bytes()) {
                *to = c_char::from_ne_bytes([byte]);
            }
            Ok(())
        })?;
        Ok(0)
    })
}

/// Uses a pin for a channel of a function. Not tested on hardware.
///
/// function: a timevisor_pin_function, not TIMEVISOR_PIN_FUNCTION_UNKNOWN.
/// Returns 0; -ENOENT: no such pin; -EINVAL: also a channel or a function that it does not have; the
/// driver's errors. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_ptp_pins_set(
    pins: Option<&timevisor_ptp_pins>,
    index: u32,
    function: c_int,
    channel: u32,
) -> c_int {
    guard(|| {
        handle(pins, "pins")?.pins.set_pin(index, function_from(function)?, channel)?;
        Ok(0)
    })
}

/// Has an output's channel make one pulse of width_ns, which begins when the timeline's estimate is
/// t_ns, as far as can be told now: sooner is more exact. The clock's hardware makes it. Not tested
/// on hardware.
///
/// `pulse` may be NULL.
/// Returns a timevisor_outcome, of which only 0 says that it will be made; -ENOENT: no such channel;
/// -ENOTSUP: also a clock that cannot be compared with the counter closely, or t_ns may have come
/// before the clock was told (then `first` is not 0); -EINVAL: also no width; otherwise as
/// timevisor_now. Any thread; takes 0.1 s.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_ptp_pins_pulse_at(
    pins: Option<&timevisor_ptp_pins>,
    timeline: Option<&timevisor_timeline>,
    channel: u32,
    t_ns: i64,
    width_ns: i64,
    mut pulse: InOut<'_, timevisor_pulse>,
) -> c_int {
    guard(|| {
        pulse.check()?;
        let pins = &handle(pins, "pins")?.pins;
        let timeline = &handle(timeline, "timeline")?.timeline;
        let width = span(width_ns, "width_ns")?;
        let refused = match pins.pulse_at(timeline, channel, t_ns, width) {
            Ok(Pulse { device_ns, first, last, reading }) => {
                pulse.fill_if_wanted(|to| {
                    (to.outcome, to.device_ns) = (timevisor_outcome::Fired as i32, device_ns);
                    (to.too_late_by_ns, to.first, to.last) = (0, first, last);
                    timevisor_reading::put(to.reading, &reading)
                })?;
                return Ok(timevisor_outcome::Fired as c_int);
            }
            Err(error) => Refused::new(error),
        };
        pulse.fill_if_wanted(|to| {
            (to.outcome, to.device_ns) = (refused.outcome, 0);
            (to.too_late_by_ns, to.first, to.last) =
                (refused.too_late_by_ns, refused.first, refused.last);
            refused.put_reading(to.reading)
        })?;
        refused.code()
    })
}

/// Ends what an output's channel does, or is to do. Not tested on hardware.
///
/// Returns 0; -ENOENT: no such channel; the driver's errors. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_ptp_pins_end_output(
    pins: Option<&timevisor_ptp_pins>,
    channel: u32,
) -> c_int {
    guard(|| {
        handle(pins, "pins")?.pins.end_output(channel)?;
        Ok(0)
    })
}

/// Frees them; pins keep their functions. NULL is allowed. Not while another thread uses the handle.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_ptp_pins_free(pins: Option<Box<timevisor_ptp_pins>>) {
    drop(pins);
}

fn function(from: PinFunction) -> timevisor_pin_function {
    match from {
        PinFunction::None => timevisor_pin_function::None,
        PinFunction::Timestamp => timevisor_pin_function::Timestamp,
        PinFunction::Output => timevisor_pin_function::Output,
        PinFunction::PhySync => timevisor_pin_function::PhySync,
    }
}

fn function_from(code: c_int) -> Result<PinFunction, Failure> {
    let all =
        [PinFunction::None, PinFunction::Timestamp, PinFunction::Output, PinFunction::PhySync];
    let found = all.into_iter().find(|known| function(*known) as c_int == code);
    found.ok_or_else(|| no_such("timevisor_pin_function that can be chosen", code))
}
