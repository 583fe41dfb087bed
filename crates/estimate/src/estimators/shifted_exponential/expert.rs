//! A filter with hindsight: upward shifts of a minimum delay become visible only after several
//! exchanges, which are then taken back and processed again with the correct minimum.

use super::coordinates::Sighting;
use super::direction::Direction;
use super::early::Verdict;
use super::filter::{Context, Filter, Innovation};
use super::gaussian::{ARRIVAL, ASYMMETRY, Gaussian, MINIMUM};
use super::hindsight::Shift;
use super::history::History;
use super::levels::Levels;

/// Changes of the path and the clocks so far, for metrics and logs. Index 0 is forward, 1 backward.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Changes {
    /// The minimum delay became longer.
    pub lengthened: [u64; 2],
    /// The minimum delay became shorter.
    pub shortened: [u64; 2],
    /// A clock stepped.
    pub steps: u64,
}

/// What an exchange revealed about the path.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Revision {
    /// Number of exchanges that are known to have taken the current path.
    pub exchanges: usize,
    /// Present if these exchanges were processed again: the logarithm of their density, given what
    /// is now known about the path.
    pub log_evidence: Option<f64>,
}

/// One hypothesis about the edge of the minimum delay.
#[derive(Clone, Debug)]
pub struct Expert {
    softness: f64,
    common_walk: f64,
    filter: Filter,
    history: History,
    innovation: Innovation,
    posterior: Gaussian,
    changes: Changes,
    /// Exchanges since a message arrived too early, including that one; 0 once that is settled.
    since_early: usize,
    /// Directions whose minimum was reopened at that time.
    shortened: [bool; 2],
}

impl Expert {
    /// Starts from `filter`; `softness` is the standard deviation of the edge relative to the mean
    /// queueing.
    pub fn new(softness: f64, common_walk: f64, filter: &Filter) -> Self {
        Self {
            softness,
            common_walk,
            filter: *filter,
            history: History::new(),
            innovation: Innovation::NONE,
            posterior: filter.bank.mixture(),
            changes: Changes::default(),
            since_early: 0,
            shortened: [false; 2],
        }
    }

    /// Restarts from `filter`, with an empty history.
    pub fn restart(&mut self, filter: &Filter) {
        self.filter = *filter;
        self.history.clear();
        self.since_early = 0;
        self.innovation = Innovation::NONE;
        self.posterior = filter.bank.mixture();
    }

    /// The filter after the newest exchange.
    pub const fn filter(&self) -> &Filter {
        &self.filter
    }

    /// How the newest exchange compared with the prediction.
    pub const fn innovation(&self) -> &Innovation {
        &self.innovation
    }

    /// Mean and covariance after the newest exchange.
    pub const fn posterior(&self) -> &Gaussian {
        &self.posterior
    }

    /// What has changed so far.
    pub const fn changes(&self) -> Changes {
        self.changes
    }

    /// Moves all offsets by `by_s`, because C was moved by the same amount in the opposite
    /// direction. The history is cleared.
    pub fn rebase(&mut self, by_s: f64, variance: f64) {
        self.filter.bank.shift_offset(by_s, variance);
        self.posterior = self.filter.bank.mixture();
        self.history.clear();
        self.since_early = 0;
    }

    /// Adopts another asymmetry and other remembered routes. The offset moves along, so every
    /// prediction stays the same.
    pub fn adopt(&mut self, asymmetry_s: f64, levels: &Levels) {
        let by = (self.posterior.project(ASYMMETRY).0 - asymmetry_s) / 2.0;
        self.filter.bank.for_each(|state| state.shift_asymmetry(by));
        self.posterior.shift_asymmetry(by);
        self.filter.levels = *levels;
    }

