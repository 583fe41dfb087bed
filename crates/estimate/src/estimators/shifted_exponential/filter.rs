//! Processes one exchange in the filter of one expert: predict, compare, react to what queueing
//! cannot explain, learn.

use super::bank::Bank;
use super::coordinates::Sighting;
use super::delay::DelayLaw;
use super::direction::Direction;
use super::early::{EarlyRun, Verdict};
use super::gaussian::{ARRIVAL, Gaussian, RATE, ROUND_TRIP};
use super::levels::Levels;
use super::parameters::{MODELS, Parameters};

/// Data common to all exchanges, and the statistics of the round trips.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Tunables.
    pub parameters: &'a Parameters,
    /// The mixture of delay distributions.
    pub law: &'a DelayLaw,
    /// Standard deviation of the edge of the minimum delay, relative to the mean queueing.
    pub softness: f64,
    /// How far both minimum delays move together between two exchanges, relative to `queueing_s`.
    pub common_walk: f64,
    /// Mean queueing according to the round trips, s.
    pub queueing_s: f64,
    /// The information in one delay relative to an independent one, 0 to 1.
    pub independence: f64,
}

/// How an exchange compared with the prediction. Index 0 is forward, 1 backward.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Innovation {
    /// Arrival time after the earliest expected moment, s.
    pub residual_s: [f64; 2],
    /// Standard deviation of that moment, s.
    pub deviation_s: [f64; 2],
    /// Logarithm of the exchange's density.
    pub log_evidence: f64,
    /// The round trip was clearly below its known minimum.
    pub below: bool,
    /// Directions whose minimum was reopened for that reason.
    pub shortened: [bool; 2],
    /// Whether a clock stepped.
    pub verdict: Verdict,
}

/// What the filter infers about the delays of the messages.
struct Learned {
    /// Mean excess above the minimum, s.
    excess_s: [f64; 2],
    /// Probability that the delay was ordinary queueing.
    ordinary: [f64; 2],
}

impl Learned {
    const NOTHING: Self = Self { excess_s: [0.0; 2], ordinary: [0.0; 2] };
}

impl Innovation {
    /// The value before the first exchange.
    pub const NONE: Self = Self {
        residual_s: [0.0; 2],
        deviation_s: [1.0; 2],
        log_evidence: 0.0,
        below: false,
        shortened: [false; 2],
        verdict: Verdict::Ordinary,
    };

    /// Which messages arrived more than `sigmas` before the earliest expected moment.
    pub fn early(&self, sigmas: f64) -> [bool; 2] {
        [0, 1].map(|k| self.residual_s[k] < -sigmas * self.deviation_s[k])
    }

    /// The residual of the round trip, s: negative if it was below its known minimum.
    pub fn round_trip_residual_s(&self) -> f64 {
        self.residual_s[0] + self.residual_s[1]
    }
}

/// State of one expert's filter. It is plain data, so a copy suffices to take exchanges back.
#[derive(Clone, Copy, Debug)]
pub struct Filter {
    /// The state under every hypothesis about the oscillator.
    pub bank: Bank,
    /// Queueing and residuals, forward and backward.
    pub directions: [Direction; 2],
    /// Minimum delays of earlier routes.
    pub levels: Levels,
    early: EarlyRun,
    count: u64,
}

impl Filter {
    /// Starts from `state` before the exchange after number `count`.
    pub fn new(state: &Gaussian, weights: [f64; MODELS], queueing_s: [f64; 2], count: u64) -> Self {
        Self {
            bank: Bank::new(state, weights),
            directions: queueing_s.map(Direction::new),
            levels: Levels::new(),
            early: EarlyRun::NONE,
            count,
        }
    }

    /// Exchanges seen.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Processes an exchange.
    pub fn observe(&mut self, sighting: &Sighting, context: &Context) -> Innovation {
        let parameters = context.parameters;
        self.bank.switch(&parameters.oscillator);
        self.bank.predict(sighting.since_s, &parameters.oscillator);
        self.count += 1;
        let started = self.count > parameters.start.exchanges as u64;
        if !started {
            self.directions.iter_mut().for_each(|d| d.queueing_s = context.queueing_s);
        }
        if context.common_walk > 0.0 {
            self.bank.move_together((context.common_walk * context.queueing_s).powi(2));
        }
        let prior = self.bank.mixture();
        let noise = self.noise(context);
        let measured = sighting.at_epoch(prior.mean[RATE]);
        let mut innovation = compare(&prior, measured, noise);
        innovation.below = self.is_below_minimum(&prior, &innovation, noise, parameters);
        let early = innovation.early(parameters.changes.early_sigma);
        if self.count > parameters.start.again_at[0] as u64 {
            self.react(&prior, &mut innovation, early, sighting.since_s, started, parameters);
        }
        let ignored = innovation.verdict == Verdict::Hold
            || (started && self.is_outlier(&innovation, parameters));
        let learned = if ignored {
            Learned::NOTHING
        } else {
            self.learn(measured, noise, context, &mut innovation.log_evidence)
        };
        if started {
            self.record(&innovation, &learned, early, context);
        }
        innovation
    }

    /// Reacts to what queueing cannot explain: a shorter path, or a step of a clock.
    fn react(
        &mut self,
        prior: &Gaussian,
        innovation: &mut Innovation,
        early: [bool; 2],
        since_s: f64,
        started: bool,
        parameters: &Parameters,
    ) {
        if !innovation.below {
            let queueing = self.directions.map(|d| d.queueing_s);
            innovation.verdict = self.early.observe(
                &mut self.bank,
                innovation,
                early,
                queueing,
                since_s,
                parameters,
            );
        } else if started {
            innovation.shortened = self.shorten(prior, innovation, early, &parameters.changes);
        } else {
            self.reopen_both(innovation.round_trip_residual_s());
        }
    }

