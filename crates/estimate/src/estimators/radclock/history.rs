//! The stamps that are still needed, by their sequence numbers.

use std::collections::VecDeque;

use timevisor_time::{Duration, Instant, Period, Tai};

use crate::exchange::Exchange;

/// Time from one counter value to a later one, s; zero if it is an earlier one, which happens when
/// one answer overtakes another.
pub(super) fn seconds(from: u64, to: u64, period: Period) -> f64 {
    let ticks = to.wrapping_sub(from);
    if ticks >> 63 == 0 { period.span(ticks).as_secs_f64() } else { 0.0 }
}

/// One exchange and what was derived from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub(super) ta: u64,
    pub(super) tb: Instant<Tai>,
    pub(super) te: Instant<Tai>,
    pub(super) tf: u64,
    /// The minimum round trip in force at this stamp, in ticks; corrected back to the start of an
    /// upward shift.
    pub(super) minimum: u64,
    /// The uncorrected clock's offset according to this stamp alone, s.
    pub(super) naive_offset: f64,
}

impl Stamp {
    pub(super) fn new(exchange: &Exchange, minimum: u64) -> Self {
        let Exchange { ta, tb, te, tf, .. } = *exchange;
        Self { ta, tb, te, tf, minimum, naive_offset: 0.0 }
    }

    /// The round trip in ticks.
    pub(super) fn round_trip(&self) -> u64 {
        self.tf.wrapping_sub(self.ta)
    }

    /// Round trip above `minimum`, s. Zero if it is below: an unsigned difference must not wrap
    /// after an upward shift.
    pub(super) fn excess(&self, minimum: u64, period: Period) -> f64 {
        period.span(self.round_trip().saturating_sub(minimum)).as_secs_f64()
    }

    /// Round trip above the minimum in force at this stamp, s.
    pub(super) fn point_error(&self, period: Period) -> f64 {
        self.excess(self.minimum, period)
    }

    /// Time from this stamp's end to a later one's, s.
    pub(super) fn age(&self, later: &Self, period: Period) -> f64 {
        seconds(self.tf, later.tf, period)
    }

    /// The average period from this stamp to a later one: mean of the forward and the backward
    /// direction.
    ///
    /// `None` unless both clocks advanced in both directions.
    pub(super) fn period_to(&self, later: &Self) -> Option<Period> {
        let forward = Period::from_ratio(later.tb - self.tb, later.ta.wrapping_sub(self.ta))?;
        let backward = Period::from_ratio(later.te - self.te, later.tf.wrapping_sub(self.tf))?;
        let (f, b) = (forward.to_bits(), backward.to_bits());
        Some(Period::from_bits(f.midpoint(b)))
    }

    /// Reference time from this stamp to a later one, s.
    pub(super) fn elapsed(&self, later: &Self) -> f64 {
        Duration::as_secs_f64(later.tb - self.tb)
    }
}

/// The newest stamps, numbered from zero since the start.
#[derive(Clone, Debug)]
pub(super) struct History {
    stamps: VecDeque<Stamp>,
    capacity: usize,
    next: u64,
}

impl History {
    pub(super) fn new(capacity: u64) -> Self {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        Self { stamps: VecDeque::with_capacity(capacity), capacity, next: 0 }
    }

    pub(super) fn push(&mut self, stamp: Stamp) {
        if self.stamps.len() == self.capacity {
            self.stamps.pop_front();
        }
        self.stamps.push_back(stamp);
        self.next += 1;
    }

    /// The number of the newest stamp plus one.
    pub(super) fn count(&self) -> u64 {
        self.next
    }

    fn oldest(&self) -> u64 {
        self.next - self.stamps.len() as u64
    }

    fn position(&self, number: u64) -> usize {
        usize::try_from(number.saturating_sub(self.oldest())).unwrap_or(usize::MAX)
    }

    pub(super) fn newest(&self) -> Option<&Stamp> {
        self.stamps.back()
    }

    pub(super) fn newest_mut(&mut self) -> Option<&mut Stamp> {
        self.stamps.back_mut()
    }

