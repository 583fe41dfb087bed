//! [`Speed`]: how fast a host does work, and what costs of one host become on another.
//!
//! A cost belongs to the machine on which it was measured ("Real-Time Virtual Machines", section 2: a
//! hardware-independent characterisation of execution times, and a hardware-specific model of their
//! variability). Here work is counted in turns of fixed loops of two kinds; a host states how many it does in
//! a second typically, and how many when it is slow.
//!
//! What it does not do: run the loops (`timevisor_linux::scheduling::sampling`), or know of which kind a task's
//! work is. Where nobody says, the less favourable kind counts.

use crate::task::{InvalidTask, Task, TaskSet};

/// Turns of one loop in a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// In the median.
    pub typical: u64,
    /// In the slowest hundredth.
    pub slow: u64,
}

/// A host's speed, by kind of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speed {
    /// Arithmetic in registers.
    pub compute: Pace,
    /// Loads from memory, each from where the one before says.
    pub memory: Pace,
}

/// What tasks do most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Work {
    /// Arithmetic in registers and the first cache.
    Compute,
    /// Loads from memory and the outer caches.
    Memory,
    /// Unknown, or both.
    #[default]
    Any,
}

/// How much longer work takes on one host than on another.
#[derive(Clone, Copy, Debug)]
pub struct Slowdown {
    /// Turns in a second there, where the costs were measured; and here.
    there: u64,
    here: u64,
}

impl Pace {
    /// From the time that each block of `turns` turns took, ns; `None` if there is none, or they took no time.
    #[must_use]
    pub fn of_blocks(turns: u64, blocks: &[u64]) -> Option<Self> {
        let mut blocks = blocks.to_vec();
        blocks.sort_unstable();
        let at = |hundredth: usize| blocks.get(blocks.len().checked_sub(1)? * hundredth / 100);
        let pace = |ns: &u64| {
            let turns = u128::from(turns) * 1_000_000_000;
            u64::try_from(turns.checked_div(u128::from(*ns))?).ok().filter(|pace| *pace > 0)
        };
        Some(Self { typical: pace(at(50)?)?, slow: pace(at(99)?)? })
    }
}

impl Slowdown {
    /// The costs are of this host.
    pub const NONE: Self = Self { there: 1, here: 1 };

    /// What costs of host `there` are multiplied by on host `here`: the least favourable ratio of what is typical
    /// and of what is slow, of the kinds of work in question.
    #[must_use]
    pub fn between(there: &Speed, here: &Speed, work: Work) -> Self {
        let of = |there: Pace, here: Pace| {
            let [typical, slow] = [(there.typical, here.typical), (there.slow, here.slow)]
                .map(|(there, here)| Self { there, here: here.max(1) });
            typical.or_worse(slow)
        };
        let compute = of(there.compute, here.compute);
        let memory = of(there.memory, here.memory);
        match work {
            Work::Compute => compute,
            Work::Memory => memory,
            Work::Any => compute.or_worse(memory),
        }
    }

    fn or_worse(self, other: Self) -> Self {
        let is_worse = u128::from(other.there) * u128::from(self.here)
            > u128::from(self.there) * u128::from(other.here);
        if is_worse { other } else { self }
    }

    /// Whether work takes longer here.
    #[must_use]
    pub const fn is_slower(&self) -> bool {
        self.there > self.here
    }

    /// In parts per million, rounded up: 1,250,000 where work takes a quarter longer.
    #[must_use]
    pub fn ppm(&self) -> u64 {
        self.scale(1_000_000)
    }

