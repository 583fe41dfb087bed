//! Level 2: polygons of possible (offset, rate) pairs for several wander bounds at once.
//!
//! The wander bound in force may have to be raised at any exchange, and then a polygon that was
//! kept for the larger bound all along must be there: a fresh one would be wide for minutes. What
//! is possible under a smaller bound is possible under a larger one, so a missing polygon starts as
//! a copy of the next larger one that is kept.
//!
//! Not here: which bound is in force ([`super::wander`]), and what to do when its polygon is empty
//! ([`super::hard`]).

use timevisor_time::{Duration, Instant, Interval, Period, Tai};

use super::polygon::Polygon;
use crate::exchange::Exchange;
use crate::parameters::WANDER_LEVELS;
use crate::rate::RateLimits;

/// Stamps are integers of 1 ns or 2^-32 s, and f64 rounds: each fact is widened by it.
const MARGIN: Duration = Duration::from_nanos(1);

/// What f64 may have rounded away between the facts and a published line, us.
const ROUNDING_US: f64 = 1e-5;

/// The affine clock C that the polygons are relative to.
#[derive(Clone, Copy, Debug)]
struct Coordinates {
    at: u64,
    time: Instant<Tai>,
    /// Frozen: a rate relative to a moving estimate would be no state at all.
    period: Period,
}

impl Coordinates {
    fn time_at(&self, counter: u64) -> Instant<Tai> {
        let ahead = counter.wrapping_sub(self.at);
        if ahead >> 63 == 0 {
            self.time + self.period.span(ahead)
        } else {
            self.time - self.period.span(ahead.wrapping_neg())
        }
    }

    fn micros(&self, time: Instant<Tai>, counter: u64) -> f64 {
        (time - self.time_at(counter)).as_secs_f64() * 1e6
    }

    /// Limits of y in ppb.
    fn y(&self, limits: &RateLimits) -> [f64; 2] {
        // A part in 10^15 for f64's rounding of the periods.
        let y = |p: Period, outwards: f64| p.relative_to(self.period) * 1e9 + outwards;
        [y(limits.shortest, -1e-6), y(limits.longest, 1e-6)]
    }
}

/// The two facts of an exchange in polygon coordinates, and how long before the polygon's time each
/// was true.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    upper_us: f64,
    upper_age: f64,
    lower_us: f64,
    lower_age: f64,
}

impl Facts {
    /// The facts if every message needs at least `minimum_us` each way.
    #[must_use]
    pub fn with_minimum_delay(&self, minimum_us: f64) -> Self {
        Self { upper_us: self.upper_us - minimum_us, lower_us: self.lower_us + minimum_us, ..*self }
    }

    /// By how much (us) a polygon misses them; 0 when some of it satisfies each.
    #[must_use]
    pub fn missed_by(&self, polygon: &Polygon) -> f64 {
        let upper = polygon.theta_after(-self.upper_age)[0] - self.upper_us;
        let lower = self.lower_us - polygon.theta_after(-self.lower_age)[1];
        upper.max(lower).max(0.0)
    }

    /// Cuts the polygon by both. A fact of the past holds for theta - y age, give or take what the
    /// rate changed since.
    pub fn apply(&self, polygon: &mut Polygon, wander: f64) {
        let drift = |age: f64| wander * age * age / 2.0 * 1e-3;
        polygon.cut(1.0, -self.upper_age * 1e-3, self.upper_us + drift(self.upper_age));
        polygon.cut(-1.0, self.lower_age * 1e-3, -self.lower_us + drift(self.lower_age));
    }
}

/// What goes by between two exchanges.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Seconds.
    pub span: f64,
    /// How far C's origin moves after the facts were applied, us.
    pub shift: f64,
    /// Limits of y, ppb.
    pub y: [f64; 2],
    /// What the exchange proves.
    pub facts: Facts,
}

impl Step {
    /// Time goes by for one polygon, within the limits of the rate.
    pub fn propagate(&self, polygon: &mut Polygon, wander: f64) {
        polygon.propagate(self.span, wander);
        polygon.cut(0.0, 1.0, self.y[1]);
        polygon.cut(0.0, -1.0, -self.y[0]);
    }
}

/// A line pair: an interval now, and the periods at which its ends move until a given moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Segment {
    /// Holds true time now.
    pub interval: Interval<Tai>,
    /// Slopes: `shortest` of earliest, `longest` of latest; they hold until the moment that was
    /// asked for.
    pub slopes: RateLimits,
}

/// The polygons.
#[derive(Clone, Debug)]
pub struct Level2 {
    coordinates: Coordinates,
    /// By wander level; only those that may be needed are kept.
    polygons: [Option<Polygon>; WANDER_LEVELS],
}

impl Level2 {
    /// Everything that `interval` and `limits` allow at counter value `at`. `period` is frozen as
    /// the rate's origin.
    #[must_use]
    pub fn new(at: u64, interval: Interval<Tai>, limits: &RateLimits, period: Period) -> Self {
        let half = interval.width().half();
        let coordinates = Coordinates { at, time: interval.earliest() + half, period };
        let theta = half.as_secs_f64() * 1e6 + ROUNDING_US;
        let polygon = Polygon::from_box([-theta, theta], coordinates.y(limits));
        let mut polygons = [const { None }; WANDER_LEVELS];
        polygons[WANDER_LEVELS - 1] = Some(polygon);
        Self { coordinates, polygons }
    }

