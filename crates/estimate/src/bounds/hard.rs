//! [`HardBounds`]: level 1, level 2 and the guard for one reference, and what happens when they contradict a fact.
//!
//! | what failed | what follows |
//! | --- | --- |
//! | level 1: the facts exclude each other under the limits of the rate | everything starts over; until enough exchanges agree, the hull of before and since |
//! | level 2: no rate that wanders this little explains the facts | the next larger wander that does, for a day |
//! | the guard or the lookback: they need a path or a clock that moved | nothing but doubt |
//! | the rate as estimated at the start is beyond the stated limits | doubt for as long as it is |
//!
//! In all these cases the bounds are not trusted until further exchanges agree, and never become
//! narrower through it.

use timevisor_time::{Duration, Interval, Period, RateError};

use super::cold::ColdGuard;
use super::guard::{Guard, Sight};
use super::level1::{Bounds, Contradiction};
use super::level2::{Level2, Segment};
use super::lookback::{Lookback, Opinion};
use super::wander::Wander;
use crate::estimators::Diagnosis;
use crate::exchange::Exchange;
use crate::parameters::{Parameters, WANDER_LEVELS, WANDER_MODELS};
use crate::rate::{RateLimits, RateMeasurement};

/// What one exchange did to the bounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Outcome {
    /// It fits.
    Agrees,
    /// The facts exclude each other by this much: the bounds were wrong, or are.
    Contradicted(Duration),
    /// By this much it needs a path or a clock that moved. The bounds may still hold; nobody knows.
    Doubted(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Rebuild {
    before: Bounds,
    left: u32,
}

/// The bounds of one reference.
#[derive(Clone, Debug)]
pub struct HardBounds {
    parameters: Parameters,
    nominal: Period,
    unmeasured: RateLimits,
    limits: RateLimits,
    rate_known: bool,
    measurement: RateMeasurement,
    level1: Option<Bounds>,
    level2: Option<Level2>,
    wander: Wander,
    guard: Guard,
    lookback: Lookback,
    rebuild: Option<Rebuild>,
    cold: ColdGuard,
    /// Exchanges that must agree before the bounds are trusted again after a doubt.
    doubtful: u32,
    /// Counter value up to which time was accounted.
    last: u64,
    exchanges: u64,
}

impl HardBounds {
    /// Nothing known but the limits of the rate.
    #[must_use]
    pub fn new(parameters: &Parameters, nominal: Period, unmeasured: RateLimits) -> Self {
        Self {
            parameters: parameters.clone(),
            nominal,
            unmeasured,
            limits: unmeasured,
            rate_known: false,
            measurement: RateMeasurement::new(),
            level1: None,
            level2: None,
            wander: Wander::new(&parameters.bounds),
            guard: Guard::new(),
            lookback: Lookback::default(),
            rebuild: None,
            cold: ColdGuard::default(),
            doubtful: 0,
            last: 0,
            exchanges: 0,
        }
    }

    /// See [`crate::ReferenceClock::adopt_rate`].
    pub fn adopt_rate(&mut self, measured: &RateLimits) {
        // An earlier run that had measured nothing leaves limits that are a hair from ours; taken
        // for a measurement, they would stay. Halfway between is far from both.
        let bits = |error: RateError| u128::from(error.to_bits());
        let proven = self.parameters.measured_rate.plus(self.parameters.rate_known_within);
        let halfway = (bits(proven) + bits(self.unmeasured.half_width())) / 2;
        let is_measurement = bits(measured.half_width()) < halfway;
        if let Some(limits) = measured.intersect(&self.unmeasured).filter(|_| is_measurement) {
            self.limits = limits;
            self.rate_known = true;
        }
    }

    /// Takes an exchange in, with what the estimator thinks of it if it has an opinion yet. Of an interval
    /// ([`Exchange::is_interval`]) no opinion of its path counts: its middle moves by as much as it is wide.
    pub fn observe(&mut self, exchange: &Exchange, opinion: Option<&Opinion>) -> Outcome {
        let early = opinion;
        let opinion = opinion.filter(|_| !exchange.is_interval());
        let diagnosis = opinion.map(|opinion| &opinion.diagnosis);
        // An exchange that contradicts itself was discarded before; if not, it contradicts
        // everything.
        let alone = Bounds::of_exchange(exchange, exchange.tf, &self.unmeasured)
            .unwrap_or_else(|| Bounds::new(exchange.tf, Interval::UNKNOWN));
        let span = self.span_since_last(exchange.tf);
        self.exchanges += 1;
        if self.exchanges == 1 {
            self.cold = ColdGuard::new(exchange.tf);
        }
        let level1 = match self.level1.map_or(Ok(alone), |b| b.with(exchange, &self.limits)) {
            Ok(bounds) => bounds,
            Err(Contradiction { before, gap, .. }) => {
                self.start_over(before, alone);
                return Outcome::Contradicted(gap);
            }
        };
        self.level1 = Some(level1);
        self.count_down();
        let in_force = self.wander.level();
        match diagnosis {
            Some(diagnosis) => self.wander.observe(diagnosis, span),
            None if exchange.is_interval() => self.wander.pass(span),
            None => {}
        }
        let round_trip = self.round_trip(exchange);
        let mut outcome = self.advance(exchange, round_trip, level1, in_force, diagnosis);
        if let Some(opinion) = opinion {
            let early = self.look_back(exchange, round_trip, &opinion.diagnosis);
            if let Some(early) = early.filter(|_| outcome == Outcome::Agrees) {
                self.doubt();
                outcome = Outcome::Doubted(early);
            }
            self.lookback.keep(opinion);
        }
        if !self.rate_known {
            let width = level1.interval().width().as_secs_f64();
            let limits = &self.unmeasured;
            let beyond =
                self.cold.observe(exchange, round_trip, early, width, limits, self.nominal);
            let off = beyond.map(|rate| Duration::from_secs_f64(rate * span));
            outcome = off.filter(|_| outcome == Outcome::Agrees).map_or(outcome, Outcome::Doubted);
        }
        self.measure_rate(&level1).unwrap_or(outcome)
    }

    /// Without the reference's residence, s.
    fn round_trip(&self, exchange: &Exchange) -> f64 {
        let residence = (exchange.te - exchange.tb).as_secs_f64();
        self.nominal.span(exchange.round_trip()).as_secs_f64() - residence
    }

    fn look_back(
        &mut self,
        exchange: &Exchange,
        round_trip: f64,
        diagnosis: &Diagnosis<WANDER_MODELS>,
    ) -> Option<Duration> {
        let (wander, bounds) = (self.wander.possible(), &self.parameters.bounds);
        if self.exchanges == bounds.lookback_after {
            self.lookback.begin();
        }
        let early = self.lookback.observe(exchange, round_trip, diagnosis, wander, bounds)?;
        (self.exchanges > bounds.lookback_after).then(|| Duration::from_secs_f64(early))
    }

    fn span_since_last(&mut self, now: u64) -> f64 {
        let ticks = now.wrapping_sub(self.last);
        let first = self.exchanges == 0;
        if first || ticks >> 63 == 0 {
            self.last = now;
        }
        if first || ticks >> 63 != 0 { 0.0 } else { self.nominal.span(ticks).as_secs_f64() }
    }

    fn advance(
        &mut self,
        exchange: &Exchange,
        round_trip: f64,
        level1: Bounds,
        in_force: usize,
        diagnosis: Option<&Diagnosis<WANDER_MODELS>>,
    ) -> Outcome {
        let Some(mut level2) = self.level2.take() else {
            self.level2 = Some(self.fresh(&level1));
            return Outcome::Agrees;
        };
        let bounds = &self.parameters.bounds;
        let levels = *self.wander.levels();
        let step = level2.step(exchange, &self.limits);
        self.guard.note_round_trip(round_trip, bounds);
        let wander = self.wander.possible();
        let doubt = match diagnosis.filter(|_| self.guard.is_ready(bounds)) {
            Some(diagnosis) => level2.polygon(in_force).and_then(|start| {
                let queueing = diagnosis.queueing[0] + diagnosis.queueing[1];
                let error = exchange.error.as_secs_f64();
                let estimated = diagnosis.minimum_delay[0] + diagnosis.minimum_delay[1];
                let sight =
                    Sight { step: &step, round_trip, error, estimated, queueing, wander, start };
                self.guard.observe(&sight, bounds)
            }),
            None => None,
        };
        level2.keep(&self.wanted_levels(in_force));
        level2.advance(&step, exchange.tf, &levels);
        let missed = level2.polygon(in_force).is_some_and(super::polygon::Polygon::is_empty);
        if level2.is_void() {
            // Level 1 still holds: not even the largest wander does, so it starts over from there.
            level2 = self.fresh(&level1);
        }
        let emptied = level2.heal();
        self.level2 = Some(level2);
        if missed {
            self.wander.contradicted(emptied.unwrap_or(in_force).max(in_force));
            self.doubt();
            return Outcome::Contradicted(Duration::ZERO);
        }
        if let Some(micros) = doubt {
            self.doubt();
            return Outcome::Doubted(Duration::from_secs_f64(micros * 1e-6));
        }
        Outcome::Agrees
    }

    fn doubt(&mut self) {
        self.guard.start_over();
        self.lookback.start_over();
        self.doubtful = self.parameters.bounds.doubt_exchanges;
    }

    /// Those that may be in force next.
    fn wanted_levels(&self, in_force: usize) -> [usize; 3] {
        let now = self.wander.level();
        [in_force.min(now), now, (now + 1).min(WANDER_LEVELS - 1)]
    }

    fn fresh(&self, level1: &Bounds) -> Level2 {
        let mut level2 = Level2::new(level1.at(), level1.interval(), &self.limits, self.nominal);
        let level = self.wander.level();
        level2.keep(&self.wanted_levels(level));
        level2
    }

    /// The estimator whose opinions were taken in is wrong.
    pub fn forget_opinions(&mut self) {
        self.lookback.start_over();
    }

    fn start_over(&mut self, before: Bounds, alone: Bounds) {
        let before = match self.rebuild {
            Some(earlier) => earlier.before.hull(&before, &self.unmeasured),
            None => before,
        };
        self.limits = self.unmeasured;
        self.rate_known = false;
        self.measurement = RateMeasurement::new();
        self.cold = ColdGuard::new(alone.at());
        self.level1 = Some(alone);
        self.level2 = Some(self.fresh(&alone));
        self.guard = Guard::new();
        self.lookback = Lookback::default();
        self.rebuild = Some(Rebuild { before, left: self.parameters.rebuild_exchanges });
    }

    fn count_down(&mut self) {
        self.doubtful = self.doubtful.saturating_sub(1);
        if let Some(rebuild) = &mut self.rebuild {
            rebuild.left -= 1;
            if rebuild.left == 0 {
                self.rebuild = None;
            }
        }
    }

    /// Narrows the limits once a rate is proven, and moves them with the rate afterwards.
    fn measure_rate(&mut self, level1: &Bounds) -> Option<Outcome> {
        if self.rate_known {
            self.recentre();
            return None;
        }
        let proven = self.measurement.observe(level1, self.parameters.rate_known_within)?;
        let error = self.parameters.measured_rate.plus(proven.half_width());
        match RateLimits::around(proven.middle(), error).intersect(&self.limits) {
            Some(limits) => {
                self.limits = limits;
                self.rate_known = true;
                self.cold.end();
                None
            }
            None => {
                self.start_over(*level1, *level1);
                Some(Outcome::Contradicted(Duration::ZERO))
            }
        }
    }

    /// "Within 15 ppm of the measured rate" is about the rate as measured lately: an oscillator may
    /// age further.
    fn recentre(&mut self) {
        let Some((middle, half)) = self.level2.as_ref().and_then(|l| l.rate(self.wander.level()))
        else {
            return;
        };
        let rho = self.parameters.measured_rate.ppb();
        let centre = self.limits.middle().relative_to(self.nominal) * 1e9;
        let moved = (middle - centre).abs();
        // With a wander that was raised, or a poor path, the rate itself is known badly. Then it has
        // to have moved for certain; and the limits that are wider for it end when it is known well.
        let has_moved = moved > rho / 3.0 && half <= moved;
        let is_wide = self.limits.half_width().ppb() > rho * 4.0 / 3.0 && half <= rho / 3.0;
        if !has_moved && !is_wide {
            return;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below rho")]
        let error = RateError::from_ppb(half.ceil() as u32).plus(self.parameters.measured_rate);
        let limits = RateLimits::around(self.nominal.scaled(middle * 1e-9), error);
        self.limits = limits.intersect(&self.unmeasured).unwrap_or(self.limits);
    }

    /// The bounds at `now`, and their slopes until `until`; `None` before the first exchange.
    #[must_use]
    pub fn segment(&self, now: u64, until: u64) -> Option<Segment> {
        let current = self.current(now, until)?;
        let Some(rebuild) = &self.rebuild else { return Some(current) };
        let before = rebuild.before.aged(now, &self.unmeasured).interval();
        Some(Segment { interval: current.interval.hull(&before), slopes: self.unmeasured })
    }

    /// The same without what was known before a contradiction: where the estimate belongs.
    #[must_use]
    pub fn current(&self, now: u64, until: u64) -> Option<Segment> {
        let level1 = self.level1?.aged(now, &self.limits);
        let wide = Segment { interval: level1.interval(), slopes: self.limits };
        let levels = self.wander.levels();
        let narrow = self
            .level2
            .as_ref()
            .and_then(|l| l.segment(now, until, self.wander.level(), levels))
            // The two lines of a segment belong together: the smaller of a straight line and a
            // convex one is not convex.
            .filter(|s| s.interval.width() <= wide.interval.width());
        Some(narrow.unwrap_or(wide))
    }

    /// The limits of the rate at any time.
    #[must_use]
    pub fn limits(&self) -> &RateLimits {
        &self.limits
    }

    /// The wander bound in force, 1/s.
    #[must_use]
    pub fn wander(&self) -> f64 {
        self.wander.levels()[self.wander.level()]
    }

    /// The wander in force, 1/s, where it is above the operator's floor: the oscillator, or its
    /// reference, changes faster than was stated.
    #[must_use]
    pub fn beyond_floor(&self) -> Option<f64> {
        self.wander.beyond_floor()
    }

    /// How much faster than nominal the counter seems to run, relative, where that is beyond the
    /// operator's limits and no rate is proven yet.
    #[must_use]
    pub fn beyond_limits(&self) -> Option<f64> {
        self.cold.beyond()
    }

    /// False after a contradiction or a doubt, until enough exchanges agreed.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.rebuild.is_none() && self.doubtful == 0 && self.cold.beyond().is_none()
    }
}

#[cfg(test)]
#[path = "hard_tests.rs"]
mod tests;
