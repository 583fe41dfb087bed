//! The lookback: notices that a clock began to run differently, from what the estimator said a
//! little while ago.
//!
//! The bounds permit the oscillator to change as fast as the operator says that it may. Within half
//! a minute that explains a server which suddenly gains 1 ppm, and when the facts contradict each
//! other at last, the truth has left the bounds. The estimator knows more: it has seen how the
//! oscillator runs. Its estimates of the last exchanges are extrapolated to the newest one. A
//! message that came earlier than the minimum delay allows after *some* of them, by more than the
//! estimate's error and a moderate change of temperature explain, is a reason for doubt.
//!
//! A steep change of temperature looks the same at first, so this may doubt honest facts while the
//! crystal warms up faster than `lookback_wander` times the floor. Nothing is ever narrowed by it;
//! it only takes trust away (docs/decisions/0039-a-worst-case-from-the-operators-statement.md).
//!
//! The first steep change is a reason for doubt, the next ones are not: for a week the oscillator is
//! taken to do what it has shown, and everything that the statement permits is tolerated.
//!
//! An estimate whose path has become shorter since, and a message whose round trip says that it
//! came on a longer path, are left out.

use std::collections::VecDeque;

use timevisor_time::{Duration, Instant, Period, Tai};

use crate::estimators::{Diagnosis, Estimate, Estimator};
use crate::exchange::Exchange;
use crate::parameters::{BoundParameters, WANDER_MODELS};

/// How many earlier estimates are kept, one an exchange.
const KEPT: usize = 16;
/// A round trip that is so many margins below the minimum came on another path.
const SHORTER: f64 = 3.0;
/// So long an oscillator that moved fast once may do so again, s.
const REMEMBERED_S: f64 = 7.0 * 86_400.0;
/// So long the estimate of the rate lags behind an oscillator that moves fast, s.
const LAG_S: f64 = 120.0;
/// So many long round trips in a row came on another path: of ordinary queueing, once a day.
const LONGER: usize = 6;

/// What the estimator says about the newest exchange and after it.
#[derive(Clone, Debug)]
pub struct Opinion {
    /// How the exchange compared with the estimator's expectation.
    pub diagnosis: Diagnosis<WANDER_MODELS>,
    /// Counter value of the exchange's end.
    pub at: u64,
    /// The estimate there.
    pub estimate: Estimate,
    /// How much later `error_later` is the estimate's error, if nothing else comes.
    pub later: Duration,
    /// One sigma then.
    pub error_later: Duration,
}

impl Opinion {
    /// The opinion after `exchange`; `None` before the first one. `nominal` is the counter's
    /// nominal period.
    pub fn of<E: Estimator>(
        estimator: &E,
        diagnosis: Option<Diagnosis<WANDER_MODELS>>,
        exchange: &Exchange,
        nominal: Period,
    ) -> Option<Self> {
        let later = Duration::from_secs(64);
        let estimate = estimator.at(exchange.tf)?;
        let then = estimator.at(exchange.tf.wrapping_add(nominal.ticks_in(later)))?;
        let error_later = then.error;
        Some(Self { diagnosis: diagnosis?, at: exchange.tf, estimate, later, error_later })
    }
}

/// What the estimator said after an exchange.
#[derive(Clone, Copy, Debug)]
struct Said {
    at: u64,
    time: Instant<Tai>,
    period: Period,
    /// One sigma then, s, and how fast it grows without further exchanges, s/s.
    error: f64,
    error_growth: f64,
    /// Minimum one-way delays, s, forward and backward.
    minimum: [f64; 2],
    /// The shortest round trip since, s.
    shortest: f64,
}

impl Said {
    fn time_at(&self, counter: u64) -> Instant<Tai> {
        self.time + self.period.span(counter.wrapping_sub(self.at))
    }

    /// By how much (s) a message of the exchange came before the earliest moment that this estimate
    /// allows; below 0: it did not.
    fn early_by(&self, exchange: &Exchange) -> f64 {
        let forward = exchange.tb - self.time_at(exchange.ta);
        let backward = self.time_at(exchange.tf) - exchange.te;
        let forward = forward.as_secs_f64() - self.minimum[0];
        let backward = backward.as_secs_f64() - self.minimum[1];
        -forward.min(backward)
    }

    /// What an honest oscillator may have done since, s, if its rate changes by at most `wander`,
    /// 1/s, and did so for `lag` s before.
    fn tolerance(
        &self,
        exchange: &Exchange,
        (wander, lag): (f64, f64),
        p: &BoundParameters,
    ) -> f64 {
        let age = self.period.span(exchange.tf.wrapping_sub(self.at)).as_secs_f64();
        wander * age * (age / 2.0 + lag)
            + p.lookback_sigmas * (self.error + self.error_growth * age)
            + p.guard_error * exchange.error.as_secs_f64()
    }
}

