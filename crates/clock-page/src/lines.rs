//! Earliest, estimate and latest as affine functions of the counter, and the rules that successive
//! ones obey.
//!
//! Rules (docs/explanation/bounds.md, normative in UAPI.13 VMClock): for one counter value, bounds
//! published later lie inside bounds published earlier, and the estimate never reads earlier than
//! before, unless a disruption is signalled. [`Lines::continued`] enforces both; the property tests
//! below attack them.

use timevisor_time::{Duration, Instant, Interval, Period, RateError};

/// How much slower than the true rate may be an estimate runs that is above the upper bound, ppm. The kernel slews by
/// 500 at most (`MAXFREQ` in kernel/time/ntp.c), as ntpd does: a CLOCK_REALTIME that follows still has 100 for its
/// crystal.
const BACK_PPM: u32 = 400;

/// One affine function of the counter: `time` at the base, then one `period` per tick.
#[derive(PartialEq, Eq, Debug)]
pub struct Line<S> {
    /// Value at the base.
    pub time: Instant<S>,
    /// Length of a tick.
    pub period: Period,
}

impl<S> Clone for Line<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Line<S> {}

/// Earliest, estimate and latest from one base counter value on.
///
/// Invariant: `earliest <= estimate <= latest` at the base and at the expiry, and the estimate's
/// period is within those of the bounds give or take the holdover, hence at every later counter
/// value. The periods of the bounds, give or take the holdover, also limit the true rate, so the
/// lines extend backwards (see [`Self::at`]).
#[derive(PartialEq, Eq, Debug)]
pub struct Lines<S> {
    /// Counter value at which the lines start.
    pub base: u64,
    /// Counter value up to which the published status holds.
    pub expiry: u64,
    /// True time is not before this.
    pub earliest: Line<S>,
    /// The best guess.
    pub estimate: Line<S>,
    /// True time is not after this.
    pub latest: Line<S>,
    /// Extra growth of each bound beyond the expiry, 2^-84 s a tick. Zero where the periods are
    /// safe for ever.
    pub holdover: u64,
}

impl<S> Clone for Lines<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Lines<S> {}

/// How the estimate moves to a new target.
#[derive(Clone, Copy, Debug)]
pub struct Slew {
    /// The gap to the target is closed in this many ticks, as far as the bounds' periods allow.
    pub horizon: u64,
    /// A gap ahead of the estimate that is wider than this is jumped, not slewed: jumping ahead is
    /// monotonic.
    pub jump: Duration,
}

/// What the three lines say at one counter value.
#[derive(PartialEq, Eq, Debug)]
pub struct At<S> {
    /// True time is not before this.
    pub earliest: Instant<S>,
    /// The best guess.
    pub estimate: Instant<S>,
    /// True time is not after this.
    pub latest: Instant<S>,
}

impl<S> At<S> {
    /// The same, with bounds that hold all three. Where the lines are as good as one, as on the host
    /// that a timeline has its time from, rounding may have crossed them.
    #[inline(always)]
    #[must_use]
    pub fn outward(self) -> Self {
        let Self { earliest, estimate, latest } = self;
        Self {
            earliest: earliest.min(estimate).min(latest),
            estimate,
            latest: latest.max(estimate).max(earliest),
        }
    }
}

impl<S> Lines<S> {
    /// No time, and bounds that exclude nothing.
    pub(crate) const NOTHING: Self = {
        let period = Period::from_bits(0);
        Self {
            base: 0,
            expiry: 0,
            earliest: Line { time: Instant::MIN, period },
            estimate: Line { time: Instant::from_bits(0), period },
            latest: Line { time: Instant::MAX, period },
            holdover: 0,
        }
    };

