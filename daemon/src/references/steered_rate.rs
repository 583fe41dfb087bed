//! How fast a clock is steered: its rate against the counter's, as seen between readings.
//!
//! A servo that pulls a clock in changes its rate by more than any crystal does: ptp4l with software
//! stamps sets hundreds of ppm while the path's delay swings. Since the measurement, the clock may
//! have moved by that much.

use std::collections::VecDeque;

use timevisor_time::{Duration, Instant, Period, Utc};

/// What was seen for this long counts: the servo may do it again before the next reading.
const SPAN: Duration = Duration::from_secs(16);
/// Between readings that are closer, the readings' own errors weigh too much.
const SHORTEST: Duration = Duration::from_millis(20);

/// A reading: the counter before and after, and the clock.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub before: u64,
    pub clock: Instant<Utc>,
    pub after: u64,
}

#[derive(Debug, Default)]
pub struct SteeredRate {
    last: Option<Reading>,
    /// When a rate was seen, and how far it was from the counter's, as a ratio.
    seen: VecDeque<(Instant<Utc>, f64)>,
}

impl SteeredRate {
    /// Takes in a reading; `period` is the counter's. Returns the largest distance of the two rates
    /// lately, as a ratio.
    pub fn observe(&mut self, reading: Reading, period: Period) -> f64 {
        if let Some(last) = self.last {
            let moved = reading.clock - last.clock;
            let most = period.span_ceil(reading.after.wrapping_sub(last.before));
            let least = period.span(reading.before.wrapping_sub(last.after));
            if most < SHORTEST {
                return self.largest();
            }
            let apart = (moved - least).max(most - moved).max(Duration::ZERO);
            self.seen.push_back((reading.clock, apart.as_secs_f64() / most.as_secs_f64()));
        }
        self.last = Some(reading);
        while self.seen.front().is_some_and(|(at, _)| reading.clock - *at > SPAN) {
            self.seen.pop_front();
        }
        self.largest()
    }

    fn largest(&self) -> f64 {
        self.seen.iter().map(|(_, apart)| *apart).fold(0.0, f64::max)
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

    #[test]
    fn the_fastest_steering_of_the_last_seconds_counts() {
        let period = Period::from_hz(1_000_000_000).unwrap();
        let mut rate = SteeredRate::default();
        let mut clock = Instant::from_unix_nanos(1_700_000_000_000_000_000);
        let mut seen = Vec::new();
        for second in 0..40u64 {
            let ppm = if (10..12).contains(&second) { -700 } else { 10 };
            let counter = second * 1_000_000_000;
            let reading = Reading { before: counter, clock, after: counter + 1_000 };
            seen.push(rate.observe(reading, period) * 1e6);
            clock = clock + Duration::from_nanos(1_000_000_000 + ppm * 1000);
        }
        assert!((10.0..13.0).contains(&seen[9]), "{}", seen[9]);
        assert!((700.0..703.0).contains(&seen[12]) && seen[20] == seen[12], "{seen:?}");
        assert!(seen[39] < 13.0, "over after 16 s: {}", seen[39]);
        rate.restart();
        let reading = Reading { before: 0, clock: Instant::from_unix_nanos(0), after: 1 };
        assert!(rate.observe(reading, period).abs() < f64::EPSILON);
    }
}
