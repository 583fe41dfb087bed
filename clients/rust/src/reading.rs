//! [`Reading`]: what a timeline says about one moment, and how readings and instants compare.
//!
//! Nanoseconds at the edges are rounded outward (earliest down, latest up, estimate down); the
//! exact instants are available as well. It reads nothing itself: [`crate::Timeline`] does.

use timevisor_clock_page::lines::At;
use timevisor_clock_page::{ClockStatus, Reading as PageReading};
use timevisor_time::{Comparison, Duration, Instant, Interval, Local, Timescale, TimescaleId};

use crate::difference::{Found, is_before, worst};
use crate::error::ConvertError;

/// What a timeline says about one moment: true time was between earliest and latest when the
/// counter was at `counter`, provided that the assumptions of docs/explanation/bounds.md hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    pub(crate) counter: u64,
    pub(crate) earliest: Instant<Local>,
    pub(crate) estimate: Instant<Local>,
    pub(crate) latest: Instant<Local>,
    /// 2^-64 s, saturated.
    pub(crate) error_bits: u64,
    pub(crate) disruption: u64,
    /// The timeline it was read from: only readings of the same local timeline have an order.
    pub(crate) origin: u64,
    pub(crate) generation: u16,
    pub(crate) tai_offset: Option<i16>,
    pub(crate) status: ClockStatus,
    pub(crate) timescale: TimescaleId,
    pub(crate) known: bool,
    pub(crate) met: bool,
}

impl Reading {
    #[inline(always)]
    pub(crate) fn of_page(raw: &PageReading, origin: u64) -> Self {
        Self {
            counter: raw.counter,
            earliest: raw.earliest,
            estimate: raw.estimate,
            latest: raw.latest,
            error_bits: u64::try_from(raw.estimated_error().to_bits()).unwrap_or(u64::MAX),
            disruption: raw.disruption,
            origin,
            generation: raw.generation(),
            tai_offset: raw.tai_offset(),
            status: raw.status(),
            timescale: raw.timescale(),
            known: raw.has_estimate(),
            met: false,
        }
    }

    /// What publications imply about a stamp.
    pub(crate) fn of_stamp(found: &Found<'_>, stamp: u64, origin: u64) -> Self {
        let At { earliest, estimate, latest } = found.at;
        let said = Self::of_page(&found.in_force.said, origin);
        Self { counter: stamp, earliest, estimate, latest, status: found.status, ..said }
    }

    /// The reading for an event between two counter values, from `convert` of both.
    pub(crate) fn between(
        first: u64,
        last: u64,
        convert: impl Fn(u64) -> Result<Self, ConvertError>,
    ) -> Result<Self, ConvertError> {
        if is_before(last, first) {
            return Err(ConvertError::WrongOrder);
        }
        let (begin, end) = (convert(first)?, convert(last)?);
        let middle = convert(first.wrapping_add(last.wrapping_sub(first) / 2))?;
        // Use the less trustworthy status.
        let status = worst([begin.status, end.status]);
        let (earliest, latest) = (begin.earliest, end.latest);
        let estimate = middle.estimate.max(earliest).min(latest);
        Ok(Self { earliest, estimate, latest, status, ..middle })
    }

    /// True time is not before this, ns since the timescale's epoch, rounded down. The lowest value
    /// (-2^63 + 1) when nothing is known.
    #[must_use]
    pub fn earliest_ns(&self) -> i64 {
        self.earliest.floor_nanos()
    }

    /// The best estimate, ns since the timescale's epoch, rounded down. 0 when nothing is known:
    /// see [`Self::is_known`].
    #[must_use]
    pub fn estimate_ns(&self) -> i64 {
        self.estimate.floor_nanos()
    }

    /// True time is not after this, ns since the timescale's epoch, rounded up. The highest value
    /// (2^63 - 1) when nothing is known.
    #[must_use]
    pub fn latest_ns(&self) -> i64 {
        self.latest.ceil_nanos()
    }

    /// As [`Self::earliest_ns`], in 2^-64 s.
    #[must_use]
    pub fn earliest(&self) -> Instant<Local> {
        self.earliest
    }

    /// As [`Self::estimate_ns`], in 2^-64 s.
    #[must_use]
    pub fn estimate(&self) -> Instant<Local> {
        self.estimate
    }

    /// As [`Self::latest_ns`], in 2^-64 s.
    #[must_use]
    pub fn latest(&self) -> Instant<Local> {
        self.latest
    }

    /// The interval, typed by its timescale; `None` if the timeline is on another timescale.
    #[must_use]
    pub fn interval<S: Timescale>(&self) -> Option<Interval<S>> {
        let same = self.timescale == S::ID;
        if same { Interval::new(self.earliest.relabel(), self.latest.relabel()) } else { None }
    }

    /// Which timescale the three instants are on.
    #[must_use]
    pub fn timescale(&self) -> TimescaleId {
        self.timescale
    }

    /// How far to trust it (docs/reference/statuses.md).
    #[must_use]
    pub fn status(&self) -> ClockStatus {
        self.status
    }

    /// False while nothing is known: earliest and latest then exclude nothing, and the estimate is
    /// meaningless.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Whether this reading meets the handle's own requirement; true without one.
    #[must_use]
    pub fn met(&self) -> bool {
        self.met
    }

    /// The counter value that it is valid for, in ticks.
    #[must_use]
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// Changes when the clock may have stepped: readings with different numbers are not from one
    /// continuous clock.
    #[must_use]
    pub fn disruption(&self) -> u64 {
        self.disruption
    }