/// The newest estimates.
#[derive(Clone, Debug, Default)]
pub struct Lookback {
    said: VecDeque<Said>,
    /// Exchanges until estimates are kept again, after the path changed: the estimator needs a few
    /// to learn which direction it was.
    settling: usize,
    /// Round trips in a row that are too long for the path.
    long: usize,
    /// Counter value at which the oscillator, or the clock that it is compared with, last moved
    /// faster than `lookback_wander` permits.
    moved_fast: Option<u64>,
}

impl Lookback {
    /// Forgets all estimates.
    pub fn start_over(&mut self) {
        self.said.clear();
    }

    /// From now on it is judged: what seemed to move fast while the estimator learned the path does
    /// not count.
    pub fn begin(&mut self) {
        self.moved_fast = None;
    }

    /// By how much (s) an exchange came too early for the oscillator; `round_trip` (s) is without
    /// the reference's residence, `wander` (1/s) the floor.
    pub fn observe(
        &mut self,
        exchange: &Exchange,
        round_trip: f64,
        diagnosis: &Diagnosis<WANDER_MODELS>,
        wander: f64,
        parameters: &BoundParameters,
    ) -> Option<f64> {
        let queueing = diagnosis.queueing[0] + diagnosis.queueing[1];
        let (mut worst, mut fast) = (0.0_f64, false);
        let permitted = self.permitted(exchange.tf, wander, parameters);
        let (mut shorter, mut long) = (false, false);
        for said in &mut self.said {
            said.shortest = said.shortest.min(round_trip);
            let minimum = said.minimum[0] + said.minimum[1];
            let noise = parameters.guard_noise_s.min(parameters.guard_share * minimum.max(0.0));
            let margin = parameters.lookback_margin * queueing + noise;
            let longest = minimum + margin + parameters.guard_near * queueing;
            long |= round_trip > longest;
            shorter |= round_trip < minimum - SHORTER * margin;
            let same_path = said.shortest >= minimum - margin && round_trip <= longest;
            let later = exchange.ta.wrapping_sub(said.at) >> 63 == 0;
            if same_path && later {
                let early = said.early_by(exchange) - margin;
                let moderate = (parameters.lookback_wander * wander, 0.0);
                fast |= early > said.tolerance(exchange, moderate, parameters);
                worst = worst.max(early - said.tolerance(exchange, permitted, parameters));
            }
        }
        if fast {
            self.moved_fast = Some(exchange.tf);
        }
        self.long = if long { self.long + 1 } else { 0 };
        if shorter || self.long >= LONGER {
            self.long = 0;
            self.said.clear();
            self.settling = KEPT;
            return None;
        }
        (worst > 0.0).then_some(worst)
    }

    /// How fast the rate may change without a doubt, 1/s, and may have changed for how long before
    /// an estimate, s.
    fn permitted(&self, now: u64, wander: f64, parameters: &BoundParameters) -> (f64, f64) {
        let age = |since: u64, said: &Said| said.period.span(now.wrapping_sub(since)).as_secs_f64();
        let lately = self
            .moved_fast
            .zip(self.said.back())
            .is_some_and(|(since, said)| age(since, said) < REMEMBERED_S);
        if lately { (wander, LAG_S) } else { (parameters.lookback_wander * wander, 0.0) }
    }

    /// Keeps what the estimator says after the newest exchange.
    pub fn keep(&mut self, opinion: &Opinion) {
        let Opinion { diagnosis, at, estimate, later, error_later } = opinion;
        let queueing = diagnosis.queueing[0] + diagnosis.queueing[1];
        if let Some(last) = self.said.back()
            && (0..2).any(|k| (last.minimum[k] - diagnosis.minimum_delay[k]).abs() > queueing / 2.0)
        {
            // The estimator has just understood that the path changed; it may have to think again.
            self.said.clear();
            self.settling = KEPT;
        }
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
        if self.said.len() == KEPT {
            self.said.pop_front();
        }
        let growth = (*error_later - estimate.error).as_secs_f64() / later.as_secs_f64();
        // Where minima are rare, the earliest moment of a message is known worse than the time.
        let error = (0..2).map(|k| diagnosis.residual[k] / diagnosis.normalized_residual[k]);
        let error = error.filter(|error| error.is_finite());
        let error = error.fold(estimate.error.as_secs_f64(), f64::max);
        self.said.push_back(Said {
            at: *at,
            time: estimate.time,
            period: estimate.period,
            error,
            error_growth: growth.max(0.0),
            minimum: diagnosis.minimum_delay,
            shortest: f64::INFINITY,
        });
    }
}
