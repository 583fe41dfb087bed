//! Converts kernel stamps (CLOCK_REALTIME) to counter values, rounding outward.
//!
//! The kernel stamps packets closer to the wire than we can read the counter, but on a clock that a
//! program may slew or step. A bracket (counter, CLOCK_REALTIME, counter) before the send and one
//! after the receive pin that clock to the counter. Over the whole exchange it may deviate by
//! [`KERNEL_SLEW_LIMIT`]; otherwise the stamps are not used. Over a part of the exchange it may
//! deviate by [`SLEW_LIMIT`], because a fast slew may have started or ended. The results are
//! *bounds*: the send bound is never later than the stamp, the receive bound never earlier, so that
//! hard bounds built on them stay sound (docs/explanation/bounds.md).
//!
//! Pure arithmetic; it reads no clock. A step smaller than what the limit allows over the exchange
//! cannot be distinguished from a slew and is covered only as such.

use timevisor_time::{Duration, Instant, Period, RateError, Utc};

use crate::clock::Bracket;

/// How fast CLOCK_REALTIME may be slewed against CLOCK_MONOTONIC_RAW: 500 ppm of frequency
/// correction plus 500 ppm of adjtime(3) (kernel/time/ntp.c, MAXFREQ and MAX_TICKADJ). Daemons that
/// slew by the tick length exceed it; comparing the brackets detects this unless it happens only
/// during a small part of the exchange.
pub const KERNEL_SLEW_LIMIT: RateError = RateError::from_ppm(1000);

/// How far the rate of CLOCK_REALTIME can be from the true one at any moment (kernel/time/ntp.c):
/// 10 % by the tick length, 12.5 % by the phase-locked loop (MAXPHASE >> SHIFT_PLL each second),
/// 500 ppm by the frequency, 500 ppm by adjtime(3), all of it times 1.01 for the error of the
/// kernel's own clocksource frequency. Programs stay far below this: chronyd below 8.4 %.
pub const SLEW_LIMIT: RateError = RateError::from_ppm(240_000);

/// Each stamp is rounded to a nanosecond, once in the kernel and once in the vDSO.
const GRANULARITY: Duration = Duration::from_nanos(2);

/// The counter values between which a stamped event happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterInterval {
    /// No later than the event.
    pub earliest: u64,
    /// No earlier than the event.
    pub latest: u64,
}

/// CLOCK_REALTIME as a function of the counter during one exchange.
#[derive(Clone, Copy, Debug)]
pub struct StampMap {
    before: Bracket,
    after: Bracket,
    /// The counter's shortest and longest tick as measured by CLOCK_REALTIME.
    shortest: Period,
    longest: Period,
}

impl StampMap {
    /// Builds the map from a bracket before the send, one after the receive, and the counter's
    /// period relative to CLOCK_MONOTONIC_RAW.
    ///
    /// `limit` bounds the rate of CLOCK_REALTIME relative to that period: [`KERNEL_SLEW_LIMIT`]
    /// plus the calibration's error. `None` when the clock was stepped in between, the counter ran
    /// backwards, or the brackets overlap: use the raw counter reads in that case.
    #[must_use]
    pub fn new(before: Bracket, after: Bracket, period: Period, limit: RateError) -> Option<Self> {
        // The limit includes the calibration's error.
        let at_any_time = limit.plus(SLEW_LIMIT);
        let map = Self {
            before,
            after,
            shortest: period.slowest_time(at_any_time),
            longest: period.fastest_time(at_any_time),
        };
        let fewest = after.before.checked_sub(before.after)?;
        let most = after.after.checked_sub(before.before)?;
        let elapsed = after.realtime - before.realtime;
        let possible = period.slowest_time(limit).span(fewest) - GRANULARITY <= elapsed
            && elapsed <= period.fastest_time(limit).span_ceil(most) + GRANULARITY;
        (possible && before.before <= before.after && after.before <= after.after).then_some(map)
    }

