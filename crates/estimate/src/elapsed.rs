//! The elapsed clock: how long something has been running, over changes of the counter and of its
//! rate (RVEC, docs/explanation/elapsed.md; the paper "RVEC and HPGC", sections 3.1 and 3.2).
//!
//! A counter alone measures one stretch: until its rate changes (a core's frequency), or until it
//! is another counter (another core, another machine). At each such event the stretch is
//! *consolidated* into the age, and the next one begins. Readings are strictly increasing and
//! precise to the rates' errors (the paper's SIP property): every tick adds something, no event
//! takes anything away.
//!
//! | event | call |
//! | --- | --- |
//! | a rate is known better, a core's frequency changes | [`ElapsedClock::change_rate`] |
//! | another core or machine, and no time went by | [`ElapsedClock::change_counter`] |
//! | migration, restore, suspend: time went by that no counter of ours counted | [`ElapsedClock::skip`] after it |
//!
//! What it does not do: read counters, or know what time it is.

use timevisor_time::{Duration, Period};

use crate::rate::RateLimits;

/// The age of something, as a function of a counter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ElapsedClock {
    /// Where the stretch in force began.
    base: u64,
    /// The age there.
    consolidated: Age,
    rate: Rate,
}

/// A length of time that is known within limits; `earliest <= estimate <= latest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Age {
    /// At least this.
    pub earliest: Duration,
    /// Best guess.
    pub estimate: Duration,
    /// At most this.
    pub latest: Duration,
}

/// A counter's rate: a period within limits that hold the true one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    period: Period,
    limits: RateLimits,
}

/// A rate under which a clock would stand still, or be outside its own limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a period must be above 0 and within its limits")]
pub struct InvalidRate;

/// An interval that is none, or that ends before it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an age must not be negative, and its earliest, estimate and latest must be in this order")]
pub struct InvalidAge;

impl Rate {
    /// A best guess within its limits.
    ///
    /// # Errors
    /// A period of 0, or one outside `limits`.
    pub fn new(period: Period, limits: RateLimits) -> Result<Self, InvalidRate> {
        let inside = limits.shortest <= period && period <= limits.longest;
        // A unit of the age is 2^-64 s; below it two ticks could give the same reading.
        let moves = period.span(1) > Duration::ZERO;
        (inside && moves).then_some(Self { period, limits }).ok_or(InvalidRate)
    }
}

impl Rate {
    /// The best guess.
    #[must_use]
    pub fn period(&self) -> Period {
        self.period
    }

    /// What holds the true one.
    #[must_use]
    pub fn limits(&self) -> RateLimits {
        self.limits
    }
}

impl Age {
    /// Nothing yet.
    pub const ZERO: Self =
        Self { earliest: Duration::ZERO, estimate: Duration::ZERO, latest: Duration::ZERO };

    /// # Errors
    /// Limits in another order, or negative ones.
    pub fn new(
        earliest: Duration,
        estimate: Duration,
        latest: Duration,
    ) -> Result<Self, InvalidAge> {
        let ordered = !earliest.is_negative() && earliest <= estimate && estimate <= latest;
        ordered.then_some(Self { earliest, estimate, latest }).ok_or(InvalidAge)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            earliest: self.earliest + other.earliest,
            estimate: self.estimate + other.estimate,
            latest: self.latest + other.latest,
        }
    }
}

impl ElapsedClock {
    /// Begins with `age` ([`Age::ZERO`], or a saved one) at counter value `base`.
    #[must_use]
    pub fn new(base: u64, age: Age, rate: Rate) -> Self {
        Self { base, consolidated: age, rate }
    }

    /// The age at a counter value. Values before the stretch in force, which a reader may still
    /// hold, give the age at its beginning.
    #[must_use]
    pub fn at(&self, counter: u64) -> Age {
        let ticks = counter.wrapping_sub(self.base);
        let ticks = if ticks >> 63 == 0 { ticks } else { 0 };
        let Rate { period, limits } = self.rate;
        self.consolidated.plus(Age {
            earliest: limits.shortest.span(ticks),
            estimate: period.span(ticks),
            latest: limits.longest.span_ceil(ticks),
        })
    }

    /// From `counter` on, the same counter runs at another rate, or its rate is known better.
    pub fn change_rate(&mut self, counter: u64, rate: Rate) {
        self.change_counter(counter, counter, rate);
    }

    /// At the same moment the old counter was at `old` and the new one at `new`.
    pub fn change_counter(&mut self, old: u64, new: u64, rate: Rate) {
        *self = Self { base: new, consolidated: self.at(old), rate };
    }

    /// So long a time went by that no counter has counted: a blackout, as the global clock measured
    /// it.
    pub fn skip(&mut self, blackout: Age) {
        self.consolidated = self.consolidated.plus(blackout);
    }

    /// At `counter` the age is known to lie within these limits, from elsewhere. The estimate never
    /// goes back for it: where it is beyond them, so is `latest`.
    pub fn confine(&mut self, counter: u64, earliest: Duration, latest: Duration) {
        self.change_rate(counter, self.rate);
        let age = &mut self.consolidated;
        // Limits that exclude each other say that one of them is wrong; the wider answer is the
        // honest one.
        if earliest > age.latest || latest < age.earliest {
            age.earliest = age.earliest.min(latest.max(Duration::ZERO));
            age.latest = age.latest.max(earliest);
        } else {
            age.earliest = age.earliest.max(earliest);
            age.latest = age.latest.min(latest);
        }
        age.estimate = age.estimate.max(age.earliest);
        age.latest = age.latest.max(age.estimate);
    }

    /// The rate in force.
    #[must_use]
    pub fn rate(&self) -> &Rate {
        &self.rate
    }
}

#[cfg(test)]
#[path = "elapsed_tests.rs"]
mod tests;
