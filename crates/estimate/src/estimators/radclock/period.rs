//! The global period: the rate between a good old stamp and the newest good one.

use timevisor_time::Period;

use super::history::{History, Stamp};
use super::windows::Thresholds;

/// The fixed old end of the baseline.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    number: u64,
    stamp: Stamp,
    /// Its point error, s.
    error: f64,
}

impl Anchor {
    fn new(number: u64, stamp: &Stamp, period: Period) -> Self {
        Self { number, stamp: *stamp, error: stamp.point_error(period) }
    }
}

/// The period after the warmup.
#[derive(Clone, Debug)]
pub(super) struct GlobalPeriod {
    anchor: Anchor,
    /// Takes over when the history slides; chosen at the beginning of the second half of the
    /// history.
    successor: Option<Anchor>,
    /// Number of further stamps that may become the successor.
    search: u64,
    /// Estimated relative error of the period in force.
    error: f64,
    /// A candidate at least this good is adopted even if it is worse than the one in force.
    quality: f64,
}

/// The period during the warmup: from the fastest stamp of a far window to the fastest one of a
/// near window, each of which is a part of the history so far. Returns it with its relative error;
/// `None` while both are the same stamp.
pub(super) fn during_warmup(history: &History, ratio: u64, minimum: u64) -> Option<(Period, f64)> {
    let newest = history.count() - 1;
    let width = 1 + newest / ratio;
    let far = history.fastest(0, width - 1)?;
    let near = history.fastest(newest + 1 - width, newest)?;
    let period = far.period_to(near)?;
    let error = (far.excess(minimum, period) + near.excess(minimum, period)) / far.elapsed(near);
    Some((period, error))
}

impl GlobalPeriod {
    /// Takes over from the warmup: its fastest stamp becomes the anchor, and its error is the one
    /// to improve on.
    pub(super) fn after_warmup(
        history: &History,
        minimum: u64,
        error: f64,
        t: &Thresholds,
    ) -> Option<Self> {
        let newest = history.count().checked_sub(1)?;
        let stamp = Stamp { minimum, ..*history.fastest(0, newest)? };
        let number = history.range(0, newest).position(|s| s.ta == stamp.ta)? as u64;
        let anchor = Anchor { number, stamp, error: 0.0 };
        Some(Self { anchor, successor: None, search: 0, error, quality: t.period_quality })
    }

    /// The first half of the first history is over: from now on the baseline is long, and the
    /// requirements are stricter.
    pub(super) fn begin_successor(&mut self, number: u64, stamp: &Stamp, search: u64, p: Period) {
        self.successor = Some(Anchor::new(number, stamp, p));
        self.search = search;
        self.quality /= 10.0;
    }

    /// The history slides: the successor takes over, and the search for a new one starts.
    pub(super) fn slide(&mut self, number: u64, stamp: &Stamp, search: u64, period: Period) {
        if let Some(successor) = self.successor.replace(Anchor::new(number, stamp, period)) {
            self.anchor = successor;
        }
        self.search = search;
    }

    /// An upward shift began at stamp `first`, so the successor's data recorded since then is
    /// wrong.
    pub(super) fn correct_minimum(&mut self, first: u64, minimum: u64, period: Period) {
        if let Some(successor) = &mut self.successor
            && successor.number >= first
        {
            successor.stamp.minimum = minimum;
            successor.error = successor.stamp.point_error(period);
        }
    }

    /// Considers the newest stamp as the successor.
    pub(super) fn offer_successor(&mut self, number: u64, stamp: &Stamp, period: Period) {
        let Some(successor) = &mut self.successor else { return };
        if self.search == 0 {
            return;
        }
        self.search -= 1;
        if stamp.round_trip() < successor.stamp.round_trip() {
            *successor = Anchor::new(number, stamp, period);
        }
    }

    /// The period from the anchor to `stamp`, if it should replace `current`.
    pub(super) fn observe(
        &mut self,
        stamp: &Stamp,
        current: Period,
        t: &Thresholds,
    ) -> Option<Period> {
        let point_error = stamp.point_error(current);
        if point_error >= t.period_point {
            return None;
        }
        let change = current.span(stamp.minimum.abs_diff(self.anchor.stamp.minimum)).as_secs_f64();
        let error = (point_error + self.anchor.error + change) / self.anchor.stamp.elapsed(stamp);
        if error >= self.error && error >= self.quality {
            return None;
        }
        let period = self.anchor.stamp.period_to(stamp)?;
        if period.relative_to(current).abs() > t.period_sanity {
            return None;
        }
        self.error = error;
        Some(period)
    }
}

