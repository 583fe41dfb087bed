//! Which bound on the oscillator's wander is in force.
//!
//! A Gaussian random walk has no finite bound that is always safe, so none is configured: the
//! estimator's belief about the oscillator asks for one, and it is taken from a ladder
//! ([`crate::parameters::BoundParameters::wander_levels`]). For a random walk of the rate of q per
//! sqrt(s), the wander that matters is what it reaches over the time T* that it needs to move the
//! clock through the half-width W of the bounds: T* = (sqrt(3) W / q)^(2/3), and nu = k q /
//! sqrt(T*). Raised at once, lowered by one level an hour; a surprise raises it to a level that
//! covers a sudden temperature change, and a contradicted level is not used again for a day.

use crate::estimators::Diagnosis;
use crate::parameters::{BoundParameters, WANDER_MODELS};

/// Below this half-width (s) stamps, not packets, limit the bounds.
const NARROWEST: f64 = 1e-6;

/// The bound in force, and what it follows.
#[derive(Clone, Debug)]
pub struct Wander {
    parameters: BoundParameters,
    level: usize,
    weights: [f64; WANDER_MODELS],
    /// Seconds and exchanges so far.
    age: f64,
    exchanges: u64,
    /// Seconds for which a lower level would have done.
    lower_for: f64,
    /// The level that must not be gone below, and until which age.
    floor: Option<(usize, f64)>,
    /// Newest first: normalized residuals per direction of the exchanges before.
    residuals: [[f64; 2]; 2],
}

impl Wander {
    /// At the start's level.
    #[must_use]
    pub fn new(parameters: &BoundParameters) -> Self {
        let parameters = parameters.clone();
        let level =
            parameters.level_for(parameters.fixed_wander.unwrap_or(parameters.start_wander));
        Self {
            parameters,
            level,
            weights: [0.0; WANDER_MODELS],
            age: 0.0,
            exchanges: 0,
            lower_for: 0.0,
            floor: None,
            residuals: [[0.0; 2]; 2],
        }
    }

    /// The level in force.
    #[must_use]
    pub fn level(&self) -> usize {
        self.level
    }

    /// The wander that keeps a set of this half-width (s) around the truth, 1/s, as the weights
    /// stand.
    #[must_use]
    pub fn needed(&self, diagnosis: &Diagnosis<WANDER_MODELS>, half_width: f64) -> f64 {
        let p = &self.parameters;
        let need = |q: f64, drift: f64| {
            let reach = (3f64.sqrt() * half_width.max(NARROWEST) / q).powf(2.0 / 3.0);
            p.wander_sigmas * q / reach.max(p.shortest_reach_s).sqrt()
                + p.drift_sigmas * drift * (p.drift_memory_s / 2.0).sqrt()
        };
        let mut needs: [(f64, f64); WANDER_MODELS] = std::array::from_fn(|i| {
            let model = &diagnosis.models[i];
            // A model that has become the likeliest by far counts at once.
            let weight = if model.weight > 0.5 {
                self.weights[i].max(model.weight)
            } else {
                self.weights[i]
            };
            (need(model.random_walk, model.drift_walk), weight)
        });
        needs.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut above = 0.0;
        for (need, weight) in needs {
            above += weight;
            if above > 1.0 - p.weight_quantile {
                return need;
            }
        }
        needs[WANDER_MODELS - 1].0
    }

    /// The wander bound of the guard, 1/s, whose polygon has this half-width (s).
    ///
    /// While the weights are still those that the estimator began with, they may favour an
    /// oscillator much better than this one: the guard would then take its ordinary wander for a
    /// fault. Until the oscillator is known, the guard assumes what the bounds assume.
    #[must_use]
    pub fn for_guard(&self, diagnosis: &Diagnosis<WANDER_MODELS>, half_width: f64) -> f64 {
        let p = &self.parameters;
        match p.fixed_wander {
            Some(wander) => wander,
            None if self.is_young() => p.start_wander,
            None => p.guard_wander * self.needed(diagnosis, half_width),
        }
    }

    /// Takes an exchange's diagnosis in, `span` seconds after the one before; `error` is the
    /// reference's own, s. True when it came as a surprise.
    pub fn observe(&mut self, diagnosis: &Diagnosis<WANDER_MODELS>, span: f64, error: f64) -> bool {
        self.age += span;
        self.exchanges += 1;
        for (smooth, model) in self.weights.iter_mut().zip(&diagnosis.models) {
            *smooth += (model.weight - *smooth) / self.parameters.weight_smoothing;
        }
        let surprised = self.is_surprising(diagnosis, error);
        if self.parameters.fixed_wander.is_some() {
            return surprised;
        }
        let minimum = diagnosis.minimum_delay;
        let mut wanted = self.needed(diagnosis, (minimum[0] + minimum[1]) / 2.0);
        if self.is_young() {
            // The weights are still those that the estimator began with.
            wanted = self.parameters.start_wander;
        }
        let mut level = self.parameters.level_for(wanted);
        if surprised {
            level = level.max(self.parameters.level_for(self.parameters.surprise_wander));
        }
        self.floor = self.floor.filter(|(_, until)| self.age < *until);
        if let Some((floor, _)) = self.floor {
            level = level.max(floor);
        }
        self.move_towards(level, span);
        surprised
    }

    fn move_towards(&mut self, level: usize, span: f64) {
        if level >= self.level {
            if level > self.level {
                self.level = level;
            }
            self.lower_for = 0.0;
            return;
        }
        self.lower_for += span;
        if self.lower_for >= self.parameters.lower_after_s {
            self.level -= 1;
            self.lower_for = self.parameters.lower_after_s / 2.0;
        }
    }

    /// The level was contradicted: a larger one is in force for a day.
    pub fn contradicted(&mut self, level: usize) {
        let p = &self.parameters;
        let needed = p.level_for(p.wander_levels[level] * p.contradicted_factor);
        self.floor =
            Some((needed.max(self.floor.map_or(0, |f| f.0)), self.age + p.contradicted_for_s));
        if p.fixed_wander.is_none() {
            self.level = self.level.max(needed);
        }
    }

    /// A doubt: the level for surprises is in force until lower ones have proven themselves again.
    pub fn doubted(&mut self) {
        if self.parameters.fixed_wander.is_none() {
            self.level = self.level.max(self.parameters.level_for(self.parameters.surprise_wander));
            self.lower_for = 0.0;
        }
    }

    fn is_young(&self) -> bool {
        self.exchanges < self.parameters.start_exchanges || self.age < self.parameters.start_s
    }

    /// Messages that came much sooner than they can, though the round trip is no shorter than ever:
    /// a clock moved, and by more than an honest reference may. One that says that it is off by a
    /// millisecond may be slewed by some of it.
    fn is_surprising(&mut self, diagnosis: &Diagnosis<WANDER_MODELS>, error: f64) -> bool {
        let p = &self.parameters;
        let z = diagnosis.normalized_residual;
        let permitted = p.guard_error * error;
        let same_path = !diagnosis.below_minimum;
        let early = |k: usize| {
            let again = self.residuals.iter().any(|r| r[k] < -p.repeated_sigmas);
            z[k] < -p.surprise_sigmas || (z[k] < -p.repeated_sigmas && again)
        };
        let surprising = (0..2).any(|k| {
            diagnosis.residual[k] < -permitted && (diagnosis.step || (same_path && early(k)))
        });
        self.residuals = [if same_path { z } else { [0.0; 2] }, self.residuals[0]];
        surprising && self.exchanges > p.surprise_after
    }
}