    /// Evaluates the lines. Before the base the bounds widen backwards: the lower one falls at the
    /// fastest rate.
    ///
    /// Rounds down by less than 2^-64 s; writers add that unit to `latest` once (see
    /// [`Self::rebased`]).
    #[inline(always)]
    #[must_use]
    pub fn at(&self, counter: u64) -> At<S> {
        let ticks = counter.wrapping_sub(self.base);
        if ticks >> 63 != 0 {
            return self.before_base(ticks.wrapping_neg());
        }
        let mut at = At {
            earliest: ahead(self.earliest, ticks),
            estimate: ahead(self.estimate, ticks),
            latest: ahead(self.latest, ticks),
        };
        if self.holdover != 0 && self.is_expired(counter) {
            let growth =
                Period::from_bits(self.holdover).span_ceil(counter.wrapping_sub(self.expiry));
            at.earliest = at.earliest - growth;
            at.latest = at.latest + growth;
        }
        at
    }

    #[cold]
    fn before_base(&self, ticks: u64) -> At<S> {
        let rate = self.rate_limits();
        At {
            earliest: self.earliest.time - rate.1.span_ceil(ticks),
            estimate: self.estimate.time - self.estimate.period.span_ceil(ticks),
            latest: self.latest.time - rate.0.span(ticks),
        }
    }

    /// The shortest and the longest period that the counter may have at any time.
    #[must_use]
    pub fn rate_limits(&self) -> (Period, Period) {
        let bits = |p: Period| p.to_bits();
        (
            Period::from_bits(bits(self.earliest.period).saturating_sub(self.holdover)),
            Period::from_bits(bits(self.latest.period).saturating_add(self.holdover)),
        )
    }

    /// True beyond the expiry.
    #[inline(always)]
    #[must_use]
    pub fn is_expired(&self, counter: u64) -> bool {
        // Signed distance: a counter may wrap, and a reader may be slightly before the base.
        let past = counter.wrapping_sub(self.expiry);
        past != 0 && past >> 63 == 0
    }

    /// The interval at one counter value, with the estimate in it.
    #[must_use]
    pub fn interval_at(&self, counter: u64) -> Interval<S> {
        let at = self.at(counter).outward();
        Interval::new(at.earliest, at.latest).unwrap_or(Interval::UNKNOWN)
    }

    /// The same lines with another base. One unit is added to `latest`: evaluation rounds down,
    /// bounds round outward.
    #[must_use]
    pub fn rebased(&self, base: u64) -> Self {
        let at = self.at(base);
        Self {
            base,
            earliest: Line { time: at.earliest, ..self.earliest },
            estimate: Line { time: at.estimate, ..self.estimate },
            latest: Line { time: at.latest + Duration::EPSILON, ..self.latest },
            ..*self
        }
    }

    /// The same knowledge from `base` on, with ends that move at the limits of the rate and hold
    /// for ever. `rate`: the shortest and the longest period, where they are known from elsewhere.
    ///
    /// A slew ends here. What it added to the holdover says nothing of the rate, so `rate` should be
    /// given, and an estimate that ran slower than any rate goes on at the nearest of the bounds'.
    #[must_use]
    pub fn free_running(&self, base: u64, rate: Option<(Period, Period)>) -> Self {
        let (mut shortest, mut longest) = self.rate_limits();
        if let Some((rate_shortest, rate_longest)) = rate {
            let known = (shortest.max(rate_shortest), longest.min(rate_longest));
            if known.0 <= known.1 {
                (shortest, longest) = known;
            }
        }
        let at = self.rebased(base);
        let likely = at.estimate.period.max(self.earliest.period).min(self.latest.period);
        let period = likely.max(shortest).min(longest);
        Self {
            earliest: Line { period: shortest, ..at.earliest },
            estimate: Line { period, ..at.estimate },
            latest: Line { period: longest, ..at.latest },
            holdover: 0,
            ..at
        }
    }

    /// The same clock on another timescale, `offset` ahead of this one.
    #[must_use]
    pub fn shifted<T>(&self, offset: Duration) -> Lines<T> {
        let shift =
            |line: &Line<S>| Line { time: (line.time + offset).relabel(), period: line.period };
        Lines {
            base: self.base,
            expiry: self.expiry,
            earliest: shift(&self.earliest),
            estimate: shift(&self.estimate),
            latest: shift(&self.latest),
            holdover: self.holdover,
        }
    }

