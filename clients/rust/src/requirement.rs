//! [`Requirement`]: what a program needs from a timeline, and whether a reading meets it.
//!
//! All expensive work is done when a requirement is stated; a read only compares numbers. The
//! server decides what is achievable.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;
use std::time::Duration;

use timevisor_clock_page::ClockStatus;
use timevisor_clock_page::seqlock::{read_begin, read_valid, write_begin, write_end};
use timevisor_protocols::channel::confidence::largest_sigma_ns;
use timevisor_protocols::channel::{self, Confidence, InvalidRequirement};

use crate::reading::Reading;

/// How far true time may be from the estimate, and with what certainty.
///
/// ```
/// use std::time::Duration;
/// use timevisor::Requirement;
/// let within = Requirement::within(Duration::from_millis(1));
/// let one_sided = Requirement::between(Duration::from_micros(50), Duration::from_millis(1));
/// let mostly = within.with_probability(0.99);
/// assert_eq!((one_sided.below_ns(), one_sided.above_ns()), (50_000, 1_000_000));
/// assert_eq!(mostly.probability(), Some(0.99));
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Requirement(channel::Requirement);

impl Requirement {
    /// True time is within `half_width` of the estimate, by the hard bounds.
    #[must_use]
    pub fn within(half_width: Duration) -> Self {
        Self::between(half_width, half_width)
    }

    /// True time is at most `below` before and at most `above` after the estimate, by the hard
    /// bounds.
    #[must_use]
    pub fn between(below: Duration, above: Duration) -> Self {
        let ns = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(channel::Requirement {
            below_ns: ns(below),
            above_ns: ns(above),
            ..channel::Requirement::within_ns(0)
        })
    }

    /// The clock must also be able to distinguish instants that are this far apart.
    #[must_use]
    pub fn with_resolution(mut self, resolution: Duration) -> Self {
        self.0.resolution_ns = Some(u64::try_from(resolution.as_nanos()).unwrap_or(u64::MAX));
        self
    }

    /// By the estimated error with at least this probability, 0.5 up to but not including 1,
    /// instead of by the hard bounds ([`timevisor_protocols::channel::confidence`] has the
    /// formula).
    #[must_use]
    pub fn with_probability(mut self, probability: f64) -> Self {
        self.0.confidence = Confidence::Probability(probability);
        self
    }

    /// True time may be this much before the estimate at most, ns.
    #[must_use]
    pub fn below_ns(&self) -> u64 {
        self.0.below_ns
    }

    /// True time may be this much after the estimate at most, ns.
    #[must_use]
    pub fn above_ns(&self) -> u64 {
        self.0.above_ns
    }

    /// The resolution needed, ns.
    #[must_use]
    pub fn resolution_ns(&self) -> Option<u64> {
        self.0.resolution_ns
    }

    /// The probability needed; `None` for certainty, by the hard bounds.
    #[must_use]
    pub fn probability(&self) -> Option<f64> {
        match self.0.confidence {
            Confidence::WorstCase => None,
            Confidence::Probability(p) => Some(p),
        }
    }

    /// Checks that it is meaningful.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn validate(&self) -> Result<(), InvalidRequirement> {
        self.0.validate()
    }

    /// The form that is sent over the channel.
    #[must_use]
    pub fn to_channel(self) -> channel::Requirement {
        self.0
    }
}

impl From<channel::Requirement> for Requirement {
    fn from(requirement: channel::Requirement) -> Self {
        Self(requirement)
    }
}

/// A requirement in the form that a read checks, in whole nanoseconds (errors are rounded up before
/// they are compared).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    pub(crate) below_ns: u64,
    pub(crate) above_ns: u64,
    pub(crate) tick_ns: u64,
    /// `u64::MAX`: by the hard bounds.
    pub(crate) sigma_ns: u64,
}

impl Need {
    /// No requirement.
    pub(crate) const NONE: Self =
        Self { below_ns: u64::MAX, above_ns: u64::MAX, tick_ns: u64::MAX, sigma_ns: u64::MAX };