    /// Stamps `first` to `last`, inclusive, as far as they are still stored; oldest first.
    pub(super) fn range(&self, first: u64, last: u64) -> impl DoubleEndedIterator<Item = &Stamp> {
        let from = self.position(first).min(self.stamps.len());
        let to = self.position(last.saturating_add(1)).clamp(from, self.stamps.len());
        self.stamps.range(from..to)
    }

    /// The newest `n` stamps, oldest first.
    pub(super) fn last(&self, n: u64) -> impl DoubleEndedIterator<Item = &Stamp> {
        self.range(self.next.saturating_sub(n), self.next)
    }

    /// The stamp with the shortest round trip among `first` to `last`; the earliest if several are
    /// equal.
    pub(super) fn fastest(&self, first: u64, last: u64) -> Option<&Stamp> {
        self.range(first, last).min_by_key(|stamp| stamp.round_trip())
    }

    /// Makes `minimum` the minimum in force for the newest `n` stamps.
    pub(super) fn correct_minimum(&mut self, n: u64, minimum: u64) {
        let from = self.position(self.next.saturating_sub(n));
        for stamp in self.stamps.range_mut(from..) {
            stamp.minimum = minimum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(ta: u64, tb_ns: i128, te_ns: i128, tf: u64) -> Stamp {
        let at = Instant::from_unix_nanos;
        Stamp { ta, tb: at(tb_ns), te: at(te_ns), tf, minimum: 0, naive_offset: 0.0 }
    }

    #[test]
    fn a_period_is_the_mean_of_both_directions() {
        let nominal = Period::from_hz(1_000_000_000).unwrap();
        let far = stamp(0, 0, 0, 1000);
        // 20 ppm on the forward path, 30 ppm on the backward path.
        let near = stamp(1_000_000_000, 1_000_020_000, 1_000_030_000, 1_000_001_000);
        let ppm = far.period_to(&near).unwrap().relative_to(nominal) * 1e6;
        assert!((ppm - 25.0).abs() < 1e-6, "{ppm}");
        assert_eq!(near.period_to(&far), None, "time does not go back");
        assert_eq!(far.period_to(&far), None);
    }

    #[test]
    fn an_overtaken_answer_has_no_age() {
        let period = Period::from_hz(1_000_000_000).unwrap();
        let (slow, fast) =
            (stamp(0, 0, 0, 20_000_000_000), stamp(16_000_000_000, 0, 0, 16_000_060_000));
        assert!(slow.age(&fast, period).abs() < 1e-15);
        assert!((fast.age(&slow, period) - 3.999_94).abs() < 1e-9);
    }

    #[test]
    fn a_round_trip_below_the_minimum_has_no_excess() {
        let period = Period::from_hz(1_000_000_000).unwrap();
        let fast = Stamp { minimum: 100_000, ..stamp(0, 0, 0, 60_000) };
        assert!(fast.point_error(period).abs() < 1e-15);
        assert!((fast.excess(50_000, period) - 10e-6).abs() < 1e-12);
    }

    #[test]
    fn numbers_stay_with_their_stamps_when_old_ones_leave() {
        let mut history = History::new(4);
        for (number, round_trip) in [9, 5, 7, 3, 3, 8].into_iter().enumerate() {
            history.push(stamp(number as u64 * 100, 0, 0, number as u64 * 100 + round_trip));
        }
        assert_eq!(history.count(), 6);
        let numbers = |first, last| -> Vec<u64> {
            history.range(first, last).map(|stamp| stamp.ta / 100).collect()
        };
        assert_eq!(numbers(0, 3), [2, 3], "0 and 1 have left");
        assert_eq!(numbers(4, 99), [4, 5]);
        assert_eq!(numbers(0, 1), []);
        assert_eq!(history.fastest(0, 5).unwrap().ta, 300, "the earliest of equals");
        assert_eq!(history.last(2).map(Stamp::round_trip).collect::<Vec<_>>(), [3, 8]);
    }
}
