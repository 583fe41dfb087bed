//! A host's oscillator and the counter that it drives.
//!
//! Relative frequency y(t), constant within each second of true time (as in clknetsim, the source
//! of the recorded traces):
//!
//! ```text
//! y = frequency + drift t + white + flicker + random walk + temperature sine + steps + ramps + hvac
//! ```
//!
//! The counter is the exact integral in fixed point (ticks and seconds both in units of 2^-64), so
//! counter(time) and time(counter) are inverses to the last tick and no rounding accumulates over a
//! day.
//!
//! What it does not do: stop. For a suspended or migrated counter, use a new oscillator.

use serde::Deserialize;
use timevisor_time::Duration;

use crate::random::Random;

/// How an oscillator behaves. A frequency above zero makes the counter run fast.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OscillatorModel {
    /// Constant error of the frequency, ppm.
    pub frequency_ppm: f64,
    /// Ageing, ppb per day.
    pub drift_ppb_per_day: f64,
    /// White frequency noise: Allan deviation at 1 s, ppb.
    pub white_ppb: f64,
    /// Flicker frequency noise: the floor of the Allan deviation, ppb.
    pub flicker_ppb: f64,
    /// Random walk of the frequency, ppb per square root of a second.
    pub wander_ppb: f64,
    /// Changes of the random walk's strength, each in force from its time on.
    pub wander_changes: Vec<WanderChange>,
    /// Air conditioning, day and night.
    pub temperature: Option<Sine>,
    /// Sudden changes, e.g. of the load.
    pub steps: Vec<FrequencyStep>,
    /// Gradual changes: the crystal warms up, or a fan stops.
    pub ramps: Vec<Ramp>,
    /// The effect of an air conditioner that switches between warm and cold.
    pub hvac: Option<Hvac>,
}

/// From `at_s` on, the frequency approaches a value `by_ppb` higher, as (1 - exp(-t / tau)). The
/// change is steepest at the start, `by_ppb / time_constant_s`.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ramp {
    /// When, s.
    pub at_s: f64,
    /// The total change, ppb.
    pub by_ppb: f64,
    /// The time after which 63 % of the change is done, s.
    pub time_constant_s: f64,
}

impl Ramp {
    fn ppb(&self, t: f64) -> f64 {
        let since = (t - self.at_s).max(0.0);
        self.by_ppb * (1.0 - libm::exp(-since / self.time_constant_s))
    }
}

/// The air's temperature is a square wave, and the crystal follows it: its frequency alternately
/// approaches `amplitude_ppb` and its negative. The change is steepest after a switch, at most
/// `2 amplitude_ppb / time_constant_s`.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hvac {
    /// The value that the frequency approaches, ppb.
    pub amplitude_ppb: f64,
    /// Time between two switches, s. It starts with a warm half.
    pub half_period_s: f64,
    /// The time constant with which the crystal follows the air, s; 0 means immediately, in steps.
    #[serde(default = "Hvac::crystal")]
    pub time_constant_s: f64,
}

impl Hvac {
    /// A crystal on a board, in air: two minutes.
    fn crystal() -> f64 {
        120.0
    }

    /// The deviation a second after it was `before`, ppb.
    fn next(&self, before: f64, t: f64) -> f64 {
        let warm = (t / self.half_period_s).rem_euclid(2.0) < 1.0;
        let target = if warm { self.amplitude_ppb } else { -self.amplitude_ppb };
        if self.time_constant_s <= 0.0 {
            return target;
        }
        target + (before - target) * libm::exp(-1.0 / self.time_constant_s)
    }
}

/// A sine added to the frequency.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sine {
    /// Largest excursion, ppb.
    pub amplitude_ppb: f64,
    /// Length of a cycle, s.
    pub period_s: f64,
}

/// The frequency changes by this much at the first whole second from `at_s` on.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrequencyStep {
    /// When, s.
    pub at_s: f64,
    /// By how much, ppb.
    pub by_ppb: f64,
}

/// The strength of the frequency's random walk from `at_s` on.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WanderChange {
    /// When, s.
    pub at_s: f64,
    /// Ppb per square root of a second.
    pub wander_ppb: f64,
}

impl Default for OscillatorModel {
    /// An ordinary crystal at constant temperature: that of the recorded LAN traces.
    fn default() -> Self {
        Self {
            frequency_ppm: 20.0,
            drift_ppb_per_day: 0.0,
            white_ppb: 0.0,
            flicker_ppb: 0.0,
            wander_ppb: 1.0,
            wander_changes: Vec::new(),
            temperature: None,
            steps: Vec::new(),
            ramps: Vec::new(),
            hvac: None,
        }
    }
}

/// One second of constant rate.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Ticks at the second's start, 2^-64 ticks.
    ticks: i128,
    /// 2^-28 ticks per second: a 3 GHz counter's frequency is then exact to 1.3e-18.
    rate: i128,
}

const RATE_SHIFT: u32 = 28;

impl Segment {
    fn whole_second(&self) -> i128 {
        self.rate << (64 - RATE_SHIFT)
    }
}

/// One realization of a model. Ticks count from 0 at true time 0.
#[derive(Clone, Debug)]
pub struct Oscillator {
    segments: Vec<Segment>,
}