    /// The clock it was read from: readings of local timelines have an order only if this is equal.
    #[must_use]
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// TAI - UTC in seconds, where known.
    #[must_use]
    pub fn tai_offset(&self) -> Option<i16> {
        self.tai_offset
    }

    /// How far true time may be before the estimate, ns, rounded up; `None` when nothing is known.
    #[must_use]
    pub fn below_ns(&self) -> Option<u64> {
        self.known.then(|| span_ns(self.estimate - self.earliest))
    }

    /// How far true time may be after the estimate, ns, rounded up; `None` when nothing is known.
    #[must_use]
    pub fn above_ns(&self) -> Option<u64> {
        self.known.then(|| span_ns(self.latest - self.estimate))
    }

    /// The larger of [`Self::below_ns`] and [`Self::above_ns`].
    #[must_use]
    pub fn half_width_ns(&self) -> Option<u64> {
        self.below_ns().max(self.above_ns())
    }

    /// One sigma of the estimate, ns, rounded up; not a bound. `None` when it is not known.
    #[must_use]
    pub fn estimated_error_ns(&self) -> Option<u64> {
        let said = self.known && self.error_bits != u64::MAX;
        said.then(|| span_ns(Duration::from_bits(i128::from(self.error_bits))))
    }

    /// Was this moment surely before `t_ns`, surely after it, or is the order not known?
    ///
    /// ```
    /// use timevisor::{Comparison, manual::Clock};
    /// let clock = Clock::new(1_000_000);
    /// clock.set_error(std::time::Duration::from_nanos(500));
    /// let reading = clock.timeline().now()?;
    /// assert_eq!(reading.compare_to(999_499), Comparison::After);
    /// assert_eq!(reading.compare_to(1_000_400), Comparison::Uncertain);
    /// assert_eq!(reading.compare_to(1_000_501), Comparison::Before);
    /// # Ok::<(), timevisor::ReadError>(())
    /// ```
    #[must_use]
    pub fn compare_to(&self, t_ns: i64) -> Comparison {
        if !self.is_trustworthy() {
            Comparison::Uncertain
        } else if self.latest_ns() < t_ns {
            Comparison::Before
        } else if self.earliest_ns() > t_ns {
            Comparison::After
        } else {
            Comparison::Uncertain
        }
    }

    /// Was this moment surely before that of `other`, surely after it, or is the order not known?
    ///
    /// Readings on different timescales have no order. Neither do readings of different local
    /// timelines, readings of one local timeline before and after a disruption, or readings whose
    /// status is unknown or unreliable. UTC repeats itself at a leap second, so ordering across one
    /// needs TAI.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Comparison {
        let local = self.timescale == TimescaleId::Local;
        let same_clock = self.origin == other.origin && self.disruption == other.disruption;
        if self.timescale != other.timescale
            || (local && !same_clock)
            || !self.is_trustworthy()
            || !other.is_trustworthy()
        {
            return Comparison::Uncertain;
        }
        if self.latest.to_bits() < other.earliest.to_bits() {
            Comparison::Before
        } else if other.latest.to_bits() < self.earliest.to_bits() {
            Comparison::After
        } else {
            Comparison::Uncertain
        }
    }

    /// Whether the bounds may be relied on: something is known, and no assumption is in doubt.
    #[must_use]
    pub fn is_trustworthy(&self) -> bool {
        self.known && self.status != ClockStatus::Unreliable && self.status != ClockStatus::Unknown
    }
}

/// A non-negative span in nanoseconds, rounded up.
fn span_ns(span: Duration) -> u64 {
    u64::try_from(span.ceil_nanos()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use crate::Comparison::{After, Before, Uncertain};
    use crate::{Status, manual::Clock};
    use std::time::Duration;

    #[test]
    fn readings_have_an_order_only_where_it_is_certain() {
        let clock = Clock::new(0);
        clock.set_error(Duration::from_nanos(10));
        let tai = clock.timeline();
        let first = tai.now().unwrap();
        clock.advance(Duration::from_nanos(19));
        let touching = tai.now().unwrap();
        assert_eq!((first.compare(&touching), touching.compare(&first)), (Uncertain, Uncertain));
        clock.advance(Duration::from_nanos(2));
        let later = tai.now().unwrap();
        assert_eq!((first.compare(&later), later.compare(&first)), (Before, After));
        clock.set_status(Status::Unreliable);
        let doubtful = tai.now().unwrap();
        assert_eq!(
            (first.compare(&doubtful), doubtful.compare_to(i64::MAX)),
            (Uncertain, Uncertain)
        );
        clock.forget();
        let nothing = tai.now().unwrap();
        assert_eq!((nothing.below_ns(), nothing.estimated_error_ns()), (None, None));
        assert_eq!(nothing.compare_to(0), Uncertain);
    }

    #[test]
    fn local_timelines_have_no_order_with_others_or_across_a_disruption() {
        let local = |clock: &Clock| clock.timeline().now().unwrap();
        let (one, other) = (Clock::local(0), Clock::local(1_000_000));
        assert_eq!(local(&one).compare(&local(&other)), Uncertain);
        let before = local(&one);
        one.step(5_000);
        assert_eq!(before.compare(&local(&one)), Uncertain);
        let after = local(&one);
        one.advance(Duration::from_nanos(3));
        assert_eq!(after.compare(&local(&one)), Before);
    }
}
