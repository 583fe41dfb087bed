//! [`Snapshot`]: the lines in force with everything that was published with them, and how long they
//! meet a requirement.

use core::ops::Deref;

use timevisor_clock_page::{
    ClockStatus, Counter, EntryWords, Lines, Page, Reader, Reading as PageReading,
};
use timevisor_time::{Duration, Instant, Local, Period};

use crate::error::ReadError;
use crate::requirement::Need;

/// One publication.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Snapshot {
    pub(crate) lines: Lines<Local>,
    /// What was published with them, at their base: status, disruption, generation, estimated
    /// error.
    pub(crate) said: PageReading,
}

impl Snapshot {
    /// Takes what is in force on a reader's page.
    pub(crate) fn take<P: Deref<Target = Page>, C: Counter>(
        reader: &Reader<P, C>,
    ) -> Result<Self, ReadError> {
        Self::of_words(&reader.words()?)
    }

    /// Decodes an entry's words.
    pub(crate) fn of_words(words: &EntryWords) -> Result<Self, ReadError> {
        let (lines, said) = timevisor_clock_page::decode(words)?;
        Ok(Self { lines, said })
    }

    /// False while nothing is known, and after a contradiction until further exchanges agree.
    pub(crate) fn is_trusted(&self) -> bool {
        let doubtful = [ClockStatus::Unreliable, ClockStatus::Unknown];
        self.said.has_estimate() && !doubtful.contains(&self.said.status())
    }

    /// A tick of the counter in ns, rounded up; `u64::MAX` while nothing is known. A counter of
    /// nominally 1 GHz has a tick of 1 ns, whatever its oscillator's error: the subtracted 1024th
    /// is far larger than any such error.
    pub(crate) fn tick_ns(&self) -> u64 {
        let bits = self.lines.estimate.period.to_bits();
        match Period::from_bits(bits - bits / 1024).span_ceil(1).ceil_nanos() {
            0 => u64::MAX,
            ns => u64::try_from(ns).unwrap_or(u64::MAX),
        }
    }

    /// The last counter value from `now` on at which a requirement is met if nothing new is
    /// learned; `Err` if it is not met now, `Ok(None)` if it stays met forever (2^63 ticks).
    pub(crate) fn valid_until(&self, need: &Need, now: u64) -> Result<Option<u64>, ()> {
        if need.is_none() {
            return Ok(None);
        }
        if need.is_probable() {
            // The estimated error is valid until the expiry.
            return if self.lines.is_expired(now) { Err(()) } else { Ok(Some(self.lines.expiry)) };
        }
        let at = self.lines.at(now);
        let bits = |p: Period| i128::from(p.to_bits());
        let estimate = bits(self.lines.estimate.period);
        let below = Side {
            width: at.estimate - at.earliest,
            growth: estimate - bits(self.lines.earliest.period),
            limit: span(need.below_ns),
        };
        let above = Side {
            width: at.latest - at.estimate,
            growth: bits(self.lines.latest.period) - estimate,
            limit: span(need.above_ns),
        };
        let left = if self.lines.is_expired(now) { 0 } else { self.lines.expiry.wrapping_sub(now) };
        let holdover = i128::from(self.lines.holdover);
        let ticks = below.lasts(left, holdover)?.min(above.lasts(left, holdover)?);
        Ok((ticks < 1 << 63).then(|| now.wrapping_add(ticks)))
    }

    /// The estimate at a counter value, ns rounded down.
    pub(crate) fn estimate_ns(&self, counter: u64) -> i64 {
        let estimate: Instant<Local> = self.lines.at(counter).estimate;
        estimate.floor_nanos()
    }
}

fn span(ns: u64) -> Duration {
    let units = u128::from(ns) << 64;
    Duration::from_bits(i128::try_from(units / 1_000_000_000).unwrap_or(i128::MAX))
}

/// One side of the interval: how wide it is, how fast it grows (2^-84 s per tick), and how wide it
/// may be.
struct Side {
    width: Duration,
    growth: i128,
    limit: Duration,
}

impl Side {
    /// The number of ticks for which it stays within its limit: `left` ticks at its own growth,
    /// then with the holdover added.
    fn lasts(&self, left: u64, holdover: i128) -> Result<u64, ()> {
        if self.width > self.limit {
            return Err(());
        }
        let room = (self.limit - self.width).to_bits().min(1 << 106) << Period::SHIFT;
        let first = ticks(room, self.growth);
        if first < left {
            return Ok(first);
        }
        let used = self.growth.saturating_mul(i128::from(left));
        Ok(left.saturating_add(ticks(room.saturating_sub(used), self.growth + holdover)))
    }
}

/// How many ticks of `growth` fit into `room`; minus one, because both ends of the lines are
/// rounded.
fn ticks(room: i128, growth: i128) -> u64 {
    if growth <= 0 {
        return u64::MAX;
    }
    u64::try_from((room / growth - 1).max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
