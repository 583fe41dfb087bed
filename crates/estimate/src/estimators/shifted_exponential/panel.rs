//! Runs the experts side by side, weighted by how well each has predicted recently.

use super::bank::Bank;
use super::coordinates::Sighting;
use super::expert::{Changes, Expert, Revision};
use super::filter::{Context, Filter};
use super::gaussian::{ASYMMETRY, Gaussian};
use super::parameters::{EXPERTS, Parameters, WINDOW};
use super::ring::Ring;
use super::wander::Wander;

/// Lower limit for the logarithm of an expert's merit relative to the best: no expert is written
/// off, because the path may change.
const LEAST_MERIT: f64 = -50.0;

/// An expert whose merit is lower by this much has a weight below 1 %.
const CLEARLY: f64 = 5.0;

/// All experts and their merits.
#[derive(Clone, Debug)]
pub struct Panel {
    experts: [Expert; EXPERTS],
    /// Logarithm of each expert's merit; the best one's is 0.
    merits: [f64; EXPERTS],
    /// The merits before each of the newest exchanges, and how much the best one gained from it.
    past: Ring<([f64; EXPERTS], f64), WINDOW>,
}

impl Panel {
    /// All experts start from their `filters`.
    pub fn new(
        parameters: &Parameters,
        filters: &[Filter; EXPERTS],
        merits: [f64; EXPERTS],
    ) -> Self {
        let delays = &parameters.delays;
        let expert =
            |i: usize| Expert::new(delays.edge_softness[i], delays.common_walk[i], &filters[i]);
        let past = Ring::new(([0.0; EXPERTS], 0.0));
        Self { experts: core::array::from_fn(expert), merits, past }
    }

    /// A panel without any knowledge, before the first exchange.
    pub fn empty(parameters: &Parameters) -> Self {
        let filter = Filter::new(&Gaussian::ZERO, Bank::EVEN, [1.0; 2], 0);
        Self::new(parameters, &[filter; EXPERTS], [0.0; EXPERTS])
    }

    /// Restarts all experts from `filter`, with equal merits.
    pub fn restart(&mut self, filter: &Filter) {
        self.experts.iter_mut().for_each(|e| e.restart(filter));
        self.merits = [0.0; EXPERTS];
        self.past.clear();
    }

    /// Processes an exchange; its evidence counts if `compared`. If the best expert finds that the
    /// path has just changed, returns how many exchanges are known to have taken the current path.
    pub fn observe(
        &mut self,
        sighting: &Sighting,
        context: &Context,
        compared: bool,
    ) -> Option<usize> {
        let best = self.best_index();
        let delays = &context.parameters.delays;
        let forget = 1.0 - 1.0 / delays.expert_memory;
        let before = self.merits;
        let mut since_change = None;
        for (i, expert) in self.experts.iter_mut().enumerate() {
            let revision = expert.observe(sighting, context);
            let evidence = if compared { expert.innovation().log_evidence } else { 0.0 };
            self.merits[i] = before[i] * forget + evidence;
            if let Some(Revision { exchanges, log_evidence: Some(evidence) }) = revision {
                let change = context.parameters.changes.shift_prior.ln();
                self.merits[i] =
                    revised(&self.past, before, i, exchanges, forget) + evidence + change;
            }
            if i == best {
                since_change = revision.map(|r| r.exchanges);
            }
        }
        let top = self.merits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        self.merits = self.merits.map(|m| (m - top).max(LEAST_MERIT));
        self.past.push((before, top));
        self.agree_on_asymmetry();
        since_change
    }

    /// No evidence distinguishes asymmetries. An expert that predicts clearly worse than the best
    /// one has misjudged more, so it adopts the best one's asymmetry.
    fn agree_on_asymmetry(&mut self) {
        let best = self.best_index();
        let asymmetry_s = self.experts[best].posterior().project(ASYMMETRY).0;
        let levels = self.experts[best].filter().levels;
        for (i, expert) in self.experts.iter_mut().enumerate() {
            if self.merits[i] < self.merits[best] - CLEARLY {
                expert.adopt(asymmetry_s, &levels);
            }
        }
    }

    /// See [`Expert::rebase`].
    pub fn rebase(&mut self, by_s: f64, variance: f64) {
        self.experts.iter_mut().for_each(|e| e.rebase(by_s, variance));
    }

    fn best_index(&self) -> usize {
        (1..EXPERTS).fold(0, |best, i| if self.merits[i] > self.merits[best] { i } else { best })
    }

    /// The expert with the greatest merit.
    pub fn best(&self) -> &Expert {
        &self.experts[self.best_index()]
    }

    /// The changes that the best expert has seen.
    pub fn changes(&self) -> Changes {
        self.best().changes()
    }

    /// The experts with the logarithms of their merits.
    pub fn members(&self) -> impl Iterator<Item = (&Expert, f64)> {
        self.experts.iter().zip(self.merits)
    }

    fn weights(&self) -> [f64; EXPERTS] {
        let sum: f64 = self.merits.iter().map(|m| m.exp()).sum();
        self.merits.map(|m| m.exp() / sum)
    }

    /// Mean and covariance over all experts.
    pub fn posterior(&self) -> Gaussian {
        let states: [Gaussian; EXPERTS] = core::array::from_fn(|i| *self.experts[i].posterior());
        Gaussian::mixture(&states, &self.weights())
    }

    /// The wander whose variance is the mean over all experts and hypotheses.
    pub fn wander(&self, models: &[Wander]) -> Wander {
        let (mut random_walk, mut drift_walk) = (0.0, 0.0);
        for (expert, weight) in self.experts.iter().zip(self.weights()) {
            for (probability, model) in expert.filter().bank.weights().iter().zip(models) {
                random_walk += weight * probability * model.random_walk.powi(2);
                drift_walk += weight * probability * model.drift_walk.powi(2);
            }
        }
        Wander { random_walk: f64::sqrt(random_walk), drift_walk: f64::sqrt(drift_walk) }
    }
}

/// The merit of expert `i` without the evidence of the newest `exchanges`, the last of which has
/// not been added to `past` yet: its merit before them, minus the best expert's gain since then.
fn revised(
    past: &Ring<([f64; EXPERTS], f64), WINDOW>,
    before: [f64; EXPERTS],
    i: usize,
    exchanges: usize,
    forget: f64,
) -> f64 {
    let (mut merit, mut gained) = (before[i], 0.0);
    for (merits, gain) in past.newest().take(exchanges - 1) {
        merit = merits[i];
        gained += gain;
    }
    merit * forget.powf(exchanges as f64) - gained
}
