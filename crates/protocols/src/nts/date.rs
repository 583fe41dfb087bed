//! A moment of a certificate's validity, shown in people's notation.
//!
//! What it does not do: leap seconds or time zones. It is for messages only; no clock page uses
//! this time.

use std::fmt;

/// Seconds since 1970-01-01 UTC, as X.509 and Unix count them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UnixSeconds(pub u64);

/// `2026-11-20 16:05 UTC`.
impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / 86_400, self.0 % 86_400);
        let (year, month, day) = date(days);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
    }
}

/// Year, month and day of a day number in the Gregorian calendar: in years that begin in March, the
/// leap day comes last and the months' lengths repeat every five.
const fn date(days: u64) -> (u64, u64, u64) {
    // From 0000-03-01, of which 1970-01-01 is day 719,468; an era has 400 years and 146,097 days.
    let day = days.saturating_add(719_468);
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = year + 400 * era;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_known_moments() {
        let moments = [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_000_000_000, "2001-09-09 01:46 UTC"),
            (1_234_567_890, "2009-02-13 23:31 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59 UTC"),
        ];
        for (seconds, text) in moments {
            assert_eq!(UnixSeconds(seconds).to_string(), text);
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = date(0);
        for day in 1..80_000 {
            let (year, month, number) = date(day);
            let first = number == 1 && (month == before.1 + 1 || (month == 1 && before.1 == 12));
            assert!(
                first || (month == before.1 && number == before.2 + 1),
                "{year}-{month}-{number}"
            );
            before = (year, month, number);
        }
        assert_eq!(before, (2189, 1, 11));
    }
}
