//! Level 1 hard bounds: the best lower and the best upper fact, each aged at the fastest rate the
//! oscillator may have.
//!
//! docs/explanation/bounds.md states them relative to a published clock (theta, y); here they are
//! absolute times at one counter value, which is the same thing without a clock to be relative to:
//!
//! ```text
//! upper:  true(Ta) <= Tb + e        lower:  true(Tf) >= Te - e
//! ageing by n ticks:  earliest += n * shortest period,  latest += n * longest period
//! ```
//!
//! It combines the best forward and the best backward message separately, which is why it beats
//! half the round trip of any single exchange. It needs no assumption about delays but that they
//! are not negative, and none about the oscillator but its rate limits. Not here: a wander bound
//! (level 2), which would narrow the ageing.

use timevisor_time::{Duration, Instant, Interval, Tai};

use crate::exchange::Exchange;
use crate::rate::RateLimits;

/// The interval that holds true time at counter value `at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    at: u64,
    interval: Interval<Tai>,
}

/// Two facts that cannot both be true under the rate limits: an assumption failed, nobody knows
/// which.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the new exchange contradicts the bounds by {gap}")]
pub struct Contradiction {
    /// What the facts before it said at the exchange's end.
    pub before: Bounds,
    /// What the exchange says by itself.
    pub exchange: Bounds,
    /// How far apart the two are.
    pub gap: Duration,
}

/// Stamps and rates are rounded at the 1 ns level at worst; each fact is widened by it.
const MARGIN: Duration = Duration::from_nanos(1);

impl Bounds {
    /// What one exchange proves by itself, at counter value `at` (which must not be before its
    /// end).
    ///
    /// `None` when the exchange contradicts itself: the reference says less time went by than our
    /// counter allows.
    #[must_use]
    pub fn of_exchange(exchange: &Exchange, at: u64, rate: &RateLimits) -> Option<Self> {
        let upper = exchange.tb
            + exchange.error
            + MARGIN
            + rate.longest.span_ceil(at.wrapping_sub(exchange.ta));
        let lower = exchange.te - exchange.error - MARGIN
            + rate.shortest.span(at.wrapping_sub(exchange.tf));
        Interval::new(lower, upper).map(|interval| Self { at, interval })
    }

    /// Bounds from elsewhere, at counter value `at`.
    #[must_use]
    pub fn new(at: u64, interval: Interval<Tai>) -> Self {
        Self { at, interval }
    }

    /// The counter value they hold at.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The interval at that counter value.
    #[must_use]
    pub fn interval(&self) -> Interval<Tai> {
        self.interval
    }

    /// Aged to a later counter value. An earlier one gives the same bounds back: facts do not age
    /// backwards.
    #[must_use]
    pub fn aged(&self, to: u64, rate: &RateLimits) -> Self {
        let ticks = to.wrapping_sub(self.at);
        if ticks >> 63 != 0 {
            return *self;
        }
        let earliest = self.interval.earliest() + rate.shortest.span(ticks);
        let latest = self.interval.latest() + rate.longest.span_ceil(ticks);
        Self { at: to, interval: Interval::new(earliest, latest).unwrap_or(Interval::UNKNOWN) }
    }

    /// Both: what this and an exchange prove together, at the exchange's end.
    ///
    /// # Errors
    /// The two exclude each other.
    pub fn with(&self, exchange: &Exchange, rate: &RateLimits) -> Result<Self, Contradiction> {
        let before = self.aged(exchange.tf, rate);
        let at = before.at;
        let upper = exchange.tb
            + exchange.error
            + MARGIN
            + rate.longest.span_ceil(at.wrapping_sub(exchange.ta));
        let lower = exchange.te - exchange.error - MARGIN
            + rate.shortest.span(at.wrapping_sub(exchange.tf));
        let earliest = before.interval.earliest().max(lower);
        let latest = before.interval.latest().min(upper);
        match Interval::new(earliest, latest) {
            Some(interval) => Ok(Self { at, interval }),
            None => Err(Contradiction {
                before,
                exchange: Self::of_exchange(exchange, at, rate).unwrap_or(before),
                gap: earliest - latest,
            }),
        }
    }

    /// The smallest bounds that hold both, at the later of the two counter values.
    #[must_use]
    pub fn hull(&self, other: &Self, rate: &RateLimits) -> Self {
        let (a, b) = (self.aged(other.at, rate), other.aged(self.at, rate));
        Self { at: a.at, interval: a.interval.hull(&b.interval) }
    }

    /// The instant in the middle.
    #[must_use]
    pub fn middle(&self) -> Instant<Tai> {
        self.interval.earliest() + self.interval.width().half()
    }
}

#[cfg(test)]
#[path = "level1_tests.rs"]
mod tests;
