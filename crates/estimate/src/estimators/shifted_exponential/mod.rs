//! The default estimator: shifted-exponential delays in both directions, adaptive wander
//! (docs/explanation/estimation.md).
//!
//! The delay of a message is the minimum of its direction plus an exponential queueing delay. Both
//! minima are part of the state, together with offset, rate and drift. The estimator can therefore
//! distinguish late one-way messages from clock wander, and a route change in one direction from a
//! clock step. Eight hypotheses about the oscillator run side by side, so the wander needs no
//! configuration.
//!
//! | module | owns |
//! | --- | --- |
//! | this file | [`ShiftedExponential`]: from exchanges to estimates |
//! | [`mod@parameters`] | [`Parameters`]: every tunable with unit, reason and limits |
//! | [`saved`] | [`Saved`]: the state with which a restarted daemon continues |
//! | `coordinates` | the integer clock C, the origin of all state; an exchange in seconds |
//! | `start` | the first state |
//! | `panel` | three experts, weighted by their evidence |
//! | `expert`, `history` | a filter that can take exchanges back |
//! | `hindsight`, `lateness` | changed paths: whether, since when, by how much |
//! | `filter` | one exchange through one filter |
//! | `levels`, `early` | paths that became shorter; clocks that stepped |
//! | `direction`, `round_trips` | queueing: per direction, and from round trips alone |
//! | `bank` | interacting multiple models of the oscillator |
//! | `gaussian`, `wander` | state and covariance: predict, condition, mix |
//! | `delay`, `erfcx` | the likelihood: moments of a queueing delay observed with noise |
//! | `ring` | the newest few items of a stream |
//!
//! Limitations: the asymmetry of the first route is assumed to be 0; half of a shift below about
//! 1.5 mean queueing delays is attributed to the clock; a sudden frequency step is tracked, but not
//! reported; at polls below 5 s, a burst of 12 late messages counts as a route that comes and goes.
//! The estimate gives no guarantee; the hard bounds do.

mod bank;
mod coordinates;
mod delay;
mod direction;
mod early;
mod erfcx;
mod expert;
mod filter;
mod gaussian;
mod hindsight;
mod history;
mod lateness;
mod levels;
mod panel;
pub mod parameters;
mod ring;
mod round_trips;
pub mod saved;
mod start;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod wander;

use timevisor_time::{Duration, Instant, Period};

pub use self::expert::Changes;
pub use self::parameters::{MODELS, Parameters};
pub use self::saved::{Saved, UnusableState};
pub use self::wander::Wander;

use self::coordinates::{Coordinates, Sighting};
use self::delay::DelayLaw;
use self::early::Verdict;
use self::filter::{Context, Filter};
use self::gaussian::{Gaussian, MINIMUM, OFFSET, RATE};
use self::panel::Panel;
use self::round_trips::RoundTrips;
use self::saved::SavedExpert;
use super::{Diagnosis, Estimate, Estimator, WanderModel};
use crate::exchange::Exchange;

/// C is moved when the offset from it exceeds this, s: floats resolve 1e-13 s at that distance.
const FAR_FROM_COORDINATES_S: f64 = 1024.0;

/// The state for one reference.
#[derive(Clone, Debug)]
pub struct ShiftedExponential {
    parameters: Parameters,
    law: DelayLaw,
    nominal: Period,
    /// C, and the counter value of the state; `None` before the first exchange.
    origin: Option<(Coordinates, u64)>,
    /// Number of exchanges seen.
    exchanges: u64,
    /// The exchanges of the start phase while it lasts, oldest first.
    first: Vec<Sighting>,
    starting: bool,
    round_trips: RoundTrips,
    panel: Panel,
    posterior: Gaussian,
    wander: Wander,
}

impl ShiftedExponential {
    /// `nominal` is the period of C; the counter's may differ from it by a few hundred ppm.
    #[must_use]
    pub fn new(parameters: &Parameters, nominal: Period) -> Self {
        Self {
            parameters: parameters.clone(),
            law: DelayLaw::new(&parameters.delays),
            nominal,
            origin: None,
            exchanges: 0,
            first: Vec::with_capacity(parameters.start.exchanges),
            starting: true,
            round_trips: RoundTrips::new(parameters.round_trips.least_queueing_s, 1.0),
            panel: Panel::empty(parameters),
            posterior: Gaussian::ZERO,
            wander: Wander { random_walk: 0.0, drift_walk: 0.0 },
        }
    }

