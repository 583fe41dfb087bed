//! One reference: its bounds, its rate, its estimate, and what happens when its facts contradict
//! each other.
//!
//! A contradiction means that an assumption failed: the reference stepped or lied, the oscillator
//! left its limits, or the counter was disturbed. Which one is not knowable here. Until enough
//! further exchanges agree with each other, the bounds are the hull of what was known before and
//! what is known since, and they are not trusted.

use std::collections::BTreeMap;

use timevisor_time::{Duration, Instant, Interval, Period, RateError, Tai};

use crate::bounds::{Bounds, HardBounds, Opinion, Outcome};
use crate::estimators::Estimator;
use crate::estimators::shifted_exponential::{Saved, ShiftedExponential, UnusableState};
use crate::exchange::{Discard, Exchange};
use crate::parameters::Parameters;
use crate::rate::RateLimits;

/// What one exchange did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Observation {
    /// It went into bounds and estimate.
    Used,
    /// It did not, for this reason.
    Discarded(Discard),
    /// It contradicted what was known, by this much; the bounds are being rebuilt.
    Contradiction(Duration),
    /// It needs a path or a clock that moved by this much; the bounds are not trusted until more
    /// exchanges agree.
    Doubt(Duration),
}

/// An estimator that started over is given this many exchanges before it may do so again.
const RESTART_AFTER: u64 = 8;

/// The state for one reference.
#[derive(Clone, Debug)]
pub struct ReferenceClock {
    parameters: Parameters,
    unmeasured: RateLimits,
    horizon: u64,
    bounds: HardBounds,
    estimator: ShiftedExponential,
    nominal: Period,
    last: Option<Exchange>,
    used: u64,
    /// How many had been used when the estimator last started over because it was excluded.
    restarted_at: u64,
    contradictions: u64,
    discarded: BTreeMap<Discard, u64>,
}

/// What a reference says at one counter value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct View {
    /// Holds true time, if the assumptions hold.
    pub interval: Interval<Tai>,
    /// The periods at which the interval's ends move, for as long as a publication is valid.
    pub slopes: RateLimits,
    /// Limits of the counter's period at any time.
    pub limits: RateLimits,
    /// Best guess.
    pub estimate: Instant<Tai>,
    /// Best guess of the period.
    pub period: Period,
    /// One sigma of the estimate.
    pub estimated_error: Duration,
    /// Counter value of the newest exchange that was used.
    pub as_of: u64,
    /// False while the bounds are rebuilt after a contradiction.
    pub trusted: bool,
}

impl ReferenceClock {
    /// `nominal` is the counter's nominal period and `nominal_error` how well that is known.
    #[must_use]
    pub fn new(parameters: &Parameters, nominal: Period, nominal_error: RateError) -> Self {
        let unmeasured =
            RateLimits::around(nominal, parameters.unmeasured_rate.plus(nominal_error));
        Self {
            parameters: parameters.clone(),
            unmeasured,
            // The bounds' ends are convex in time. With slopes over twice the validity, lines that
            // are published in time nest in those before, although each is steeper than the last.
            horizon: nominal.ticks_in(parameters.validity + parameters.validity),
            bounds: HardBounds::new(parameters, nominal, unmeasured),
            estimator: ShiftedExponential::new(&parameters.estimator, nominal),
            nominal,
            last: None,
            used: 0,
            restarted_at: 0,
            contradictions: 0,
            discarded: BTreeMap::new(),
        }
    }

    /// Takes rate limits over that were measured before (by an earlier daemon, of the same
    /// oscillator since the same boot). Ones that say no more than the nominal rate does, or that
    /// exclude it, are ignored.
    pub fn adopt_rate(&mut self, measured: &RateLimits) {
        self.bounds.adopt_rate(measured);
    }

    /// Goes on with the estimate of an earlier daemon, of the same counter since the same boot. The
    /// bounds begin anew: a guess may be inherited, a guarantee may not.
    ///
    /// # Errors
    /// A saved state that cannot be true; nothing has changed then.
    pub fn resume(&mut self, saved: &Saved) -> Result<(), UnusableState> {
        self.estimator =
            ShiftedExponential::resume(&self.parameters.estimator, self.nominal, saved)?;
        Ok(())
    }

    /// The estimate for [`Self::resume`]; `None` while it is too young to be worth keeping, or not
    /// trusted.
    #[must_use]
    pub fn saved(&self) -> Option<Saved> {
        self.estimator.saved().filter(|_| self.bounds.is_trusted())
    }

    /// The wander bound in force, 1/s.
    #[must_use]
    pub fn wander(&self) -> f64 {
        self.bounds.wander()
    }

    /// The wander in force, 1/s, where it is above the operator's floor.
    #[must_use]
    pub fn beyond_floor(&self) -> Option<f64> {
        self.bounds.beyond_floor()
    }

