//! CLOCK_REALTIME compared with the page at one moment; pure.

use core::fmt;

use timevisor::Reading;
use timevisor_clock_page::ClockStatus;
use timevisor_time::{Duration, Instant, Local, TimescaleId, Utc};

/// CLOCK_REALTIME, and the page's reading of the same moment in UTC. True time was between
/// `earliest` and `latest` when `realtime` was read, however long that took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beside {
    pub realtime: Instant<Utc>,
    pub earliest: Instant<Utc>,
    pub estimate: Instant<Utc>,
    pub latest: Instant<Utc>,
    /// One standard deviation of the estimate.
    pub estimated_error: Duration,
}

/// Why CLOCK_REALTIME cannot be judged by the page now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// There are no bounds, or they must not be relied on.
    Status(ClockStatus),
    /// The page is on TAI and does not know TAI - UTC.
    NoTaiOffset,
    /// The page is on neither TAI nor UTC.
    Timescale(TimescaleId),
    /// The page was just disrupted or could not be read; the next reading will tell.
    Changing,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(
                f,
                "the page's time is {}, not to be relied on; see `timevisor status` on the host",
                status.name()
            ),
            Self::NoTaiOffset => f.write_str(
                "the page is on TAI and does not know TAI - UTC; give the host a leap second table (clock.leap_table) or \
                 set clock.tai_offset there",
            ),
            Self::Timescale(scale) => {
                write!(f, "the page's clock is on the timescale {}, not TAI or UTC", scale.name())
            }
            Self::Changing => f.write_str("the page has just changed"),
        }
    }
}

impl Beside {
    /// Combines the page's values at the counter readings before, in the middle of, and after the
    /// reading of CLOCK_REALTIME. The width of this bracket counts as uncertainty.
    pub fn of(
        before: &Reading,
        middle: &Reading,
        after: &Reading,
        realtime: Instant<Utc>,
    ) -> Result<Self, Unusable> {
        for reading in [before, middle, after] {
            let status = reading.status();
            let reliable = matches!(status, ClockStatus::Synchronized | ClockStatus::FreeRunning);
            if !reading.is_known() || !reliable {
                return Err(Unusable::Status(status));
            }
            if reading.disruption() != middle.disruption()
                || reading.tai_offset() != middle.tai_offset()
            {
                return Err(Unusable::Changing);
            }
        }
        let utc = |instant| to_utc(instant, middle.timescale(), middle.tai_offset());
        let sigma = middle.estimated_error_ns().and_then(|ns| i64::try_from(ns).ok());
        Ok(Self {
            realtime,
            earliest: utc(before.earliest())?,
            estimate: utc(middle.estimate())?,
            latest: utc(after.latest())?,
            estimated_error: sigma.map_or(Duration::ZERO, Duration::from_nanos),
        })
    }

    /// The correction to add to CLOCK_REALTIME.
    pub fn offset(&self) -> Duration {
        self.estimate - self.realtime
    }

    /// How far CLOCK_REALTIME is outside the page's interval: a lower bound of its error.
    pub fn outside(&self) -> Duration {
        (self.earliest - self.realtime).max(self.realtime - self.latest).max(Duration::ZERO)
    }

    /// An upper bound of the error of CLOCK_REALTIME.
    pub fn at_most(&self) -> Duration {
        (self.latest - self.realtime).max(self.realtime - self.earliest)
    }

    /// Maximum distance of true time from the estimate.
    pub fn half_width(&self) -> Duration {
        (self.latest - self.estimate).max(self.estimate - self.earliest)
    }
}

fn to_utc(
    instant: Instant<Local>,
    scale: TimescaleId,
    tai_offset: Option<i16>,
) -> Result<Instant<Utc>, Unusable> {
    match (scale, tai_offset) {
        (TimescaleId::Utc, _) => Ok(instant.relabel()),
        (TimescaleId::Tai, Some(seconds)) => {
            Ok((instant - Duration::from_secs(i64::from(seconds))).relabel())
        }
        (TimescaleId::Tai, None) => Err(Unusable::NoTaiOffset),
        (other, _) => Err(Unusable::Timescale(other)),
    }
}

