//! From when on the plan is followed. All members have agreed on it, so plan time is a function of the clock alone.

use serde::{Deserialize, Serialize};

/// The motion goes on. First each arm goes to where the plan is at `from_ns`, then plan time begins to pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Start {
    /// Counts starts.
    pub run: u64,
    /// When the approach begins, ns on the group's timeline.
    pub at_ns: i64,
    /// How long that takes.
    pub approach_ns: i64,
    /// How long plan time then takes to pass as fast as the clock.
    pub ramp_ns: i64,
    /// The plan time at which it goes on.
    pub from_ns: i64,
}

/// Plan time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlanTime {
    /// ns since the first cycle began.
    pub at_ns: i64,
    /// How fast it passes; 1: as the clock.
    pub rate: f64,
}

impl Start {
    /// When plan time begins to pass.
    #[must_use]
    pub fn moves_ns(&self) -> i64 {
        self.at_ns + self.approach_ns
    }

    /// Plan time when the clock shows `now_ns`.
    #[must_use]
    pub fn plan_time(&self, now_ns: i64) -> PlanTime {
        let passed = now_ns - self.moves_ns();
        if passed <= 0 {
            return PlanTime { at_ns: self.from_ns, rate: 0.0 };
        }
        if passed >= self.ramp_ns {
            // The ramp's mean rate is one half.
            return PlanTime { at_ns: self.from_ns + passed - self.ramp_ns / 2, rate: 1.0 };
        }
        let x = passed as f64 / self.ramp_ns as f64;
        // The rate is 3 x^2 - 2 x^3: it begins and ends without a jump of the acceleration's sign.
        #[expect(clippy::cast_possible_truncation, reason = "less than the ramp")]
        let way = (self.ramp_ns as f64 * (x.powi(3) - x.powi(4) / 2.0)) as i64;
        PlanTime { at_ns: self.from_ns + way, rate: x * x * (3.0 - 2.0 * x) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_time_begins_slowly_and_then_passes_as_the_clock() {
        let start =
            Start { run: 1, at_ns: 1_000, approach_ns: 500, ramp_ns: 1_000_000, from_ns: 70 };
        assert_eq!(start.plan_time(900), PlanTime { at_ns: 70, rate: 0.0 });
        assert_eq!(start.plan_time(1_500), PlanTime { at_ns: 70, rate: 0.0 });
        let middle = start.plan_time(501_500);
        assert!((middle.rate - 0.5).abs() < 1e-9, "{middle:?}");
        let mut last = start.plan_time(1_500);
        for now in (1_500..1_101_500).step_by(1_000) {
            let next = start.plan_time(now);
            let passed = (next.at_ns - last.at_ns) as f64;
            let expected = 1_000.0 * (next.rate + last.rate) / 2.0;
            assert!((passed - expected).abs() < 3.0, "{next:?} after {last:?}");
            last = next;
        }
        assert_eq!(start.plan_time(1_001_500), PlanTime { at_ns: 500_070, rate: 1.0 });
    }
}
