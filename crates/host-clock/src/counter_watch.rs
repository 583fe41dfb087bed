//! Watches the host's counter: whether the kernel still trusts it, and whether it keeps pace with
//! CLOCK_MONOTONIC_RAW.
//!
//! The caller looks about once a second. Small differences are the estimate's business; this module
//! finds what no oscillator does: a step, a halt, or a rate that is off by more than
//! [`LARGEST_PPM`]. What it does not do: decide which of the two clocks is wrong. A guest that was
//! paused may see its kernel's clock stand still.

use core::fmt;

use timevisor_time::{Duration, Period};

/// Both clocks run on crystals, or one is derived from the other: 50 ppm each, and up to 500 ppm
/// that a hypervisor's clock is slewed by.
pub const LARGEST_PPM: u32 = 1_000;

/// Shorter spans are not compared.
const SHORTEST: Duration = Duration::from_millis(200);

/// Steps and reading errors below this are not seen.
const GRANULARITY: Duration = Duration::from_micros(2);

/// The counter is trusted again after this many good looks: one step is an accident, such as a
/// migration. After each further trouble it takes twice as many, up to [`MOST_GOOD`].
const GOOD: u32 = 2;
const MOST_GOOD: u32 = 4_096;
/// After this many good looks (a day), half of that is forgiven.
const FORGIVEN: u32 = 86_400;

/// One look at the counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// The counter before CLOCK_MONOTONIC_RAW was read.
    pub before: u64,
    /// CLOCK_MONOTONIC_RAW, ns.
    pub raw_ns: u64,
    /// The counter after it.
    pub after: u64,
    /// Whether the kernel offers the counter as a clocksource; `None` where that says nothing.
    pub offered: Option<bool>,
}

/// Why the counter is not trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The kernel no longer offers it as a clocksource. This does not end before a restart.
    Dropped,
    /// It went back.
    Back,
    /// It stood still, or nearly.
    Stopped,
    /// It advanced by this much more or less than CLOCK_MONOTONIC_RAW between two looks.
    Apart {
        /// The counter's advance minus that of CLOCK_MONOTONIC_RAW: at least this much.
        by: Duration,
        /// The advance of CLOCK_MONOTONIC_RAW.
        within: Duration,
    },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped => f.write_str("the kernel no longer trusts it"),
            Self::Back => f.write_str("the counter went back"),
            Self::Stopped => f.write_str("the counter stood still"),
            Self::Apart { by, within } => {
                write!(f, "the counter and CLOCK_MONOTONIC_RAW moved apart by {by} within {within}")
            }
        }
    }
}

/// What a look changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The kernel has dropped the counter. What was measured before may still hold.
    Dropped,
    /// The counter was disturbed: what was measured before this look is void.
    Disturbed(Trouble),
    /// The counter has behaved long enough to be trusted again. What was measured since the last
    /// disturbance holds.
    Recovered,
}

/// The state of the watch.
#[derive(Clone, Debug)]
pub struct CounterWatch {
    nominal: Period,
    last: Option<Look>,
    trouble: Option<Trouble>,
    /// Good looks since the last bad one.
    good: u32,
    needed: u32,
}

impl CounterWatch {
    /// Watches a counter of this period, as measured against CLOCK_MONOTONIC_RAW.
    #[must_use]
    pub fn new(nominal: Period) -> Self {
        Self { nominal, last: None, trouble: None, good: 0, needed: GOOD }
    }

