//! What a restarted daemon continues from: the page that the one before left, or its journal.
//!
//! The page is preferred. An update may have been journaled and never published, and readers have
//! followed the older lines since. The journal is used where the page was left torn. Whether the
//! journal still applies (same boot, same counter, no suspend) is for the caller to check, who
//! keeps it.

use timevisor_clock_page::{ClockStatus, Counter, Lines, Page, Policy, Reader, Update};
use timevisor_estimate::RateLimits;
use timevisor_time::{Duration, Tai, TimescaleId};

/// How far ahead of the journal's estimate a daemon resumes that finds a torn page. The torn lines
/// were decided moments after those in the journal: they are at most a few 10 ns ahead (twice the
/// rate limits times one publication's duration), so resuming this far ahead never goes back.
pub const RESUME_AHEAD: Duration = Duration::from_micros(1);

/// One entry of the recovery journal; written before each publication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalEntry {
    /// The lines that are about to be published.
    pub lines: Lines<Tai>,
    /// The limits of the counter's rate, as last known.
    pub rate: Option<RateLimits>,
}

/// Why a journal's lines cannot be continued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the counter went back since")]
pub struct CounterWentBack;

impl JournalEntry {
    /// The entry as a new daemon resumes from it at counter value `now`.
    ///
    /// # Errors
    /// The counter reads less than when the entry was written, so it was reset in between.
    pub fn resume_at(&self, now: u64) -> Result<Resumable, CounterWentBack> {
        if now.wrapping_sub(self.lines.base) >> 63 != 0 {
            return Err(CounterWentBack);
        }
        let mut lines = self.lines;
        // Not beyond the upper bound: the page's estimate was not, either, and bounds nest across a
        // restart.
        lines.estimate.time = (lines.estimate.time + RESUME_AHEAD).min(lines.latest.time);
        Ok(Resumable { lines, rate: self.rate })
    }
}

/// A journal entry that may be continued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumable {
    lines: Lines<Tai>,
    rate: Option<RateLimits>,
}

impl Resumable {
    /// The limits of the counter's rate, if the earlier daemon knew them.
    #[must_use]
    pub fn rate(&self) -> Option<RateLimits> {
        self.rate
    }

    /// The lines to continue: those that readers of `page` follow, or the journal's where the page
    /// is torn.
    pub(crate) fn lines(&self, page: &Page, counter: &impl Counter) -> Lines<Tai> {
        on_page(page, counter).unwrap_or(self.lines)
    }
}

/// The lines that readers of the page follow until now.
fn on_page(page: &Page, counter: &impl Counter) -> Option<Lines<Tai>> {
    let reader = Reader::open(page, counter, 0).ok()?;
    let now = reader.read().ok()?;
    let lines = reader.lines().ok()?;
    let usable = now.has_estimate()
        && now.timescale() == TimescaleId::Tai
        && now.counter.wrapping_sub(lines.base) >> 63 == 0;
    usable.then(|| lines.shifted(Duration::ZERO))
}

/// The first update of a daemon that continues these lines.
pub(crate) fn first_update(lines: &Lines<Tai>, policy: &Policy, tai_offset: Option<i16>) -> Update {
    Update {
        target: lines.shifted(Duration::ZERO),
        status: ClockStatus::FreeRunning,
        estimated_error: Duration::MAX,
        as_of: lines.base,
        tai_offset,
        slew: policy.slew(),
    }
}

#[cfg(test)]
mod tests {
    use timevisor_clock_page::Line;
    use timevisor_time::{Instant, Period};

    use super::*;

    fn entry(latest_ahead: Duration) -> JournalEntry {
        let line = |after: Duration| Line {
            time: Instant::from_unix_nanos(1_700_000_000_000_020_000) + after,
            period: Period::from_hz(1_000_000_000).unwrap(),
        };
        let lines = Lines {
            base: 1000,
            expiry: 2000,
            earliest: line(-Duration::from_micros(20)),
            estimate: line(Duration::ZERO),
            latest: line(latest_ahead),
            holdover: 7,
        };
        JournalEntry { lines, rate: None }
    }

    #[test]
    fn resumes_slightly_ahead_but_not_beyond_the_upper_bound() {
        let wide = entry(Duration::from_micros(20));
        let resumed = wide.resume_at(5000).unwrap();
        assert_eq!(resumed.lines.estimate.time, wide.lines.estimate.time + RESUME_AHEAD);
        assert_eq!(
            (resumed.lines.earliest, resumed.lines.latest),
            (wide.lines.earliest, wide.lines.latest)
        );
        let narrow = entry(Duration::from_nanos(300));
        let resumed = narrow.resume_at(5000).unwrap();
        assert_eq!(resumed.lines.estimate.time, narrow.lines.latest.time);
    }

    #[test]
    fn a_counter_that_went_back_ends_the_journal() {
        let entry = entry(Duration::from_micros(20));
        assert_eq!(entry.resume_at(999), Err(CounterWentBack));
        assert!(entry.resume_at(1000).is_ok());
        let mut wrapped = entry;
        wrapped.lines.base = u64::MAX - 10;
        assert!(wrapped.resume_at(10).is_ok(), "a counter may wrap");
    }
}