    pub(crate) fn new(requirement: Option<&Requirement>) -> Result<Self, InvalidRequirement> {
        let Some(Requirement(wanted)) = requirement else { return Ok(Self::NONE) };
        wanted.validate()?;
        let sigma_ns = match wanted.confidence {
            Confidence::WorstCase => u64::MAX,
            Confidence::Probability(p) => largest_sigma_ns(wanted.below_ns, wanted.above_ns, p),
        };
        Ok(Self {
            // The all-ones value has a special meaning; 584 years minus a nanosecond is enough.
            below_ns: wanted.below_ns.min(u64::MAX - 1),
            above_ns: wanted.above_ns.min(u64::MAX - 1),
            tick_ns: wanted.resolution_ns.unwrap_or(u64::MAX),
            sigma_ns,
        })
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Whether it refers to the estimated error instead of the bounds.
    pub(crate) fn is_probable(&self) -> bool {
        self.sigma_ns != u64::MAX
    }

    /// Whether a reading meets it, if a tick lasts `tick_ns`.
    #[inline]
    pub(crate) fn is_met(&self, reading: &Reading, tick_ns: u64) -> bool {
        if self.is_none() {
            return true;
        }
        if !reading.is_trustworthy() || tick_ns > self.tick_ns {
            return false;
        }
        if self.is_probable() {
            // It is not known how the estimated error grows while the clock is free-running.
            return reading.status != ClockStatus::FreeRunning
                && reading.estimated_error_ns().is_some_and(|ns| ns <= self.sigma_ns);
        }
        is_at_most((reading.estimate - reading.earliest).ceil_nanos(), self.below_ns)
            && is_at_most((reading.latest - reading.estimate).ceil_nanos(), self.above_ns)
    }
}

fn is_at_most(ns: i64, limit: u64) -> bool {
    u64::try_from(ns).is_ok_and(|ns| ns <= limit)
}

/// The requirement of a handle, which some threads may change while others read: four words behind
/// a sequence lock.
#[derive(Debug)]
pub(crate) struct NeedCell {
    sequence: AtomicU64,
    words: [AtomicU64; 4],
    writers: Mutex<()>,
}

/// So many looks before a reader leaves the processor to a writer that it may have interrupted, and for how long.
const SPINS: u32 = 1_000;
const NAP: Duration = Duration::from_micros(50);

impl NeedCell {
    pub(crate) fn new(need: Need) -> Self {
        let words = [need.below_ns, need.above_ns, need.tick_ns, need.sigma_ns];
        Self {
            sequence: AtomicU64::new(0),
            words: words.map(AtomicU64::new),
            writers: Mutex::new(()),
        }
    }

    pub(crate) fn set(&self, need: Need) {
        let _one = crate::unpoisoned(self.writers.lock());
        let odd = write_begin(&self.sequence);
        let words = [need.below_ns, need.above_ns, need.tick_ns, need.sigma_ns];
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Relaxed);
        }
        write_end(&self.sequence, odd);
    }

    #[inline]
    pub(crate) fn get(&self) -> Need {
        let mut turns = 0;
        loop {
            if let Some(even) = read_begin(&self.sequence) {
                let [below_ns, above_ns, tick_ns, sigma_ns] =
                    [0, 1, 2, 3].map(|word: usize| self.words[word].load(Relaxed));
                if read_valid(&self.sequence, even) {
                    return Need { below_ns, above_ns, tick_ns, sigma_ns };
                }
            }
            core::hint::spin_loop();
            turns += 1;
            if turns > SPINS {
                // With a real-time priority this thread may have interrupted the one that writes.
                std::thread::sleep(NAP);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        let one = Requirement::within(Duration::from_micros(1));
        for bad in [
            Requirement::within(Duration::ZERO),
            one.with_probability(1.0),
            one.with_resolution(Duration::ZERO),
        ] {
            assert!(Need::new(Some(&bad)).is_err(), "{bad:?}");
        }
        assert!(Need::new(Some(&one)).is_ok_and(|need| !need.is_none()));
        assert!(Need::new(Some(&Requirement::within(Duration::MAX))).is_ok_and(|n| !n.is_none()));
    }

    #[test]
    fn a_need_is_never_torn() {
        let cell = NeedCell::new(Need::NONE);
        let all = |ns| Need { below_ns: ns, above_ns: ns, tick_ns: ns, sigma_ns: ns };
        std::thread::scope(|scope| {
            scope.spawn(|| (0..50_000).for_each(|ns| cell.set(all(ns))));
            scope.spawn(|| (0..50_000).for_each(|ns| cell.set(all(ns))));
            for _ in 0..50_000 {
                let seen = cell.get();
                assert_eq!(seen, all(seen.below_ns));
            }
        });
    }
}