    /// The counter values between which the event with this stamp happened.
    ///
    /// `None` if that is outside the exchange: the stamp belongs to something else, or the clock
    /// was stepped.
    #[must_use]
    pub fn interval(&self, stamp: Instant<Utc>) -> Option<CounterInterval> {
        let since = stamp - self.before.realtime;
        let until = self.after.realtime - stamp;
        if since < -GRANULARITY || until < -GRANULARITY {
            return None;
        }
        let forward = (
            self.before.before + self.fewest_ticks(since),
            self.before.after + self.most_ticks(since),
        );
        let backward = (
            self.after.before.saturating_sub(self.most_ticks(until)),
            self.after.after.saturating_sub(self.fewest_ticks(until)),
        );
        // Whatever the stamps say, the event lies between the counter reads around the exchange.
        let earliest = forward.0.max(backward.0).max(self.before.after);
        let latest = forward.1.min(backward.1).min(self.after.before);
        (earliest <= latest).then_some(CounterInterval { earliest, latest })
    }

    /// The exchange's Ta: a counter value no later than the transmit stamp.
    #[must_use]
    pub fn send_bound(&self, stamp: Instant<Utc>) -> Option<u64> {
        self.interval(stamp).map(|found| found.earliest)
    }

    /// The exchange's Tf: a counter value no earlier than the receive stamp.
    #[must_use]
    pub fn receive_bound(&self, stamp: Instant<Utc>) -> Option<u64> {
        self.interval(stamp).map(|found| found.latest)
    }

    fn fewest_ticks(&self, span: Duration) -> u64 {
        self.longest.ticks_in(span - GRANULARITY)
    }

