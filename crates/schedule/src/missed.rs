//! [`Intervals`]: the demand of tasks under EDF on many supplies. Misses recur in the same
//! intervals: for most supplies that are too slow, one of the remembered intervals shows it.

use crate::edf::{Demand, MOST_STEPS, Prepared};
use crate::horizon::Horizon;
use crate::search::{last_that_fits, least_for};
use crate::staircase::Step;
use crate::supply::Supply;
use crate::task::TaskSet;

/// Number of intervals remembered; the most recent ones.
const REMEMBERED: usize = 64;

/// A task set, and intervals in which a supply was insufficient.
pub(crate) struct Intervals<'a> {
    prepared: Prepared<'a>,
    /// The intervals until each task's first deadline, whose need is known before any miss.
    firsts: Vec<Step>,
    /// The missed intervals, most recent first.
    missed: Vec<Step>,
}

impl<'a> Intervals<'a> {
    pub(crate) fn new(set: &'a TaskSet) -> Self {
        let prepared = Prepared::new(set);
        let firsts = prepared.staircase.firsts().collect();
        Self { prepared, firsts, missed: Vec::new() }
    }

    pub(crate) fn fits(&mut self, supply: &impl Supply) -> bool {
        let again = self.missed.iter().position(|step| supply.time_for(step.due) > step.at);
        if let Some(again) = again {
            self.missed[..=again].rotate_right(1);
            return false;
        }
        match self.prepared.test(supply) {
            Demand::Supplied => true,
            Demand::NotKnown => false,
            Demand::Missed(t) => {
                self.remember(self.prepared.staircase.by(t));
                false
            }
        }
    }

    fn remember(&mut self, missed: Option<Step>) {
        if let Some(missed) = missed {
            self.missed.retain(|other| *other != missed);
            self.missed.truncate(REMEMBERED - 1);
            self.missed.insert(0, missed);
        }
    }

    /// The minimum budget from `budget` to `most` with which the tasks fit.
    ///
    /// QPA with a growing budget: where too much is due, the budget is raised to what is just
    /// enough there. Intervals checked before stay satisfied, and beyond the first budget's end
    /// there is nothing to check for a larger one.
    pub(crate) fn least<S: Supply>(
        &mut self,
        mut budget: u64,
        most: u64,
        supply: &impl Fn(u64) -> Option<S>,
    ) -> Option<u64> {
        let mut last = None;
        for step in self.firsts.iter().chain(&self.missed) {
            if supply(budget).is_none_or(|supply| supply.time_for(step.due) > step.at) {
                budget = least_for(step.due, step.at, budget, most, supply)?;
                last = Some(*step);
            }
        }
        // With a smaller budget the end is farther away, so first raise it to what the near
        // intervals need.
        let near = self.prepared.near();
        let known = self.raise(&mut budget, &mut last, (near, 0), most, supply)?;
        let end = |budget| match self.prepared.totals.horizon(&supply(budget)?.line()) {
            Horizon::End(end) => Some(end),
            _ => None,
        };
        if end(budget).is_none() {
            end(most)?;
            budget = last_that_fits(most, budget, |budget| end(budget).is_some());
        }
        let far = end(budget)?;
        let known = known && self.raise(&mut budget, &mut last, (far, near), most, supply)?;
        self.remember(last);
        if known {
            return Some(budget);
        }
        // A case that exceeds one pass is left to a full test.
        let mut fits = |budget| supply(budget).is_some_and(|supply| self.fits(&supply));
        fits(most).then(|| last_that_fits(most, budget - 1, fits))
    }

    /// Raises the budget to what the intervals from one length down to another need; `None` if even
    /// `most` is not enough, false if there are too many steps. The `last` missed one needs the
    /// most.
    fn raise<S: Supply>(
        &self,
        budget: &mut u64,
        last: &mut Option<Step>,
        (from, to): (u64, u64),
        most: u64,
        supply: &impl Fn(u64) -> Option<S>,
    ) -> Option<bool> {
        let staircase = &self.prepared.staircase;
        let (mut step, mut on) = (staircase.by(from), supply(*budget)?);
        for _ in 0..MOST_STEPS {
            let Some(Step { at, due }) = step.filter(|step| step.at > to) else {
                return Some(true);
            };
            let mut supplied = on.time_for(due);
            if supplied > at {
                *last = step;
                *budget = least_for(due, at, *budget, most, supply)?;
                on = supply(*budget)?;
                supplied = on.time_for(due);
            }
            step = staircase.by(supplied.min(at - 1));
        }
        Some(false)
    }
}
