//! Paths that became shorter: in which direction, and whether the path is back on an earlier route.

use super::filter::{Filter, Innovation};
use super::gaussian::{ASYMMETRY, Gaussian, MINIMUM};
use super::parameters::ChangeDetection;
use super::ring::Ring;

/// Number of routes remembered.
const ROUTES: usize = 4;

/// The minimum delays of a route, as known when the path left it.
#[derive(Clone, Copy, Debug)]
struct Level {
    minimum_s: [f64; 2],
    asymmetry_s: f64,
    variance: f64,
}

/// The routes that the path has left, newest last.
#[derive(Clone, Copy, Debug)]
pub struct Levels(Ring<Level, ROUTES>);

impl Levels {
    /// No routes.
    pub const fn new() -> Self {
        Self(Ring::new(Level { minimum_s: [0.0; 2], asymmetry_s: 0.0, variance: 0.0 }))
    }

    /// Remembers the route that `state` describes; replaces a route that is equal to it within a
    /// mean queueing delay.
    pub fn remember(&mut self, state: &Gaussian, queueing_s: f64) {
        let (asymmetry_s, variance) = state.project(ASYMMETRY);
        let minimum_s = MINIMUM.map(|m| state.mean[m]);
        self.0.retain(|l| {
            [0, 1].iter().any(|k| (l.minimum_s[*k] - minimum_s[*k]).abs() > queueing_s)
        });
        self.0.push(Level { minimum_s, asymmetry_s, variance });
    }

    /// The newest route with about `minimum_s`: both delays differ by at most `below_s` and
    /// `above_s`.
    fn find(&self, minimum_s: [f64; 2], below_s: [f64; 2], above_s: [f64; 2]) -> Option<Level> {
        self.0.newest().find(|level| {
            [0, 1].iter().all(|k| {
                let above = minimum_s[*k] - level.minimum_s[*k];
                above > -below_s[*k] && above < above_s[*k]
            })
        })
    }
}

impl Filter {
    /// The round trip is below its minimum: reopens the minimum of each direction whose message was
    /// early. If the path is thereby back on a remembered route, restores the route's asymmetry,
    /// which a single round trip cannot reveal.
    pub(super) fn shorten(
        &mut self,
        prior: &Gaussian,
        innovation: &Innovation,
        early: [bool; 2],
        limits: &ChangeDetection,
    ) -> [bool; 2] {
        let (residual, sigma) = (innovation.residual_s, innovation.deviation_s);
        let queueing = self.directions.map(|d| d.queueing_s);
        let shortened = [0, 1].map(|k| {
            let clearly = residual[k] < -limits.shortened_sigma * sigma[k];
            clearly || (!early[1 - k] && residual[k] <= residual[1 - k])
        });
        self.leave(prior);
        let mut minimum = MINIMUM.map(|m| prior.mean[m]);
        let (mut below, mut above) = (queueing.map(|q| limits.same_other * q), [0.0; 2]);
        above.copy_from_slice(&below);
        for k in (0..2).filter(|k| shortened[*k]) {
            let by = residual[k].min(0.0);
            self.reopen(k, 0.0, (2.0 * by).powi(2) + queueing[k].powi(2));
            self.directions[k].forget();
            minimum[k] += by;
            below[k] = limits.same_sigma * sigma[k] + limits.same_below * queueing[k];
            above[k] = limits.same_sigma * sigma[k] + limits.same_above * queueing[k];
        }
        self.restore(minimum, below, above, limits);
        shortened
    }

    /// Remembers the route that `state` describes if its asymmetry has settled.
    pub(super) fn leave(&mut self, state: &Gaussian) {
        let queueing = self.directions[0].queueing_s.min(self.directions[1].queueing_s);
        if state.project(ASYMMETRY).1 < queueing * queueing {
            self.levels.remember(state, queueing);
        }
    }

    /// Both minimum delays are now about `minimum_s`: if that is a remembered route, restores its
    /// asymmetry.
    pub(super) fn restore(
        &mut self,
        minimum_s: [f64; 2],
        below_s: [f64; 2],
        above_s: [f64; 2],
        limits: &ChangeDetection,
    ) {
        if let Some(level) = self.levels.find(minimum_s, below_s, above_s) {
            let noise = limits.restored_queueing * self.directions[0].queueing_s;
            self.bank.learn(ASYMMETRY, level.asymmetry_s, level.variance + noise.powi(2));
        }
    }

    /// Moves the minimum of direction `k` by `by_s` and adds `variance`, s^2.
    pub(super) fn reopen(&mut self, k: usize, by_s: f64, variance: f64) {
        self.bank.for_each(|state| {
            state.mean[MINIMUM[k]] += by_s;
            state.covariance.add(MINIMUM[k], MINIMUM[k], variance);
        });
    }
}
