//! An interacting multiple-model bank: the same state under every hypothesis about the oscillator,
//! with weights.
//!
//! H. A. P. Blom, Y. Bar-Shalom, "The interacting multiple model algorithm for systems with
//! Markovian switching coefficients", IEEE Trans. Automatic Control 33 (1988): before each step
//! every model's state is mixed with the others' in proportion to the probability that the
//! oscillator has just switched. A hypothesis that becomes true again thus starts from the
//! knowledge of the others.

use super::gaussian::{Gaussian, MINIMUM, OFFSET, Pair};
use super::parameters::{MODELS, Oscillator};

/// States and weights, in the order of [`Oscillator::models`].
#[derive(Clone, Copy, Debug)]
pub struct Bank {
    states: [Gaussian; MODELS],
    weights: [f64; MODELS],
}

impl Bank {
    /// Every hypothesis starts from `state` with the given weight (they sum to 1).
    pub fn new(state: &Gaussian, weights: [f64; MODELS]) -> Self {
        Self { states: [*state; MODELS], weights }
    }

    /// Every hypothesis is as likely as any other.
    pub const EVEN: [f64; MODELS] = [1.0 / MODELS as f64; MODELS];

    /// Probabilities of the hypotheses.
    pub const fn weights(&self) -> &[f64; MODELS] {
        &self.weights
    }

    /// Mean and covariance over all hypotheses.
    pub fn mixture(&self) -> Gaussian {
        Gaussian::mixture(&self.states, &self.weights)
    }

    /// Allows for a switch of the oscillator: c_j = a + (1 - p - a) w_j with a = p/(K - 1).
    pub fn switch(&mut self, oscillator: &Oscillator) {
        let p = oscillator.switch_probability;
        let a = p / (MODELS - 1) as f64;
        let stay = 1.0 - p - a;
        let all = self.mixture();
        for ((state, weight), model) in
            self.states.iter_mut().zip(&mut self.weights).zip(&oscillator.models)
        {
            let mixed = a + stay * *weight;
            state.blend(stay * *weight / mixed, &all);
            if model.drift_walk == 0.0 {
                state.without_drift();
            }
            *weight = mixed;
        }
    }

    /// Advances all hypotheses by `dt` seconds.
    pub fn predict(&mut self, dt: f64, oscillator: &Oscillator) {
        for (state, model) in self.states.iter_mut().zip(&oscillator.models) {
            state.predict(dt, *model, oscillator.drift_decay_s);
        }
    }

    /// Updates every state with `learn`, which returns the logarithm of the evidence, and then the
    /// weights by Bayes' rule. Returns the logarithm of the bank's evidence.
    pub fn update(&mut self, mut learn: impl FnMut(usize, &mut Gaussian) -> f64) -> f64 {
        let mut log = [0.0; MODELS];
        for (i, state) in self.states.iter_mut().enumerate() {
            log[i] = self.weights[i].ln() + learn(i, state);
        }
        let top = log.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        for (weight, log) in self.weights.iter_mut().zip(&log) {
            *weight = (log - top).exp();
        }
        let sum: f64 = self.weights.iter().sum();
        for weight in &mut self.weights {
            *weight /= sum;
        }
        top + sum.ln()
    }

    /// Moves the offset by `by_s` with an uncertainty of `variance`, s^2.
    pub fn shift_offset(&mut self, by_s: f64, variance: f64) {
        self.for_each(|state| {
            state.mean[OFFSET] += by_s;
            state.covariance.add(OFFSET, OFFSET, variance);
        });
    }

    /// Both minimum delays may have become longer or shorter by the same amount, with `variance`,
    /// s^2: this makes their sum less certain, but not their difference.
    pub fn move_together(&mut self, variance: f64) {
        let [f, b] = MINIMUM;
        self.for_each(|state| {
            for (i, j) in [(f, f), (f, b), (b, b)] {
                state.covariance.add(i, j, variance);
            }
        });
    }

