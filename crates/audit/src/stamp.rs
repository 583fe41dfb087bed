//! When something was recorded: an interval of UTC.

use std::time::{Duration, SystemTime};

use humantime_serde::re::humantime::{format_rfc3339_nanos, parse_rfc3339};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An interval of UTC, ns since 1970 as POSIX counts them. In a leap second these repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Not before this.
    pub earliest_ns: i64,
    /// Not after this.
    pub latest_ns: i64,
    /// Whether the host's clock vouched for it. If not, both ends are what CLOCK_REALTIME said, which proves nothing.
    pub vouched: bool,
}

/// An interval as it is written: two RFC 3339 dates with nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval(pub [i64; 2]);

impl Stamp {
    /// A stamp that nobody vouches for.
    #[must_use]
    pub const fn unvouched(system_ns: i64) -> Self {
        Self { earliest_ns: system_ns, latest_ns: system_ns, vouched: false }
    }

    /// Its middle, ns.
    #[must_use]
    pub const fn middle_ns(&self) -> i64 {
        self.earliest_ns + (self.latest_ns - self.earliest_ns) / 2
    }

    /// As it is written.
    #[must_use]
    pub const fn interval(&self) -> Interval {
        Interval([self.earliest_ns, self.latest_ns])
    }
}

/// RFC 3339 with nanoseconds; before 1970 is 1970, after 9999 is the last moment of 9999.
#[must_use]
pub fn date(ns: i64) -> String {
    let ns = u64::try_from(ns).unwrap_or(0);
    format_rfc3339_nanos(SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)).to_string()
}

/// The inverse of [`date`], ns since 1970; also for dates with fewer digits of a second.
///
/// # Errors
/// Text that is no date in UTC of 1970 to 2262, with an example of one.
pub fn parse_date(text: &str) -> Result<i64, String> {
    let wrong = || format!("{text:?} is no date and time in UTC; write it as 2026-11-30T17:00:00Z");
    let time = parse_rfc3339(text).map_err(|_| wrong())?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| wrong())?;
    i64::try_from(since.as_nanos()).map_err(|_| wrong())
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.map(date).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let [earliest, latest] = <[String; 2]>::deserialize(deserializer)?;
        let parse = |text: &str| parse_date(text).map_err(D::Error::custom);
        let interval = Self([parse(&earliest)?, parse(&latest)?]);
        if interval.0[0] > interval.0[1] {
            return Err(D::Error::custom("the interval ends before it begins"));
        }
        Ok(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_exact_to_the_nanosecond() {
        let ns = 1_796_060_472_123_456_789;
        assert_eq!(date(ns), "2026-11-30T17:41:12.123456789Z");
        assert_eq!(parse_date(&date(ns)), Ok(ns));
        assert_eq!(parse_date("1970-01-01T00:00:01Z"), Ok(1_000_000_000));
        assert!(parse_date("yesterday").unwrap_err().contains("write it as"));
    }
}
