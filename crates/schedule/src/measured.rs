//! From what a host was seen to do to its [`Overheads`].
//!
//! What it does not do: watch a host (`timevisor_linux::scheduling`), or know what it was not shown: a host
//! that is measured while it idles is not the one that is loaded later.

use crate::overheads::Overheads;

/// When a thread that precedes everything on its core did not run; ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// When it began, in time for which the thread had wanted to run.
    pub at: u64,
    /// How long it was.
    pub length: u64,
}

/// What was seen; ns.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// How late each wake-up by a timer was.
    pub late: Vec<u64>,
    /// Gaps of a thread that wants to run, in order.
    pub gaps: Vec<Gap>,
    /// For how long it wanted to run, in all.
    pub watched: u64,
    /// By how much each budget was exceeded.
    pub overruns: Vec<u64>,
}

/// A window whose share of lost time is taken for lasting.
const WINDOW: u64 = 1_000_000_000;
/// Kernels' ticks (CONFIG_HZ = 1000, 250 or 300, 100), ns. What was seen of one is below it.
const TICKS: [u64; 3] = [1_000_000, 4_000_000, 10_000_000];
/// A budget that is exceeded by less is enforced by a timer of its own.
const EXACT: u64 = 500_000;
/// Times are rounded up to this, ns; shares to this, parts per million.
const STEP: u64 = 10_000;
const STEP_PPM: u64 = 500;
/// All of it is no share of anything.
const MOST_PPM: u64 = 999_500;

impl Seen {
    /// The overheads that all of it keeps to.
    #[must_use]
    pub fn overheads(&self) -> Overheads {
        let share = self.lasting_ppm().next_multiple_of(STEP_PPM).min(MOST_PPM);
        let latency = self.late.iter().max().copied().unwrap_or(0);
        Overheads {
            tick: self.tick(),
            latency: latency.next_multiple_of(STEP),
            interference_ppm: u32::try_from(share).unwrap_or(u32::MAX),
            burst: self.burst(share).next_multiple_of(STEP),
        }
    }

    /// The tick by which budgets are enforced. A budget that was exceeded by more than any tick gives that.
    fn tick(&self) -> u64 {
        let Some(most) = self.overruns.iter().max().copied() else { return 0 };
        if most < EXACT {
            // A timer ends budgets (hrtick), and is as late as others are.
            let late = self.late.iter().max().copied().unwrap_or(0);
            return (most + late).next_multiple_of(STEP);
        }
        // A tick later there is some work of the kernel's, too.
        let tick = TICKS.into_iter().find(|tick| most <= tick + EXACT);
        tick.unwrap_or(most).max(most).next_multiple_of(STEP)
    }

    /// The greatest share that was lost in a second, in parts per million.
    fn lasting_ppm(&self) -> u64 {
        let (mut first, mut lost, mut most) = (0, 0, 0);
        for (index, gap) in self.gaps.iter().enumerate() {
            lost += gap.length;
            while first < index && gap.at + gap.length > self.gaps[first].at + WINDOW {
                lost -= self.gaps[first].length;
                first += 1;
            }
            most = most.max(lost);
        }
        most.saturating_mul(1_000_000).div_ceil(WINDOW.min(self.watched).max(1))
    }

    /// The most that was lost in any interval beyond this share of it.
    fn burst(&self, share_ppm: u64) -> u64 {
        let share_of = |time: u64| {
            let share = u128::from(time) * u128::from(share_ppm) / 1_000_000;
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        let (mut beyond, mut most, mut last) = (0_u64, 0, None);
        for gap in &self.gaps {
            let between = last.map_or(0, |last: u64| gap.at.saturating_sub(last));
            // Rounded against the host.
            beyond = beyond.saturating_sub(share_of(between)) + gap.length - share_of(gap.length);
            most = most.max(beyond);
            last = Some(gap.at + gap.length);
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tick_is_recognized() {
        let tick = |most| Seen { overruns: vec![most], ..Seen::default() }.overheads().tick;
        assert_eq!(tick(120_000), 120_000, "hrtick");
        let exact = Seen { late: vec![70_000], overruns: vec![1000], ..Seen::default() };
        assert_eq!(exact.overheads().tick, 80_000, "a timer that ends budgets is late, too");
        assert_eq!(tick(2_900_000), 4_000_000);
        assert_eq!(tick(3_990_000), 4_000_000);
        assert_eq!(tick(4_100_000), 4_100_000);
        assert_eq!(tick(23_000_000), 23_000_000, "robbed");
        assert_eq!(Seen::default().overheads(), Overheads::default());
    }

    #[test]
    fn what_is_always_taken_is_a_share() {
        // 10 us of every ms that it wanted to run, for 3 s.
        let gaps = (0..3000).map(|ms| Gap { at: ms * 1_000_000, length: 10_000 }).collect();
        let seen = Seen { gaps, watched: 3_000_000_000, ..Seen::default() };
        let found = seen.overheads();
        assert_eq!(found.interference_ppm, 10_000);
        assert!(found.burst <= 20_000, "{found:?}");
        // All of a second and a half, at the end.
        let gaps = vec![Gap { at: 5, length: 1_500_000_000 }];
        let seen = Seen { gaps, watched: 1_500_000_005, ..Seen::default() };
        assert_eq!(seen.overheads().interference_ppm, 999_500);
    }

    proptest! {
        /// In no interval was more lost than the share of it and a burst.
        #[test]
        fn all_that_was_seen_is_within(
            all in prop::collection::vec((0..20_000_000u64, 1..2_000_000u64), 1..60),
            late in prop::collection::vec(0..3_000_000u64, 0..9),
        ) {
            let mut at = 0;
            let gaps: Vec<Gap> = all
                .into_iter()
                .map(|(after, length)| {
                    let gap = Gap { at: at + after, length };
                    at = gap.at + length;
                    gap
                })
                .collect();
            let seen = Seen { late, gaps, watched: at, overruns: Vec::new() };
            let found = seen.overheads();
            prop_assert!(seen.late.iter().all(|late| *late <= found.latency));
            for (from, first) in seen.gaps.iter().enumerate() {
                let mut lost = 0;
                for gap in &seen.gaps[from..] {
                    lost += gap.length;
                    let interval = gap.at + gap.length - first.at;
                    let share = u128::from(interval) * u128::from(found.interference_ppm);
                    let most = u128::from(found.burst) + share.div_ceil(1_000_000);
                    prop_assert!(u128::from(lost) <= most, "{lost} of {interval}: {found:?}");
                }
            }
        }
    }
}