    /// Gaussian noise of an arrival in addition to the state's own uncertainty, s^2: the stamps,
    /// and the softness of the minimum's edge.
    fn noise(&self, context: &Context) -> [f64; 2] {
        let stamps = context.parameters.delays.stamp_noise_s.powi(2);
        [0, 1].map(|k| stamps + (context.softness * self.directions[k].queueing_s).powi(2))
    }

    fn queueing_sum_s(&self) -> f64 {
        self.directions[0].queueing_s + self.directions[1].queueing_s
    }

    /// The round trip was shorter than the sum of the two known minima: the path changed, whatever
    /// the clocks did.
    fn is_below_minimum(
        &self,
        prior: &Gaussian,
        innovation: &Innovation,
        noise: [f64; 2],
        parameters: &Parameters,
    ) -> bool {
        let sigma = (prior.project(ROUND_TRIP).1 + noise[0] + noise[1]).sqrt();
        let allowed = parameters.changes.early_sigma * sigma
            + parameters.changes.early_queueing * self.queueing_sum_s();
        innovation.round_trip_residual_s() < -allowed
    }

    /// Both messages were far too late: something delayed the whole exchange, which therefore
    /// carries no information.
    fn is_outlier(&self, innovation: &Innovation, parameters: &Parameters) -> bool {
        [0, 1].iter().all(|k| {
            let allowed = parameters.delays.outlier_queueing * self.directions[*k].queueing_s
                + parameters.delays.outlier_sigma * innovation.deviation_s[*k];
            innovation.residual_s[*k] > allowed
        })
    }

    /// During the start the two minima are treated as one unknown: a lower round trip reopens both.
    fn reopen_both(&mut self, excess_s: f64) {
        let variance = excess_s.powi(2) + self.queueing_sum_s().powi(2);
        self.bank.move_together(variance);
    }

    /// Updates every hypothesis, forward then backward.
    fn learn(
        &mut self,
        measured: [f64; 2],
        noise: [f64; 2],
        context: &Context,
        log_evidence: &mut f64,
    ) -> Learned {
        let queueing = [0, 1].map(|k| self.directions[k].queueing_s);
        let mut found = [[(0.0, 0.0); 2]; MODELS];
        // A message contains less information about the state if delays are correlated. How well it
        // was predicted is a separate question.
        let priors = *self.bank.weights();
        let correlated = context.independence < 1.0;
        let mut plain = [0.0; MODELS];
        *log_evidence = self.bank.update(|model, state| {
            let mut log = 0.0;
            for k in 0..2 {
                let (mean, variance) = state.project(ARRIVAL[k]);
                let (delta, total) = (measured[k] - mean, variance + noise[k]);
                let (excess, ordinary) =
                    context.law.excess(delta, total, queueing[k], context.independence);
                if correlated {
                    let independent = context.law.excess(delta, total, queueing[k], 1.0);
                    plain[model] += independent.0.log_evidence;
                }
                state.condition(ARRIVAL[k], delta - excess.mean, total, excess.variance);
                log += excess.log_evidence;
                found[model][k] = (excess.mean, ordinary);
            }
            log
        });
        if correlated {
            *log_evidence = log_mean(&priors, &plain);
        }
        let mut learned = Learned::NOTHING;
        for (weight, model) in self.bank.weights().iter().zip(&found) {
            for (k, (excess_s, ordinary)) in model.iter().enumerate() {
                learned.excess_s[k] += weight * excess_s;
                learned.ordinary[k] += weight * ordinary;
            }
        }
        learned
    }

    fn record(
        &mut self,
        innovation: &Innovation,
        learned: &Learned,
        early: [bool; 2],
        context: &Context,
    ) {
        let delays = &context.parameters.delays;
        let gain = 1.0 / (self.count as f64).min(delays.queueing_memory);
        let range = delays.queueing_range;
        let limits = [context.queueing_s / range, context.queueing_s * range];
        for (k, direction) in self.directions.iter_mut().enumerate() {
            direction.average(learned.excess_s[k], learned.ordinary[k], gain, limits);
            // A clock step makes one direction early and the other late by the same amount; this is
            // no shift of the path.
            let stepping = early[1 - k] && !innovation.below;
            let late = learned.ordinary[k] < 0.5 && innovation.residual_s[k] > 0.0 && !stepping;
            direction.late_run = if late { direction.late_run + 1 } else { 0 };
            let residual = if stepping { 0.0 } else { innovation.residual_s[k] };
            direction.record(residual, context.parameters.changes.shift_exchanges);
        }
    }
}

fn compare(prior: &Gaussian, measured: [f64; 2], noise: [f64; 2]) -> Innovation {
    let mut innovation = Innovation::NONE;
    for k in 0..2 {
        let (mean, variance) = prior.project(ARRIVAL[k]);
        innovation.residual_s[k] = measured[k] - mean;
        innovation.deviation_s[k] = (variance + noise[k]).sqrt();
    }
    innovation
}

/// Logarithm of the weighted mean of the numbers whose logarithms are `logs`.
fn log_mean(weights: &[f64; MODELS], logs: &[f64; MODELS]) -> f64 {
    let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = weights.iter().zip(logs).map(|(weight, log)| weight * (log - top).exp()).sum();
    top + sum.ln()
}