    /// What one exchange does to every polygon, before it is done.
    #[must_use]
    pub fn step(&self, exchange: &Exchange, limits: &RateLimits) -> Step {
        let c = self.coordinates;
        let end = if exchange.tf.wrapping_sub(c.at) >> 63 == 0 { exchange.tf } else { c.at };
        let seconds = |from: u64| c.period.span(end.wrapping_sub(from)).as_secs_f64();
        let facts = Facts {
            upper_us: c.micros(exchange.tb + exchange.error + MARGIN, exchange.ta),
            upper_age: seconds(exchange.ta),
            lower_us: c.micros(exchange.te - exchange.error - MARGIN, exchange.tf),
            lower_age: seconds(exchange.tf),
        };
        // The new origin is the middle of what the exchange alone says: near, whatever the polygons
        // are.
        let shift = -(facts.upper_us + facts.lower_us) / 2.0;
        Step { span: seconds(c.at), shift, y: c.y(limits), facts }
    }

    /// Takes a step. Polygons may be empty afterwards.
    pub fn advance(&mut self, step: &Step, end: u64, levels: &[f64; WANDER_LEVELS]) {
        for (polygon, wander) in self.polygons.iter_mut().zip(levels) {
            if let Some(polygon) = polygon {
                step.propagate(polygon, wander * 1e9);
                step.facts.apply(polygon, wander * 1e9);
                polygon.prune();
                polygon.shift(step.shift);
            }
        }
        let ahead = end.wrapping_sub(self.coordinates.at);
        let at = if ahead >> 63 == 0 { end } else { self.coordinates.at };
        let time = self.coordinates.time_at(at) - Duration::from_secs_f64(step.shift * 1e-6);
        self.coordinates = Coordinates { at, time, ..self.coordinates };
    }

    /// Keeps the polygons of `wanted` levels, and the largest one. One that was not kept starts
    /// from the next larger one, which is wider and therefore sound.
    pub fn keep(&mut self, wanted: &[usize]) {
        for level in (0..WANDER_LEVELS - 1).rev() {
            if !wanted.contains(&level) {
                continue;
            }
            if self.polygons[level].is_none() {
                self.polygons[level] = self.polygons[level + 1..].iter().flatten().next().cloned();
            }
        }
        for level in 0..WANDER_LEVELS - 1 {
            if !wanted.contains(&level) {
                self.polygons[level] = None;
            }
        }
    }

    /// The polygon for a level, or the smallest kept one that contains it.
    #[must_use]
    pub fn polygon(&self, level: usize) -> Option<&Polygon> {
        self.polygons[level.min(WANDER_LEVELS - 1)..].iter().flatten().next()
    }

    /// Replaces every empty polygon by the next larger one. Returns the largest level that was
    /// empty.
    pub fn heal(&mut self) -> Option<usize> {
        let mut worst = None;
        for level in (0..WANDER_LEVELS).rev() {
            if self.polygons[level].as_ref().is_some_and(Polygon::is_empty) {
                worst = worst.or(Some(level));
                self.polygons[level] = self.polygons[level + 1..].iter().flatten().next().cloned();
            }
        }
        worst
    }

    /// True when not even the largest wander explains the facts.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.polygons[WANDER_LEVELS - 1].as_ref().is_none_or(Polygon::is_empty)
    }

    /// The bounds at counter value `now`, and their slopes until `until`.
    #[must_use]
    pub fn segment(
        &self,
        now: u64,
        until: u64,
        level: usize,
        levels: &[f64; WANDER_LEVELS],
    ) -> Option<Segment> {
        let polygon = self.polygon(level).filter(|p| !p.is_empty())?;
        let (earliest, latest) = self.ends(polygon, now, levels[level])?;
        let (e2, l2) = self.ends(polygon, until, levels[level])?;
        let ticks = until.wrapping_sub(now);
        // latest is convex and earliest concave in time: the chord between two moments is outside
        // both.
        let slopes = RateLimits {
            shortest: Period::from_ratio(e2 - earliest, ticks)?,
            longest: Period::from_bits(
                Period::from_ratio(l2 - latest, ticks)?.to_bits().saturating_add(1),
            ),
        };
        // The ends part as time goes by, unless one is at the end of what an instant can hold.
        let parts = slopes.shortest <= slopes.longest;
        Interval::new(earliest, latest)
            .filter(|_| parts)
            .map(|interval| Segment { interval, slopes })
    }

    fn ends(
        &self,
        polygon: &Polygon,
        at: u64,
        wander: f64,
    ) -> Option<(Instant<Tai>, Instant<Tai>)> {
        let ahead = at.wrapping_sub(self.coordinates.at);
        if ahead >> 63 != 0 {
            return None;
        }
        let span = self.coordinates.period.span(ahead);
        let c = self.coordinates.time + span;
        let span = span.as_secs_f64();
        let theta = polygon.theta_after(span);
        let drift = wander * span * span / 2.0 * 1e6;
        let micros = |us: f64| Duration::from_secs_f64(us * 1e-6);
        Some((
            c + micros(theta[0] - drift - ROUNDING_US),
            c + micros(theta[1] + drift + ROUNDING_US),
        ))
    }

    /// The middle of the possible rates against the frozen period, and half their width, ppb.
    #[must_use]
    pub fn rate(&self, level: usize) -> Option<(f64, f64)> {
        let [low, high] = self.polygon(level).filter(|p| !p.is_empty())?.y();
        Some((low / 2.0 + high / 2.0, (high - low) / 2.0))
    }
}
