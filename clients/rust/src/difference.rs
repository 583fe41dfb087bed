//! What an ordered list of publications implies about counter stamps, and about the time between
//! two.
//!
//! All publications share one disruption marker. Two kinds of facts follow from them, for true time
//! T as a function of the counter (docs/explanation/bounds.md derives both):
//!
//! - *Bounds*: from its base to its expiry, T lies between a publication's earliest and latest.
//! - *Rates*: between two adjacent bases, the counter's period is within the limits stated by the
//!   publications at both ends.
//!
//! The rates in between turn a bound at one counter value into a bound at another. A span is
//! bounded twice: by the bounds at its two ends, and by the rates between them. The second is
//! tighter for short spans, because the unknown part of the clock's offset cancels.
//!
//! Rates are not used across a *gap*: more than a minute after a publication's expiry without
//! another one. The daemon or the recorder was not running then, and the oscillator may have warmed
//! up and cooled down again. A span across a gap is the difference of two conversions, each of
//! which uses only its own side.
//!
//! The slopes of the lines are *not* limits of the rate: they are chords of a widening interval,
//! and true time may cross that interval faster. Only the rate limits are used between two stamps.
//!
//! All arithmetic uses integers and rounds outward. Nothing here reads a clock.

use timevisor_clock_page::lines::At;
use timevisor_clock_page::{ClockStatus, Lines};
use timevisor_time::{Duration, Instant, Local, Period};

use crate::snapshot::Snapshot;

/// Number of publications on either side of a stamp whose bounds are used. Those further away add
/// little, because their bounds age by the rate error of many publications.
const REACH: usize = 64;

/// The mean rate over this time is the estimate of the rate for a shorter span. The published
/// estimate is slewed, by up to the gap to its target in 8 s; over this window slews cancel, and
/// the rate of an ordinary oscillator changes only by parts per billion.
const RATE_WINDOW: Duration = Duration::from_secs(256);

/// The longest time after an expiry for which rate limits are relied on without another
/// publication. At the default wander (3e-8 per second) the rate changes by less than 2 ppm in this
/// time, and the limits allow for 15.
const LONGEST_UNWATCHED: Duration = Duration::from_secs(60);

/// Why no statement is possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Two publications contradict each other: an assumption behind one of them failed.
    Contradiction,
    /// The stamp is in a gap.
    Unobserved {
        /// Where the last publication expired.
        from: u64,
        /// The base of the next one.
        until: u64,
    },
}

/// Publications in the order of their bases.
#[derive(Clone, Copy)]
pub(crate) struct Stretch<'p>(&'p [Snapshot]);

/// What is known about one stamp.
pub(crate) struct Found<'p> {
    pub(crate) at: At<Local>,
    /// The publication that was in force then, or the first one after.
    pub(crate) in_force: &'p Snapshot,
    pub(crate) status: ClockStatus,
}

/// What is known about the time between two stamps.
pub(crate) struct Between {
    pub(crate) shortest: Duration,
    pub(crate) estimate: Duration,
    pub(crate) longest: Duration,
    pub(crate) status: ClockStatus,
}

/// How long a number of ticks took: minimum and maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Took {
    least: Duration,
    most: Duration,
}

/// The shortest and the longest period.
type Rates = (Period, Period);

impl Took {
    const NOTHING: Self = Self { least: Duration::ZERO, most: Duration::ZERO };

    fn of(ticks: u64, rates: Rates) -> Self {
        Self { least: rates.0.span(ticks), most: rates.1.span_ceil(ticks) }
    }

    fn and(self, more: Self) -> Self {
        Self { least: self.least + more.least, most: self.most + more.most }
    }
}

impl<'p> Stretch<'p> {
    /// `None` without any publication.
    pub(crate) fn new(publications: &'p [Snapshot]) -> Option<Self> {
        (!publications.is_empty()).then_some(Self(publications))
    }