    /// Why the counter is not trusted.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble
    }

    /// Forgets the last look, because the counter or the clock was disturbed for a known reason: a
    /// suspend, a migration.
    pub fn start_over(&mut self) {
        self.last = None;
    }

    /// Takes in a look; returns what follows from it.
    pub fn look(&mut self, look: Look) -> Option<Change> {
        let moved = self.compare(&look);
        if self.trouble == Some(Trouble::Dropped) {
            return None;
        }
        if look.offered == Some(false) {
            self.trouble = Some(Trouble::Dropped);
            return Some(Change::Dropped);
        }
        match (moved?, self.trouble) {
            (Err(trouble), _) => {
                self.good = 0;
                self.trouble = Some(trouble);
                Some(Change::Disturbed(trouble))
            }
            (Ok(()), None) => {
                self.good += 1;
                if self.good >= FORGIVEN {
                    self.good = 0;
                    self.needed = (self.needed / 2).max(GOOD);
                }
                None
            }
            (Ok(()), Some(_)) => {
                self.good += 1;
                (self.good >= self.needed).then(|| {
                    self.trouble = None;
                    self.good = 0;
                    self.needed = (self.needed * 2).min(MOST_GOOD);
                    Change::Recovered
                })
            }
        }
    }

    /// Compares both clocks' advance since the last look; `None` without one that was long enough
    /// ago.
    fn compare(&mut self, look: &Look) -> Option<Result<(), Trouble>> {
        let Some(last) = self.last else {
            self.last = Some(*look);
            return None;
        };
        // More than half a turn ahead is behind.
        if look.after.wrapping_sub(last.before) >> 63 != 0 {
            self.last = Some(*look);
            return Some(Err(Trouble::Back));
        }
        let nanos = |ns: u64| Duration::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX));
        let elapsed = nanos(look.raw_ns.saturating_sub(last.raw_ns));
        let most = self.nominal.span_ceil(look.after.wrapping_sub(last.before));
        if elapsed < SHORTEST && most < SHORTEST {
            return None;
        }
        self.last = Some(*look);
        let fewest = look.before.wrapping_sub(last.after);
        let least = if fewest >> 63 == 0 { self.nominal.span(fewest) } else { Duration::ZERO };
        let tolerance = largest(elapsed) + GRANULARITY;
        if most + tolerance < elapsed {
            let stopped = most < elapsed.half().half().half();
            let apart = Trouble::Apart { by: most - elapsed, within: elapsed };
            return Some(Err(if stopped { Trouble::Stopped } else { apart }));
        }
        let ahead = least - elapsed;
        let apart = Trouble::Apart { by: ahead, within: elapsed };
        Some(if ahead > tolerance { Err(apart) } else { Ok(()) })
    }
}