    /// Changes every hypothesis in the same way.
    pub fn for_each(&mut self, change: impl Fn(&mut Gaussian)) {
        self.states.iter_mut().for_each(change);
    }

    /// Learns the value of a linear form with Gaussian noise, under every hypothesis in the same
    /// way.
    pub fn learn(&mut self, pair: Pair, value: f64, variance: f64) {
        self.for_each(|state| {
            let (mean, prior) = state.project(pair);
            state.condition(pair, value - mean, prior + variance, 0.0);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimators::shifted_exponential::gaussian::{
        ARRIVAL, ASYMMETRY, DRIFT, RATE, ROUND_TRIP,
    };

    fn bank() -> Bank {
        let mut state = Gaussian::ZERO;
        for (i, variance) in [1e-10, 1e-14, 1e-20, 1e-11, 1e-11].into_iter().enumerate() {
            state.covariance.set(i, i, variance);
        }
        Bank::new(&state, Bank::EVEN)
    }

    #[test]
    fn weights_follow_bayes_rule() {
        let mut bank = bank();
        let evidence = bank.update(|model, _| if model == 3 { 2.0 } else { 0.0 });
        let e = 2f64.exp();
        assert!((evidence - ((7.0 + e) / 8.0).ln()).abs() < 1e-12);
        assert!((bank.weights()[3] - e / (7.0 + e)).abs() < 1e-12);
        assert!((bank.weights().iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn evidence_of_any_size_leaves_probabilities() {
        let mut bank = bank();
        bank.update(|model, _| -1e30 * model as f64);
        assert_eq!(bank.weights()[0], 1.0);
        bank.switch(&Oscillator::default());
        assert!(bank.weights().iter().all(|w| *w > 0.0), "whatever was excluded may come back");
    }

    #[test]
    fn switching_changes_neither_the_mean_nor_the_covariance_of_the_whole() {
        let oscillator = Oscillator::default();
        let mut bank = bank();
        bank.predict(100.0, &oscillator);
        bank.update(|model, state| {
            state.mean[RATE] += 1e-9 * model as f64;
            state.without_drift();
            0.3 * model as f64
        });
        let before = bank.mixture();
        bank.switch(&Oscillator { switch_probability: 0.05, ..oscillator });
        let after = bank.mixture();
        // The Markov chain moves the weights by 5 %, and with them the mean by a fraction of its
        // spread.
        let spread = before.covariance.get(RATE, RATE).sqrt();
        assert!((after.mean[RATE] - before.mean[RATE]).abs() < 0.05 * spread);
        assert!((after.covariance.get(RATE, RATE).sqrt() / spread - 1.0).abs() < 0.1);
        assert!(after.mean[DRIFT] == 0.0);
    }

    #[test]
    fn an_excluded_hypothesis_would_begin_with_what_the_others_know() {
        let mut bank = bank();
        bank.update(|model, state| {
            state.mean[RATE] = if model == 0 { 5.0 } else { 1e-9 };
            if model == 0 { -1e3 } else { 0.0 }
        });
        bank.switch(&Oscillator::default());
        assert!((bank.states[0].mean[RATE] - 1e-9).abs() < 1e-12, "{}", bank.states[0].mean[RATE]);
    }

    #[test]
    fn minima_that_move_together_leave_the_asymmetry_known() {
        let mut bank = bank();
        let before = bank.mixture();
        bank.move_together(4e-11);
        let after = bank.mixture();
        let grown = |pair| after.project(pair).1 - before.project(pair).1;
        assert!((grown(ROUND_TRIP) / 16e-11 - 1.0).abs() < 1e-9);
        assert!(grown(ASYMMETRY).abs() < 1e-20);
    }

    #[test]
    fn a_value_that_is_told_is_believed_to_its_variance() {
        let mut bank = bank();
        bank.learn(ARRIVAL[0], 5e-6, 1e-16);
        let (mean, variance) = bank.mixture().project(ARRIVAL[0]);
        assert!((mean - 5e-6).abs() < 1e-10 && (variance / 1e-16 - 1.0).abs() < 1e-3);
    }
}