    /// The tightest bounds on true time at a stamp, and the estimate at that time.
    pub(crate) fn at(&self, stamp: u64) -> Result<Found<'p>, Refusal> {
        let index = self.nearest(stamp)?;
        let (first, end) = self.without_gaps(index);
        Self(&self.0[first..end]).at_without_gaps(stamp, index - first)
    }

    /// As [`Self::at`], when there is no gap; `index` is the publication in force, or the first one
    /// after.
    fn at_without_gaps(&self, stamp: u64, index: usize) -> Result<Found<'p>, Refusal> {
        let in_force = &self.0[index];
        let run = self.run(index);
        let estimate = in_force.lines.at(stamp).estimate;
        let mut at = At { earliest: Instant::MIN, estimate, latest: Instant::MAX };
        self.narrow_from_before(&mut at, stamp, run.0.max((index + 1).saturating_sub(REACH)));
        self.narrow_from_after(&mut at, stamp, run.1.min(index + 1 + REACH));
        if at.earliest.to_bits() > at.latest.to_bits() {
            return Err(Refusal::Contradiction);
        }
        at.estimate = at.estimate.max(at.earliest).min(at.latest);
        let mut status = status_at(in_force, stamp);
        if is_before(stamp, in_force.lines.base) {
            // No publication was in force then.
            status = worst([status, ClockStatus::FreeRunning]);
        }
        Ok(Found { at, in_force, status })
    }

    /// How much true time elapsed between two stamps; `from` is not after `to`.
    pub(crate) fn between(&self, from: u64, to: u64) -> Result<Between, Refusal> {
        let (first, last) = (self.nearest(from)?, self.nearest(to)?);
        let (a, b) = (self.at(from)?.at, self.at(to)?.at);
        let (mut shortest, mut longest) = (b.earliest - a.latest, b.latest - a.earliest);
        if !(first + 1..=last).any(|index| self.is_behind_gap(index)) {
            let next = last + 2 - usize::from(self.is_behind_gap(last + 1));
            let took = Self(&self.0[first..next.min(self.0.len())]).took(from, to);
            (shortest, longest) = (shortest.max(took.least), longest.min(took.most));
        }
        if shortest > longest {
            return Err(Refusal::Contradiction);
        }
        let estimate = self.estimate_between(from, to).max(shortest).min(longest);
        Ok(Between { shortest, estimate, longest, status: self.status_between(from, to) })
    }

    /// The publication in force at a stamp; for an earlier stamp, the first publication.
    fn in_force(&self, stamp: u64) -> usize {
        let begun = |publication: &Snapshot| !is_before(stamp, publication.lines.base);
        self.0.partition_point(begun).saturating_sub(1)
    }

    /// Whether there was a gap before this publication's base.
    fn is_behind_gap(&self, index: usize) -> bool {
        let before = index.checked_sub(1).and_then(|index| self.0.get(index));
        let (Some(before), Some(after)) = (before, self.0.get(index)) else { return false };
        let (expiry, base) = (before.lines.expiry, after.lines.base);
        is_before(expiry, base) && base.wrapping_sub(expiry) > before.longest_unwatched()
    }

    /// The publication used to convert a stamp: the one in force. In a gap, it is the nearer one of
    /// the two sides, unless that is too far away as well.
    fn nearest(&self, stamp: u64) -> Result<usize, Refusal> {
        let index = self.in_force(stamp);
        let before = &self.0[index];
        if !self.is_behind_gap(index + 1) || !before.lines.is_expired(stamp) {
            return Ok(index);
        }
        let (from, until) = (before.lines.expiry, self.0[index + 1].lines.base);
        let (since, left) = (stamp.wrapping_sub(from), until.wrapping_sub(stamp));
        if since.min(left) > before.longest_unwatched() {
            return Err(Refusal::Unobserved { from, until });
        }
        Ok(if since <= left { index } else { index + 1 })
    }

    /// The publications within reach of one without a gap in between, as a half-open range.
    fn without_gaps(&self, index: usize) -> (usize, usize) {
        let first = index.saturating_sub(REACH);
        let end = self.0.len().min(index + REACH + 2);
        let first = (first + 1..=index).rev().find(|at| self.is_behind_gap(*at)).unwrap_or(first);
        (first, (index + 1..end).find(|at| self.is_behind_gap(*at)).unwrap_or(end))
    }

    /// The neighbours of a publication that are as trustworthy as it is, as a half-open range.
    /// Publications from while an assumption was in doubt must not narrow trustworthy ones.
    fn run(&self, index: usize) -> (usize, usize) {
        let trusted = self.0[index].is_trusted();
        let other = |publication: &Snapshot| publication.is_trusted() != trusted;
        let before = index.saturating_sub(REACH);
        let first =
            self.0[before..index].iter().rposition(other).map_or(before, |at| before + at + 1);
        let rest = &self.0[index..self.0.len().min(index + 1 + REACH)];
        let end = rest.iter().position(other).unwrap_or(rest.len());
        (first, index + end)
    }

    /// Bounds of the publications from `first` to the one in force. Each one's lines hold until its
    /// expiry. From there on, its bounds age by the rates.
    fn narrow_from_before(&self, at: &mut At<Local>, stamp: u64, first: usize) {
        let last = self.in_force(stamp);
        if is_before(stamp, self.0[last].lines.base) {
            return;
        }
        // The durations from each base to the stamp, from the last base backwards.
        let mut since = vec![Took::NOTHING; last + 2 - first];
        for index in (first..=last).rev() {
            let from = self.0[index].lines.base;
            since[index - first] = self.within(index, from, stamp).and(since[index + 1 - first]);
            let lines = &self.0[index].lines;
            if !lines.is_expired(stamp) {
                narrow(at, lines, stamp, Took::NOTHING);
                continue;
            }
            let begun = |other: &Snapshot| !is_before(lines.expiry, other.lines.base);
            let during = index + self.0[index + 1..=last].partition_point(begun);
            let aged = self.within(during, lines.expiry, stamp).and(since[during + 1 - first]);
            narrow(at, lines, lines.expiry, aged);
        }
    }

    /// Bounds of the publications after the stamp and before `end`, at their bases, minus the
    /// duration from the stamp to there.
    fn narrow_from_after(&self, at: &mut At<Local>, stamp: u64, end: usize) {
        let next = self.0.partition_point(|p| !is_before(stamp, p.lines.base));
        let (mut from, mut took) = (stamp, Took::NOTHING);
        for index in next..end {
            let lines = &self.0[index].lines;
            let ticks = lines.base.wrapping_sub(from);
            took = took.and(Took::of(ticks, self.rates_before(index)));
            from = lines.base;
            at.earliest = at.earliest.max(lines.earliest.time - took.most);
            at.latest = at.latest.min(lines.latest.time - took.least);
        }
    }

    /// The duration from `from` to the next publication's base, or to `to` if that comes first;
    /// `index` is the publication in force at `from`.
    fn within(&self, index: usize, from: u64, to: u64) -> Took {
        let end = match self.0.get(index + 1) {
            Some(next) if is_before(next.lines.base, to) => next.lines.base,
            _ => to,
        };
        Took::of(end.wrapping_sub(from), self.rates_before(index + 1))
    }

    /// The duration from one stamp to a later one, from the rates alone.
    fn took(&self, from: u64, to: u64) -> Took {
        let (mut at, mut took) = (from, Took::NOTHING);
        let next = self.0.partition_point(|p| !is_before(from, p.lines.base));
        for (index, publication) in self.0.iter().enumerate().skip(next) {
            if !is_before(publication.lines.base, to) {
                return took.and(Took::of(to.wrapping_sub(at), self.rates_before(index)));
            }
            let ticks = publication.lines.base.wrapping_sub(at);
            took = took.and(Took::of(ticks, self.rates_before(index)));
            at = publication.lines.base;
        }
        took.and(Took::of(to.wrapping_sub(at), self.rates_before(self.0.len())))
    }

    /// The rate limits before a publication's base, back to the previous base. An index one past
    /// the last publication gives those after it.
    ///
    /// Both neighbours' limits hold there. If the earlier one had expired, nothing was published,
    /// or records are missing: then the union of both limits is used, and not across a gap. Limits
    /// of publications further away are not used: a rate "within 15 ppm of the measured one" refers
    /// to a recent measurement.
    fn rates_before(&self, index: usize) -> Rates {
        let after = self.0.get(index);
        let before = index.checked_sub(1).and_then(|index| self.0.get(index));
        match (before, after) {
            (Some(before), Some(after)) => {
                let (a, b) = (before.lines.rate_limits(), after.lines.rate_limits());
                let both = (a.0.max(b.0), a.1.min(b.1));
                let watched = !before.lines.is_expired(after.lines.base)
                    && before.is_trusted()
                    && after.is_trusted();
                if watched && both.0 <= both.1 { both } else { (a.0.min(b.0), a.1.max(b.1)) }
            }
            (Some(one), None) | (None, Some(one)) => one.lines.rate_limits(),
            (None, None) => (Period::from_bits(0), Period::from_bits(u64::MAX)),
        }
    }

    /// The estimated duration of the ticks, from the estimate's mean rate around them.
    fn estimate_between(&self, from: u64, to: u64) -> Duration {
        let ticks = to.wrapping_sub(from);
        let period = self.0[self.in_force(from)].lines.estimate.period;
        let around = period.ticks_in(RATE_WINDOW).saturating_sub(ticks) / 2;
        let (first, last) = (&self.0[0], &self.0[self.0.len() - 1]);
        let room = |a: u64, b: u64| if is_before(a, b) { b.wrapping_sub(a) } else { 0 };
        let start = from.wrapping_sub(around.min(room(first.lines.base, from)));
        let end = to.wrapping_add(around.min(room(to, last.lines.base)));
        let estimate = |stamp| self.0[self.in_force(stamp)].lines.at(stamp).estimate;
        let direct = estimate(to) - estimate(from);
        let all = end.wrapping_sub(start);
        if all == ticks {
            return direct;
        }
        let mean = (estimate(end) - estimate(start)).to_bits().checked_mul(i128::from(ticks));
        mean.map_or(direct, |product| Duration::from_bits(product / i128::from(all)))
    }

    /// The weakest status of all publications in force between two stamps.
    fn status_between(&self, from: u64, to: u64) -> ClockStatus {
        let (first, last) = (self.in_force(from), self.in_force(to));
        let inner = (first..last).map(|index| {
            let until = self.0[index + 1].lines.base;
            status_at(&self.0[index], until)
        });
        let ends = [status_at(&self.0[first], from), status_at(&self.0[last], to)];
        worst(inner.chain(ends))
    }
}