/// The local period: measured in the same way between two windows at both ends of the recent past.
pub(super) fn local(
    history: &History,
    far: (u64, u64),
    near: (u64, u64),
    in_force: Period,
    t: &Thresholds,
) -> Option<Period> {
    let (far, near) = (history.fastest(far.0, far.1)?, history.fastest(near.0, near.1)?);
    let change = in_force.span(far.minimum.abs_diff(near.minimum)).as_secs_f64();
    let error =
        (far.point_error(in_force) + near.point_error(in_force) + change) / far.elapsed(near);
    if error >= t.local_quality {
        return None;
    }
    let period = far.period_to(near)?;
    (period.relative_to(in_force).abs() <= t.period_sanity).then_some(period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimators::radclock::RadclockParameters;
    use timevisor_time::{Duration, Instant};

    const HZ: u64 = 1_000_000_000;

    fn nominal() -> Period {
        Period::from_hz(HZ).unwrap()
    }

    /// A stamp of a perfect counter whose reference is off by `off_ns`, with `excess_ns` of
    /// queueing above 60 us.
    fn stamp(second: u64, off_ns: i64, excess_ns: u64) -> Stamp {
        let ta = second * HZ;
        let t = Instant::from_unix_nanos(i128::from(ta) + 30_000) + Duration::from_nanos(off_ns);
        Stamp { ta, tb: t, te: t, tf: ta + 60_000 + excess_ns, minimum: 60_000, naive_offset: 0.0 }
    }

    fn global(error: f64) -> (GlobalPeriod, Thresholds) {
        let t = Thresholds::new(&RadclockParameters::good());
        let anchor = Anchor { number: 0, stamp: stamp(0, 0, 0), error: 0.0 };
        let quality = t.period_quality;
        (GlobalPeriod { anchor, successor: None, search: 0, error, quality }, t)
    }

    #[test]
    fn a_candidate_must_be_good_itself() {
        // Over a day its error would be 5e-10, but a stamp that is 45 us late is not considered.
        let (mut global, t) = global(1e-3);
        assert_eq!(global.observe(&stamp(86_400, 0, 45_100), nominal(), &t), None);
        assert!(global.observe(&stamp(86_400, 0, 44_900), nominal(), &t).is_some());
        assert!((global.error - 44.9e-6 / 86_400.0).abs() < 1e-12);
    }

    #[test]
    fn a_candidate_must_beat_the_period_in_force_or_be_excellent() {
        // 40 us over 100 s is 4e-7: worse than 2e-7 and better than 5e-7. Excellent is 1e-7.
        let late = stamp(100, 0, 40_000);
        let (mut better, t) = global(2e-7);
        assert_eq!(better.observe(&late, nominal(), &t), None);
        let (mut worse, t) = global(5e-7);
        assert!(worse.observe(&late, nominal(), &t).is_some());
        let (mut best, t) = global(1e-12);
        assert!(best.observe(&stamp(100, 0, 9_900), nominal(), &t).is_some(), "0.99e-7");
        assert_eq!(best.observe(&stamp(100, 0, 10_100), nominal(), &t), None, "1.01e-7");
    }

    #[test]
    fn a_changed_minimum_counts_as_error() {
        let (mut global, t) = global(2e-7);
        // A route that is 300 us longer from then on: 300 us over 1000 s is 3e-7; over 10000 s it
        // is tolerated.
        let longer = |second| Stamp { minimum: 360_000, ..stamp(second, 0, 300_000) };
        assert_eq!(global.observe(&longer(1000), nominal(), &t), None);
        assert!(global.observe(&longer(10_000), nominal(), &t).is_some());
    }

    #[test]
    fn a_poor_local_period_is_not_taken() {
        let t = Thresholds::new(&RadclockParameters::good());
        // The stamps are 100 s apart: 8e-7 is 80 us of queueing.
        let found = |excess| {
            let mut history = History::new(2);
            history.push(stamp(0, 0, 0));
            history.push(stamp(100, 0, excess));
            local(&history, (0, 0), (1, 1), nominal(), &t)
        };
        assert!(found(79_000).is_some());
        assert_eq!(found(81_000), None);
    }

    #[test]
    fn the_fastest_of_the_search_becomes_the_next_anchor() {
        let (mut global, _) = global(1e-7);
        let p = nominal();
        global.begin_successor(10, &stamp(10, 0, 5_000), 2, p);
        assert!((global.quality - 1e-8).abs() < 1e-18, "a long baseline is demanding");
        global.offer_successor(11, &stamp(11, 0, 3_000), p);
        global.offer_successor(12, &stamp(12, 0, 4_000), p);
        global.offer_successor(13, &stamp(13, 0, 0), p);
        global.slide(20, &stamp(20, 0, 9_000), 2, p);
        assert_eq!(global.anchor.number, 11, "12 was slower, 13 came after the search");
        assert_eq!(global.successor.unwrap().number, 20);
        // A shift that began at stamp 20 invalidates its recorded minimum.
        global.correct_minimum(20, 69_000, p);
        assert!(global.successor.unwrap().error.abs() < 1e-15);
    }
}