    /// How much faster than nominal the counter seems to run, relative, where that is beyond
    /// `unmeasured_rate` and no rate is proven yet.
    #[must_use]
    pub fn beyond_limits(&self) -> Option<f64> {
        self.bounds.beyond_limits()
    }

    /// Takes one exchange in.
    pub fn observe(&mut self, exchange: &Exchange) -> Observation {
        let minimum = self.unmeasured.longest.ticks_in(self.parameters.minimum_round_trip);
        let possible = Bounds::of_exchange(exchange, exchange.tf, &self.unmeasured)
            .ok_or(Discard::ImpossibleResidence);
        if let Err(reason) = exchange.check(self.last.as_ref(), minimum).and(possible) {
            *self.discarded.entry(reason).or_default() += 1;
            return Observation::Discarded(reason);
        }
        self.last = Some(*exchange);
        self.used += 1;
        // Before the exchange, which may be the first of something else.
        let period = self.estimator.at(exchange.tf).map_or(self.nominal, |e| e.period);
        self.estimator.observe(exchange);
        let diagnosis = self.estimator.diagnosis();
        let opinion = Opinion::of(&self.estimator, diagnosis, exchange, self.nominal);
        match self.bounds.observe(exchange, opinion.as_ref()) {
            Outcome::Agrees => {
                self.restart_if_excluded(exchange, period);
                Observation::Used
            }
            Outcome::Contradicted(gap) => {
                self.contradictions += 1;
                // What it learned may come from before whatever happened.
                self.restart(exchange, period);
                Observation::Contradiction(gap)
            }
            Outcome::Doubted(by) => {
                self.contradictions += 1;
                Observation::Doubt(by)
            }
        }
    }

    /// Starts the estimator over with `exchange`. The rate so far is still the best guess for the
    /// counter's, unless it was impossible.
    fn restart(&mut self, exchange: &Exchange, period: Period) {
        let Self { unmeasured, .. } = *self;
        let period = period.clamp(unmeasured.shortest, unmeasured.longest);
        self.estimator = ShiftedExponential::new(&self.parameters.estimator, period);
        self.estimator.observe(exchange);
    }

    /// Starts the estimator over where the bounds exclude what it says by as much as they are wide.
    ///
    /// It takes the two ways for equally long until it sees one change. A link that was busy in one
    /// direction when the estimator began, and for minutes, taught it the wrong half; when the link
    /// clears, no delay of 0 or more explains its estimate any more.
    fn restart_if_excluded(&mut self, exchange: &Exchange, period: Period) {
        let until = exchange.tf.wrapping_add(self.horizon);
        let (Some(bounds), Some(estimate)) =
            (self.bounds.current(exchange.tf, until), self.estimator.at(exchange.tf))
        else {
            return;
        };
        let interval = bounds.interval;
        let outside = (estimate.time - interval.latest()).max(interval.earliest() - estimate.time);
        // While the link stays busy, a new one would be as wrong.
        let lately = self.used - self.restarted_at < RESTART_AFTER;
        if outside > interval.width() && !lately {
            self.restarted_at = self.used;
            self.restart(exchange, period);
            self.bounds.forget_opinions();
        }
    }

    /// What is known at counter value `now`; `None` before the first exchange.
    #[must_use]
    pub fn at(&self, now: u64) -> Option<View> {
        let until = now.wrapping_add(self.horizon);
        let bounds = self.bounds.segment(now, until)?;
        let estimate = self.estimator.at(now)?;
        let limits = *self.bounds.limits();
        // The estimate follows what is believed now, even while the bounds still hold what was
        // believed before.
        let current = self.bounds.current(now, until)?.interval;
        let inside = estimate.time.max(current.earliest()).min(current.latest());
        let moved = (inside - estimate.time).as_secs_f64();
        let error = estimate.error.as_secs_f64().hypot(moved);
        Some(View {
            interval: bounds.interval,
            slopes: bounds.slopes,
            limits,
            estimate: inside,
            period: estimate.period.clamp(limits.shortest, limits.longest),
            estimated_error: Duration::from_secs_f64(error),
            as_of: self.last?.tf,
            trusted: self.bounds.is_trusted(),
        })
    }

    /// Exchanges used so far.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Contradictions so far.
    #[must_use]
    pub fn contradictions(&self) -> u64 {
        self.contradictions
    }

    /// Exchanges discarded so far, by reason.
    #[must_use]
    pub fn discarded(&self) -> &BTreeMap<Discard, u64> {
        &self.discarded
    }

    /// The newest exchange that was used.
    #[must_use]
    pub fn last(&self) -> Option<&Exchange> {
        self.last.as_ref()
    }
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