    /// What a cost there is here; rounded up.
    #[must_use]
    pub fn scale(&self, cost: u64) -> u64 {
        let scaled = (u128::from(cost) * u128::from(self.there)).div_ceil(u128::from(self.here));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// A budget that gives the same tasks at least as much work here, in each period. A host that is faster does
    /// not make it smaller: a smaller budget is supplied later, and whether that is early enough only a plan says.
    ///
    /// A budget that is larger by a factor supplies at least that factor of the former supply in every interval,
    /// because the pauses between supplies become shorter, too. What the host itself takes
    /// ([`crate::Overheads`]) is not in that: where it takes more here, plan again.
    #[must_use]
    pub fn budget(&self, budget: u64) -> u64 {
        self.scale(budget).max(budget)
    }

    /// Tasks with the costs, and the blocking, that they have here.
    ///
    /// # Errors
    /// When a task then takes longer than it may.
    pub fn of(&self, set: &TaskSet) -> Result<TaskSet, InvalidTask> {
        let scaled = |task: &Task| Task {
            cost: self.scale(task.cost),
            blocking: self.scale(task.blocking),
            ..task.clone()
        };
        TaskSet::new(set.tasks().iter().map(scaled).collect(), set.policy())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Policy, Reservation, Supply, Worst};

    fn speed(compute: u64, memory: u64) -> Speed {
        let pace = |typical| Pace { typical, slow: typical * 8 / 10 };
        Speed { compute: pace(compute), memory: pace(memory) }
    }

    #[test]
    fn a_pace_is_the_median_and_the_slowest_hundredth() {
        let blocks: Vec<u64> =
            (0..101).map(|n| if n < 99 { 1_000_000 } else { 4_000_000 }).collect();
        assert_eq!(
            Pace::of_blocks(2000, &blocks),
            Some(Pace { typical: 2_000_000, slow: 500_000 })
        );
        for nothing in [&[][..], &[0, 0]] {
            assert_eq!(Pace::of_blocks(2000, nothing), None);
        }
        assert_eq!(Pace::of_blocks(0, &[1000]), None);
    }

    #[test]
    fn the_less_favourable_kind_counts_unless_one_is_stated() {
        let (there, here) = (speed(1000, 100), speed(500, 125));
        let of = |work| Slowdown::between(&there, &here, work).ppm();
        assert_eq!(
            [Work::Compute, Work::Memory, Work::Any].map(of),
            [2_000_000, 800_000, 2_000_000]
        );
        // As fast in the median, and often slow.
        let mut unsteady = there;
        unsteady.memory.slow = 40;
        assert_eq!(Slowdown::between(&there, &unsteady, Work::Any).ppm(), 2_000_000);
        let same = Slowdown::between(&there, &there, Work::Any);
        assert!(!same.is_slower() && same.scale(30_000_000) == 30_000_000);
    }

    #[test]
    fn costs_and_blocking_are_scaled_and_nothing_else() {
        let task = Task { blocking: 10, jitter: 7, ..Task::new("a", 30, 150) };
        let set = TaskSet::new(vec![task.clone()], Policy::Edf).unwrap();
        let slower = Slowdown { there: 4, here: 3 };
        let here = slower.of(&set).unwrap();
        assert_eq!(here.tasks(), [Task { cost: 40, blocking: 14, ..task }]);
        assert_eq!(here.policy(), Policy::Edf);
        assert!(Slowdown { there: 6, here: 1 }.of(&set).is_err(), "180 of 150");
        assert_eq!(slower.budget(28), 38);
        assert_eq!(Slowdown { there: 3, here: 4 }.budget(28), 28, "never less");
    }

    proptest! {
        /// What [`Slowdown::budget`] relies on.
        #[test]
        fn a_larger_budget_supplies_the_same_factor_more_in_every_interval(
            period in 10..200u64, share in 1..99u64, factor in 100..300u64, alone in any::<bool>(), t in 0..2000u64,
        ) {
            let budget = (period * share / 100).max(1);
            let slower = Slowdown { there: factor, here: 100 };
            let larger = slower.budget(budget);
            prop_assume!(larger <= period);
            let of = |budget| match alone {
                true => Reservation::alone(budget, period).unwrap(),
                false => Reservation::shared(budget, period).unwrap(),
            };
            let (there, here) = (Worst(of(budget)).within(t), Worst(of(larger)).within(t));
            prop_assert!(here * 100 >= there * factor, "{here} here, {there} there");
        }
    }
}
