//! [`Horizon`]: how far a test must look to cover the infinite future.

use crate::supply::Line;
use crate::task::{Task, TaskSet};

/// The time after which no first miss can occur.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Horizon {
    /// ns.
    End(u64),
    /// The demand exceeds the supply.
    TooMuch,
    NotKnown,
}

/// The totals of a set that do not depend on the supply.
///
/// Demand is below `U t + K`.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    /// U in 2^-64, with each task rounded down (here) and up.
    least: u128,
    most: u128,
    /// K without blocking, ns.
    constant: u128,
    blocking: u64,
    /// The common multiple of all periods, if it is not too large.
    multiple: Option<u64>,
    /// The longest deadline.
    deadline: u64,
    far: u64,
}

/// A fraction of a processor, in 2^-64, rounded up and down.
fn fraction(numerator: u64, denominator: u64) -> (u128, u128) {
    let scaled = u128::from(numerator) << 64;
    let denominator = u128::from(denominator);
    let down = scaled / denominator;
    (down, down + u128::from(down * denominator < scaled))
}

impl Totals {
    pub(crate) fn new(set: &TaskSet) -> Self {
        let tasks = set.tasks();
        let count = tasks.len() as u64;
        let longest = tasks.iter().map(|task| task.period).max().unwrap_or(1);
        let empty = Self {
            least: 0,
            most: 0,
            constant: 0,
            blocking: tasks.iter().map(|task| task.blocking).max().unwrap_or(0),
            multiple: tasks
                .iter()
                .try_fold(1, |multiple, task| common_multiple(multiple, task.period)),
            deadline: tasks.iter().map(|task| task.deadline).max().unwrap_or(0),
            // The test looks no further than this multiple of the longest period, which is smaller
            // for many tasks because each step processes all of them. It only excludes sets without
            // a usable common multiple that want, to within some hundred thousandths, the entire
            // average supply.
            far: longest.saturating_mul((1_000_000 / (count * count)).max(200)),
        };
        tasks.iter().fold(empty, Totals::and)
    }

    fn and(self, task: &Task) -> Self {
        let (down, up, constant) = parts(task);
        let (least, most) = (self.least + down, self.most + up);
        Self { least, most, constant: self.constant + constant, ..self }
    }

    /// The totals without the cost of one of the tasks.
    pub(crate) fn without(&self, task: &Task) -> Self {
        let (down, up, constant) = parts(task);
        let (least, most) = (self.least - down, self.most - up);
        Self { least, most, constant: self.constant - constant, ..self.clone() }
    }

    /// The totals with the omitted task's cost restored, or with another cost.
    pub(crate) fn with(&self, task: &Task, cost: u64) -> Self {
        self.clone().and(&Task { cost, name: String::new(), ..*task })
    }

    /// The cost of the omitted task at which the set uses the entire average supply, rounded up.
    pub(crate) fn room(&self, task: &Task, line: &Line) -> u64 {
        let rest = (fraction(line.numerator, line.denominator).0 + 1).saturating_sub(self.least);
        let cost = (rest.saturating_mul(u128::from(task.period)) >> 64) + 1;
        u64::try_from(cost).unwrap_or(u64::MAX).clamp(task.cost, task.deadline)
    }

    /// Supply is above `rate (t - delay)`; the lines meet at `(K + rate delay) / (rate - U)`. If
    /// the rates are (nearly) equal, both repeat after a common multiple of all periods.
    pub(crate) fn horizon(&self, line: &Line) -> Horizon {
        let constant = self.constant + u128::from(self.blocking);
        let (rate_down, rate_up) = fraction(line.numerator, line.denominator);
        if self.least > rate_up {
            return Horizon::TooMuch;
        }
        let meet = rate_down.checked_sub(self.most).filter(|gap| *gap > 0).and_then(|gap| {
            let delayed = u128::from(line.delay) * u128::from(line.numerator);
            let delayed = delayed.div_ceil(u128::from(line.denominator));
            // (constant + delayed) / gap, in ns: both sides times 2^64.
            let above =
                (constant + delayed).checked_shl(64).filter(|a| a >> 64 == constant + delayed);
            u64::try_from(above?.div_ceil(gap)).ok()
        });
        let repeat = self.multiple.and_then(|multiple| {
            let multiple =
                common_multiple(multiple, line.denominator)?.checked_add(self.deadline)?;
            multiple.checked_add(line.delay)?.checked_add(line.denominator)
        });
        match meet.into_iter().chain(repeat).min() {
            Some(end) if end <= self.far => Horizon::End(end),
            _ => Horizon::NotKnown,
        }
    }
}

/// A task's contribution: U, rounded down and up, and K.
fn parts(task: &Task) -> (u128, u128, u128) {
    let (down, up) = fraction(task.cost, task.period);
    let early = u128::from(task.period - task.deadline + task.jitter);
    (down, up, (u128::from(task.cost) * early).div_ceil(u128::from(task.period)))
}

fn common_multiple(of: u64, and: u64) -> Option<u64> {
    let (mut a, mut b) = (of, and);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (of / a).checked_mul(and)
}
