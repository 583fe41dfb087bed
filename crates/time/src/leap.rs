//! UTC <-> TAI from the system's `leap-seconds.list` (IERS/NIST format, shipped by tzdata).
//!
//! Pure: the caller reads the file. An expired table is refused with its expiry date instead of
//! being trusted: nobody knows whether a leap second was announced after it.

use core::fmt;

use crate::{Duration, Instant, Tai, Utc};

/// Where Debian's tzdata puts the table.
pub const SYSTEM_PATH: &str = "/usr/share/zoneinfo/leap-seconds.list";

/// Seconds between the NTP epoch (1900) and the POSIX epoch (1970): RFC 5905 section 6.
const NTP_TO_UNIX: i64 = 2_208_988_800;

/// 28 entries exist in 2026; the table refuses more than it can hold rather than forgetting the
/// last ones.
const CAPACITY: usize = 64;

/// Why a leap table gives no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeapError {
    /// Line `line` (from 1) is neither a comment nor `NTP-seconds TAI-offset`.
    Malformed {
        /// Line number, from 1.
        line: usize,
    },
    /// There is no `#@` line, so nobody knows how long the table may be trusted.
    NoExpiry,
    /// There is no entry at all, or more than fit.
    Size,
    /// Entries are not in ascending order.
    Unordered {
        /// Line number, from 1.
        line: usize,
    },
    /// The table ended its validity at `expires` (POSIX seconds).
    Expired {
        /// End of validity, POSIX seconds.
        expires: i64,
    },
    /// The instant is before 1972, when UTC did not have whole-second steps yet.
    BeforeUtc,
}

impl fmt::Display for LeapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { line } => {
                write!(f, "leap second table: line {line} is not understood; reinstall tzdata")
            }
            Self::NoExpiry => {
                f.write_str("leap second table: no expiry (#@) line; reinstall tzdata")
            }
            Self::Size => f.write_str("leap second table: empty or too long; reinstall tzdata"),
            Self::Unordered { line } => {
                write!(f, "leap second table: line {line} is out of order; reinstall tzdata")
            }
            Self::Expired { expires } => {
                write!(
                    f,
                    "leap second table expired at POSIX second {expires}; upgrade tzdata (apt-get install tzdata)"
                )
            }
            Self::BeforeUtc => f.write_str("no leap second table reaches before 1972"),
        }
    }
}

impl core::error::Error for LeapError {}

/// Offsets TAI - UTC by date, with the end of their validity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeapTable {
    /// (POSIX second from which the offset holds, TAI - UTC in seconds)
    entries: [(i64, i16); CAPACITY],
    len: usize,
    expires: i64,
}

impl LeapTable {
    /// Parses the text of a `leap-seconds.list`.
    ///
    /// # Errors
    /// Anything that is not understood: a table half read is worse than none.
    pub fn parse(text: &str) -> Result<Self, LeapError> {
        let mut table = Self { entries: [(0, 0); CAPACITY], len: 0, expires: i64::MIN };
        for (number, line) in text.lines().enumerate() {
            let malformed = LeapError::Malformed { line: number + 1 };
            if let Some(expiry) = line.strip_prefix("#@") {
                table.expires = posix_seconds(expiry.trim()).ok_or(malformed)?;
                continue;
            }
            let mut words = line.split('#').next().unwrap_or("").split_whitespace();
            let (Some(when), Some(offset)) = (words.next(), words.next()) else {
                if line.trim().is_empty() || line.starts_with('#') {
                    continue;
                }
                return Err(malformed);
            };
            let when = posix_seconds(when).ok_or(malformed)?;
            let offset = offset.parse::<i16>().map_err(|_| malformed)?;
            if table.len > 0 && table.entries[table.len - 1].0 >= when {
                return Err(LeapError::Unordered { line: number + 1 });
            }
            *table.entries.get_mut(table.len).ok_or(LeapError::Size)? = (when, offset);
            table.len += 1;
        }
        if table.len == 0 {
            return Err(LeapError::Size);
        }
        if table.expires == i64::MIN {
            return Err(LeapError::NoExpiry);
        }
        Ok(table)
    }

    /// End of validity, POSIX seconds.
    #[must_use]
    pub fn expires(&self) -> i64 {
        self.expires
    }

    fn entries(&self) -> &[(i64, i16)] {
        &self.entries[..self.len]
    }

    /// TAI - UTC in seconds at a UTC instant.
    ///
    /// # Errors
    /// [`LeapError::Expired`] past the table's validity, [`LeapError::BeforeUtc`] before 1972.
    pub fn offset_at(&self, utc: Instant<Utc>) -> Result<i16, LeapError> {
        if utc.secs() >= self.expires {
            return Err(LeapError::Expired { expires: self.expires });
        }
        let entry = self.entries().iter().rev().find(|(from, _)| *from <= utc.secs());
        entry.map(|(_, offset)| *offset).ok_or(LeapError::BeforeUtc)
    }

    /// UTC to TAI.
    ///
    /// # Errors
    /// As [`Self::offset_at`].
    pub fn to_tai(&self, utc: Instant<Utc>) -> Result<Instant<Tai>, LeapError> {
        Ok((utc + Duration::from_secs(i64::from(self.offset_at(utc)?))).relabel())
    }