/// [`LARGEST_PPM`] of a span.
fn largest(span: Duration) -> Duration {
    Duration::from_bits(span.to_bits() / 1_000_000 * i128::from(LARGEST_PPM))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HZ: u64 = 1_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    fn watch() -> CounterWatch {
        CounterWatch::new(Period::from_hz(HZ).unwrap())
    }

    /// A look with a bracket of 100 ns, at these nanoseconds of both clocks.
    fn look(counter: u64, raw_ns: u64) -> Look {
        Look { before: counter, raw_ns, after: counter + 100, offered: Some(true) }
    }

    fn begun(counter: u64) -> CounterWatch {
        let mut watch = watch();
        assert_eq!(watch.look(look(counter, SECOND)), None);
        watch
    }

    #[test]
    fn a_dropped_counter_is_told_once_and_for_good() {
        let mut watch = begun(5);
        let dropped = Look { offered: Some(false), ..look(5 + HZ, 2 * SECOND) };
        assert_eq!(watch.look(dropped), Some(Change::Dropped));
        for n in 2..20 {
            assert_eq!(watch.look(look(5 + n * HZ, (n + 1) * SECOND)), None);
        }
        assert_eq!(watch.trouble(), Some(Trouble::Dropped));
        // Without sysfs nothing is known, which is no reason.
        let unknown = Look { offered: None, ..look(5 + HZ, 2 * SECOND) };
        assert_eq!(begun(5).look(unknown), None);
    }

    #[test]
    fn steps_halts_and_wrong_rates_are_seen_and_small_ones_are_not() {
        let trouble = |counter: u64| match begun(10 * HZ).look(look(counter, 2 * SECOND)) {
            Some(Change::Disturbed(trouble)) => Some(trouble),
            None => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(trouble(11 * HZ), None);
        assert_eq!(trouble(11 * HZ + 990_000), None, "990 ppm");
        assert_eq!(trouble(11 * HZ - 990_000), None, "-990 ppm");
        assert!(matches!(trouble(11 * HZ + 1_010_000), Some(Trouble::Apart { .. })));
        let Some(Trouble::Apart { by, within }) = trouble(11 * HZ - 3_000_000) else { panic!() };
        assert!(by.is_negative() && within == Duration::from_secs(1), "{by} {within}");
        assert!(matches!(trouble(500 * HZ), Some(Trouble::Apart { .. })), "a step ahead");
        assert_eq!(trouble(10 * HZ + 50), Some(Trouble::Stopped));
        assert_eq!(trouble(9 * HZ), Some(Trouble::Back));
        assert_eq!(trouble(7), Some(Trouble::Back), "it was reset");
    }

    #[test]
    fn trust_returns_after_good_looks_and_more_slowly_each_time() {
        let mut watch = begun(0);
        let (mut counter, mut raw) = (0, SECOND);
        let mut second = |watch: &mut CounterWatch, jump: u64| {
            counter += HZ + jump;
            raw += SECOND;
            watch.look(look(counter, raw))
        };
        for good in [2, 4, 8, 16] {
            assert!(matches!(second(&mut watch, HZ), Some(Change::Disturbed(_))));
            assert!(matches!(second(&mut watch, HZ), Some(Change::Disturbed(_))));
            for _ in 1..good {
                assert_eq!(second(&mut watch, 0), None);
                assert!(watch.trouble().is_some());
            }
            assert_eq!(second(&mut watch, 0), Some(Change::Recovered));
            assert_eq!(watch.trouble(), None);
        }
    }

    #[test]
    fn looks_in_quick_succession_and_after_a_suspend_are_not_compared() {
        let mut watch = begun(0);
        assert_eq!(watch.look(look(HZ / 10 + 500_000, SECOND + SECOND / 10)), None);
        watch.start_over();
        assert_eq!(watch.look(look(900 * HZ, 2 * SECOND)), None);
        // A look without a comparison is not a good one.
        assert!(watch.look(look(0, 3 * SECOND)).is_some());
        for (second, recovered) in [(4, false), (5, false), (6, true)] {
            if second == 4 {
                watch.start_over();
            }
            let change = watch.look(look(second * HZ, second * SECOND));
            assert_eq!(change == Some(Change::Recovered), recovered, "{second}");
        }
    }

    /// Good looks until the counter is trusted again, after a step back at each of these seconds.
    #[test]
    fn a_nightly_trouble_stays_as_short_as_the_first() {
        let (mut watch, mut counter, mut raw) = (begun(0), 0, SECOND);
        let mut waits = Vec::new();
        for _night in 0..14 {
            for _ in 0..86_400 {
                counter += SECOND;
                raw += SECOND;
                assert_eq!(watch.look(look(counter, raw)), None);
            }
            // The guest was paused: the kernel's clock stood still.
            counter += 100 * SECOND;
            raw += SECOND;
            assert!(matches!(watch.look(look(counter, raw)), Some(Change::Disturbed(_))));
            let mut wait = 0;
            loop {
                counter += SECOND;
                raw += SECOND;
                wait += 1;
                if watch.look(look(counter, raw)) == Some(Change::Recovered) {
                    break;
                }
            }
            waits.push(wait);
        }
        assert_eq!(waits, vec![GOOD; 14]);
    }

    proptest! {
        /// However long the reader was preempted within its look, a good counter is not blamed.
        #[test]
        fn a_preempted_reader_blames_nobody(
            start in any::<u64>(), seconds in 1u64..100, ppm in 0u64..1800,
            early in 0u64..5_000_000_000, late in 0u64..5_000_000_000,
        ) {
            let mut watch = watch();
            watch.look(Look { before: start, raw_ns: SECOND, after: start.wrapping_add(100), offered: None });
            let ticks = seconds * (HZ - 900_000 + ppm * 1000);
            let at = start.wrapping_add(ticks);
            let second = Look {
                before: at.wrapping_sub(early.min(ticks)),
                raw_ns: SECOND + seconds * SECOND,
                after: at.wrapping_add(late),
                offered: None,
            };
            prop_assert_eq!(watch.look(second), None);
        }
    }
}
