//! A cluster's own timeline as its members are served it: like the host's clock, but its lines come from
//! the daemon, because a page has them among many others.

use timevisor_clock_page::{ClockStatus, Lines};
use timevisor_cluster::wire::stamp_of;
use timevisor_protocols::ntp::LeapIndicator;
use timevisor_protocols::ntp::precise::{Bounds, Errors, Status};
use timevisor_protocols::ntp::server::{
    OwnTimeline, PreciseTime, ServedClock, ServedTime, Unsynchronized,
};
use timevisor_time::{Duration, Instant, Tai, Utc};

use super::TimelineFacts;

/// The reference id of a timeline whose master is a member.
const MEMBER: [u8; 4] = *b"MEMB";
/// The largest that NTP knows.
const MOST_STRATUM: u8 = 15;

/// Counter values of one answer.
#[derive(Clone, Copy)]
pub struct Moments {
    /// The request's arrival.
    pub arrived: u64,
    /// Now.
    pub composed: u64,
    /// The answer has left by then.
    pub left: u64,
}

/// What is served, and the timeline at the request's arrival.
pub fn served(
    facts: &TimelineFacts,
    at: Moments,
    precision: i8,
    monotonic: Duration,
) -> (ServedClock, Instant<Utc>) {
    let unknown = |why| (ServedClock::Unknown(why), Instant::from_bits(0));
    let Some(lines) = &facts.lines else { return unknown(Unsynchronized::Starting) };
    let status = match facts.status {
        ClockStatus::Unreliable => return unknown(Unsynchronized::Contradicted),
        ClockStatus::Unknown => return unknown(Unsynchronized::Starting),
        _ if lines.is_expired(at.composed) => Status::FreeRunning,
        ClockStatus::Initializing => Status::Initializing,
        ClockStatus::Synchronized => Status::Synchronized,
        ClockStatus::FreeRunning => Status::FreeRunning,
    };
    let (received, receive) = stamp(lines, at.arrived);
    let (transmit, now) = stamp(lines, at.composed);
    let (_, later) = stamp(lines, at.left);
    let bounds = Bounds { receive, transmit: now.hull(&later) };
    let silence = facts.heard.map(|heard| (monotonic - heard).max(Duration::ZERO));
    let precise = PreciseTime {
        bounds,
        status,
        epoch: facts.origin.epoch,
        generation: facts.origin.generation,
        timeline: Some(OwnTimeline {
            name: facts.name,
            level: facts.level,
            rate: facts.rate,
            silence,
        }),
    };
    let time = ServedTime {
        transmit,
        error: bounds.largest(),
        leap: LeapIndicator::NoWarning,
        stratum: facts.level.saturating_add(1).min(MOST_STRATUM),
        reference_id: MEMBER,
        reference: transmit,
        precision,
        precise: Some(precise),
    };
    (ServedClock::Known(time), received)
}

/// The estimate as a stamp, and its errors.
fn stamp(lines: &Lines<Tai>, counter: u64) -> (Instant<Utc>, Errors) {
    let at = lines.at(counter);
    let errors = Errors { below: at.estimate - at.earliest, above: at.latest - at.estimate };
    (stamp_of(at.estimate), errors)
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
