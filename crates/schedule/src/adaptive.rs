//! Budgets of *soft* VMs: they follow the VM's usage between two limits, up immediately and down
//! slowly.
//!
//! Usage is sampled periodically. The budget is what suffices in 95 of 100 samples, plus a tenth
//! (the moving quantile of LFS++: Abeni, Palopoli, Lipari, Walpole, "Analysis of a
//! reservation-based feedback scheduler", RTSS 2002, and its successors). A sample of a VM that
//! wanted more than its budget does not show how much more, so it counts as a quarter more than the
//! budget.
//!
//! What it does not do: meet deadlines. A VM whose tasks have deadlines gets what `synthesis`
//! finds, and keeps it.

use std::collections::VecDeque;

/// Number of samples that are remembered.
const WINDOW: usize = 64;
/// How many of 100 samples the budget must satisfy.
const SATISFIED: usize = 95;
/// Minimum number of samples between two changes.
const BETWEEN: u32 = 10;
/// How many consecutive samples must want a tenth less before the budget is reduced.
const SLACK: u32 = 50;

/// The minimum and maximum budget; ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The budget that is granted even under overload.
    pub least: u64,
    /// The largest budget, if the core has room.
    pub most: u64,
}

/// A usage sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// Processor time per period, ns.
    pub ran: u64,
    /// Whether it would have used more.
    pub wanted_more: bool,
}

/// The adaptive budget of one VM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adaptive {
    limits: Limits,
    budget: u64,
    wanted: VecDeque<u64>,
    since_change: u32,
    slack: u32,
}

impl Adaptive {
    /// Starts with this budget.
    #[must_use]
    pub fn new(limits: Limits, budget: u64) -> Self {
        Self { limits, budget, wanted: VecDeque::new(), since_change: 0, slack: 0 }
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Records a sample; returns the new budget if it should change.
    pub fn observe(&mut self, used: Used) -> Option<u64> {
        let wanted = if used.wanted_more { self.budget + self.budget / 4 } else { used.ran };
        if self.wanted.len() == WINDOW {
            self.wanted.pop_front();
        }
        self.wanted.push_back(wanted);
        self.since_change = self.since_change.saturating_add(1);
        let quantile = self.quantile();
        let target = (quantile + quantile / 10).clamp(self.limits.least, self.limits.most);
        self.slack = if target + target / 10 <= self.budget { self.slack + 1 } else { 0 };
        let change = target > self.budget || self.slack >= SLACK;
        (change && self.since_change >= BETWEEN).then_some(target)
    }

    /// Records that the VM has this budget from now on.
    pub fn granted(&mut self, budget: u64) {
        self.budget = budget;
        self.begin_anew();
    }

    /// Records that there was no room for it; it is not requested again for the next few samples.
    pub fn refused(&mut self) {
        self.begin_anew();
    }

    fn begin_anew(&mut self) {
        (self.since_change, self.slack) = (0, 0);
    }

    fn quantile(&self) -> u64 {
        let mut sorted: Vec<u64> = self.wanted.iter().copied().collect();
        sorted.sort_unstable();
        let at = (sorted.len() * SATISFIED).div_ceil(100);
        sorted.get(at.saturating_sub(1)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LIMITS: Limits = Limits { least: 5 * MS, most: 40 * MS };

    /// Simulates a VM that wants this much in each sample; returns the budgets that it had.
    fn follow(adaptive: &mut Adaptive, wants: impl Iterator<Item = u64>) -> Vec<u64> {
        wants
            .map(|wants| {
                let ran = wants.min(adaptive.budget);
                let used = Used { ran, wanted_more: wants > adaptive.budget };
                if let Some(budget) = adaptive.observe(used) {
                    adaptive.granted(budget);
                }
                adaptive.budget
            })
            .collect()
    }

    #[test]
    fn it_finds_what_is_wanted_and_a_tenth_more() {
        let mut adaptive = Adaptive::new(LIMITS, LIMITS.least);
        let budgets = follow(&mut adaptive, std::iter::repeat_n(20 * MS, 400));
        // It rises in seven steps; the last step's excess quarter disappears within a window.
        assert!(budgets.iter().position(|budget| *budget >= 20 * MS).unwrap() <= 60, "{budgets:?}");
        assert_eq!(adaptive.budget, 22 * MS);
        // One sample in 25 wants twice as much, which is ignored.
        let rare = (0..500).map(|n| if n % 25 == 0 { 38 * MS } else { 20 * MS });
        assert!(follow(&mut adaptive, rare).iter().all(|budget| *budget <= 28 * MS));
    }

    #[test]
    fn it_stays_within_its_limits_and_changes_seldom() {
        let mut adaptive = Adaptive::new(LIMITS, LIMITS.least);
        let busy = follow(&mut adaptive, std::iter::repeat_n(u64::MAX / 4, 200));
        assert_eq!(*busy.last().unwrap(), LIMITS.most);
        let idle = follow(&mut adaptive, std::iter::repeat_n(0, 200));
        assert_eq!(*idle.last().unwrap(), LIMITS.least);
        // It does not fall within the samples that the slack requires.
        assert!(idle[..usize::try_from(SLACK).unwrap() - 1].iter().all(|b| *b == LIMITS.most));
        for all in [busy, idle] {
            assert!(all.iter().all(|b| (LIMITS.least..=LIMITS.most).contains(b)));
            let changes: Vec<usize> = (1..all.len()).filter(|n| all[*n] != all[n - 1]).collect();
            assert!(changes.windows(2).all(|w| w[1] - w[0] >= 10), "{changes:?}");
        }
    }

    #[test]
    fn what_is_refused_is_asked_for_again_later() {
        let mut adaptive = Adaptive::new(LIMITS, LIMITS.least);
        let busy = Used { ran: 5 * MS, wanted_more: true };
        let mut asked = Vec::new();
        for n in 0..40 {
            if adaptive.observe(busy).is_some() {
                adaptive.refused();
                asked.push(n);
            }
        }
        assert_eq!(asked, [9, 19, 29, 39]);
        assert_eq!(adaptive.budget, LIMITS.least);
    }
}
