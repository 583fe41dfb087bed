//! Which bound on the oscillator's wander is in force.
//!
//! Never less than the floor, which is the operator's statement about the oscillator
//! ([`crate::parameters::BoundParameters::wander_floor`]): what has been seen so far says nothing
//! about the next change of temperature. The estimator's belief can only raise it: for a random
//! walk of the rate of q per sqrt(s), the wander that matters is what it reaches over the time T*
//! that it needs to move the clock through the half-width W of the bounds: T* = (sqrt(3) W /
//! q)^(2/3), and nu = k q / sqrt(T*). Raised at once, lowered by one level an hour; a contradicted
//! level is not used again for a day.

use crate::estimators::Diagnosis;
use crate::parameters::{BoundParameters, WANDER_LEVELS, WANDER_MODELS};

/// Below this half-width (s) stamps, not packets, limit the bounds.
const NARROWEST: f64 = 1e-6;

/// The bound in force, and what it follows.
#[derive(Clone, Debug)]
pub struct Wander {
    parameters: BoundParameters,
    levels: [f64; WANDER_LEVELS],
    level: usize,
    weights: [f64; WANDER_MODELS],
    /// Seconds and exchanges so far.
    age: f64,
    exchanges: u64,
    /// Seconds for which a lower level would have done.
    lower_for: f64,
    /// The level that a contradiction asked for, and until which age.
    contradicted: Option<(usize, f64)>,
}

impl Wander {
    /// At the floor.
    #[must_use]
    pub fn new(parameters: &BoundParameters) -> Self {
        Self {
            parameters: parameters.clone(),
            levels: parameters.levels(),
            level: 0,
            weights: [0.0; WANDER_MODELS],
            age: 0.0,
            exchanges: 0,
            lower_for: 0.0,
            contradicted: None,
        }
    }

    /// The level in force.
    #[must_use]
    pub fn level(&self) -> usize {
        self.level
    }

    /// All levels, 1/s; the first is the floor.
    #[must_use]
    pub fn levels(&self) -> &[f64; WANDER_LEVELS] {
        &self.levels
    }

    /// The wander in force, 1/s, where it is above the floor.
    #[must_use]
    pub fn beyond_floor(&self) -> Option<f64> {
        (self.level > 0).then(|| self.levels[self.level])
    }

    /// What the oscillator may do, 1/s: the floor, or more once facts have contradicted it. Not
    /// what the estimator asks for: a clock that moved asks for more, and must not talk its guards
    /// away.
    #[must_use]
    pub fn possible(&self) -> f64 {
        self.levels[self.contradicted.map_or(0, |(level, _)| level)]
    }

    /// The smallest level that covers `wander`, 1/s, or the largest one.
    fn level_for(&self, wander: f64) -> usize {
        self.levels.iter().position(|level| *level >= wander).unwrap_or(WANDER_LEVELS - 1)
    }

    /// The wander that keeps a set of this half-width (s) around the truth, 1/s, as the weights
    /// stand.
    fn needed(&self, diagnosis: &Diagnosis<WANDER_MODELS>, half_width: f64) -> f64 {
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

    /// Takes an exchange's diagnosis in, `span` seconds after the one before.
    pub fn observe(&mut self, diagnosis: &Diagnosis<WANDER_MODELS>, span: f64) {
        self.age += span;
        self.exchanges += 1;
        for (smooth, model) in self.weights.iter_mut().zip(&diagnosis.models) {
            *smooth += (model.weight - *smooth) / self.parameters.weight_smoothing;
        }
        let minimum = diagnosis.minimum_delay;
        let mut level = 0;
        // Until then the weights are those that the estimator began with.
        if !self.is_young() {
            level = self.level_for(self.needed(diagnosis, (minimum[0] + minimum[1]) / 2.0));
        }
        self.contradicted = self.contradicted.filter(|(_, until)| self.age < *until);
        if let Some((least, _)) = self.contradicted {
            level = level.max(least);
        }
        self.move_towards(level, span);
    }

    /// `span` seconds went by, with facts of which there is no diagnosis.
    pub fn pass(&mut self, span: f64) {
        self.age += span;
        self.contradicted = self.contradicted.filter(|(_, until)| self.age < *until);
        self.move_towards(self.contradicted.map_or(0, |(least, _)| least), span);
    }

    fn move_towards(&mut self, level: usize, span: f64) {
        if level >= self.level {
            self.level = level;
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
        let needed = self.level_for(self.levels[level] * p.contradicted_factor);
        let before = self.contradicted.map_or(0, |(level, _)| level);
        self.contradicted = Some((needed.max(before), self.age + p.contradicted_for_s));
        self.level = self.level.max(needed);
    }

    fn is_young(&self) -> bool {
        self.exchanges < self.parameters.start_exchanges || self.age < self.parameters.start_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_raised_ends_without_a_diagnosis_too() {
        let parameters = BoundParameters::default();
        let mut wander = Wander::new(&parameters);
        wander.contradicted(0);
        assert!(wander.beyond_floor().is_some());
        for _ in 0..4 * 24 {
            wander.pass(parameters.contradicted_for_s / 96.5);
            assert!(wander.beyond_floor().is_some(), "a day is not over");
        }
        for _ in 0..2 * WANDER_LEVELS {
            wander.pass(parameters.lower_after_s);
        }
        assert_eq!(wander.beyond_floor(), None);
    }
}