    /// These lines, valid only while the clock surely has not reached `instant` yet: they expire
    /// halfway between `now` and then. Beyond the expiry the bounds grow by `step` until `instant`,
    /// on top of their own growth, so that they hold a clock that steps by that much there.
    ///
    /// A page that nobody writes any more thus does not go wrong at a leap second. `None` where the
    /// instant may have been reached at `now`.
    #[must_use]
    pub fn until_step(&self, instant: Instant<S>, step: Duration, now: u64) -> Option<Self> {
        let left = instant - self.at(now).latest;
        let ticks = self.rate_limits().1.ticks_in(left).min(u64::MAX >> 2);
        if ticks < 2 {
            return None;
        }
        let expiry = sooner(self.expiry, now.wrapping_add(ticks / 2), now);
        let growing = now.wrapping_add(ticks).wrapping_sub(expiry);
        let growth = Period::from_ratio(step, growing).map_or(u64::MAX, Period::to_bits);
        let holdover = self.holdover.saturating_add(growth).saturating_add(1);
        Some(Self { expiry, holdover, ..*self })
    }

    /// The larger of the two distances between the estimate and a bound, at the base.
    #[must_use]
    pub fn half_width(&self) -> Duration {
        (self.latest.time - self.estimate.time).max(self.estimate.time - self.earliest.time)
    }

    /// What to publish at counter value `now` when `self` is in force and `target` is the new best
    /// knowledge.
    ///
    /// A target with a holdover must not expire before `self`: its growth would begin too early to
    /// nest.
    ///
    /// Bounds nest until shortly before `self` expires ([`renewal`]). The estimate starts where
    /// `self` stands, or ahead of it, and moves towards the target at a rate that the bounds allow.
    /// An estimate above the new upper bound must not go back: the upper bound is raised to it, and
    /// it runs up to 400 ppm slower than its lower bound. That is sound, because the
    /// estimate was inside the previous bound, and temporary. Should nobody publish any more, the
    /// estimate goes on as slowly, so the bounds grow by as much beyond the expiry.
    #[must_use]
    pub fn continued(&self, target: &Self, now: u64, slew: Slew) -> Self {
        let old = self.rebased(now);
        let mut out = target.rebased(now);
        let renewed = self.is_renewal_due(now, out.expiry, slew);
        if !renewed {
            self.nest(&mut out, now);
        }
        let is_above = old.estimate.time.to_bits() > out.latest.time.to_bits();
        if is_above {
            out.latest.time = old.estimate.time;
            if !renewed {
                self.nest(&mut out, now);
            }
        }
        let holdover = out.holdover;
        // A growth that began before `self` expires would not nest.
        if is_above && (renewed || sooner(self.expiry, out.expiry, now) == self.expiry) {
            let back = RateError::from_ppm(BACK_PPM).of_ceil(out.earliest.period.to_bits());
            // Not on top: lines that follow others in their slew already have its holdover.
            out.holdover = holdover.max(back);
        }
        out.estimate = slewed(&old.estimate, &out.estimate, &out, slew);
        out.estimate.period = out.inside_until_expiry(&out.estimate);
        let slower = out.earliest.period.to_bits().saturating_sub(out.estimate.period.to_bits());
        out.holdover = holdover.max(slower);
        out
    }

    /// True when the lines have expired, or will expire before the next publication. Kept lines
    /// keep their expiry, and a clock with a living daemon must not look abandoned.
    #[must_use]
    pub fn is_renewal_due(&self, now: u64, next_expiry: u64, slew: Slew) -> bool {
        self.is_expired(now) || self.expiry.wrapping_sub(now) <= renewal(now, next_expiry, slew)
    }

