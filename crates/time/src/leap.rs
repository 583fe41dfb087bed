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
    /// The table expires before the one that it would replace.
    Older {
        /// End of this table's validity, POSIX seconds.
        expires: i64,
    },
    /// The table lacks the last change of the one that it would replace.
    Contradicts {
        /// POSIX second of that change.
        from: i64,
    },
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
            Self::Older { expires } => {
                write!(f, "leap second table: it expires earlier, at POSIX second {expires}")
            }
            Self::Contradicts { from } => {
                write!(
                    f,
                    "leap second table: it lacks the change of TAI - UTC at POSIX second {from}"
                )
            }
        }
    }
}

impl core::error::Error for LeapError {}

/// One change of TAI - UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeapSecond {
    /// POSIX second from which the new offset holds.
    pub from: i64,
    /// TAI - UTC before it, s.
    pub before: i16,
    /// TAI - UTC from then on, s.
    pub after: i16,
}

impl LeapSecond {
    /// UTC is ambiguous from here on: the inserted second begins. A deleted second has no length.
    #[must_use]
    pub fn begins(&self) -> Instant<Tai> {
        self.at(self.before.min(self.after))
    }

    /// The new offset holds from here on.
    #[must_use]
    pub fn ends(&self) -> Instant<Tai> {
        self.at(self.after)
    }

    fn at(&self, offset: i16) -> Instant<Tai> {
        Instant::from_bits(i128::from(self.from) << 64) + Duration::from_secs(i64::from(offset))
    }

    /// The size of UTC's step, whatever its direction.
    #[must_use]
    pub fn step(&self) -> Duration {
        Duration::from_secs((i64::from(self.after) - i64::from(self.before)).abs())
    }

    /// True for an inserted second.
    #[must_use]
    pub fn is_inserted(&self) -> bool {
        self.after > self.before
    }

    /// True if it ends the UTC month of the POSIX second `now`, as leap seconds do.
    #[must_use]
    pub fn ends_month_of(&self, now: i64) -> bool {
        self.from > now
            && month(self.from) == month(now) + 1
            && month(self.from.saturating_sub(1)) == month(now)
    }
}

/// Months since the year 0 of a POSIX second, by Howard Hinnant's `civil_from_days`.
fn month(second: i64) -> i64 {
    let days = second.div_euclid(86_400) + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    // March is 0, so that leap days end a year.
    (era * 400 + year) * 12 + (5 * day_of_year + 2) / 153
}

/// TAI - UTC around an instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaps {
    /// TAI - UTC, s. During an inserted second it is the one after it.
    pub offset: i16,
    /// The change that brought this offset, if the table knows what was before.
    pub last: Option<LeapSecond>,
    /// The next change, if the table knows one.
    pub next: Option<LeapSecond>,
}

