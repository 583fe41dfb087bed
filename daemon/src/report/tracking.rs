//! Answers `tracking`: how well this host knows the time, and from whom.

use timevisor_clock_page::{Counter, Lines};
use timevisor_linux::clock::bracket;
use timevisor_protocols::control::{Response, Tracking};
use timevisor_protocols::ntp::refid;
use timevisor_time::{Duration, Instant, Tai, Utc};

use super::{reason, status_of};
use crate::clock::HostClock;
use crate::config::Config;
use crate::references::{Reference, Upstream};

/// The best of so many brackets.
const BRACKET_TRIES: usize = 5;

/// Answers `tracking`.
pub fn tracking(clock: &HostClock, references: &[Reference], config: &Config) -> Response {
    let chosen = clock.estimate().chosen().filter(|index| *index < references.len());
    let upstream = chosen.and_then(|index| references[index].upstream());
    let lines = clock.writer().in_force().map(|lines| lines.shifted::<Tai>(Duration::ZERO));
    let now = clock.counter.read_ordered();
    let at = lines.as_ref().map(|lines| lines.at(now));
    let known = clock.knowledge().clock.as_ref();
    let age = known.map(|known| clock.calibration.period.span(now.wrapping_sub(known.as_of)));
    let sides = at.as_ref().map(|at| (at.estimate - at.earliest, at.latest - at.estimate));
    let nominal = clock.calibration.period;
    let plan = at.as_ref().and_then(|at| clock.leap.plan(at.estimate)?.utc(at.estimate));
    Response::Tracking(Box::new(Tracking {
        status: status_of(clock.writer().status()),
        reason: reason(clock, references),
        reference: chosen.map(|index| config.references[index].name()),
        reference_id: upstream.map(|upstream| refid::shown(upstream.id, upstream.stratum + 1)),
        stratum: chosen.map(|_| {
            upstream.map_or(config.server.stratum, |Upstream { stratum, .. }| stratum + 1)
        }),
        reference_time_ns: at.zip(age).map(|(at, age)| (at.estimate - age).floor_nanos()),
        last_update_s: age.map(Duration::as_secs_f64),
        system_offset_ns: lines.as_ref().and_then(|lines| system_offset(clock, lines)),
        estimated_error_ns: known.map(|known| known.estimated_error.ceil_nanos()),
        below_ns: sides.map(|(below, _)| below.ceil_nanos()),
        above_ns: sides.map(|(_, above)| above.ceil_nanos()),
        root_distance_ns: sides.map(|(below, above)| below.max(above).ceil_nanos()),
        // A short period is a fast counter.
        frequency_ppm: known.map(|known| nominal.relative_to(known.period) * 1e6),
        skew_ppm: known.map(|known| known.limits.half_width().ppb() / 1000.0),
        wander_per_s: clock.wander(),
        leap: plan.map_or("unknown", |(_, indicator)| indicator.name()).to_owned(),
        tai_offset: clock.tai_offset(),
    }))
}

/// CLOCK_REALTIME minus our estimate of UTC, ns.
fn system_offset(clock: &HostClock, lines: &Lines<Tai>) -> Option<i64> {
    let reading = bracket(&clock.counter, BRACKET_TRIES);
    let middle = reading.before.wrapping_add(reading.width() / 2);
    let tai: Instant<Tai> = lines.at(middle).estimate;
    let offset = Duration::from_secs(i64::from(clock.tai_offset()?));
    let utc: Instant<Utc> = (tai - offset).relabel();
    Some((reading.realtime - utc).floor_nanos())
}
