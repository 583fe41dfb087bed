//! Waiting for a moment: blocking, or as a descriptor.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;
use std::time::Duration;

use timevisor::{Reading, WaitError, WaitFd, WaitOptions, Waited, When};

use crate::conversions::{no_such, reserved};
use crate::error::{Failure, NOT_YET, guard};
use crate::memory::{In, InOut, Out, give, handle, span};
use crate::pending::Pending;
use crate::timeline::timevisor_timeline;
use crate::types::{timevisor_reading, timevisor_wait_options, timevisor_waited, timevisor_when};

/// Waits until the estimate has reached t_ns. `waited` may be NULL.
///
/// Returns 0; -ESTALE: the clock may have stepped (waited->reading has the first reading since);
/// -ENODATA: the time is not known; -EIO, -EIDRM, -EINVAL. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_wait_until(
    timeline: Option<&timevisor_timeline>,
    t_ns: i64,
    waited: InOut<'_, timevisor_waited>,
) -> c_int {
    guard(|| block(timeline, || Ok(When::Until(t_ns)), &WaitOptions::default(), waited))
}

/// Waits until t_ns has surely passed on every right clock: earliest > t (Spanner's commit-wait).
/// `waited` may be NULL.
///
/// Returns as timevisor_wait_until; -EBADMSG: the clock is unreliable. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_wait_past(
    timeline: Option<&timevisor_timeline>,
    t_ns: i64,
    waited: InOut<'_, timevisor_waited>,
) -> c_int {
    guard(|| block(timeline, || Ok(When::Past(t_ns)), &WaitOptions::default(), waited))
}

/// Waits until lead_ns before the last moment that is surely before t_ns on every right clock, to
/// do then what must be done before it: until latest + lead_ns >= t_ns. The reading then has latest
/// < t_ns. `waited` may be NULL.
///
/// lead_ns: what the program needs to wake up (50 to 100 us) and for its work; 1 or more.
/// Returns as timevisor_wait_past; -ETIME: it is not surely before t_ns any more, at the call or at
/// the wake-up, by latest_ns - t_ns of waited->reading, which is 0 or more. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_wait_surely_before(
    timeline: Option<&timevisor_timeline>,
    t_ns: i64,
    lead_ns: i64,
    waited: InOut<'_, timevisor_waited>,
) -> c_int {
    guard(|| {
        let when = || surely_before(t_ns, lead_ns);
        block(timeline, when, &WaitOptions::default(), waited)
    })
}

/// Sleeps for span_ns on this timeline. `waited` may be NULL.
///
/// Returns as timevisor_wait_until. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_sleep(
    timeline: Option<&timevisor_timeline>,
    span_ns: i64,
    waited: InOut<'_, timevisor_waited>,
) -> c_int {
    guard(|| {
        let whole = || Ok(When::For(span(span_ns, "span_ns")?));
        block(timeline, whole, &WaitOptions::default(), waited)
    })
}

/// Waits until the time is known and meets the handle's requirement: after a start, a disruption,
/// or a violation.
///
/// timeout_ns: give up after this long; 0: never. `waited` may be NULL.
/// Returns 0; -ETIMEDOUT; -EIO, -EIDRM, -EINVAL. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_wait_met(
    timeline: Option<&timevisor_timeline>,
    timeout_ns: i64,
    waited: InOut<'_, timevisor_waited>,
) -> c_int {
    guard(|| {
        let mut options = WaitOptions::default();
        if timeout_ns != 0 {
            options = options.timeout(span(timeout_ns, "timeout_ns")?);
        }
        block(timeline, || Ok(When::Met), &options, waited)
    })
}

/// Waits, with all options.
///
/// when: a timevisor_when, which says what `ns` means. `options` and `waited` may be NULL.
/// Returns as timevisor_wait_until; -ETIMEDOUT, -ECANCELED: as the options say; -EBADMSG with
/// TIMEVISOR_WHEN_PAST; -EBADMSG and -ETIME with TIMEVISOR_WHEN_SURELY_BEFORE. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_wait(
    timeline: Option<&timevisor_timeline>,
    when: c_int,
    ns: i64,
    options: In<'_, timevisor_wait_options>,
    waited: InOut<'_, timevisor_waited>,
) -> c_int {
    guard(|| {
        let lead_ns = options.get()?.map_or(0, |given| given.lead_ns);
        block(timeline, || when_from(when, ns, lead_ns), &wait_options(&options)?, waited)
    })
}

/// A wait for an event loop. One thread at a time.
pub struct timevisor_wait_handle {
    pending: Pending<WaitFd>,
}

/// Begins a wait. An event loop polls a descriptor for its end.
///
/// when, ns: as for timevisor_wait, but TIMEVISOR_WHEN_SURELY_BEFORE, which
/// timevisor_wait_surely_before_start begins. spin_ns: as in timevisor_wait_options.
/// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_wait_start(
    timeline: Option<&timevisor_timeline>,
    when: c_int,
    ns: i64,
    spin_ns: i64,
    wait: Out<'_, *mut timevisor_wait_handle>,
) -> c_int {
    guard(|| begin(timeline, || when_from(when, ns, 0), spin_ns, wait))
}

