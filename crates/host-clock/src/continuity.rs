//! What the host's clock and the subset clocks share: an estimate, and when what it says
//! contradicts what was said before.

use timevisor_clock_page::{Lines, Policy};
use timevisor_estimate::Knowledge;
use timevisor_time::Tai;

use crate::publication::known;
use crate::synchronizer::Synchronizer;

/// An estimate with a count of everything that voided its publications.
#[derive(Debug)]
pub struct Continuity<E> {
    pub estimate: E,
    pub policy: Policy,
    /// Contradictions between publications, and disruptions of estimates that were given up.
    own_disruptions: u64,
}

impl<E: Synchronizer> Continuity<E> {
    pub fn new(estimate: E, policy: Policy) -> Self {
        Self { estimate, policy, own_disruptions: 0 }
    }

    /// What is known at `now`, and its lines where a clock is known.
    pub fn target(&mut self, now: u64) -> (Knowledge, Option<Lines<Tai>>) {
        let knowledge = self.estimate.at(now);
        let lines = knowledge.clock.as_ref().map(|clock| self.policy.lines(now, &known(clock)));
        (knowledge, lines)
    }

    /// True when the target excludes the lines in force, so that the clock must step. Counts a
    /// disruption then.
    pub fn contradicts(
        &mut self,
        in_force: Option<&Lines<Tai>>,
        target: &Lines<Tai>,
        now: u64,
    ) -> bool {
        let steps = in_force.is_some_and(|old| self.policy.must_step(old, target, now));
        self.own_disruptions += u64::from(steps);
        steps
    }

    /// Continues with an estimate that knows nothing yet, as a disruption.
    pub fn start_over(&mut self, estimate: E) {
        self.own_disruptions += self.estimate.disruptions() + 1;
        self.estimate = estimate;
    }

    /// A count that grows whenever what was published before is void.
    pub fn disruptions(&self) -> u64 {
        self.own_disruptions + self.estimate.disruptions()
    }
}
