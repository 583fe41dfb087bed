//! Simulated exchanges for tests, with the models of the shared traces (random-walk frequency,
//! shifted-exponential delays), small enough for a debug build.

use timevisor_time::{Duration, Instant, Period, Tai};

use super::{Parameters, ShiftedExponential};
use crate::estimators::Estimator;
use crate::exchange::Exchange;

/// Counter and reference both have a resolution of a nanosecond.
pub const HZ: u64 = 1_000_000_000;

/// splitmix64.
pub struct Random(u64);

impl Random {
    /// A deterministic generator.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform between 0 and 1, both excluded.
    pub fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    /// Normal with mean 0 and variance 1.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (core::f64::consts::TAU * self.uniform()).cos()
    }
}

/// A counter that runs 20 ppm fast and wanders, a path with exponential queueing, and a perfect
/// reference.
pub struct World {
    random: Random,
    /// True time, s.
    pub now_s: f64,
    /// Counter minus true time, s, now.
    pub counter_ahead_s: f64,
    /// Relative frequency of the counter with respect to its nominal one.
    pub frequency: f64,
    /// Random walk of the frequency, 1/sqrt(s).
    pub wander: f64,
    /// Minimum delays, s.
    pub minimum_s: [f64; 2],
    /// Mean queueing, s.
    pub queueing_s: f64,
    /// Error of the reference, s.
    pub reference_error_s: f64,
    /// Queueing is the mean of twelve exponentials instead of one, and thus never near 0.
    pub erlang: bool,
}

/// The reference's time at true time 0: any large number.
const EPOCH_S: i64 = 1_262_304_000;
/// The counter at true time 0.
const COUNTER_AT_START: u64 = 1 << 50;

impl World {
    /// The model of condition a: 30 us minimum, 20 us queueing, wander 1e-9.
    pub fn lan(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            now_s: 0.0,
            counter_ahead_s: 0.0,
            frequency: 20e-6,
            wander: 1e-9,
            minimum_s: [30e-6; 2],
            queueing_s: 20e-6,
            reference_error_s: 0.0,
            erlang: false,
        }
    }

    /// Advances time; the frequency is constant within steps of at most a second.
    pub fn advance(&mut self, span_s: f64) {
        let mut left = span_s;
        while left > 0.0 {
            let step = left.min(1.0);
            self.counter_ahead_s += self.frequency * step;
            self.frequency += self.wander * step.sqrt() * self.random.normal();
            left -= step;
        }
        self.now_s += span_s;
    }

    /// A queueing delay with mean 1.
    fn excess(&mut self) -> f64 {
        let stages: u8 = if self.erlang { 12 } else { 1 };
        (0..stages).map(|_| self.random.exponential()).sum::<f64>() / f64::from(stages)
    }

    fn ns(seconds: f64) -> i64 {
        Duration::from_secs_f64(seconds).floor_nanos()
    }

    /// The counter now.
    pub fn counter(&self) -> u64 {
        COUNTER_AT_START.wrapping_add_signed(Self::ns(self.now_s) + Self::ns(self.counter_ahead_s))
    }

    /// True time now.
    pub fn time(&self) -> Instant<Tai> {
        Instant::from_unix_nanos(i128::from(EPOCH_S) * 1_000_000_000)
            + Duration::from_secs_f64(self.now_s)
    }

    /// An exchange that begins now.
    pub fn exchange(&mut self) -> Exchange {
        let ta = self.counter();
        let delay = [0, 1].map(|k| self.minimum_s[k] + self.queueing_s * self.excess());
        self.advance(delay[0]);
        let tb = self.time() + Duration::from_secs_f64(self.reference_error_s);
        self.advance(delay[1]);
        Exchange { ta, tb, te: tb, tf: self.counter(), error: Duration::ZERO }
    }

    /// Runs `count` exchanges, one every `poll_s`; returns the estimator's squared errors just
    /// before each, s^2.
    pub fn run(
        &mut self,
        estimator: &mut ShiftedExponential,
        count: usize,
        poll_s: f64,
    ) -> Vec<f64> {
        (0..count)
            .map(|_| {
                let begin = self.now_s;
                let exchange = self.exchange();
                estimator.observe(&exchange);
                self.advance(begin + poll_s - self.now_s);
                self.error_s(estimator).powi(2)
            })
            .collect()
    }

    /// Estimate minus truth now, s.
    pub fn error_s(&self, estimator: &ShiftedExponential) -> f64 {
        let estimate = estimator.at(self.counter()).expect("an exchange was observed");
        (estimate.time - self.time()).as_secs_f64()
    }
}

/// An estimator with default parameters for the simulated counter.
pub fn estimator() -> ShiftedExponential {
    ShiftedExponential::new(&Parameters::default(), nominal())
}

/// The counter's nominal period.
pub fn nominal() -> Period {
    Period::from_hz(HZ).expect("1 GHz")
}

/// Square root of the mean.
pub fn rms(squares: &[f64]) -> f64 {
    (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
}
