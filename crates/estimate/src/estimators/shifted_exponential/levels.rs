//! A path that became shorter: which direction, and whether an earlier route is back.

use super::filter::{Filter, Innovation};
use super::gaussian::{ASYMMETRY, Gaussian, MINIMUM};
use super::parameters::ChangeDetection;
use super::ring::Ring;

/// Routes remembered.
const ROUTES: usize = 4;

/// The minimum delays of a route, as they were known when it was left.
#[derive(Clone, Copy, Debug)]
struct Level {
    minimum_s: [f64; 2],
    asymmetry_s: f64,
    variance: f64,
}

/// Routes that were left, newest last.
#[derive(Clone, Copy, Debug)]
pub struct Levels(Ring<Level, ROUTES>);

impl Levels {
    /// None.
    pub const fn new() -> Self {
        Self(Ring::new(Level { minimum_s: [0.0; 2], asymmetry_s: 0.0, variance: 0.0 }))
    }

    /// Remembers the route that `state` describes; one that is the same within a mean queueing
    /// delay is replaced.
    pub fn remember(&mut self, state: &Gaussian, queueing_s: f64) {
        let (asymmetry_s, variance) = state.project(ASYMMETRY);
        let minimum_s = MINIMUM.map(|m| state.mean[m]);
        self.0.retain(|l| {
            [0, 1].iter().any(|k| (l.minimum_s[*k] - minimum_s[*k]).abs() > queueing_s)
        });
        self.0.push(Level { minimum_s, asymmetry_s, variance });
    }

    /// The newest route that had about `minimum_s` in direction `k`, where `sigma_s` is uncertain,
    /// and the other one.
    fn find(
        &self,
        k: usize,
        minimum_s: [f64; 2],
        sigma_s: f64,
        queueing_s: f64,
        limits: &ChangeDetection,
    ) -> Option<Level> {
        let sigma = limits.same_sigma * sigma_s;
        self.0.newest().find(|level| {
            let above = minimum_s[k] - level.minimum_s[k];
            let other = minimum_s[1 - k] - level.minimum_s[1 - k];
            other.abs() < limits.same_other * queueing_s
                && above > -sigma - limits.same_below * queueing_s
                && above < sigma + limits.same_above * queueing_s
        })
    }
}

impl Filter {
    /// The round trip is below its minimum: reopens the minimum of the direction, or directions,
    /// whose message was early. When that leads back to a remembered route, its asymmetry is
    /// restored: one round trip cannot show it.
    pub(super) fn shorten(
        &mut self,
        prior: &Gaussian,
        innovation: &Innovation,
        early: [bool; 2],
        limits: &ChangeDetection,
    ) -> [bool; 2] {
        let (residual, sigma) = (innovation.residual_s, innovation.deviation_s);
        let mut shortened = [false; 2];
        for k in 0..2 {
            let clearly = residual[k] < -limits.shortened_sigma * sigma[k];
            let rather = !early[1 - k] && residual[k] <= residual[1 - k];
            if !clearly && !rather {
                continue;
            }
            shortened[k] = true;
            let (by, queueing) = (residual[k].min(0.0), self.directions[k].queueing_s);
            self.reopen(k, 0.0, (2.0 * by).powi(2) + queueing.powi(2));
            self.directions[k].forget();
            let mut minimum = MINIMUM.map(|m| prior.mean[m]);
            minimum[k] += by;
            if let Some(level) = self.levels.find(k, minimum, sigma[k], queueing, limits) {
                let variance = level.variance + (limits.restored_queueing * queueing).powi(2);
                self.bank.learn(ASYMMETRY, level.asymmetry_s, variance);
            }
        }
        shortened
    }

    /// Moves the minimum of direction `k` by `by_s` and adds `variance`, s^2.
    pub(super) fn reopen(&mut self, k: usize, by_s: f64, variance: f64) {
        self.bank.for_each(|state| {
            state.mean[MINIMUM[k]] += by_s;
            state.covariance.add(MINIMUM[k], MINIMUM[k], variance);
        });
    }
}