    /// Continues from a saved state. It is valid only for the same counter since the same boot.
    ///
    /// # Errors
    /// The first field whose value is impossible.
    pub fn resume(
        parameters: &Parameters,
        nominal: Period,
        saved: &Saved,
    ) -> Result<Self, UnusableState> {
        saved.check(nominal)?;
        let (filters, merits) = saved.filters(nominal, parameters);
        let time = Instant::from_words(saved.seconds.cast_unsigned(), saved.fraction);
        let mut resumed = Self {
            origin: Some((Coordinates::new(saved.counter, time, nominal), saved.counter)),
            exchanges: saved.exchanges,
            starting: false,
            round_trips: RoundTrips::new(saved.queueing_s, saved.independence),
            panel: Panel::new(parameters, &filters, merits),
            ..Self::new(parameters, nominal)
        };
        resumed.conclude();
        Ok(resumed)
    }

    /// The state from which to continue after a restart. `None` during the start, when there is
    /// nothing worth saving, and for a state that [`Self::resume`] would refuse (exchanges that
    /// needed a counter that is 1000 ppm off).
    #[must_use]
    pub fn saved(&self) -> Option<Saved> {
        let (clock, counter) = self.origin.filter(|_| !self.starting)?;
        let offset = self.posterior.mean[OFFSET];
        let time = clock.at(counter) + Duration::from_secs_f64(offset);
        let (seconds, fraction) = time.to_words();
        let period = self.period();
        let rate = period.relative_to(self.nominal);
        let mut experts = self.panel.members().map(|(expert, merit)| {
            SavedExpert::new(expert.filter(), expert.posterior(), offset, rate, merit)
        });
        let saved = Saved {
            counter,
            seconds: seconds.cast_signed(),
            fraction,
            period_bits: period.to_bits(),
            exchanges: self.exchanges,
            queueing_s: self.round_trips.queueing_s,
            independence: self.round_trips.independence,
            experts: [experts.next()?, experts.next()?, experts.next()?],
        };
        saved.check(self.nominal).is_ok().then_some(saved)
    }

    /// The difference clock: the time that passed between two counter values, negative if `to` is
    /// earlier than `from`.
    ///
    /// It uses only the rate, so nothing that happens to the offset (route changes, steps) disturbs
    /// it. It is better than the difference of two absolute readings for intervals up to about an
    /// hour; over longer ones the rate's wander dominates (docs/explanation/estimation.md,
    /// "RADclock"). Before the first exchange the rate is the nominal one.
    #[must_use]
    pub fn elapsed(&self, from: u64, to: u64) -> Duration {
        let nominal = Coordinates::new(0, Instant::from_bits(0), self.nominal).between(from, to);
        nominal + Duration::from_secs_f64(nominal.as_secs_f64() * self.posterior.mean[RATE])
    }