    fn most_ticks(&self, span: Duration) -> u64 {
        // A span may be slightly negative; the rounding allowance is still needed in that case.
        self.shortest.ticks_in((span + GRANULARITY).max(Duration::ZERO)) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A counter of `hz`, and a CLOCK_REALTIME whose rate changes once, at tick `bend`.
    #[derive(Clone, Copy, Debug)]
    struct World {
        hz: u64,
        start: u64,
        bend: u64,
        rates_ppb: [i64; 2],
        step_ns: i64,
    }

    impl World {
        /// CLOCK_REALTIME at a counter value, rounded down to nanoseconds as the kernel does.
        fn realtime(&self, counter: u64) -> Instant<Utc> {
            let part = |ticks: u64, ppb: i64| i128::from(ticks) * i128::from(1_000_000_000 + ppb);
            let ticks = counter - self.start;
            let early = ticks.min(self.bend);
            let scaled = part(early, self.rates_ppb[0]) + part(ticks - early, self.rates_ppb[1]);
            let step = if ticks > self.bend { i128::from(self.step_ns) } else { 0 };
            Instant::from_unix_nanos(
                1_700_000_000_000_000_000 + scaled / i128::from(self.hz) + step,
            )
        }

        fn bracket(&self, before: u64, width: u64, place: u64) -> Bracket {
            let at = before + width * place / 100;
            Bracket { before, realtime: self.realtime(at), after: before + width }
        }
    }

    fn period(hz: u64) -> Period {
        Period::from_hz(hz).unwrap()
    }

    proptest! {
        /// Whatever the slew within the limit, and wherever in the brackets the clock was read, the
        /// bounds hold.
        #[test]
        fn bounds_are_sound(
            hz in 19_200_000u64..5_000_000_000, rates_ppb in [-999_000i64..999_000, -999_000i64..999_000],
            bend in 0u64..=100, wait in 0u64..500_000, flight_us in 1u64..200_000, wake in 0u64..500_000,
            widths in [1u64..20_000, 1u64..20_000], places in [0u64..=100, 0u64..=100],
        ) {
            let start = 1 << 40;
            let flight = flight_us * hz / 1_000_000;
            let total = widths[0] + wait + flight + wake + widths[1];
            let world = World { hz, start, bend: total * bend / 100, rates_ppb, step_ns: 0 };
            let sent = start + widths[0] + wait;
            let received = sent + flight;
            let before = world.bracket(start, widths[0], places[0]);
            let after = world.bracket(received + wake, widths[1], places[1]);

            let map = StampMap::new(before, after, period(hz), KERNEL_SLEW_LIMIT).expect("no step happened");
            let send = map.interval(world.realtime(sent)).expect("a stamp of this exchange");
            let receive = map.interval(world.realtime(received)).expect("a stamp of this exchange");
            prop_assert!(send.earliest <= sent && sent <= send.latest, "{:?} {}", send, sent);
            prop_assert!(receive.earliest <= received && received <= receive.latest, "{:?} {}", receive, received);
            // Never worse than the raw reads.
            prop_assert!(send.earliest >= before.after && receive.latest <= after.before);
        }

        /// A slew at the kernel's maximum rate starts or ends within the exchange. Too much slew is
        /// refused; what is accepted is sound.
        #[test]
        fn bounds_are_sound_beside_a_fast_slew(
            permille in 0u64..=1000, sign in any::<bool>(), ends in any::<bool>(),
            wait in 0u64..500_000, flight_us in 1u64..100_000, wake in 0u64..500_000,
        ) {
            let (hz, start, width) = (1_000_000_000, 1u64 << 40, 100);
            let flight = flight_us * 1000;
            let total = 2 * width + wait + flight + wake;
            // Within the first or the last 1 % of the exchange.
            let part = total * permille / 100_000;
            let slew = if sign { 240_000_000 } else { -240_000_000 };
            let (bend, rates_ppb) =
                if ends { (part, [slew, 0]) } else { (total - part, [0, slew]) };
            let world = World { hz, start, bend, rates_ppb, step_ns: 0 };
            let sent = start + width + wait;
            let received = sent + flight;
            let before = world.bracket(start, width, 50);
            let after = world.bracket(received + wake, width, 50);
            let Some(map) = StampMap::new(before, after, period(hz), KERNEL_SLEW_LIMIT) else {
                return Ok(());
            };
            let send = map.interval(world.realtime(sent)).expect("a stamp of this exchange");
            let receive = map.interval(world.realtime(received)).expect("a stamp of this exchange");
            prop_assert!(send.earliest <= sent && sent <= send.latest, "{:?} {}", send, sent);
            prop_assert!(receive.earliest <= received && received <= receive.latest, "{:?} {}", receive, received);
        }

        /// A step that the limit cannot explain is detected.
        #[test]
        fn steps_are_refused(hz in 19_200_000u64..5_000_000_000, flight_us in 10u64..100_000, sign in any::<bool>()) {
            let flight = flight_us * hz / 1_000_000;
            // 0.1 % of the flight and both widths (at 19.2 MHz a tick is 52 ns), plus rounding.
            let size = i64::try_from(flight_us).unwrap() + 250 * 52 + 1_000;
            let step_ns = if sign { size } else { -size };
            let world = World { hz, start: 1 << 40, bend: 200 + flight / 2, rates_ppb: [0, 0], step_ns };
            let before = world.bracket(1 << 40, 100, 50);
            let after = world.bracket((1 << 40) + 100 + flight, 100, 50);
            prop_assert!(StampMap::new(before, after, period(hz), KERNEL_SLEW_LIMIT).is_none());
        }
    }

    #[test]
    fn a_stamp_of_another_exchange_is_refused() {
        let world = World { hz: 1_000_000_000, start: 0, bend: 0, rates_ppb: [0, 0], step_ns: 0 };
        let map = StampMap::new(
            world.bracket(10_000, 100, 50),
            world.bracket(50_000, 100, 50),
            period(1_000_000_000),
            KERNEL_SLEW_LIMIT,
        )
        .unwrap();
        assert_eq!(map.interval(world.realtime(5_000)), None);
        assert_eq!(map.interval(world.realtime(60_000)), None);
        let found = map.interval(world.realtime(11_000)).unwrap();
        // 1 us after the bracket: the bracket's half widths, 24.1 % of 1 us and the rounding.
        assert!(found.earliest >= 11_000 - 365 && found.latest <= 11_000 + 365, "{found:?}");
    }

    #[test]
    fn brackets_in_the_wrong_order_are_refused() {
        let world = World { hz: 1_000_000_000, start: 0, bend: 0, rates_ppb: [0, 0], step_ns: 0 };
        let (a, b) = (world.bracket(10_000, 100, 50), world.bracket(50_000, 100, 50));
        assert!(StampMap::new(b, a, period(1_000_000_000), KERNEL_SLEW_LIMIT).is_none());
    }
}