#[cfg(test)]
mod tests {
    use timevisor::manual::Clock;

    use super::*;

    const NOW: i64 = 1_800_000_000_000_000_000;
    /// The manual clock is on TAI, 37 s ahead of UTC.
    const UTC: i128 = NOW as i128 - 37_000_000_000;

    fn look(clock: &Clock, realtime_ns: i128) -> Result<Beside, Unusable> {
        let now = clock.timeline().now().unwrap();
        Beside::of(&now, &now, &now, Instant::from_unix_nanos(realtime_ns))
    }

    #[test]
    fn tai_becomes_utc_and_the_bounds_tell_what_is_sure() {
        let clock = Clock::new(NOW);
        clock
            .set_errors(std::time::Duration::from_nanos(100), std::time::Duration::from_nanos(300));
        let late = look(&clock, UTC - 1_000).unwrap();
        let ns = |span: Duration| (span + Duration::from_nanos(1).half()).floor_nanos();
        assert_eq!(
            [late.offset(), late.outside(), late.at_most(), late.half_width()].map(ns),
            [1_000, 900, 1_300, 300]
        );
        let early = look(&clock, UTC + 1_000).unwrap();
        assert_eq!(
            [early.offset(), early.outside(), early.at_most()].map(ns),
            [-1_000, 700, 1_100]
        );
        assert_eq!(look(&clock, UTC + 250).unwrap().outside(), Duration::ZERO);
    }

    #[test]
    fn a_slow_look_is_an_uncertain_one() {
        let clock = Clock::new(NOW);
        let timeline = clock.timeline();
        let before = timeline.now().unwrap();
        clock.advance(std::time::Duration::from_micros(10));
        let middle = timeline.now().unwrap();
        clock.advance(std::time::Duration::from_micros(10));
        let after = timeline.now().unwrap();
        let beside = Beside::of(&before, &middle, &after, Instant::from_unix_nanos(UTC + 10_000));
        assert!(beside.unwrap().half_width() >= Duration::from_nanos(9_999));
    }

    #[test]
    fn nothing_that_may_not_be_relied_on_is_used() {
        let clock = Clock::new(NOW);
        for status in [ClockStatus::Initializing, ClockStatus::Unreliable, ClockStatus::Unknown] {
            clock.set_status(status);
            assert!(matches!(look(&clock, UTC), Err(Unusable::Status(_))), "{status:?}");
        }
        clock.set_status(ClockStatus::FreeRunning);
        let before = clock.timeline().now().unwrap();
        assert!(look(&clock, UTC).is_ok());
        clock.step(NOW + 5);
        clock.set_status(ClockStatus::Synchronized);
        let after = clock.timeline().now().unwrap();
        let realtime = Instant::from_unix_nanos(UTC);
        assert_eq!(Beside::of(&before, &after, &after, realtime), Err(Unusable::Changing));
        clock.forget();
        assert!(look(&clock, UTC).is_err());
    }

    #[test]
    fn without_tai_minus_utc_a_tai_page_says_nothing_of_utc() {
        let t = Instant::<Local>::from_unix_nanos(37_000_000_005);
        assert_eq!(to_utc(t, TimescaleId::Tai, None), Err(Unusable::NoTaiOffset));
        let five = |scale, offset| to_utc(t, scale, offset).unwrap().ceil_nanos();
        assert_eq!(five(TimescaleId::Tai, Some(37)), 5);
        assert_eq!(five(TimescaleId::Utc, None), 37_000_000_005);
        let local = to_utc(t, TimescaleId::Local, Some(37));
        assert_eq!(local, Err(Unusable::Timescale(TimescaleId::Local)));
    }
}