/// Begins timevisor_wait_surely_before likewise.
///
/// t_ns, lead_ns: as there. spin_ns: as in timevisor_wait_options.
/// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_wait_surely_before_start(
    timeline: Option<&timevisor_timeline>,
    t_ns: i64,
    lead_ns: i64,
    spin_ns: i64,
    wait: Out<'_, *mut timevisor_wait_handle>,
) -> c_int {
    guard(|| begin(timeline, || surely_before(t_ns, lead_ns), spin_ns, wait))
}

/// The descriptor to poll for reading; level-triggered; readable right after the start. It belongs
/// to the handle: do not read or close it. -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_wait_fd(wait: Option<&timevisor_wait_handle>) -> c_int {
    guard(|| Ok(handle(wait, "wait")?.pending.fd()))
}

/// Looks whether the time has come. To be called when the descriptor is readable; may be called at
/// any time, and never blocks (but spins within spin_ns of the end). `waited` may be NULL.
///
/// Returns 0: it has, and the wait is over; -EAGAIN: not yet, poll again (also after the end);
/// otherwise as timevisor_wait, and the wait is over; -EBUSY: another thread is in this function.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_wait_on_ready(
    wait: Option<&timevisor_wait_handle>,
    mut waited: InOut<'_, timevisor_waited>,
) -> c_int {
    guard(|| {
        waited.check()?;
        let outcome = handle(wait, "wait")?.pending.with(|wait| Ok(wait.on_ready()))?;
        match outcome.transpose() {
            Some(outcome) => tell(&mut waited, outcome),
            None => Ok(NOT_YET),
        }
    })
}

/// Frees a wait, which cancels it. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_wait_free(wait: Option<Box<timevisor_wait_handle>>) {
    drop(wait);
}

fn block(
    timeline: Option<&timevisor_timeline>,
    when: impl FnOnce() -> Result<When, Failure>,
    options: &WaitOptions,
    mut waited: InOut<'_, timevisor_waited>,
) -> Result<c_int, Failure> {
    waited.check()?;
    let timeline = &handle(timeline, "timeline")?.timeline;
    let outcome = timeline.wait(when()?, options);
    tell(&mut waited, outcome)
}

fn begin(
    timeline: Option<&timevisor_timeline>,
    when: impl FnOnce() -> Result<When, Failure>,
    spin_ns: i64,
    wait: Out<'_, *mut timevisor_wait_handle>,
) -> Result<c_int, Failure> {
    give(wait, || {
        let timeline = &handle(timeline, "timeline")?.timeline;
        let spin = span(spin_ns, "spin_ns")?;
        let wait = timeline.wait_fd(when()?, spin)?;
        Ok(timevisor_wait_handle { pending: Pending::new(wait) })
    })
}

fn tell(
    to: &mut InOut<'_, timevisor_waited>,
    outcome: Result<Waited, WaitError>,
) -> Result<c_int, Failure> {
    match outcome {
        Ok(Waited { lateness_ns, reading }) => {
            to.fill_if_wanted(|to| {
                to.lateness_ns = lateness_ns;
                timevisor_reading::put(to.reading, &reading)
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

/// What the clock said, where that ended a wait.
pub(crate) fn reading_of(error: &WaitError) -> Option<&Reading> {
    match error {
        WaitError::Disrupted { reading }
        | WaitError::Unreliable { reading }
        | WaitError::TooLate { reading, .. } => Some(reading),
        _ => None,
    }
}

fn surely_before(t_ns: i64, lead_ns: i64) -> Result<When, Failure> {
    match span(lead_ns, "lead_ns")? {
        Duration::ZERO => Err(Failure::invalid(
            "lead_ns is 0; give what waking up and the work take: in the options of timevisor_wait, \
             or to timevisor_wait_surely_before_start",
        )),
        lead => Ok(When::SurelyBefore { t_ns, lead }),
    }
}

fn when_from(when: c_int, ns: i64, lead_ns: i64) -> Result<When, Failure> {
    const UNTIL: c_int = timevisor_when::Until as c_int;
    const PAST: c_int = timevisor_when::Past as c_int;
    const FOR: c_int = timevisor_when::For as c_int;
    const MET: c_int = timevisor_when::Met as c_int;
    const SURELY_BEFORE: c_int = timevisor_when::SurelyBefore as c_int;
    match when {
        UNTIL => Ok(When::Until(ns)),
        PAST => Ok(When::Past(ns)),
        FOR => Ok(When::For(span(ns, "ns")?)),
        MET => Ok(When::Met),
        SURELY_BEFORE => surely_before(ns, lead_ns),
        _ => Err(no_such("timevisor_when", when)),
    }
}

/// How the caller wants to wait; NULL: as usual.
pub(crate) fn wait_options(
    options: &In<'_, timevisor_wait_options>,
) -> Result<WaitOptions, Failure> {
    let mut rust = WaitOptions::default();
    let Some(given) = options.get()? else { return Ok(rust) };
    reserved(given.reserved)?;
    rust = rust.spin(span(given.spin_ns, "spin_ns")?);
    if given.timeout_ns != 0 {
        rust = rust.timeout(span(given.timeout_ns, "timeout_ns")?);
    }
    // SAFETY: NULL or, by the header's rule, a token that is not freed during the call.
    if let Some(token) = unsafe { given.cancel.as_ref() } {
        rust = rust.cancel(&token.cancel);
    }
    Ok(rust)
}