    /// TAI to UTC. During an inserted leap second POSIX repeats the second before it; the flag is
    /// then true.
    ///
    /// # Errors
    /// As [`Self::offset_at`].
    pub fn to_utc(&self, tai: Instant<Tai>) -> Result<(Instant<Utc>, bool), LeapError> {
        for (index, (from, offset)) in self.entries().iter().enumerate().rev() {
            let offset_secs = i64::from(*offset);
            let start = from.saturating_add(offset_secs);
            if tai.secs() >= start {
                let utc = (tai - Duration::from_secs(offset_secs)).relabel::<Utc>();
                self.offset_at(utc)?;
                return Ok((utc, false));
            }
            // The second between the old and the new offset is 23:59:60, which POSIX counts as
            // 23:59:59 again.
            let previous = index.checked_sub(1).map_or(*offset, |i| self.entries()[i].1);
            let inserted = offset_secs - i64::from(previous);
            if inserted > 0 && tai.secs() >= start.saturating_sub(inserted) {
                return Ok(((tai - Duration::from_secs(offset_secs)).relabel(), true));
            }
        }
        Err(LeapError::BeforeUtc)
    }

    /// The next change after `utc` as (POSIX second, new offset), if the table knows one.
    #[must_use]
    pub fn next_change(&self, utc: Instant<Utc>) -> Option<(i64, i16)> {
        self.entries().iter().find(|(from, _)| *from > utc.secs()).copied()
    }
}

/// From seconds since 1900, as the table counts them.
fn posix_seconds(ntp: &str) -> Option<i64> {
    ntp.parse::<i64>().ok()?.checked_sub(NTP_TO_UNIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    const TEXT: &str = "# comment\n#$\t3676924800\n#@\t4000000000\n3644697600\t36\t# 1 Jul 2015 (35->36)\n3692217600\t37\t# 1 Jan 2017\n";
    const JAN_2017: i64 = 1_483_228_800;

    fn utc(secs: i64) -> Instant<Utc> {
        Instant::from_unix_nanos(i128::from(secs) * 1_000_000_000)
    }

    #[test]
    fn published_offsets() {
        // IERS Bulletin C 52: TAI - UTC is 36 s until 2017-01-01 and 37 s from then on.
        let table = LeapTable::parse(TEXT).unwrap();
        assert_eq!(table.offset_at(utc(JAN_2017 - 1)), Ok(36));
        assert_eq!(table.offset_at(utc(JAN_2017)), Ok(37));
        assert_eq!(table.next_change(utc(JAN_2017 - 1)), Some((JAN_2017, 37)));
    }

    #[test]
    fn tai_round_trip_and_the_leap_second() {
        let table = LeapTable::parse(TEXT).unwrap();
        for s in [JAN_2017 - 2, JAN_2017 - 1, JAN_2017, JAN_2017 + 1] {
            assert_eq!(table.to_utc(table.to_tai(utc(s)).unwrap()), Ok((utc(s), false)));
        }
        // TAI 2017-01-01T00:00:36 is UTC 2016-12-31T23:59:60.
        let leap = Instant::<Tai>::from_unix_nanos(i128::from(JAN_2017 + 36) * 1_000_000_000);
        assert_eq!(table.to_utc(leap), Ok((utc(JAN_2017 - 1), true)));
    }

    #[test]
    fn an_expired_table_is_refused_with_the_next_step() {
        let table = LeapTable::parse(TEXT).unwrap();
        let error = table.offset_at(utc(4_000_000_000 - NTP_TO_UNIX)).unwrap_err();
        assert!(error.to_string().contains("upgrade tzdata"), "{error}");
    }

    #[test]
    fn bad_tables_are_refused() {
        assert_eq!(
            LeapTable::parse("#@ 4000000000\nxyz 3\n"),
            Err(LeapError::Malformed { line: 2 })
        );
        assert_eq!(LeapTable::parse("3644697600 36\n"), Err(LeapError::NoExpiry));
        assert_eq!(LeapTable::parse("#@ 4000000000\n"), Err(LeapError::Size));
        let swapped = "#@ 4000000000\n3692217600 37\n3644697600 36\n";
        assert_eq!(LeapTable::parse(swapped), Err(LeapError::Unordered { line: 3 }));
    }

    /// Found by fuzzing: each of these overflowed.
    #[test]
    fn absurd_numbers_do_no_harm() {
        for text in ["#@ -9223372036854775808\n", "#@ 4000000000\n-9223372036854775808 3\n"] {
            assert!(matches!(LeapTable::parse(text), Err(LeapError::Malformed { .. })), "{text}");
        }
        let text = "#@ 9223372036854775807\n3692217600 -32768\n3692217601 32767\n";
        let table = LeapTable::parse(text).unwrap();
        let tai = Instant::<Tai>::from_unix_nanos(i128::from(JAN_2017) * 1_000_000_000);
        assert_eq!(table.to_utc(tai), Ok((utc(JAN_2017 - 32_767), true)));
    }

    #[test]
    fn the_systems_own_table_is_understood() {
        let text = std::fs::read_to_string(SYSTEM_PATH).unwrap();
        let table = LeapTable::parse(&text).unwrap();
        assert_eq!(table.offset_at(utc(JAN_2017)), Ok(37));
        assert!(table.len >= 28);
    }
}
