//! The clock C, to which the estimate is relative: an affine function of the counter, in integers,
//! that is never adjusted by learning.
//!
//! All state is in seconds relative to C, because floats are precise enough for that: 100 ppm over
//! a year is 3153 s, where a double resolves 5e-13 s. Absolute time would lose 2e-7 s.

use timevisor_time::{Duration, Instant, Period, Tai};

use crate::exchange::Exchange;

/// The largest possible error of the counter's nominal rate: ten times what the hard bounds allow
/// for any oscillator.
const RATE_TOLERANCE: f64 = 1e-3;

/// C(counter) = `time` + (counter - `counter`) * `period`.
#[derive(Clone, Copy, Debug)]
pub struct Coordinates {
    counter: u64,
    time: Instant<Tai>,
    period: Period,
}

/// An exchange as the filter sees it; all values in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sighting {
    /// From the epoch of the previous sighting to this one's; never negative. The epoch is the
    /// middle of the exchange.
    pub since_s: f64,
    /// Tb - C(Ta) and C(Tf) - Te: each is a one-way delay plus or minus theta.
    pub delay_s: [f64; 2],
    /// From Ta to the epoch, and from the epoch to Tf, measured by C.
    pub lag_s: [f64; 2],
    /// Round trip without the reference's residence time.
    pub path_s: f64,
}

impl Sighting {
    /// Both one-way measurements, moved to the epoch with relative rate `rate`:
    /// z_f = m_f + queueing + theta, z_b = m_b + queueing - theta.
    pub fn at_epoch(&self, rate: f64) -> [f64; 2] {
        [0, 1].map(|k| self.delay_s[k] + rate * self.lag_s[k])
    }

    /// The offset theta at the epoch if the path is symmetric and the rate is C's.
    pub fn symmetric_offset_s(&self) -> f64 {
        (self.delay_s[0] - self.delay_s[1]) / 2.0
    }
}

impl Coordinates {
    /// C(`counter`) = `time`.
    pub const fn new(counter: u64, time: Instant<Tai>, period: Period) -> Self {
        Self { counter, time, period }
    }

    /// From counter value `from` to `to` by C; negative if `to` is earlier. The counter may wrap in
    /// between.
    pub fn between(&self, from: u64, to: u64) -> Duration {
        let ticks = to.wrapping_sub(from);
        if ticks >> 63 == 0 {
            self.period.span(ticks)
        } else {
            -self.period.span(ticks.wrapping_neg())
        }
    }

    /// C(`counter`).
    pub fn at(&self, counter: u64) -> Instant<Tai> {
        self.time + self.between(self.counter, counter)
    }

    /// Moves C by `shift`.
    pub fn shift(&mut self, shift: Duration) {
        self.time = self.time + shift;
    }

    /// `exchange` in seconds relative to C, after a sighting with epoch `previous`, and its own
    /// epoch as a counter value. `None` if the reference claims to have held the request for longer
    /// than the whole exchange took: no rate explains that, so the stamps are wrong.
    ///
    /// An exchange with a long round trip may begin before the middle of an earlier one and still
    /// be the later one. Its epoch is then that middle, so that time never runs backwards.
    pub fn sight(&self, exchange: &Exchange, previous: Option<u64>) -> Option<(Sighting, u64)> {
        let middle = exchange.middle();
        let epoch = match previous {
            Some(before) if middle.wrapping_sub(before) >> 63 != 0 => before,
            _ => middle,
        };
        let seconds = |from, to| self.between(from, to).as_secs_f64();
        let forward = (exchange.tb - self.at(exchange.ta)).as_secs_f64();
        let backward = (self.at(exchange.tf) - exchange.te).as_secs_f64();
        let residence = (exchange.te - exchange.tb).as_secs_f64();
        let path = seconds(exchange.ta, exchange.tf) - residence;
        if path < -RATE_TOLERANCE * residence.abs() {
            return None;
        }
        let sighting = Sighting {
            since_s: previous.map_or(0.0, |before| seconds(before, epoch)),
            delay_s: [forward, backward],
            lag_s: [seconds(exchange.ta, epoch), seconds(epoch, exchange.tf)],
            path_s: path,
        };
        Some((sighting, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 1_000_000_000;

    fn clock() -> Coordinates {
        Coordinates::new(HZ, Instant::from_unix_nanos(5_000_000_000), Period::from_hz(HZ).unwrap())
    }

    fn exchange(ta: u64, tb_ns: i128, te_ns: i128, tf: u64) -> Exchange {
        let (tb, te) = (Instant::from_unix_nanos(tb_ns), Instant::from_unix_nanos(te_ns));
        Exchange { ta, tb, te, tf, error: Duration::ZERO }
    }

    #[test]
    fn both_delays_are_relative_to_the_epoch() {
        // C is 4 s ahead of the counter. The reference is 7 us ahead of C and holds the request for
        // 100 us.
        let ta = 20 * HZ;
        let tb = i128::from(ta) + 4_000_000_000 + 30_000 + 7_000;
        let tf = ta + 30_000 + 100_000 + 50_000;
        let (s, epoch) = clock().sight(&exchange(ta, tb, tb + 100_000, tf), Some(10 * HZ)).unwrap();
        assert_eq!(epoch, ta + 90_000);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-11;
        assert!(close(s.delay_s[0], 37e-6) && close(s.delay_s[1], 43e-6), "{s:?}");
        assert!(close(s.path_s, 80e-6) && close(s.since_s, 10.00009), "{s:?}");
        assert!(close(s.symmetric_offset_s(), -3e-6), "7 us less half of the 20 us asymmetry");
        // A rate of 1e-3 moves each measurement by 90 ns to the middle.
        let [forward, backward] = s.at_epoch(1e-3);
        assert!(close(forward, 37.09e-6) && close(backward, 43.09e-6));
    }

    #[test]
    fn time_never_runs_backwards_between_overlapping_exchanges() {
        let before = 20 * HZ;
        let t = i128::from(before) + 4_000_000_000;
        let (s, epoch) =
            clock().sight(&exchange(before - 100, t, t, before - 40), Some(before)).unwrap();
        assert_eq!((epoch, s.since_s), (before, 0.0));
        assert!((s.lag_s[0] - 100e-9).abs() < 1e-15 && (s.lag_s[1] + 40e-9).abs() < 1e-15);
    }

    #[test]
    fn a_residence_longer_than_the_round_trip_is_refused() {
        let t = 30_000_000_000i128;
        assert!(clock().sight(&exchange(HZ, t, t + 100_000, HZ + 60_000), None).is_none());
        // Within what a rate error can explain: 10 s at 100 ppm is 1 ms.
        assert!(clock().sight(&exchange(HZ, t, t + 10_000_500_000, 11 * HZ), None).is_some());
    }

    #[test]
    fn spans_are_signed_and_wrap_with_the_counter() {
        let c = Coordinates::new(
            u64::MAX - 9,
            Instant::from_unix_nanos(0),
            Period::from_hz(HZ).unwrap(),
        );
        assert_eq!(c.between(u64::MAX - 9, 10).ceil_nanos(), 20);
        assert_eq!(c.between(10, u64::MAX - 9), -c.between(u64::MAX - 9, 10));
        assert_eq!(c.at(10).ceil_nanos(), 20);
    }
}
