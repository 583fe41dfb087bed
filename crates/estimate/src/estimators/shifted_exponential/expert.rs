//! A filter with hindsight: upward shifts of a minimum delay show only after several exchanges,
//! which are then taken back and taken in again with the right minimum.

use super::coordinates::Sighting;
use super::direction::Direction;
use super::early::Verdict;
use super::filter::{Context, Filter, Innovation};
use super::gaussian::Gaussian;
use super::hindsight::Shift;
use super::history::History;

/// What has changed on the path and in the clocks so far, for metrics and logs. Index 0 is forward,
/// 1 backward.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Changes {
    /// The minimum delay became longer.
    pub lengthened: [u64; 2],
    /// The minimum delay became shorter.
    pub shortened: [u64; 2],
    /// A clock stepped.
    pub steps: u64,
}

/// One opinion about the minimum delay's edge.
#[derive(Clone, Debug)]
pub struct Expert {
    softness: f64,
    filter: Filter,
    history: History,
    innovation: Innovation,
    posterior: Gaussian,
    changes: Changes,
}

impl Expert {
    /// Starts from `filter`; `softness` is the standard deviation of the edge over the mean
    /// queueing.
    pub fn new(softness: f64, filter: &Filter) -> Self {
        Self {
            softness,
            filter: *filter,
            history: History::new(),
            innovation: Innovation::NONE,
            posterior: filter.bank.mixture(),
            changes: Changes::default(),
        }
    }

    /// Starts again from `filter`, with an empty past.
    pub fn restart(&mut self, filter: &Filter) {
        self.filter = *filter;
        self.history.clear();
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

    /// Moves all offsets by `by_s`: C was moved by as much the other way. The past is forgotten.
    pub fn rebase(&mut self, by_s: f64, variance: f64) {
        self.filter.bank.shift_offset(by_s, variance);
        self.posterior = self.filter.bank.mixture();
        self.history.clear();
    }

    /// Takes an exchange in. Returns how many exchanges are known to have taken the path as it is
    /// now, if it has just changed.
    pub fn observe(&mut self, sighting: &Sighting, shared: &Context) -> Option<usize> {
        let context = Context { softness: self.softness, ..*shared };
        self.history.push(&self.filter, sighting);
        self.innovation = self.filter.observe(sighting, &context);
        self.changes.steps += u64::from(matches!(self.innovation.verdict, Verdict::Step(_)));
        for (count, shortened) in self.changes.shortened.iter_mut().zip(self.innovation.shortened) {
            *count += u64::from(shortened);
        }
        let mut since_change = self.innovation.shortened.contains(&true).then_some(1);
        let (sigma, parameters) = (self.innovation.deviation_s, context.parameters);
        if let Some(shift) = Shift::suspected(&self.filter, sigma, context.independence, parameters)
        {
            let shift = shift.confirmed(&self.history, parameters);
            if shift.any() {
                self.take_back(&shift, &context);
                since_change = Some(shift.exchanges);
            } else {
                self.filter.directions.iter_mut().for_each(Direction::acquit);
            }
        }
        self.posterior = self.filter.bank.mixture();
        since_change
    }

    /// Takes the exchanges since the shift back, moves the minima, and takes the exchanges in
    /// again.
    fn take_back(&mut self, shift: &Shift, context: &Context) {
        let limits = &context.parameters.changes;
        let mut filter = *self.history.before(shift.exchanges);
        filter.levels.remember(&filter.bank.mixture(), filter.directions[0].queueing_s);
        for k in 0..2 {
            if let Some(by) = shift.by_s[k] {
                let queueing = limits.reopened_queueing * filter.directions[k].queueing_s;
                filter.reopen(k, by, (limits.reopened_share * by).powi(2) + queueing.powi(2));
                self.changes.lengthened[k] += 1;
            }
        }
        for back in (1..=shift.exchanges).rev() {
            self.history.set_before(back, &filter);
            filter.observe(self.history.sighting(back), context);
        }
        for (direction, by) in filter.directions.iter_mut().zip(shift.by_s) {
            if by.is_some() {
                direction.acquit();
                direction.forget();
            }
        }
        self.filter = filter;
    }
}
