//! What turns exchanges into knowledge, as the publisher sees it.

use timevisor_estimate::{Ensemble, Exchange, Knowledge, Observation, RateLimits, Slot};
use timevisor_time::Duration;

/// An estimate over all references: [`Ensemble`], or what a test puts in its place.
pub trait Synchronizer {
    /// Takes in an exchange with reference `index`.
    fn observe(&mut self, index: usize, exchange: &Exchange) -> Observation;
    /// Forgets what reference `index` said: another server has taken its place.
    fn forget(&mut self, index: usize);
    /// Says which references are one witness: see [`Ensemble::set_witnesses`].
    fn set_witnesses(&mut self, witnesses: &[usize]);
    /// Makes these the references: see [`Ensemble::rearrange`].
    fn rearrange(&mut self, slots: &[Slot], stale_after: Duration);
    /// What is known at a counter value.
    fn at(&mut self, counter: u64) -> Knowledge;
    /// A count that grows whenever bounds were invalidated.
    fn disruptions(&self) -> u64;
    /// Takes over the rate limits that an earlier daemon measured.
    fn adopt_rate(&mut self, measured: &RateLimits);
}

impl Synchronizer for Ensemble {
    fn observe(&mut self, index: usize, exchange: &Exchange) -> Observation {
        Self::observe(self, index, exchange)
    }
    fn forget(&mut self, index: usize) {
        Self::forget(self, index);
    }
    fn set_witnesses(&mut self, witnesses: &[usize]) {
        Self::set_witnesses(self, witnesses);
    }
    fn rearrange(&mut self, slots: &[Slot], stale_after: Duration) {
        Self::rearrange(self, slots, stale_after);
    }
    fn at(&mut self, counter: u64) -> Knowledge {
        Self::at(self, counter)
    }
    fn disruptions(&self) -> u64 {
        Self::disruptions(self)
    }
    fn adopt_rate(&mut self, measured: &RateLimits) {
        Self::adopt_rate(self, measured);
    }
}

impl<T: Synchronizer + ?Sized> Synchronizer for Box<T> {
    fn observe(&mut self, index: usize, exchange: &Exchange) -> Observation {
        (**self).observe(index, exchange)
    }
    fn forget(&mut self, index: usize) {
        (**self).forget(index);
    }
    fn set_witnesses(&mut self, witnesses: &[usize]) {
        (**self).set_witnesses(witnesses);
    }
    fn rearrange(&mut self, slots: &[Slot], stale_after: Duration) {
        (**self).rearrange(slots, stale_after);
    }
    fn at(&mut self, counter: u64) -> Knowledge {
        (**self).at(counter)
    }
    fn disruptions(&self) -> u64 {
        (**self).disruptions()
    }
    fn adopt_rate(&mut self, measured: &RateLimits) {
        (**self).adopt_rate(measured);
    }
}
