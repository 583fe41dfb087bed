//! A clock that a test drives by hand, with the same handle type as a real one; a bus in its process.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;

use timevisor::manual::{Bus, Clock};

use crate::conversions::{status_from, timescale_from};
use crate::error::{Failure, guard};
use crate::memory::{Out, Text, give, handle, span};
use crate::timeline::timevisor_timeline;

/// A clock for tests, which stands still until it is moved. Waits on it wake as soon as it is
/// moved, and nothing sleeps. For any number of threads at once.
pub struct timevisor_manual_clock {
    clock: Clock,
}

/// Makes a synchronized clock that stands at now_ns, right to 1 ns.
///
/// timescale: a timevisor_timescale.
/// Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_new(
    timescale: c_int,
    now_ns: i64,
    clock: Out<'_, *mut timevisor_manual_clock>,
) -> c_int {
    guard(|| {
        give(clock, || {
            let clock = Clock::on(timescale_from(timescale)?, now_ns);
            Ok(timevisor_manual_clock { clock })
        })
    })
}

/// Frees a clock; its timelines stand still from then on. NULL is allowed. Not while another thread
/// uses the handle.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_free(clock: Option<Box<timevisor_manual_clock>>) {
    drop(clock);
}

/// A handle, as to a real timeline, for reading only (timevisor_with_requirement judges it), to be
/// freed with timevisor_timeline_free.
///
/// Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_timeline(
    clock: Option<&timevisor_manual_clock>,
    timeline: Out<'_, *mut timevisor_timeline>,
) -> c_int {
    guard(|| {
        give(timeline, || {
            Ok(timevisor_timeline::new(handle(clock, "clock")?.clock.timeline(), None))
        })
    })
}

/// Where it stands.
///
/// Returns 0; -ENODATA after timevisor_manual_forget; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_now(
    clock: Option<&timevisor_manual_clock>,
    now_ns: Out<'_, i64>,
) -> c_int {
    guard(|| {
        let out = now_ns.ok_or_else(|| Failure::invalid("now_ns is NULL"))?;
        let now = handle(clock, "clock")?.clock.now_ns().ok_or_else(|| {
            Failure::new(libc::ENODATA, "the clock was made to forget the time; step it")
        })?;
        out.write(now);
        Ok(0)
    })
}

/// Advances time, and the counter with it. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_advance(
    clock: Option<&timevisor_manual_clock>,
    by_ns: i64,
) -> c_int {
    change(clock, |clock| {
        clock.advance(span(by_ns, "by_ns")?);
        Ok(())
    })
}

/// True time is within this of the estimate; at least 1. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_set_error(
    clock: Option<&timevisor_manual_clock>,
    half_width_ns: i64,
) -> c_int {
    change(clock, |clock| {
        clock.set_error(span(half_width_ns, "half_width_ns")?);
        Ok(())
    })
}

/// True time is at most below_ns before and at most above_ns after the estimate; at least 1 each.
/// Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_set_errors(
    clock: Option<&timevisor_manual_clock>,
    below_ns: i64,
    above_ns: i64,
) -> c_int {
    change(clock, |clock| {
        clock.set_errors(span(below_ns, "below_ns")?, span(above_ns, "above_ns")?);
        Ok(())
    })
}

/// The bounds move out at this rate as time goes by, parts per billion (1000 are 1 us a second).
/// Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_set_growth_ppb(
    clock: Option<&timevisor_manual_clock>,
    ppb: u32,
) -> c_int {
    change(clock, |clock| {
        clock.set_growth_ppb(ppb);
        Ok(())
    })
}

/// One sigma of the estimate. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_set_estimated_error(
    clock: Option<&timevisor_manual_clock>,
    sigma_ns: i64,
) -> c_int {
    change(clock, |clock| {
        clock.set_estimated_error(span(sigma_ns, "sigma_ns")?);
        Ok(())
    })
}

/// Sets the clock's status, a timevisor_status. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_set_status(
    clock: Option<&timevisor_manual_clock>,
    status: c_int,
) -> c_int {
    change(clock, |clock| {
        clock.set_status(status_from(status)?);
        Ok(())
    })
}

/// The clock steps, ahead or back, and signals a disruption. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_step(
    clock: Option<&timevisor_manual_clock>,
    to_ns: i64,
) -> c_int {
    change(clock, |clock| {
        clock.step(to_ns);
        Ok(())
    })
}

/// Forgets the time, which is a disruption. timevisor_manual_step ends it. Returns 0; -EINVAL. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_forget(clock: Option<&timevisor_manual_clock>) -> c_int {
    change(clock, |clock| {
        clock.forget();
        Ok(())
    })
}

fn change(
    clock: Option<&timevisor_manual_clock>,
    what: impl FnOnce(&Clock) -> Result<(), Failure>,
) -> c_int {
    guard(|| {
        what(&handle(clock, "clock")?.clock)?;
        Ok(0)
    })
}

/// A bus in this process, for tests of programs that use groups: no timevisor-bus runs. Give it as
/// timevisor_join_options.manual_bus. It has no keys; leases and faults count this machine's real
/// time. For any number of threads at once.
pub struct timevisor_manual_bus {
    pub(crate) bus: Bus,
}

/// Starts one.
///
/// Returns 0; -EMFILE, -EAGAIN and the like; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_bus_new(bus: Out<'_, *mut timevisor_manual_bus>) -> c_int {
    guard(|| {
        give(bus, || {
            let started = Bus::new().map_err(|error| {
                let text = format!("no thread or descriptor for a bus: {error}");
                Failure::new(error.raw_os_error().unwrap_or(libc::EIO), text)
            })?;
            Ok(timevisor_manual_bus { bus: started })
        })
    })
}

/// Frees the handle; the bus ends with its last member. NULL is allowed. Not while another thread
/// uses the handle.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_bus_free(bus: Option<Box<timevisor_manual_bus>>) {
    drop(bus);
}

/// From now on it loses so many of a thousand messages, each for each receiver; which ones, `seed`
/// decides. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_bus_lose(
    bus: Option<&timevisor_manual_bus>,
    per_mille: u32,
    seed: u64,
) -> c_int {
    with(bus, |bus| bus.lose(per_mille, seed))
}

/// From now on messages come so much later. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_bus_delay(
    bus: Option<&timevisor_manual_bus>,
    by_ns: i64,
) -> c_int {
    guard(|| {
        let by = span(by_ns, "by_ns")?;
        handle(bus, "bus")?.bus.delay(by);
        Ok(0)
    })
}

/// From now on nothing comes from this member or to it. After its lease the others hear that it has
/// gone. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_bus_cut(
    bus: Option<&timevisor_manual_bus>,
    member: Text<'_>,
) -> c_int {
    guard(|| {
        handle(bus, "bus")?.bus.cut(member.require("member")?);
        Ok(0)
    })
}

/// Nobody is cut off any more, nothing is lost and nothing is late. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_bus_heal(bus: Option<&timevisor_manual_bus>) -> c_int {
    with(bus, Bus::heal)
}

/// Ends all connections, as a bus does that restarts: members connect and join again by themselves.
/// What it kept is forgotten. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_manual_bus_restart(bus: Option<&timevisor_manual_bus>) -> c_int {
    with(bus, Bus::restart)
}

fn with(bus: Option<&timevisor_manual_bus>, act: impl FnOnce(&Bus)) -> c_int {
    guard(|| {
        act(&handle(bus, "bus")?.bus);
        Ok(0)
    })
}
