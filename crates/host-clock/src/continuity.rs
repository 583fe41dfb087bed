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
    caution: Caution,
}

/// How the estimate begins while the bounds are very wide.
///
/// A mobile uplink that is busy with an upload delays requests by half a second, for minutes. The
/// middle of the bounds is then a quarter of a second ahead of truth, and a clock does not go back:
/// when the upload ends, it could only step, as a disruption. So the estimate begins near the early
/// end, from where it can jump ahead.
#[derive(Clone, Copy, Debug)]
enum Caution {
    /// Nothing was known yet.
    Waiting,
    /// First known at this counter value.
    Since(u64),
    /// Over: the bounds were narrow once, or have been known for long.
    Over,
}

/// Bounds with a smaller half-width put the estimate where the clock can still slew to. An
/// estimate that is 100 ms above the upper bound steps.
const WIDE: Duration = Duration::from_millis(50);

/// The estimate is at most this far above the lower bound meanwhile.
const NEAR_EARLIEST: Duration = Duration::from_millis(25);

/// After this long the middle of wide bounds is taken: longer than an upload.
const CAUTIOUS: Duration = Duration::from_secs(300);

impl<E: Synchronizer> Continuity<E> {
    pub fn new(estimate: E, policy: Policy) -> Self {
        Self { estimate, policy, own_disruptions: 0, caution: Caution::Waiting }
    }

    /// What is known at `now`, and its lines where a clock is known.
    pub fn target(&mut self, now: u64) -> (Knowledge, Option<Lines<Tai>>) {
        let mut knowledge = self.estimate.at(now);
        let Some(clock) = &mut knowledge.clock else { return (knowledge, None) };
        let known = self.policy.lines(now, &known(clock));
        let lines = self.cautious(known, now);
        clock.estimated_error = error_on_the_way(clock.estimated_error, &lines, &known, now);
        (knowledge, Some(lines))
    }

    /// An earlier daemon's lines are in force: the estimate has begun.
    pub fn has_begun(&mut self) {
        self.caution = Caution::Over;
    }

    fn cautious(&mut self, mut lines: Lines<Tai>, now: u64) -> Lines<Tai> {
        let since = match self.caution {
            Caution::Over => return lines,
            Caution::Waiting => now,
            Caution::Since(since) => since,
        };
        let known_for = self.policy.nominal.span(now.wrapping_sub(since));
        if lines.half_width() <= WIDE || known_for > CAUTIOUS {
            self.caution = Caution::Over;
            return lines;
        }
        self.caution = Caution::Since(since);
        lines.estimate.time = lines.estimate.time.min(lines.earliest.time + NEAR_EARLIEST);
        lines
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
        self.caution = Caution::Waiting;
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
