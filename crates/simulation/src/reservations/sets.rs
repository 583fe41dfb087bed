//! [`Case`]: random tasks, and the period of the reservation in which they are judged.
//!
//! Utilizations are UUniFast's (Bini and Buttazzo, "Measuring the performance of schedulability
//! tests", 2005); all periods divide 120 ms, so that everything has occurred after a few multiples
//! of that. What it does not do: resemble any real workload.

use timevisor_schedule::{Policy, Task, TaskSet};

use crate::random::Random;

pub(super) const MS: u64 = 1_000_000;
/// Everything repeats after this; ns.
pub(super) const REPEAT: u64 = 120 * MS;
const TASK_PERIODS: [u64; 14] = [4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 60, 120];
const PERIODS: [u64; 12] = [2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30];

/// One question to the analysis.
#[derive(Clone, Debug)]
pub struct Case {
    /// The seed of all its other random streams.
    pub seed: u64,
    /// The tasks.
    pub set: TaskSet,
    /// The reservation's period, ns.
    pub period: u64,
    /// The minimum deadline, if it is shorter than the period, ns.
    pub deadline: u64,
    /// The tick, if budgets are enforced by it, ns.
    pub tick: u64,
}

/// Uniform below `n`; 0 for 0.
pub(super) fn below(random: &mut Random, n: u64) -> u64 {
    let scaled = (u128::from(random.bits()) * u128::from(n)) >> 64;
    u64::try_from(scaled).unwrap_or(0)
}

/// Draws one of them.
pub(super) fn one_of<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[usize::try_from(below(random, all.len() as u64)).unwrap_or(0)]
}

/// A fraction between 0 and 1 of a span, rounded down.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "less than the span; and any other would do as well"
)]
pub(super) fn part_of(part: f64, span: u64) -> u64 {
    (part * span as f64) as u64
}

impl Case {
    /// The case of a seed.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let mut random = Random::stream(seed, "tasks");
        let period = one_of(&mut random, &PERIODS);
        // A third can be released at replenishments: their periods are multiples, and they are
        // never late.
        let aligned = random.chance(1.0 / 3.0);
        let periods: Vec<u64> =
            TASK_PERIODS.into_iter().filter(|p| !aligned || p % period == 0).collect();
        // Half of the cases use EDF.
        let policies = [
            Policy::RateMonotonic,
            Policy::DeadlineMonotonic,
            Policy::Listed,
            Policy::Edf,
            Policy::Edf,
            Policy::Edf,
        ];
        let policy = one_of(&mut random, &policies);
        let count = one_of(&mut random, &[1, 2, 3, 4, 5]);
        let total = 0.05 + 0.85 * random.uniform();
        let (constrained, late, waiting) =
            (random.chance(0.5), !aligned && random.chance(0.3), random.chance(0.3));
        let tasks =
            uunifast(&mut random, count, total).into_iter().enumerate().map(|(index, part)| {
                let period = one_of(&mut random, &periods) * MS;
                let cost = part_of(part, period).clamp(1000, period);
                let room = period - cost;
                let early = if constrained { below(&mut random, room * 7 / 10 + 1) } else { 0 };
                let quarter = (room - early) / 4 + 1;
                let task = Task {
                    deadline: period - early,
                    ..Task::new(&index.to_string(), cost, period)
                };
                let jitter = if late { below(&mut random, quarter) } else { 0 };
                let blocking = if waiting { below(&mut random, quarter) } else { 0 };
                Task { jitter, blocking, ..task }
            });
        let tasks: Vec<Task> = tasks.collect();
        let set = TaskSet::new(tasks, policy)
            .expect("costs are within deadlines, deadlines within periods");
        let period = period * MS;
        let deadline = period / 4 + below(&mut random, period / 2);
        let tick = one_of(&mut random, &[MS / 10, MS / 4, MS]);
        Self { seed, set, period, deadline, tick }
    }

    /// A stream for one purpose in this case.
    #[must_use]
    pub fn stream(&self, name: &str) -> Random {
        Random::stream(self.seed, name)
    }
}

/// Divides `total` into this many parts, with all divisions equally likely.
#[must_use]
pub fn uunifast(random: &mut Random, count: u32, total: f64) -> Vec<f64> {
    let mut rest = total;
    let mut parts: Vec<f64> = (1..count)
        .rev()
        .map(|left| {
            let next = rest * libm::pow(random.uniform(), 1.0 / f64::from(left));
            let part = rest - next;
            rest = next;
            part
        })
        .collect();
    parts.push(rest);
    parts
}