    /// How the best expert saw the newest exchange; `None` before the first one.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis<MODELS>> {
        self.origin?;
        let expert = self.panel.best();
        let (filter, innovation) = (expert.filter(), expert.innovation());
        let weights = filter.bank.weights();
        let model = |i: usize| {
            let Wander { random_walk, drift_walk } = self.parameters.oscillator.models[i];
            WanderModel { random_walk, drift_walk, weight: weights[i] }
        };
        let normalized = |k: usize| innovation.residual_s[k] / innovation.deviation_s[k];
        Some(Diagnosis {
            models: core::array::from_fn(model),
            normalized_residual: [normalized(0), normalized(1)],
            residual: innovation.residual_s,
            step: matches!(innovation.verdict, Verdict::Step(_)),
            minimum_delay: MINIMUM.map(|m| expert.posterior().mean[m]),
            queueing: filter.directions.map(|d| d.queueing_s),
            exchanges: self.exchanges,
        })
    }

    /// The changes of the path and the clocks so far.
    #[must_use]
    pub fn changes(&self) -> Changes {
        self.panel.changes()
    }

    fn period(&self) -> Period {
        let bits = self.nominal.to_bits() as f64 * self.posterior.mean[RATE];
        #[expect(clippy::cast_possible_truncation, reason = "a float-to-integer `as` saturates")]
        let bits = i128::from(self.nominal.to_bits()).saturating_add(bits as i128).max(1);
        Period::from_bits(u64::try_from(bits).unwrap_or(u64::MAX))
    }

    /// Performs all updates of the experts for an exchange.
    fn advance(&mut self, sighting: &Sighting, number: usize) {
        let context = Context {
            parameters: &self.parameters,
            law: &self.law,
            softness: 0.0,
            common_walk: 0.0,
            queueing_s: self.round_trips.queueing_s,
            independence: self.round_trips.independence,
        };
        // Before the first restart the experts only guess.
        let compared = number > self.parameters.start.again_at[0];
        if let Some(exchanges) = self.panel.observe(sighting, &context, compared) {
            self.round_trips.keep_newest(exchanges);
        }
    }

    /// Restarts from the exchanges so far; all but the newest are processed again.
    fn start_again(&mut self) {
        let queueing = self.round_trips.queueing_s;
        let skipped = start::earlier_route(&self.first, queueing, &self.parameters);
        let state = start::state(&self.first[skipped..], queueing, &self.parameters);
        self.panel.restart(&Filter::new(&state, bank::Bank::EVEN, [queueing; 2], skipped as u64));
        for i in skipped..self.first.len() - 1 {
            let since_s = if i == skipped { 0.0 } else { self.first[i].since_s };
            self.advance(&Sighting { since_s, ..self.first[i] }, i + 1);
        }
    }

    /// Discards what was learned; the next exchange is the first of a new start.
    fn forget(&mut self) {
        self.first.clear();
        self.starting = true;
    }

    /// Draws conclusions from the experts' results.
    fn conclude(&mut self) {
        self.posterior = self.panel.posterior();
        self.wander = self.panel.wander(&self.parameters.oscillator.models);
        let offset = self.posterior.mean[OFFSET];
        if let Some((clock, _)) = &mut self.origin
            && !self.starting
            && offset.abs() > FAR_FROM_COORDINATES_S
        {
            let shift = Duration::from_secs_f64(offset);
            clock.shift(shift);
            let rounding = offset * f64::EPSILON;
            self.panel.rebase(-shift.as_secs_f64(), rounding * rounding);
            self.posterior = self.panel.posterior();
        }
    }
}

impl Estimator for ShiftedExponential {
    fn observe(&mut self, exchange: &Exchange) {
        // Every start has its own coordinates, near the time at that point.
        let begun = !self.starting || !self.first.is_empty();
        let (clock, previous) = match self.origin.filter(|_| begun) {
            Some((clock, epoch)) => (clock, Some(epoch)),
            None => (Coordinates::new(exchange.ta, exchange.tb, self.nominal), None),
        };
        let Some((sighting, epoch)) = clock.sight(exchange, previous) else {
            return;
        };
        self.origin = Some((clock, epoch));
        self.exchanges += 1;
        if self.starting {
            self.first.push(sighting);
        }
        let limits = &self.parameters.round_trips;
        self.round_trips.observe(sighting.path_s, self.starting, limits);
        let number = if self.starting { self.first.len() } else { usize::MAX };
        if self.starting && start::begins_at(number, &self.parameters) {
            self.start_again();
        }
        self.advance(&sighting, number);
        if !self.starting {
            self.round_trips.conclude(self.exchanges, &self.parameters.round_trips);
        }
        self.conclude();
        let stepped = matches!(self.panel.best().innovation().verdict, Verdict::Step(_));
        if !self.posterior.is_finite() || (self.starting && stepped) {
            self.forget();
        } else if number == self.parameters.start.exchanges {
            self.starting = false;
        }
    }

    fn at(&self, now: u64) -> Option<Estimate> {
        let (clock, epoch) = self.origin?;
        let ahead = clock.between(epoch, now).as_secs_f64();
        let mut state = self.posterior;
        state.predict(ahead, self.wander, self.parameters.oscillator.drift_decay_s);
        let variance = state.covariance.get(OFFSET, OFFSET);
        Some(Estimate {
            time: clock.at(now) + Duration::from_secs_f64(state.mean[OFFSET]),
            period: self.period(),
            error: Duration::from_secs_f64(variance.max(0.0).sqrt()),
        })
    }
}
