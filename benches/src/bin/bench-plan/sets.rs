//! Random tasks, as a file for `timevisor reserve plan`.
//!
//! Utilizations are UUniFast's (Bini and Buttazzo, "Measuring the performance of schedulability
//! tests", 2005), periods log-uniform.

use std::fmt::Write as _;

use timevisor_simulation::random::Random;

/// What tasks are drawn; ns.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub shortest: f64,
    pub longest: f64,
    /// Periods and deadlines are multiples of it.
    pub unit: u64,
    /// The host's, for the plan: no budget is less than three of them.
    pub tick: &'static str,
    pub period: &'static str,
}

pub const KINDS: [Kind; 3] = [
    Kind {
        name: "10 ms to 1 s, any ns",
        shortest: 10e6,
        longest: 1e9,
        unit: 1,
        tick: "100us",
        period: "2500us",
    },
    Kind {
        name: "10 ms to 1 s, whole ms",
        shortest: 10e6,
        longest: 1e9,
        unit: 1_000_000,
        tick: "100us",
        period: "2500us",
    },
    Kind {
        name: "100 ms to 10 s, any us",
        shortest: 100e6,
        longest: 10e9,
        unit: 1000,
        tick: "4ms",
        period: "25ms",
    },
];

pub struct Task {
    pub cost: u64,
    pub period: u64,
    pub deadline: u64,
    jitter: u64,
    blocking: u64,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "parts of spans; and any other would do as well"
)]
fn part(of: u64, part: f64) -> u64 {
    (of as f64 * part) as u64
}

/// So many that want 30 to 90 % of a processor; a half have jitter, a third can be blocked.
pub fn tasks(kind: &Kind, count: u32, seed: u64) -> Vec<Task> {
    let mut random = Random::stream(seed, kind.name);
    let mut rest = 0.3 + 0.6 * random.uniform();
    let task = |index| {
        let left = count - 1 - index;
        let next =
            if left == 0 { 0.0 } else { rest * random.uniform().powf(1.0 / f64::from(left)) };
        let utilization = rest - next;
        rest = next;
        let period = kind.shortest * (kind.longest / kind.shortest).powf(random.uniform());
        let period = part(kind.unit, period / kind.unit as f64);
        let period = period.next_multiple_of(kind.unit);
        let cost = part(period, utilization).max(1);
        let deadline = period - part(period - cost, 0.6 * random.uniform()) / kind.unit * kind.unit;
        let room = deadline - cost;
        let jitter = if random.chance(0.5) { part(room, 0.15 * random.uniform()) } else { 0 };
        let blocking = if random.chance(0.3) { part(room, 0.05 * random.uniform()) } else { 0 };
        Task {
            cost,
            period,
            deadline,
            jitter,
            blocking: blocking.min(part(1, kind.shortest / 50.0)),
        }
    };
    (0..count).map(task).collect()
}

pub fn file(tasks: &[Task], policy: &str) -> String {
    let mut text = format!("policy = \"{policy}\"\n");
    for (index, Task { cost, period, deadline, jitter, blocking }) in tasks.iter().enumerate() {
        _ = write!(
            text,
            "[[task]]\nname = \"t{index}\"\ncost = \"{cost}ns\"\nperiod = \"{period}ns\"\n\
             deadline = \"{deadline}ns\"\njitter = \"{jitter}ns\"\nblocking = \"{blocking}ns\"\n"
        );
    }
    text
}
