//! Leap seconds: when UTC is not told, until when TAI - UTC holds, and what a page announces.
//!
//! | time | a UTC page or timeline | TAI - UTC on a TAI page |
//! | --- | --- | --- |
//! | a change is known to come | its bounds grow after the expiry so that they hold the step | holds until the expiry, in the month before |
//! | the last seconds before it | expires before it, halfway between now and then | not told where the page expires after it |
//! | near it | says nothing, `unreliable` | not told |
//! | after it | continues, as a disruption | the new one |
//!
//! So a page that its daemon does not write any more does not go wrong at the leap second.

use timevisor_clock_page::{ClockStatus, LeapIndicator, Lines};
use timevisor_time::{Duration, Instant, LeapSecond, Leaps, Local, Tai};

/// UTC is not told within two publications and this long of a leap second: the readers' lines are
/// then from one side of it, and their counters may be on the other.
const MARGIN: Duration = Duration::from_secs(2);

/// A leap second is remembered for this long.
const REMEMBERED: Duration = Duration::from_secs(86_400);

/// What one publication knows of leap seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeapState {
    /// TAI - UTC until the lines expire; `None` while it is not known, or about to change.
    pub tai_offset: Option<i16>,
    /// What the pages announce.
    pub indicator: LeapIndicator,
    /// TAI - UTC now; `None` near a leap second.
    offset: Option<i16>,
    next: Option<LeapSecond>,
}

/// What a UTC page or timeline says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Utc {
    /// Its lines, or the status to show without time and bounds.
    pub lines: Result<Lines<Local>, ClockStatus>,
    /// A number that changes whenever what was published before is void.
    pub disruptions: u64,
}

impl LeapState {
    /// What is known where no time is: perhaps TAI - UTC by the host's own idea of UTC.
    #[must_use]
    pub fn without_time(tai_offset: Option<i16>) -> Self {
        Self { tai_offset, offset: tai_offset, ..Self::default() }
    }

    /// What `leaps`, the table around the estimate, says to a clock with these lines at counter
    /// value `now`. Pages are written every `publish_interval`.
    #[must_use]
    pub fn new(
        leaps: Option<&Leaps>,
        lines: &Lines<Tai>,
        now: u64,
        publish_interval: Duration,
    ) -> Self {
        let Some(leaps) = leaps else { return Self::default() };
        let margin = publish_interval + publish_interval + MARGIN;
        let at = lines.at(now);
        let (from, to) = (at.earliest - margin, at.latest + margin);
        let is_near = |leap: &LeapSecond| leap.begins() <= to && from <= leap.ends();
        let near = [&leaps.last, &leaps.next].into_iter().flatten().any(is_near);
        let offset = (!near).then_some(leaps.offset);
        let at_expiry = lines.at(lines.expiry).latest;
        let ends_before = leaps.next.is_none_or(|leap| at_expiry < leap.begins());
        let tai_offset = offset.filter(|_| ends_before);
        Self { tai_offset, indicator: indicator(leaps, at.estimate), offset, next: leaps.next }
    }

    /// What a clock with these lines says on UTC at counter value `now`.
    #[must_use]
    pub fn utc(&self, lines: Result<&Lines<Tai>, ClockStatus>, disruptions: u64, now: u64) -> Utc {
        // A leap second is a step, so the offset is part of what counts steps.
        let offset = self.offset.map_or(0, i16::cast_unsigned);
        let disruptions = (disruptions << 16) | u64::from(offset);
        let told = lines.and_then(|lines| self.told(lines, now).ok_or(ClockStatus::Unreliable));
        Utc { lines: told, disruptions }
    }

    fn told(&self, lines: &Lines<Tai>, now: u64) -> Option<Lines<Local>> {
        let offset = Duration::from_secs(i64::from(self.offset?));
        let until = match &self.next {
            Some(leap) => lines.until_step(leap.begins(), leap.step(), now)?,
            None => *lines,
        };
        Some(until.shifted(-offset))
    }
}

fn indicator(leaps: &Leaps, now: Instant<Tai>) -> LeapIndicator {
    let utc = now - Duration::from_secs(i64::from(leaps.offset));
    if let Some(leap) = leaps.next.filter(|leap| leap.ends_month_of(utc.secs())) {
        return if leap.is_inserted() {
            LeapIndicator::WillInsert
        } else {
            LeapIndicator::WillDelete
        };
    }
    match leaps.last.filter(|leap| now < leap.ends() + REMEMBERED) {
        None => LeapIndicator::None,
        Some(leap) if now < leap.ends() => LeapIndicator::Inserted,
        Some(leap) if leap.is_inserted() => LeapIndicator::HasInserted,
        Some(_) => LeapIndicator::HasDeleted,
    }
}
