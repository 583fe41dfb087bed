//! A clock that follows some of the references, for timelines that are configured with references.
//!
//! It is the host's clock in small: the same estimate, policy and rules of continuation, without a
//! page, a journal or saved estimates. After a restart it knows nothing.

use timevisor_clock_page::{ClockStatus, Counter, Policy};
use timevisor_estimate::{Exchange, Slot};
use timevisor_time::Duration;

use crate::continuity::{Continuity, error_on_the_way};
use crate::publication::{ClockState, page_status};
use crate::synchronizer::Synchronizer;

/// A clock without a page.
#[derive(Debug)]
pub struct SubsetClock<E> {
    /// The references it follows, by index among all.
    references: Vec<usize>,
    continuity: Continuity<E>,
    state: ClockState,
}

impl<E: Synchronizer> SubsetClock<E> {
    /// A clock that follows these references, in the estimate's order. `now` is the present counter
    /// value.
    #[must_use]
    pub fn new(references: Vec<usize>, estimate: E, policy: Policy, now: u64) -> Self {
        let state = ClockState {
            lines: None,
            status: ClockStatus::Initializing,
            estimated_error: Duration::MAX,
            as_of: now,
            disruptions: 0,
            origin: 0,
        };
        Self { references, continuity: Continuity::new(estimate, policy), state }
    }

    /// The references it follows, by index among all.
    #[must_use]
    pub fn references(&self) -> &[usize] {
        &self.references
    }

    /// True if it follows reference `index`.
    #[must_use]
    pub fn follows(&self, index: usize) -> bool {
        self.references.contains(&index)
    }

    /// Takes in an exchange with reference `index`, if it follows that one.
    pub fn observe(&mut self, index: usize, exchange: &Exchange) {
        if let Some(own) = self.position(index) {
            self.continuity.estimate.observe(own, exchange);
        }
    }

    /// Reference `index` became another server.
    pub fn forget(&mut self, index: usize) {
        if let Some(own) = self.position(index) {
            self.continuity.estimate.forget(own);
        }
    }

    /// Which of all references are one witness.
    pub fn set_witnesses(&mut self, witnesses: &[usize]) {
        let own: Vec<usize> = self.references.iter().map(|index| witnesses[*index]).collect();
        self.continuity.estimate.set_witnesses(&own);
    }

    /// Other references are configured, `slots` among all; it follows `references` of them from now
    /// on. Those that it followed before keep what they said.
    pub fn rearrange(&mut self, slots: &[Slot], references: Vec<usize>, stale_after: Duration) {
        let own = |index: &usize| {
            let continues = slots[*index].continues.and_then(|old| self.position(old));
            Slot { continues, ..slots[*index].clone() }
        };
        let own: Vec<Slot> = references.iter().map(own).collect();
        self.continuity.estimate.rearrange(&own, stale_after);
        self.references = references;
    }

    fn position(&self, index: usize) -> Option<usize> {
        self.references.iter().position(|reference| *reference == index)
    }

    /// The counter was disturbed: continues with an estimate that knows nothing yet.
    pub fn start_over(&mut self, estimate: E) {
        self.continuity.start_over(estimate);
        self.state.lines = None;
    }

    /// What the clock says from now on.
    pub fn publish(&mut self, counter: &impl Counter) -> ClockState {
        let now = counter.read_ordered();
        let (knowledge, target) = self.continuity.target(now);
        self.state.status = page_status(knowledge.quality);
        let (Some(clock), Some(target)) = (&knowledge.clock, target) else {
            self.state.lines = None;
            return self.state;
        };
        self.continuity.contradicts(self.state.lines.as_ref(), &target, now);
        let disruptions = self.continuity.disruptions();
        if disruptions != self.state.disruptions {
            self.state.disruptions = disruptions;
            self.state.lines = None;
        }
        let next = self.continuity.policy.next(self.state.lines.as_ref(), &target, now);
        self.state.lines = Some(next);
        self.state.estimated_error = error_on_the_way(clock.estimated_error, &next, &target, now);
        self.state.as_of = clock.as_of;
        self.state
    }
}