    /// Keeps each old bound that the new one would leave before the expiry.
    fn nest(&self, new: &mut Self, now: u64) {
        let old = self.rebased(now);
        let left = self.expiry.wrapping_sub(now);
        let (mut kept, holdover) = (false, new.holdover);
        if !not_below(&new.earliest, &old.earliest, left) {
            new.earliest = old.earliest;
            kept = true;
        }
        if !not_below(&old.latest, &new.latest, left) {
            // `rebased` added a unit; without undoing it an upper bound that is kept for ever would
            // creep up.
            new.latest = Line { time: self.at(now).latest, ..self.latest };
            kept = true;
        }
        if kept {
            // A kept line keeps its expiry, and needs the growth that was published with it.
            new.expiry = sooner(new.expiry, self.expiry, now);
            new.holdover = holdover.max(self.holdover);
        }
    }

    /// The period nearest to the line's own that keeps it inside the bounds: up to the expiry along
    /// the bounds' lines, and beyond it at the limits of the rate.
    fn inside_until_expiry(&self, line: &Line<S>) -> Period {
        let (slowest, fastest) = self.rate_limits();
        let ticks = self.expiry.wrapping_sub(self.base);
        if ticks >> 63 != 0 || ticks == 0 {
            return line.period.clamp(slowest, fastest.max(slowest));
        }
        let until = |bound: &Line<S>| ahead(*bound, ticks) - line.time;
        // Rounded inwards on both sides.
        let at_least = Period::from_ratio(until(&self.earliest), ticks)
            .map_or(slowest, |p| Period::from_bits(p.to_bits().saturating_add(1)));
        let at_most = Period::from_ratio(until(&self.latest), ticks).unwrap_or(slowest);
        let (low, high) = (slowest.max(at_least), fastest.min(at_most));
        line.period.clamp(low.min(high), high)
    }
}

#[inline(always)]
fn ahead<S>(line: Line<S>, ticks: u64) -> Instant<S> {
    // Plain addition: 2^63 s of seconds leave room for any 64-bit tick count; `Instant + Duration`
    // would saturate.
    let bits = line.time.to_bits().wrapping_add(line.period.span(ticks).to_bits());
    Instant::from_bits(bits)
}

/// `a >= b` from the common base until `ticks` later: lines, so the two ends decide.
fn not_below<S>(a: &Line<S>, b: &Line<S>, ticks: u64) -> bool {
    a.time.to_bits() >= b.time.to_bits() && ahead(*a, ticks).to_bits() >= ahead(*b, ticks).to_bits()
}

/// How long before their expiry lines are renewed, in ticks: a 64th of the slew's horizon, at most
/// a 16th of the next lines' validity. A publisher that writes once in this span never lets readers
/// see an expired page.
#[must_use]
pub fn renewal(now: u64, next_expiry: u64, slew: Slew) -> u64 {
    (slew.horizon / 64).min(next_expiry.wrapping_sub(now) / 16)
}

fn sooner(a: u64, b: u64, now: u64) -> u64 {
    #[expect(
        clippy::cast_possible_wrap,
        reason = "the signed distance is meant: an expiry may lie in the past"
    )]
    let distance = |c: u64| c.wrapping_sub(now) as i64;
    if distance(a) <= distance(b) { a } else { b }
}

fn slewed<S>(old: &Line<S>, target: &Line<S>, bounds: &Lines<S>, slew: Slew) -> Line<S> {
    let (slowest, fastest) = bounds.rate_limits();
    let aim =
        target.time.max(bounds.earliest.time).min(bounds.latest.time.max(bounds.earliest.time));
    let gap = aim - old.time;
    if gap > slew.jump || old.time.to_bits() < bounds.earliest.time.to_bits() {
        return Line { time: aim, period: target.period.clamp(slowest, fastest) };
    }
    let correction = Period::from_ratio(gap.abs(), slew.horizon.max(1)).map_or(0, Period::to_bits);
    let wanted = if gap.is_negative() {
        target.period.to_bits().saturating_sub(correction)
    } else {
        target.period.to_bits().saturating_add(correction)
    };
    Line { time: old.time, period: Period::from_bits(wanted).clamp(slowest, fastest) }
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
