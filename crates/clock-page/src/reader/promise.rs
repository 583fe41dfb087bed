//! What an entry promises in UTC from now until its expiry: for those who hand the clock on in another
//! form, in which it cannot go on beyond the expiry.

use timevisor_time::{Duration, Instant, Interval, Local, TimescaleId, Utc};

use super::{EntryWords, decode};
use crate::abi::ClockStatus;
use crate::lines::Lines;

/// Bounds in UTC from one counter value to another.
///
/// Between the two values, the bounds are at most as wide as straight lines between their ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Promise {
    /// [`ClockStatus::Synchronized`] or [`ClockStatus::FreeRunning`].
    pub status: ClockStatus,
    /// The counter value that was asked for.
    pub from: u64,
    /// The bounds then.
    pub at_from: Interval<Utc>,
    /// The entry's expiry.
    pub until: u64,
    /// The bounds then.
    pub at_until: Interval<Utc>,
    /// [`super::Reading::disruption`].
    pub disruption: u64,
    lines: Lines<Local>,
    utc: Duration,
}

impl Promise {
    /// What an entry promises from counter value `now` on.
    ///
    /// `None` where nothing can be relied on: no bounds, another status, an entry that has expired or is
    /// damaged, a timescale that is neither UTC nor TAI, or TAI without TAI - UTC.
    #[must_use]
    pub fn of(words: &EntryWords, now: u64) -> Option<Self> {
        let (lines, reading) = decode(words).ok()?;
        let status = reading.status();
        let reliable = matches!(status, ClockStatus::Synchronized | ClockStatus::FreeRunning);
        if !reliable || !reading.has_estimate() || lines.is_expired(now) {
            return None;
        }
        let utc = match reading.timescale() {
            TimescaleId::Utc => Duration::ZERO,
            TimescaleId::Tai => Duration::from_secs(i64::from(reading.tai_offset()?)),
            _ => return None,
        };
        let at = |counter| in_utc(&lines, utc, counter);
        Some(Self {
            status,
            from: now,
            at_from: at(now)?,
            until: lines.expiry,
            at_until: at(lines.expiry)?,
            disruption: reading.disruption,
            lines,
            utc,
        })
    }

    /// The bounds at another counter value, best a recent one or one before the expiry.
    #[must_use]
    pub fn at(&self, counter: u64) -> Option<Interval<Utc>> {
        in_utc(&self.lines, self.utc, counter)
    }

    /// How much faster the longest period that the counter may have is than the shortest one, ppb, rounded up: no
    /// estimate of its rate is off by more.
    #[must_use]
    pub fn rate_spread_ppb(&self) -> u32 {
        let (shortest, longest) = self.lines.rate_limits();
        let spread = u128::from(longest.to_bits().saturating_sub(shortest.to_bits()));
        let ppb = (spread * 1_000_000_000).div_ceil(u128::from(shortest.to_bits().max(1)));
        u32::try_from(ppb).unwrap_or(u32::MAX)
    }

    /// How much time is left at least from [`Self::from`] until the expiry.
    #[must_use]
    pub fn left(&self) -> Duration {
        let (shortest, _) = self.lines.rate_limits();
        shortest.span(self.until.wrapping_sub(self.from))
    }
}

fn in_utc(lines: &Lines<Local>, utc: Duration, counter: u64) -> Option<Interval<Utc>> {
    let shifted = |instant: Instant<Local>| (instant - utc).relabel::<Utc>();
    let interval = lines.interval_at(counter);
    // Evaluation rounds down.
    Interval::new(shifted(interval.earliest()), shifted(interval.latest() + Duration::EPSILON))
}

#[cfg(test)]
#[path = "promise_tests.rs"]
mod tests;
