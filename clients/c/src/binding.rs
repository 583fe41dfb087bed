//! Requirements: bind, update, unbind.

use core::ffi::c_int;
use std::sync::{PoisonError, RwLockReadGuard};

use timevisor::{Achieved, BindError, BindOptions, Binding, Lease};

use crate::client::timevisor_client;
use crate::conversions::{epoch, epoch_from};
use crate::error::{Failure, guard};
use crate::memory::{In, InOut, Out, Text, give, handle};
use crate::timeline::timevisor_timeline;
use crate::types::{timevisor_achieved, timevisor_bind_options, timevisor_requirement};

/// Binds to a timeline and has the host meet a requirement until the handle is unbound or freed, or
/// the program ends in any way.
///
/// requirement: what is needed; NULL: read only.
/// options: how to bind, or NULL.
/// Returns 0; -ERANGE: the requirement cannot be met (what can: options->achieved); -ENOTCONN:
/// nobody takes requirements here (reading works without: timevisor_timeline_open); -ENOENT: there
/// is no such timeline; -EEXIST: `create` with another timescale; -ETIMEDOUT, -ECONNRESET:
/// timevisord does not answer; -EDQUOT, -EUSERS: a limit, or no room; -EPROTO; -ENXIO: it cannot be
/// read here; -EINVAL. Any thread; waits for the answer.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_bind(
    client: Option<&timevisor_client>,
    name: Text<'_>,
    requirement: In<'_, timevisor_requirement>,
    options: In<'_, timevisor_bind_options>,
    timeline: Out<'_, *mut timevisor_timeline>,
) -> c_int {
    guard(|| {
        give(timeline, || {
            let client = handle(client, "client")?;
            client.process.check()?;
            let name = name.require("name")?;
            let mut wish = BindOptions {
                requirement: timevisor_requirement::read(&requirement)?,
                ..BindOptions::default()
            };
            let mut achieved = None;
            if let Some(given) = options.get()? {
                wish.best_effort = given.best_effort != 0;
                wish.create = match given.create {
                    0 => None,
                    _ => Some(epoch_from(given.timescale)?),
                };
                achieved = Some(achieved_of(&given)?);
            }
            let outcome = client.client.bind_with(name, &wish);
            let binding = tell(achieved, outcome, Binding::achieved)?;
            Ok(timevisor_timeline::new(binding.timeline().clone(), Some(binding)))
        })
    })
}

/// Changes a binding's requirement. If the host refuses, the old one stays in force.
///
/// requirement: the new one; NULL drops it.
/// options: best_effort and achieved, as for timevisor_bind (create must be 0), or NULL.
/// Returns 0; -EINVAL, also when the handle is not bound; otherwise as timevisor_bind. Any thread;
/// waits for the answer.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_update(
    timeline: Option<&timevisor_timeline>,
    requirement: In<'_, timevisor_requirement>,
    options: In<'_, timevisor_bind_options>,
) -> c_int {
    guard(|| {
        let timeline = handle(timeline, "timeline")?;
        let requirement = timevisor_requirement::read(&requirement)?;
        let (mut best_effort, mut achieved) = (false, None);
        if let Some(given) = options.get()? {
            if given.create != 0 {
                return Err(Failure::invalid("an update cannot create a timeline"));
            }
            best_effort = given.best_effort != 0;
            achieved = Some(achieved_of(&given)?);
        }
        bound(timeline, |binding| {
            let outcome = binding.update_with(requirement, best_effort);
            tell(achieved, outcome, Achieved::clone)?;
            Ok(0)
        })
    })
}

/// Withdraws a binding's requirement and waits for the host's answer. The handle can still be read,
/// and must still be freed.
///
/// Returns 0; -EINVAL, also when the handle is not bound (any more); -ETIMEDOUT, -ECONNRESET: the
/// requirement ends with the connection. Any thread; waits for the answer.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_unbind(timeline: Option<&timevisor_timeline>) -> c_int {
    guard(|| {
        let timeline = handle(timeline, "timeline")?;
        timeline.process.check()?;
        let binding = timeline.binding.write().unwrap_or_else(PoisonError::into_inner).take();
        binding.ok_or_else(not_bound)?.unbind()?;
        Ok(0)
    })
}

/// What the timeline gave at the bind or the last update.
///
/// Returns 0; -EINVAL, also when the handle is not bound. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_timeline_achieved(
    timeline: Option<&timevisor_timeline>,
    mut achieved: InOut<'_, timevisor_achieved>,
) -> c_int {
    guard(|| {
        bound(handle(timeline, "timeline")?, |binding| {
            let found = binding.achieved();
            achieved.fill(|achieved| {
                achieved.set(&found);
                Ok(())
            })?;
            Ok(0)
        })
    })
}

/// What the timeline of a binding counts.
///
/// Returns a timevisor_timescale; -EINVAL, also when the handle is not bound (every reading says
/// it, too). Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_timeline_timescale(timeline: Option<&timevisor_timeline>) -> c_int {
    guard(|| bound(handle(timeline, "timeline")?, |binding| Ok(epoch(binding.epoch()) as c_int)))
}

/// Whether the requirement is in force on the host now. After a lost connection the library states
/// it again; reading works either way.
///
/// Returns 0; -ENOTCONN: it does not (timevisor_last_error says why); -EINVAL, also when the handle
/// is not bound. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_timeline_lease(timeline: Option<&timevisor_timeline>) -> c_int {
    guard(|| {
        bound(handle(timeline, "timeline")?, |binding| match binding.lease() {
            Lease::Held => Ok(0),
            Lease::Lost(why) => Err(Failure::new(
                libc::ENOTCONN,
                format!(
                    "the host does not have the requirement: {why}; it is told again by itself"
                ),
            )),
        })
    })
}

fn achieved_of<'a>(
    options: &timevisor_bind_options,
) -> Result<InOut<'a, timevisor_achieved>, Failure> {
    // SAFETY: from a structure of the caller's, for the same call; the header has the same rules
    // for it.
    let achieved = unsafe { InOut::new(options.achieved) };
    achieved.check()?;
    Ok(achieved)
}

/// Tells the caller what can be achieved, whether that is enough or not.
fn tell<T>(
    to: Option<InOut<'_, timevisor_achieved>>,
    outcome: Result<T, BindError>,
    achieved: impl FnOnce(&T) -> Achieved,
) -> Result<T, Failure> {
    let found = match &outcome {
        Ok(done) => Some(achieved(done)),
        Err(BindError::CannotBeMet { achievable, .. }) => Some(achievable.clone()),
        Err(_) => None,
    };
    if let (Some(mut to), Some(found)) = (to, found) {
        to.fill_if_wanted(|to| {
            to.set(&found);
            Ok(())
        })?;
    }
    Ok(outcome?)
}

fn bound<T>(
    timeline: &timevisor_timeline,
    then: impl FnOnce(&Binding) -> Result<T, Failure>,
) -> Result<T, Failure> {
    timeline.process.check()?;
    let binding: RwLockReadGuard<'_, Option<Binding>> =
        timeline.binding.read().unwrap_or_else(PoisonError::into_inner);
    then(binding.as_ref().ok_or_else(not_bound)?)
}

fn not_bound() -> Failure {
    Failure::invalid("the timeline is not bound; call timevisor_bind")
}
