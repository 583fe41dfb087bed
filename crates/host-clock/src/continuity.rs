//! What the host's clock and the subset clocks share: an estimate, and when what it says
//! contradicts what was said before.

use timevisor_clock_page::{Lines, Policy};
use timevisor_estimate::Knowledge;
use timevisor_time::{Duration, Tai};

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

/// One sigma of an estimate that is on its way to its target: `error` is the target's own, and the
/// rest of the way is an error, too.
pub fn error_on_the_way(
    error: Duration,
    in_force: &Lines<Tai>,
    target: &Lines<Tai>,
    now: u64,
) -> Duration {
    if error == Duration::MAX {
        return error;
    }
    let gap = in_force.at(now).estimate - target.at(now).estimate;
    Duration::from_secs_f64(error.as_secs_f64().hypot(gap.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use timevisor_clock_page::lines::Line;
    use timevisor_time::{Instant, Period};

    use super::*;

    #[test]
    fn the_rest_of_the_way_is_an_error() {
        let lines = |us: i64| {
            let line = |us: i64| Line {
                time: Instant::from_unix_nanos(i128::from(us) * 1000),
                period: Period::from_hz(1_000_000_000).unwrap(),
            };
            let (earliest, latest) = (line(us - 50), line(us + 50));
            Lines { base: 0, expiry: 1, earliest, estimate: line(us), latest, holdover: 0 }
        };
        let error = |from| error_on_the_way(Duration::from_micros(4), &lines(from), &lines(0), 7);
        assert_eq!(error(0).ceil_nanos(), 4_000);
        assert!((4_999..=5_001).contains(&error(3).ceil_nanos()), "{}", error(3));
        assert!((4_999..=5_001).contains(&error(-3).ceil_nanos()));
        let unknown = error_on_the_way(Duration::MAX, &lines(3), &lines(0), 7);
        assert_eq!(unknown, Duration::MAX);
    }
}