impl Oscillator {
    /// The first `seconds` of a counter of nominally `hz`; after them, the frequency stays
    /// constant.
    #[must_use]
    pub fn new(model: &OscillatorModel, hz: u64, seconds: usize, seed: u64) -> Self {
        let mut noise = Noise::new(model, seed);
        let mut ticks = 0;
        let segments = (0..seconds.max(1)).map(|second| {
            let y = noise.frequency(second);
            let segment = Segment { ticks, rate: fixed_rate(hz, y) };
            ticks += segment.whole_second();
            segment
        });
        Self { segments: segments.collect() }
    }

    /// Whole ticks at true time `t`, rounded down; 0 before the start.
    #[must_use]
    pub fn ticks(&self, t: Duration) -> u64 {
        let bits = t.to_bits().max(0);
        let last = self.segments.len() - 1;
        let index = usize::try_from(bits >> 64).map_or(last, |second| second.min(last));
        let segment = &self.segments[index];
        let within = bits - ((index as i128) << 64);
        let fraction = within & i128::from(u64::MAX);
        let ticks = segment.ticks
            + (within >> 64) * segment.whole_second()
            + ((fraction * segment.rate) >> RATE_SHIFT);
        u64::try_from(ticks >> 64).unwrap_or(u64::MAX)
    }

    /// The first true time at which the counter shows `ticks`.
    #[must_use]
    pub fn time(&self, ticks: u64) -> Duration {
        let wanted = i128::from(ticks) << 64;
        let index = self.segments.partition_point(|s| s.ticks <= wanted).saturating_sub(1);
        let segment = &self.segments[index];
        let missing = wanted - segment.ticks;
        let (seconds, rest) = (missing / segment.whole_second(), missing % segment.whole_second());
        // Rounded up: at the returned instant the tick has happened.
        let fraction = ((rest << RATE_SHIFT) + segment.rate - 1) / segment.rate;
        Duration::from_bits(((index as i128 + seconds) << 64) + fraction)
    }

    /// Relative frequency in the second that contains `t`, relative to `hz`.
    #[must_use]
    pub fn frequency(&self, t: Duration, hz: u64) -> f64 {
        let second = usize::try_from(t.to_bits() >> 64).unwrap_or(0).min(self.segments.len() - 1);
        self.segments[second].rate as f64 / (hz as f64 * (1_u64 << RATE_SHIFT) as f64) - 1.0
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "validated: a rate within 1000 ppm of a u32 of hertz"
)]
fn fixed_rate(hz: u64, y: f64) -> i128 {
    // The nominal part is exact; only the small part is a float.
    let nominal = i128::from(hz) << RATE_SHIFT;
    (nominal + (nominal as f64 * y) as i128).max(1)
}

/// Number of the flicker noise's processes; their time constants are spaced by a factor of 4, from
/// 1 s to three days.
const FLICKER_TIMES: usize = 10;

/// The random parts of the frequency, second by second.
struct Noise<'a> {
    model: &'a OscillatorModel,
    walk: Random,
    white: Random,
    flicker: Random,
    walked: f64,
    /// The air conditioner's part, ppb.
    conditioned: f64,
    processes: [f64; FLICKER_TIMES],
}

impl<'a> Noise<'a> {
    fn new(model: &'a OscillatorModel, seed: u64) -> Self {
        let mut flicker = Random::stream(seed, "oscillator flicker");
        Self {
            model,
            walk: Random::stream(seed, "oscillator walk"),
            white: Random::stream(seed, "oscillator white"),
            walked: 0.0,
            conditioned: 0.0,
            processes: std::array::from_fn(|_| flicker.normal()),
            flicker,
        }
    }

    /// Relative frequency in this second. Call it exactly once for every second, in order.
    fn frequency(&mut self, second: usize) -> f64 {
        let model = self.model;
        let t = second as f64;
        let changed = model.wander_changes.iter().rev().find(|change| change.at_s <= t);
        self.walked += changed.map_or(model.wander_ppb, |c| c.wander_ppb) * self.walk.normal();
        let white = model.white_ppb * self.white.normal();
        let sine = model.temperature.map_or(0.0, |sine| {
            sine.amplitude_ppb * libm::sin(std::f64::consts::TAU * t / sine.period_s)
        });
        let steps: f64 = model.steps.iter().filter(|s| s.at_s <= t).map(|s| s.by_ppb).sum();
        let ramps: f64 = model.ramps.iter().map(|ramp| ramp.ppb(t)).sum();
        self.conditioned = model.hvac.map_or(0.0, |hvac| hvac.next(self.conditioned, t));
        let drift = model.drift_ppb_per_day * t / 86_400.0;
        let slow = drift + sine + steps + ramps + self.conditioned;
        let ppb = slow + white + self.flicker() + self.walked;
        model.frequency_ppm * 1e-6 + ppb * 1e-9
    }

    /// A sum of Ornstein-Uhlenbeck processes of equal variance v whose time constants are spaced by
    /// r has a 1/f spectrum of level v / ln r, hence an Allan variance of 2 ln 2 v / ln r: for r =
    /// 4, v itself.
    fn flicker(&mut self) -> f64 {
        let mut tau = 1.0;
        let mut sum = 0.0;
        for x in &mut self.processes {
            let kept = libm::exp(-1.0 / tau);
            *x = kept * *x + (1.0 - kept * kept).sqrt() * self.flicker.normal();
            sum += *x;
            tau *= 4.0;
        }
        self.model.flicker_ppb * sum
    }
}

#[cfg(test)]
#[path = "oscillator_tests.rs"]
mod tests;
