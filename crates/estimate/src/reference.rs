//! One reference: its bounds, its rate, its estimate, and what happens when its facts contradict each other.
//!
//! A contradiction means that an assumption failed: the reference stepped or lied, the oscillator left its limits, or
//! the counter was disturbed. Which one is not knowable here. Until enough further exchanges agree with each other, the
//! bounds are the hull of what was known before and what is known since, and they are not trusted.

use std::collections::BTreeMap;

use timevisor_time::{Duration, Instant, Interval, Period, RateError, Tai};

use crate::bounds::Bounds;
use crate::exchange::{Discard, Exchange};
use crate::fit::Fit;
use crate::parameters::Parameters;
use crate::rate::{RateLimits, RateMeasurement};

/// What one exchange did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Observation {
    /// It went into bounds and estimate.
    Used,
    /// It did not, for this reason.
    Discarded(Discard),
    /// It contradicted what was known, by this much; the bounds are being rebuilt.
    Contradiction(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Rebuild {
    before: Bounds,
    left: u32,
}

/// The state for one reference.
#[derive(Clone, Debug)]
pub struct ReferenceClock {
    parameters: Parameters,
    unmeasured: RateLimits,
    limits: RateLimits,
    rate_known: bool,
    measurement: RateMeasurement,
    bounds: Option<Bounds>,
    rebuild: Option<Rebuild>,
    fit: Fit,
    last: Option<Exchange>,
    used: u64,
    contradictions: u64,
    discarded: BTreeMap<Discard, u64>,
}

/// What a reference says at one counter value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct View {
    /// Holds true time, if the assumptions hold.
    pub interval: Interval<Tai>,
    /// Limits of the counter's period.
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
            limits: unmeasured,
            rate_known: false,
            measurement: RateMeasurement::new(),
            bounds: None,
            rebuild: None,
            fit: Fit::new(parameters.fit_window, parameters.fit_wander.ppb() * 1e-9),
            last: None,
            used: 0,
            contradictions: 0,
            discarded: BTreeMap::new(),
        }
    }

    /// Takes rate limits over that were measured before (by an earlier daemon, of the same oscillator since the same
    /// boot). Ones that say no more than the nominal rate does, or that exclude it, are ignored.
    pub fn adopt_rate(&mut self, measured: &RateLimits) {
        let narrower = measured.half_width() < self.unmeasured.half_width();
        if let Some(limits) = measured.intersect(&self.unmeasured).filter(|_| narrower) {
            self.limits = limits;
            self.rate_known = true;
        }
    }

    /// Takes one exchange in.
    pub fn observe(&mut self, exchange: &Exchange) -> Observation {
        let minimum = self.unmeasured.longest.ticks_in(self.parameters.minimum_round_trip);
        let possible = Bounds::of_exchange(exchange, exchange.tf, &self.unmeasured)
            .ok_or(Discard::ImpossibleResidence);
        let checked = exchange.check(self.last.as_ref(), minimum).and(possible);
        let alone = match checked {
            Ok(bounds) => bounds,
            Err(reason) => {
                *self.discarded.entry(reason).or_default() += 1;
                return Observation::Discarded(reason);
            }
        };
        self.last = Some(*exchange);
        self.used += 1;
        let bounds = match self.bounds.map_or(Ok(alone), |b| b.with(exchange, &self.limits)) {
            Ok(bounds) => bounds,
            Err(contradiction) => {
                self.begin_rebuild(contradiction.before, alone, exchange);
                return Observation::Contradiction(contradiction.gap);
            }
        };
        self.bounds = Some(bounds);
        self.fit.push(exchange);
        self.count_down_rebuild();
        self.measure_rate(bounds, exchange)
    }

    fn measure_rate(&mut self, bounds: Bounds, exchange: &Exchange) -> Observation {
        if self.rate_known {
            return Observation::Used;
        }
        let Some(proven) = self.measurement.observe(&bounds, self.parameters.rate_known_within)
        else {
            return Observation::Used;
        };
        let error = self.parameters.measured_rate.plus(proven.half_width());
        match RateLimits::around(proven.middle(), error).intersect(&self.limits) {
            Some(limits) => {
                self.limits = limits;
                self.rate_known = true;
                Observation::Used
            }
            None => {
                self.begin_rebuild(bounds, bounds, exchange);
                Observation::Contradiction(Duration::ZERO)
            }
        }
    }

    fn begin_rebuild(&mut self, before: Bounds, alone: Bounds, exchange: &Exchange) {
        self.contradictions += 1;
        let before = match self.rebuild {
            Some(earlier) => earlier.before.hull(&before, &self.unmeasured),
            None => before,
        };
        self.limits = self.unmeasured;
        self.rate_known = false;
        self.measurement = RateMeasurement::new();
        self.fit.clear();
        self.fit.push(exchange);
        self.bounds = Some(alone);
        self.rebuild = Some(Rebuild { before, left: self.parameters.rebuild_exchanges });
    }

    fn count_down_rebuild(&mut self) {
        if let Some(rebuild) = &mut self.rebuild {
            rebuild.left -= 1;
            if rebuild.left == 0 {
                self.rebuild = None;
            }
        }
    }

    /// What is known at counter value `now`; `None` before the first exchange.
    #[must_use]
    pub fn at(&self, now: u64) -> Option<View> {
        let current = self.bounds?.aged(now, &self.limits);
        let bounds = match &self.rebuild {
            Some(rebuild) => {
                current.hull(&rebuild.before.aged(now, &self.unmeasured), &self.unmeasured)
            }
            None => current,
        };
        let estimate = self.fit.at(now, &self.limits)?;
        let interval = bounds.interval();
        // The estimate follows what is believed now, even while the bounds still hold what was believed before.
        let inside =
            estimate.time.max(current.interval().earliest()).min(current.interval().latest());
        Some(View {
            interval,
            limits: self.limits,
            estimate: inside,
            period: estimate.period,
            estimated_error: estimate.error,
            as_of: self.last?.tf,
            trusted: self.rebuild.is_none(),
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
