//! [`Intervals`]: the demand of tasks under EDF on many supplies. Where too much was due once is where it is again: on most supplies
//! that are too slow, one of the intervals that are remembered says so.

use crate::edf::{Demand, MOST_STEPS, Prepared};
use crate::horizon::Horizon;
use crate::search::{last_that_fits, least_for};
use crate::staircase::Step;
use crate::supply::Supply;
use crate::task::TaskSet;

/// So many intervals are remembered, the last ones.
const REMEMBERED: usize = 64;

/// A task set, and intervals in which too much was due.
pub(crate) struct Intervals<'a> {
    prepared: Prepared<'a>,
    /// Those until each task's first deadline: what they need is known before anything was missed.
    firsts: Vec<Step>,
    /// Those that were missed last, first.
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

    /// The least budget from `budget` to `most` with which they fit.
    ///
    /// QPA with a budget that grows: where too much is due, it is raised to what is just enough
    /// there. What was looked at before stays well, and beyond the end for the first budget there
    /// is nothing to see for a greater one.
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
        // With less the end is farther away: first to what is needed nearby.
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
        // What is too much for one pass is none for a test.
        let mut fits = |budget| supply(budget).is_some_and(|supply| self.fits(&supply));
        fits(most).then(|| last_that_fits(most, budget - 1, fits))
    }

    /// To what is needed in the intervals from one length down to another; `None` where not even
    /// `most` is enough, false for too many steps. The `last` one that was missed is the one that
    /// needs most.
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
