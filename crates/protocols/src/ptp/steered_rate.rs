//! How fast a clock is steered: its rate against the counter's, as seen between readings.
//!
//! A servo that pulls a clock in changes its rate by more than any crystal does: ptp4l with software
//! stamps sets hundreds of ppm while the path's delay swings. Since the measurement, the clock may
//! have moved by that much.
//!
//! A difference that no kernel would slew is a step, and shows no rate.
//!
//! What it does not do: read clocks.

use std::collections::VecDeque;

use timevisor_time::{Duration, Instant, Period, Utc};

/// What was seen for this long counts: the servo may do it again before the next reading.
const SPAN: Duration = Duration::from_secs(16);
/// Between readings that are closer, the readings' own errors weigh too much.
const SHORTEST: Duration = Duration::from_millis(20);
/// The kernel lets a tick be a tenth longer or shorter, and the frequency 500 ppm beside it
/// (kernel/time/ntp.c): what is beyond is a step.
const FASTEST: f64 = 0.1006;

/// A reading: the counter before and after, and the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The counter, no later than the clock was read.
    pub before: u64,
    /// The clock; its timescale does not matter, because only differences count.
    pub clock: Instant<Utc>,
    /// The counter, no earlier than the clock was read.
    pub after: u64,
}

/// The rates of one clock in the last 16 s, each as its distance from the counter's rate.
#[derive(Clone, Debug, Default)]
pub struct SteeredRate {
    last: Option<Reading>,
    /// When a rate was seen, and how far it was from the counter's, as a ratio.
    seen: VecDeque<(Instant<Utc>, f64)>,
}

impl SteeredRate {
    /// Takes in a reading; `period` is the counter's. Returns true if the clock was stepped since the
    /// last one.
    pub fn observe(&mut self, reading: Reading, period: Period) -> bool {
        if let Some(last) = self.last {
            let moved = reading.clock - last.clock;
            let most = period.span_ceil(reading.after.wrapping_sub(last.before));
            let least = period.span(reading.before.wrapping_sub(last.after));
            if most < SHORTEST {
                return false;
            }
            let apart = (moved - least).max(most - moved).max(Duration::ZERO);
            let apart = apart.as_secs_f64() / most.as_secs_f64();
            if apart > FASTEST {
                self.restart();
                self.last = Some(reading);
                return true;
            }
            self.seen.push_back((reading.clock, apart));
        }
        self.last = Some(reading);
        while self.seen.front().is_some_and(|(at, _)| reading.clock - *at > SPAN) {
            self.seen.pop_front();
        }
        false
    }

    /// By how much steering may have moved the clock since a measurement of this age: the largest
    /// distance of the two rates lately, for that long. Clocks that differ may date a measurement
    /// after the reading, so the sign of `age` does not matter. `None` while no rate was seen: a
    /// servo that ended long ago may have left the clock at any.
    #[must_use]
    pub fn moved_within(&self, age: Duration) -> Option<Duration> {
        let largest = self.seen.iter().map(|(_, apart)| *apart).reduce(f64::max)?;
        Some(Duration::from_secs_f64(age.as_secs_f64().abs() * largest))
    }

    /// The clock or the counter was stepped: what was seen across that is no rate.
    pub fn restart(&mut self) {
        self.last = None;
        self.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn counter() -> Period {
        Period::from_hz(SECOND).unwrap()
    }

    /// The clock's rate lately, in ppm: what it moves in a second, in us.
    fn ppm(rate: &SteeredRate) -> f64 {
        rate.moved_within(Duration::from_secs(1)).map_or(0.0, |moved| moved.as_secs_f64() * 1e6)
    }

    #[test]
    fn the_fastest_steering_of_the_last_seconds_counts() {
        let mut rate = SteeredRate::default();
        let mut clock = Instant::from_unix_nanos(1_700_000_000_000_000_000);
        let mut seen = Vec::new();
        for second in 0..40u64 {
            let steered = if (10..12).contains(&second) { -700 } else { 10 };
            let count = second * SECOND;
            rate.observe(Reading { before: count, clock, after: count + 1_000 }, counter());
            seen.push(ppm(&rate));
            clock = clock + Duration::from_nanos(1_000_000_000 + steered * 1000);
        }
        assert!((10.0..13.0).contains(&seen[9]), "{}", seen[9]);
        assert!((700.0..703.0).contains(&seen[12]) && seen[20] == seen[12], "{seen:?}");
        assert!(seen[39] < 13.0, "over after 16 s: {}", seen[39]);
        rate.restart();
        let reading = Reading { before: 0, clock: Instant::from_unix_nanos(0), after: 1 };
        rate.observe(reading, counter());
        assert_eq!(rate.moved_within(Duration::from_secs(1)), None);
    }

    /// Two readings a second apart with a clock that gained 100 us: 100 ppm, and what the readings
    /// took.
    #[test]
    fn the_move_grows_with_the_age_in_either_direction() {
        let mut rate = SteeredRate::default();
        let start = Instant::from_unix_nanos(0);
        rate.observe(Reading { before: 0, clock: start, after: 0 }, counter());
        assert_eq!(rate.moved_within(Duration::from_secs(9)), None, "no rate yet");
        let clock = start + Duration::from_micros(1_000_100);
        rate.observe(Reading { before: SECOND, clock, after: SECOND }, counter());
        for (age, moved_us) in [(0, 0), (2, 200), (-3, 300)] {
            let moved = rate.moved_within(Duration::from_secs(age)).unwrap();
            let wanted = Duration::from_micros(moved_us);
            assert!((moved - wanted).abs() < Duration::from_nanos(1), "{age}: {moved}");
        }
    }

    /// ptp4l sets a clock right at its first offsets, by hours if need be.
    #[test]
    fn a_step_is_no_rate() {
        let mut rate = SteeredRate::default();
        let mut clock = Instant::from_unix_nanos(1_700_000_000_000_000_000);
        for second in 0..3u64 {
            rate.observe(
                Reading { before: second * SECOND, clock, after: second * SECOND },
                counter(),
            );
            clock = clock + Duration::from_micros(1_000_020);
        }
        assert!((20.0..20.1).contains(&ppm(&rate)), "{}", ppm(&rate));
        for step in [-36, 36] {
            clock = clock + Duration::from_secs(step);
            let count = 3 * SECOND;
            assert!(rate.observe(Reading { before: count, clock, after: count }, counter()));
            assert_eq!(rate.moved_within(Duration::from_secs(1)), None, "{step}");
            clock = clock + Duration::from_micros(1_000_050);
            let count = 4 * SECOND;
            rate.observe(Reading { before: count, clock, after: count }, counter());
            assert!((50.0..50.1).contains(&ppm(&rate)), "{}", ppm(&rate));
            rate = SteeredRate::default();
            let from = clock - Duration::from_secs(1);
            rate.observe(Reading { before: 2 * SECOND, clock: from, after: 2 * SECOND }, counter());
        }
    }

    /// Readings 1 ms apart that each err by 10 us would show 10,000 ppm.
    #[test]
    fn readings_that_are_too_close_show_no_rate() {
        let mut rate = SteeredRate::default();
        let start = Instant::from_unix_nanos(0);
        for millisecond in 0..19u64 {
            let count = millisecond * SECOND / 1000;
            let error = Duration::from_micros(if millisecond % 2 == 0 { 10 } else { -10 });
            let clock = start + counter().span(count) + error;
            rate.observe(Reading { before: count, clock, after: count }, counter());
        }
        assert_eq!(rate.moved_within(Duration::from_secs(1)), None);
    }
}