impl Leaps {
    /// An offset of which no change is known.
    #[must_use]
    pub fn constant(offset: i16) -> Self {
        Self { offset, last: None, next: None }
    }
}

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

    /// Checks that this table may replace `loaded`: it is valid at least as long, and it confirms
    /// the last change that `loaded` knows. A table that is being written, or that comes from an
    /// old package, fails.
    ///
    /// # Errors
    /// [`LeapError::Older`] or [`LeapError::Contradicts`].
    pub fn may_replace(&self, loaded: &Self) -> Result<(), LeapError> {
        if self.expires < loaded.expires {
            return Err(LeapError::Older { expires: self.expires });
        }
        match loaded.entries().last() {
            Some(&last) if !self.entries().contains(&last) => {
                Err(LeapError::Contradicts { from: last.0 })
            }
            _ => Ok(()),
        }
    }

    /// The last change of TAI - UTC in the table, as (POSIX second, new offset).
    #[must_use]
    pub fn last_change(&self) -> (i64, i16) {
        self.entries().last().copied().unwrap_or_default()
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

    /// TAI - UTC at a TAI instant, with the changes before and after it.
    ///
    /// # Errors
    /// As [`Self::offset_at`].
    pub fn around(&self, tai: Instant<Tai>) -> Result<Leaps, LeapError> {
        let (utc, _) = self.to_utc(tai)?;
        self.offset_at(utc)?;
        let mut leaps: Option<Leaps> = None;
        let mut before = None;
        for &(from, after) in self.entries() {
            let change = before.map(|before| LeapSecond { from, before, after });
            before = Some(after);
            match (&mut leaps, change) {
                (Some(leaps), Some(change)) if change.begins() > tai => {
                    leaps.next = Some(change);
                    break;
                }
                _ => leaps = Some(Leaps { offset: after, last: change, next: None }),
            }
        }
        leaps.ok_or(LeapError::BeforeUtc)
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
    fn changes_around_an_instant() {
        let text = "#@ 4000000000\n3644697600 36\n3692217600 37\n3723753600 36\n";
        let table = LeapTable::parse(text).unwrap();
        let at = |tai: i64| {
            let leaps = table.around(Instant::from_bits(i128::from(tai) << 64)).unwrap();
            (leaps.offset, leaps.last.map(|l| l.after), leaps.next.map(|l| l.after))
        };
        const JAN_2018: i64 = JAN_2017 + 365 * 86_400;
        assert_eq!(at(JAN_2017 + 35), (36, None, Some(37)));
        assert_eq!(at(JAN_2017 + 36), (37, Some(37), Some(36)), "the inserted second has begun");
        assert_eq!(at(JAN_2018 + 35), (37, Some(37), Some(36)));
        assert_eq!(at(JAN_2018 + 36), (36, Some(36), None), "23:59:59 was left out");
        let inserted = LeapSecond { from: JAN_2017, before: 36, after: 37 };
        assert_eq!(inserted.ends() - inserted.begins(), Duration::from_secs(1));
        let deleted = LeapSecond { from: JAN_2018, before: 37, after: 36 };
        assert_eq!((deleted.begins(), deleted.begins().secs()), (deleted.ends(), JAN_2018 + 36));
        assert!(inserted.is_inserted() && !deleted.is_inserted());
        assert!(
            inserted.ends_month_of(JAN_2017 - 1) && inserted.ends_month_of(JAN_2017 - 2_678_400)
        );
        assert!(!inserted.ends_month_of(JAN_2017) && !inserted.ends_month_of(JAN_2017 - 2_678_401));
        let midmonth = LeapSecond { from: JAN_2017 + 86_400, ..inserted };
        assert!(!midmonth.ends_month_of(JAN_2017));
    }

    #[test]
    fn an_expired_table_is_refused_with_the_next_step() {
        let table = LeapTable::parse(TEXT).unwrap();
        let error = table.offset_at(utc(4_000_000_000 - NTP_TO_UNIX)).unwrap_err();
        assert!(error.to_string().contains("upgrade tzdata"), "{error}");
    }

    #[test]
    fn only_a_table_that_confirms_the_loaded_one_and_lasts_as_long_replaces_it() {
        let table = |text| LeapTable::parse(text).unwrap();
        let loaded = table(TEXT);
        let longer = "#@ 4000000001\n3644697600 36\n3692217600 37\n3723753600 38\n";
        assert_eq!(loaded.may_replace(&loaded), Ok(()));
        assert_eq!(table(longer).may_replace(&loaded), Ok(()));
        let older = "#@ 3999999999\n3644697600 36\n3692217600 37\n";
        let expires = 3_999_999_999 - NTP_TO_UNIX;
        assert_eq!(table(older).may_replace(&loaded), Err(LeapError::Older { expires }));
        // The beginning of a newer file that is being written.
        let half = "#@ 4000000001\n3644697600 36\n";
        let contradicts = Err(LeapError::Contradicts { from: JAN_2017 });
        assert_eq!(table(half).may_replace(&loaded), contradicts);
        let other = "#@ 4000000001\n3644697600 36\n3692217600 38\n";
        assert_eq!(table(other).may_replace(&loaded), contradicts);
        assert_eq!(loaded.last_change(), (JAN_2017, 37));
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
