//! A simple estimate: a weighted straight line through recent exchanges.
//!
//! Each exchange says "at the middle of my round trip, true time was the middle of the reference's stamps", with a
//! standard error of half the queueing it saw (round trip above the window's minimum) plus what the oscillator may have
//! wandered since. The rate has a prior of its hard limits, so that one exchange is enough to begin with.
//! Floats are offsets from the newest exchange in seconds, never absolute time.
//!
//! Limitations: symmetric path assumed; not the estimator of theory/clock.md section 3, which replaces it. The hard
//! bounds do not depend on it.

use std::collections::VecDeque;

use timevisor_time::{Duration, Instant, Period, Tai};

use crate::estimators::Estimate;
use crate::exchange::Exchange;
use crate::rate::RateLimits;

/// Stamping noise that no round trip shows: interrupt latency, granularity of the reference's stamps.
const STAMP_NOISE_S: f64 = 100e-9;

#[derive(Clone, Copy, Debug)]
struct Sample {
    counter: u64,
    time: Instant<Tai>,
    round_trip: u64,
}

/// The exchanges in the window.
#[derive(Clone, Debug)]
pub struct Fit {
    samples: VecDeque<Sample>,
    window: usize,
    wander: f64,
}

impl Fit {
    /// An empty window of `window` exchanges; `wander` is the relative rate change to allow for.
    #[must_use]
    pub fn new(window: usize, wander: f64) -> Self {
        Self { samples: VecDeque::with_capacity(window), window, wander }
    }

    /// Takes an exchange in; the oldest one leaves a full window.
    pub fn push(&mut self, exchange: &Exchange) {
        if self.samples.len() == self.window {
            self.samples.pop_front();
        }
        let time = exchange.tb + (exchange.te - exchange.tb).half();
        self.samples.push_back(Sample {
            counter: exchange.middle(),
            time,
            round_trip: exchange.round_trip(),
        });
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    /// The line at counter value `now`; `None` while there is no exchange.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive period that fits its word"
    )]
    pub fn at(&self, now: u64, limits: &RateLimits) -> Option<Estimate> {
        let newest = *self.samples.back()?;
        let nominal = limits.middle();
        let secs = |ticks: u64| nominal.span(ticks).as_secs_f64();
        let fastest = self.samples.iter().map(|s| s.round_trip).min()?;
        let prior = (limits.half_width().ppb() * 1e-9).max(1e-12);

        // Normal equations of y = a + b x; y is what the reference says beyond the nominal rate.
        let (mut s, mut sx, mut sxx, mut sy, mut sxy) = (0.0, 0.0, 1.0 / (prior * prior), 0.0, 0.0);
        let mut points = Vec::with_capacity(self.samples.len());
        for sample in &self.samples {
            let ticks = newest.counter.wrapping_sub(sample.counter);
            let x = -secs(ticks);
            let y = ((sample.time - newest.time) + nominal.span(ticks)).as_secs_f64();
            let sigma = STAMP_NOISE_S + secs(sample.round_trip - fastest) / 2.0 - x * self.wander;
            let w = 1.0 / (sigma * sigma);
            points.push((x, y, w));
            s += w;
            sx += w * x;
            sxx += w * x * x;
            sy += w * y;
            sxy += w * x * y;
        }
        let det = s * sxx - sx * sx;
        let (a, b) = ((sy * sxx - sx * sxy) / det, (s * sxy - sx * sy) / det);
        let ahead = now.wrapping_sub(newest.counter);
        let x = secs(ahead);
        let chi2: f64 = points.iter().map(|(x, y, w)| w * (y - a - b * x).powi(2)).sum();
        let scale = (chi2 / (points.len() as f64 - 2.0).max(1.0)).max(1.0);
        let variance = scale * (sxx - 2.0 * sx * x + s * x * x) / det + (x * self.wander).powi(2);
        let bits = nominal.to_bits() as f64 * b;
        let period = Period::from_bits((nominal.to_bits() as i128 + bits as i128).max(1) as u64);
        Some(Estimate {
            time: newest.time + nominal.span(ahead) + Duration::from_secs_f64(a + b * x),
            period: period.clamp(limits.shortest, limits.longest),
            error: Duration::from_secs_f64(variance.max(0.0).sqrt()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_time::RateError;

    const HZ: u64 = 1_000_000_000;

    fn limits() -> RateLimits {
        RateLimits::around(Period::from_hz(HZ).unwrap(), RateError::from_ppm(100))
    }

    /// A counter that is 20 ppm slow; `queue_ns` delays the answer.
    fn exchange(second: u64, queue_ns: i128) -> Exchange {
        let ta = second * HZ;
        let true_ns = |counter: u64| i128::from(counter) + i128::from(counter) / 50_000;
        let t = Instant::from_unix_nanos(1_700_000_000_000_000_000 + true_ns(ta) + 30_000);
        let tf = ta + 60_000 + u64::try_from(queue_ns).unwrap();
        Exchange { ta, tb: t, te: t, tf, error: Duration::ZERO }
    }

    #[test]
    fn finds_offset_and_rate_through_queueing() {
        let mut fit = Fit::new(64, 5e-8);
        for n in 0..64 {
            fit.push(&exchange(n * 16, if n % 3 == 0 { 0 } else { 40_000 + i128::from(n) * 1000 }));
        }
        let e = fit.at(64 * 16 * HZ, &limits()).unwrap();
        let ppm = e.period.relative_to(Period::from_hz(HZ).unwrap()) * 1e6;
        assert!((ppm - 20.0).abs() < 0.1, "{ppm}");
        let truth = Instant::from_unix_nanos(
            1_700_000_000_000_000_000 + i128::from(64 * 16 * HZ) * 50_001 / 50_000,
        );
        assert!((e.time - truth).abs() < Duration::from_micros(5), "{}", e.time - truth);
        assert!(e.error < Duration::from_micros(5), "{}", e.error);
    }

    #[test]
    fn one_exchange_is_enough_to_begin() {
        let mut fit = Fit::new(64, 5e-8);
        assert!(fit.at(0, &limits()).is_none());
        fit.push(&exchange(1, 0));
        let e = fit.at(2 * HZ, &limits()).unwrap();
        // One second ahead with a rate known to 100 ppm: 100 us one sigma.
        assert!(
            e.error > Duration::from_micros(90) && e.error < Duration::from_micros(110),
            "{}",
            e.error
        );
    }
}
