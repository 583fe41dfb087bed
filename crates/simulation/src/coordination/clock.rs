//! A member's page: bounds that hold, sometimes none, sometimes of another origin.

use timevisor_coordination::{Now, Reading};
use timevisor_time::{Duration, Instant, Interval, Local};

use super::plan::Plan;
use crate::random::Random;

/// The timeline's time at a moment of true time, by its origin.
pub fn truth(plan: &Plan, origin: u64, at_ns: u64) -> Instant<Local> {
    let shift = if origin == FIRST_ORIGIN { 0 } else { plan.jump_ns };
    Instant::from_unix_nanos(1_000_000_000 + i128::from(at_ns) + i128::from(shift))
}

pub const FIRST_ORIGIN: u64 = 7;

/// One member's clock.
#[derive(Clone, Debug)]
pub struct Clock {
    half_ns: i64,
    /// The error of the estimate, ns, at moments 0.1 s apart; between them on a line.
    errors: Vec<i64>,
    /// While nothing is known, and while the requirement is not met.
    unknown: Option<(u64, u64)>,
    unmet: Option<(u64, u64)>,
    /// Since when the timeline has its second origin here.
    changes_at: Option<u64>,
    /// When the member's own machine started.
    boot_ns: u64,
}

const STEP_NS: u64 = 100_000_000;

impl Clock {
    pub fn new(plan: &Plan, dice: &mut Random) -> Self {
        let half_ns = log_range(dice, plan.worst_bound_ns / 50, plan.worst_bound_ns);
        let steps = plan.until_ns / STEP_NS + 2;
        let half = i64::try_from(half_ns).unwrap_or(i64::MAX);
        let mut error = within(dice, half);
        let mut errors = Vec::new();
        for _ in 0..steps {
            errors.push(error);
            error = (error + within(dice, half / 4)).clamp(-half, half);
        }
        let mut window = |chance: f64| {
            dice.chance(chance).then(|| {
                let from = dice.bits() % plan.until_ns;
                (from, from + log_range(dice, 1_000_000, 3_000_000_000))
            })
        };
        let (unknown, unmet) = (window(plan.clock_fails), window(plan.clock_fails));
        let changes_at = plan.origin_changes.map(|at| at + dice.bits() % 50_000_000);
        let boot_ns = dice.bits() % 1_000_000_000_000;
        Self { half_ns: half, errors, unknown, unmet, changes_at, boot_ns }
    }

    pub fn now(&self, plan: &Plan, at_ns: u64) -> Now {
        let elapsed = Duration::from_nanos((self.boot_ns + at_ns).try_into().unwrap_or(i64::MAX));
        let during = |window: Option<(u64, u64)>| {
            window.is_some_and(|(from, until)| (from..until).contains(&at_ns))
        };
        if during(self.unknown) {
            return Now { elapsed, reading: None };
        }
        let changed = self.changes_at.is_some_and(|change| at_ns >= change);
        let origin = if changed { FIRST_ORIGIN + 1 } else { FIRST_ORIGIN };
        let step = usize::try_from(at_ns / STEP_NS).unwrap_or(usize::MAX);
        let (before, after) = (self.errors[step], self.errors[step + 1]);
        let into = i64::try_from(at_ns % STEP_NS).unwrap_or(0);
        let error = before + (after - before) / 1000 * into / (STEP_NS as i64 / 1000);
        let estimate = truth(plan, origin, at_ns) + Duration::from_nanos(error);
        let interval = Interval::around(estimate, Duration::from_nanos(self.half_ns + 1));
        let reading = Reading { interval, estimate, origin, met: !during(self.unmet) };
        Now { elapsed, reading: Some(reading) }
    }

    /// When the estimate gets there, if the clock goes on as now.
    pub fn reaches(&self, plan: &Plan, at: Instant<Local>, now_ns: u64) -> u64 {
        let Some(reading) = self.now(plan, now_ns).reading else { return now_ns + 5_000_000 };
        let left = (at - reading.estimate).ceil_nanos().max(0);
        now_ns.saturating_add(u64::try_from(left).unwrap_or(0))
    }

    pub fn elapses(&self, elapsed: Duration) -> u64 {
        u64::try_from(elapsed.ceil_nanos()).unwrap_or(0).saturating_sub(self.boot_ns)
    }
}

/// Between two values, each power of ten as likely.
pub fn log_range(dice: &mut Random, low: u64, high: u64) -> u64 {
    let (low, high) = ((low as f64).ln(), (high.max(low + 1) as f64).ln());
    nanos((low + (high - low) * dice.uniform()).exp())
}

/// Whole nanoseconds.
pub fn nanos(ns: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(ns * 1e-9).floor_nanos()).unwrap_or(0)
}

/// One of so many.
pub fn pick(dice: &mut Random, count: usize) -> usize {
    let count = u64::try_from(count).unwrap_or(u64::MAX).max(1);
    usize::try_from(dice.bits() % count).unwrap_or(0)
}

fn within(dice: &mut Random, half: i64) -> i64 {
    Duration::from_secs_f64((dice.uniform() * 2.0 - 1.0) * half as f64 * 1e-9).floor_nanos()
}
