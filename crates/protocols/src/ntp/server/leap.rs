//! TAI - UTC around the next leap second, for a server: the present UTC and the announcement.
//!
//! What it does not do: read a leap second table. The caller makes the plan, and makes it again
//! when its table changes.

use timevisor_time::{Duration, Instant, Tai, Utc};

use crate::ntp::packet::LeapIndicator;

/// A leap second ends a UTC day and is announced during that day (RFC 5905 figure 9).
const ANNOUNCED: Duration = Duration::from_secs(86_400);
/// No time is served this close to an inserted second: POSIX has no name for it, and servers
/// disagree on what to say.
const AMBIGUOUS: Duration = Duration::from_secs(2);

/// What the leap second table says about the present and the near future.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeapPlan {
    /// TAI - UTC in seconds until then.
    pub offset: i16,
    /// The next change: the first second (POSIX) with the new TAI - UTC, and that offset.
    pub change: Option<(i64, i16)>,
}

impl LeapPlan {
    /// Returns UTC at a TAI instant and the announcement; `None` within two seconds of a leap
    /// second.
    #[must_use]
    pub fn utc(&self, tai: Instant<Tai>) -> Option<(Instant<Utc>, LeapIndicator)> {
        let with = |offset: i16| (tai - Duration::from_secs(i64::from(offset))).relabel::<Utc>();
        let utc = with(self.offset);
        let Some((at, offset)) = self.change else { return Some((utc, LeapIndicator::NoWarning)) };
        let at = Instant::<Utc>::from_words(at.cast_unsigned(), 0);
        if utc - at >= AMBIGUOUS {
            return Some((with(offset), LeapIndicator::NoWarning));
        }
        let left = at - utc;
        if left < AMBIGUOUS {
            return None;
        }
        let leap = if left > ANNOUNCED || offset == self.offset {
            LeapIndicator::NoWarning
        } else if offset > self.offset {
            LeapIndicator::Insert
        } else {
            LeapIndicator::Delete
        };
        Some((utc, leap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2017-01-01, from which TAI - UTC is 37 s (IERS Bulletin C 52).
    const AT: i64 = 1_483_228_800;
    const PLAN: LeapPlan = LeapPlan { offset: 36, change: Some((AT, 37)) };

    fn tai(secs: i64) -> Instant<Tai> {
        Instant::from_words(secs.cast_unsigned(), 1 << 63)
    }

    fn said(plan: &LeapPlan, tai_secs: i64) -> Option<(i64, LeapIndicator)> {
        plan.utc(tai(tai_secs)).map(|(utc, leap)| (utc.secs(), leap))
    }

    #[test]
    fn a_leap_second_is_announced_on_its_day_and_then_counted() {
        use LeapIndicator::{Insert, NoWarning};
        assert_eq!(said(&PLAN, AT + 36 - 86_402), Some((AT - 86_402, NoWarning)));
        assert_eq!(said(&PLAN, AT + 36 - 86_399), Some((AT - 86_399, Insert)));
        assert_eq!(said(&PLAN, AT + 36 - 3), Some((AT - 3, Insert)));
        for near in -2..2 {
            assert_eq!(said(&PLAN, AT + 36 + near), None, "{near} s after it began");
        }
        assert_eq!(said(&PLAN, AT + 36 + 2), Some((AT + 1, NoWarning)));
        assert_eq!(said(&PLAN, AT + 37 + 100), Some((AT + 100, NoWarning)));
    }

    #[test]
    fn one_may_be_deleted() {
        let plan = LeapPlan { offset: 37, change: Some((AT, 36)) };
        assert_eq!(said(&plan, AT + 37 - 100), Some((AT - 100, LeapIndicator::Delete)));
        assert_eq!(said(&plan, AT + 37 + 100), Some((AT + 101, LeapIndicator::NoWarning)));
    }

    #[test]
    fn without_a_change_there_is_nothing_to_announce() {
        let plan = LeapPlan { offset: 37, change: None };
        assert_eq!(said(&plan, AT), Some((AT - 37, LeapIndicator::NoWarning)));
        assert!(PLAN.utc(Instant::MIN).is_some() && PLAN.utc(Instant::MAX).is_some());
    }
}