    /// Processes an exchange. If the path has just changed, returns what is now known about it.
    pub fn observe(&mut self, sighting: &Sighting, shared: &Context) -> Option<Revision> {
        let mut context =
            Context { softness: self.softness, common_walk: self.common_walk, ..*shared };
        if self.common_walk > 0.0 {
            // For this expert the minimum wanders, not the queueing.
            context.independence = 1.0;
        }
        self.history.push(&self.filter, sighting);
        self.innovation = self.filter.observe(sighting, &context);
        if let Some(shift) = self.changed_both(&context) {
            let log_evidence = Some(self.take_back(&shift, &context));
            self.innovation.verdict = Verdict::Ordinary;
            self.posterior = self.filter.bank.mixture();
            return Some(Revision { exchanges: shift.exchanges, log_evidence });
        }
        self.changes.steps += u64::from(matches!(self.innovation.verdict, Verdict::Step(_)));
        for (count, shortened) in self.changes.shortened.iter_mut().zip(self.innovation.shortened) {
            *count += u64::from(shortened);
        }
        let shortened = self.innovation.shortened.contains(&true);
        let mut revision = shortened.then_some(Revision { exchanges: 1, log_evidence: None });
        let (sigma, parameters) = (self.innovation.deviation_s, context.parameters);
        if let Some(shift) = Shift::suspected(&self.filter, sigma, context.independence, parameters)
        {
            let shift = shift.confirmed(&self.history, parameters);
            if shift.any() {
                let log_evidence = Some(self.take_back(&shift, &context));
                revision = Some(Revision { exchanges: shift.exchanges, log_evidence });
            } else {
                self.filter.directions.iter_mut().for_each(Direction::acquit);
            }
        }
        self.posterior = self.filter.bank.mixture();
        revision
    }

    /// Re-examines a message that arrived too early, once a few more exchanges have been seen.
    fn changed_both(&mut self, context: &Context) -> Option<Shift> {
        let limits = &context.parameters.changes;
        let settled = self.filter.count() > context.parameters.start.exchanges as u64;
        let early = self.innovation.early(limits.early_sigma).contains(&true);
        if self.since_early > 0 {
            self.since_early += 1;
        } else if settled && (early || self.innovation.below) {
            self.since_early = 1;
            self.shortened = self.innovation.shortened;
        }
        let seen = self.since_early;
        let due = limits.looked_back_after.contains(&seen) && seen <= self.history.len();
        let found = due
            .then(|| Shift::of_both(seen, self.shortened, &self.history, context.parameters))
            .flatten();
        if found.is_some() || limits.looked_back_after.iter().all(|n| seen >= *n) {
            self.since_early = 0;
        }
        found
    }

    /// Takes back the exchanges since the shift, moves the minima, and processes the exchanges
    /// again. Returns the logarithm of their density.
    fn take_back(&mut self, shift: &Shift, context: &Context) -> f64 {
        let limits = &context.parameters.changes;
        let mut filter = *self.history.before(shift.exchanges);
        let state = filter.bank.mixture();
        filter.leave(&state);
        let mut minimum = MINIMUM.map(|m| state.mean[m]);
        for k in 0..2 {
            if let Some(by) = shift.by_s[k] {
                let queueing = limits.reopened_queueing * filter.directions[k].queueing_s;
                filter.reopen(k, by, (limits.reopened_share * by).powi(2) + queueing.powi(2));
                minimum[k] += by;
                let changes = &mut self.changes;
                let count = if by < 0.0 { &mut changes.shortened } else { &mut changes.lengthened };
                count[k] += 1;
            }
        }
        let tolerance = [0, 1].map(|k| {
            let sigma = state.project(ARRIVAL[k]).1.sqrt();
            limits.same_other * filter.directions[k].queueing_s + limits.same_sigma * sigma
        });
        filter.restore(minimum, tolerance, tolerance, limits);
        let mut log_evidence = 0.0;
        for back in (1..=shift.exchanges).rev() {
            self.history.set_before(back, &filter);
            log_evidence += filter.observe(self.history.sighting(back), context).log_evidence;
        }
        for (direction, by) in filter.directions.iter_mut().zip(shift.by_s) {
            if by.is_some() {
                direction.acquit();
                direction.forget();
            }
        }
        self.filter = filter;
        log_evidence
    }
}