/// The weakest status.
pub(crate) fn worst(statuses: impl IntoIterator<Item = ClockStatus>) -> ClockStatus {
    let worst = statuses.into_iter().max_by_key(|status| doubt(*status));
    worst.unwrap_or(ClockStatus::Unknown)
}

/// Orders statuses: the worse the status, the higher the number.
fn doubt(status: ClockStatus) -> u8 {
    match status {
        ClockStatus::Synchronized => 0,
        ClockStatus::Initializing => 1,
        ClockStatus::FreeRunning => 2,
        ClockStatus::Unreliable => 3,
        ClockStatus::Unknown => 4,
    }
}

/// A publication's status as it is at a stamp.
fn status_at(publication: &Snapshot, stamp: u64) -> ClockStatus {
    match publication.said.status() {
        ClockStatus::Synchronized | ClockStatus::Initializing
            if publication.lines.is_expired(stamp) =>
        {
            ClockStatus::FreeRunning
        }
        other => other,
    }
}

/// Narrows the bounds with those of the lines at `counter`, aged by some further ticks.
fn narrow(at: &mut At<Local>, lines: &Lines<Local>, counter: u64, then: Took) {
    let said = lines.at(counter);
    at.earliest = at.earliest.max(said.earliest + then.least);
    at.latest = at.latest.min(said.latest + then.most);
}

impl Snapshot {
    /// [`LONGEST_UNWATCHED`] in ticks.
    fn longest_unwatched(&self) -> u64 {
        self.lines.estimate.period.ticks_in(LONGEST_UNWATCHED)
    }
}

/// Uses the signed distance, because a counter may wrap.
pub(crate) fn is_before(a: u64, b: u64) -> bool {
    a.wrapping_sub(b) >> 63 != 0
}

#[cfg(test)]
#[path = "difference_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "difference_worlds_tests.rs"]
mod worlds_tests;
