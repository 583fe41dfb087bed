//! Maps true time to TAI and UTC, with an optional leap second.
//!
//! What it does not do: read files. The leap table is synthetic, and parsed by the production
//! parser.

use timevisor_time::{Duration, Instant, LeapError, LeapTable, Leaps, Tai, Utc};

/// 2026-01-01T00:00:00Z in POSIX seconds: simulated worlds start here.
pub const START: i64 = 1_767_225_600;

/// TAI - UTC at the start.
const OFFSET: i64 = 37;

/// Offset from POSIX seconds to the table's, which count from 1900.
const UNIX_TO_NTP: i64 = 2_208_988_800;

/// Exchanges this close to a leap second are not used, following the daemon's rule
/// (daemon/src/leap.rs).
const AMBIGUOUS: Duration = Duration::from_secs(2);

/// Names for instants of the simulated world.
#[derive(Clone, Debug)]
pub struct Calendar {
    table: LeapTable,
    leap_at: Option<i64>,
    /// 1 for an inserted second, -1 for a deleted one.
    step: i64,
}

impl Calendar {
    /// A world in which a second is inserted (or deleted) just before UTC reaches `leap_at_s`
    /// seconds after the start.
    ///
    /// # Errors
    /// When the leap second is at or before the start, or far beyond any run.
    pub fn new(leap_at_s: Option<i64>, deleted: bool) -> Result<Self, LeapError> {
        let step = if deleted { -1 } else { 1 };
        let ntp = |posix: i64| posix + UNIX_TO_NTP;
        let before = ntp(START) - 10 * 365 * 86_400;
        let mut text = format!("#@ {}\n{before} {OFFSET}\n", ntp(START) + 3650 * 86_400);
        if let Some(at) = leap_at_s {
            text += &format!("{} {}\n", ntp(START + at), OFFSET + step);
        }
        Ok(Self { table: LeapTable::parse(&text)?, leap_at: leap_at_s, step })
    }

    /// True time as TAI.
    #[must_use]
    pub fn tai(&self, t: Duration) -> Instant<Tai> {
        Instant::from_bits(i128::from(START + OFFSET) << 64) + t
    }

    /// TAI back to true time.
    #[must_use]
    pub fn since_start(&self, tai: Instant<Tai>) -> Duration {
        tai - self.tai(Duration::ZERO)
    }

    /// True time as UTC, as POSIX counts it.
    #[must_use]
    pub fn utc(&self, t: Duration) -> Instant<Utc> {
        let tai = self.tai(t);
        self.table.to_utc(tai).map_or_else(|_| tai.relabel(), |(utc, _)| utc)
    }

    /// True time as UTC; `None` within an inserted second, which POSIX does not count.
    #[must_use]
    pub fn unambiguous_utc(&self, t: Duration) -> Option<Instant<Utc>> {
        self.table.to_utc(self.tai(t)).ok().filter(|(_, inserted)| !inserted).map(|(utc, _)| utc)
    }

    /// UTC with the leap second smeared linearly over `length_s`, half of it before and half after.
    #[must_use]
    pub fn smeared(&self, t: Duration, length_s: f64) -> Instant<Utc> {
        let unsmeared = (self.tai(t) - Duration::from_secs(OFFSET)).relabel();
        let Some(leap_at) = self.leap_at else { return unsmeared };
        let done = (t.as_secs_f64() - leap_at as f64) / length_s + 0.5;
        unsmeared - Duration::from_secs_f64(done.clamp(0.0, 1.0) * self.step as f64)
    }

    /// A reference's UTC as TAI, by the daemon's rule; `None` when UTC is ambiguous.
    #[must_use]
    pub fn to_tai(&self, utc: Instant<Utc>) -> Option<Instant<Tai>> {
        let before = self.table.offset_at(utc - AMBIGUOUS).ok()?;
        let after = self.table.offset_at(utc + AMBIGUOUS).ok()?;
        (before == after).then(|| (utc + Duration::from_secs(i64::from(after))).relabel())
    }

    /// TAI - UTC around a TAI instant, by the daemon's rule.
    #[must_use]
    pub fn leaps(&self, tai: Instant<Tai>) -> Option<Leaps> {
        self.table.around(tai).ok()
    }

    /// Whether the leap second is deleted.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.step < 0
    }

    /// Whether it is within a day before the leap second, when servers announce it.
    #[must_use]
    pub fn is_announced(&self, t: Duration) -> bool {
        let second = i64::try_from(t.to_bits() >> 64).unwrap_or(i64::MAX);
        self.leap_at.is_some_and(|at| (at - 86_400..at).contains(&second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    #[test]
    fn utc_repeats_the_leap_second_and_is_refused_around_it() {
        let calendar = Calendar::new(Some(1000), false).unwrap();
        assert_eq!(calendar.utc(at(999.0)).secs(), START + 999);
        // The inserted second starts 1000 s after the start; POSIX counts it as 999 again.
        assert_eq!(calendar.utc(at(1000.5)).secs(), START + 999);
        assert_eq!(calendar.utc(at(1001.5)).secs(), START + 1000);
        for s in [10.0, 990.0, 1010.0, 5000.0] {
            let back = calendar.to_tai(calendar.utc(at(s))).unwrap();
            assert_eq!(calendar.since_start(back), at(s));
        }
        assert_eq!(calendar.to_tai(calendar.utc(at(1000.2))), None);
    }

    #[test]
    fn utc_leaves_out_a_deleted_second() {
        let calendar = Calendar::new(Some(1000), true).unwrap();
        assert_eq!(calendar.utc(at(998.5)).secs(), START + 998);
        assert_eq!(calendar.utc(at(999.5)).secs(), START + 1000);
        for s in [10.0, 990.0, 1010.0] {
            let back = calendar.to_tai(calendar.utc(at(s))).unwrap();
            assert_eq!(calendar.since_start(back), at(s));
        }
    }

    #[test]
    fn a_smear_is_gradual_and_agrees_at_both_ends() {
        let calendar = Calendar::new(Some(50_000), false).unwrap();
        let behind = |s| (calendar.utc(at(s)) - calendar.smeared(at(s), 40_000.0)).as_secs_f64();
        assert!(behind(29_000.0).abs() < 1e-9);
        assert!((behind(40_000.0) - 0.25).abs() < 1e-6);
        assert!((behind(60_000.0) + 0.25).abs() < 1e-3);
        assert!(behind(71_000.0).abs() < 1e-9);
    }
}
