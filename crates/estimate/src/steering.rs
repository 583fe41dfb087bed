//! The control law that keeps CLOCK_REALTIME with the estimate: pure numbers in, a command out.
//!
//! The plant is the kernel's clock: CLOCK_MONOTONIC_RAW times one plus the frequency that is set,
//! plus a phase that the kernel works off by itself, an eighth of what is left each second
//! (timevisor-linux `adjust`). So
//!
//! - *frequency* = base + integral. The base is fed forward: the estimate knows how much faster
//!   true time runs than CLOCK_MONOTONIC_RAW. The integral takes up what that leaves over (the
//!   kernel rounds the length of its ticks, some tens of ppb); it moves only while the offset is
//!   small, so that a slew does not wind it up.
//! - *phase* = the offset, at most `max_slew` times the kernel's time constant, so that the clock
//!   is never slewed faster than `max_slew`. The kernel has a second's delay, and 1/8 a second is
//!   far below what would make that oscillate.
//! - *step*: only where the operator allowed it, at one of the first `step_limit` updates, and for
//!   an offset above `step_threshold`, which the bound must prove: an offset that could be smaller
//!   is slewed.
//!
//! What it does not do: system calls, or steer on a status that is not to be relied on; the caller
//! holds then.

use timevisor_time::Duration;

/// The kernel works off 1/8 of the phase per second.
const PHASE_TIME_CONSTANT: Duration = Duration::from_secs(8);
/// The integral's time constant in seconds: 16 times slower than the phase's, so that the two do
/// not swing together.
const INTEGRAL_SECONDS: f64 = 128.0;
/// The integral never exceeds this: a thousand times the rounding that it is for would be somebody
/// else's doing.
const INTEGRAL_LIMIT: f64 = 1e-6;
/// An offset counts as no more than this, so that the last minute of a slew winds up no more than
/// some 50 ppb.
const INTEGRAL_CLAMP: Duration = Duration::from_micros(1);
/// Offsets beyond this are being slewed away and say nothing about the rate.
const INTEGRAL_RANGE: Duration = Duration::from_micros(500);
/// The frequency word takes this much (MAXFREQ, 500 ppm); the tick does the rest.
const FREQUENCY_LIMIT_PPM: f64 = 500.0;
/// Beyond this, ticks are changed, to leave the frequency word room to move.
const TICK_FROM_PPM: f64 = 490.0;
/// One microsecond more per tick of 10 ms.
const PPM_PER_TICK_US: f64 = 100.0;
/// The kernel takes a tick within a tenth of the nominal one.
const NOMINAL_TICK_US: i64 = 10_000;
const TICK_RANGE_US: i64 = 1_000;

/// Limits of the steering.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Parameters {
    /// The clock is never slewed faster than this, ppm. 500 is the kernel's own limit for
    /// adjtime(3).
    pub max_slew_ppm: u32,
    /// Offsets above this may be stepped; `None`: never.
    pub step_threshold: Option<Duration>,
    /// How many of the first updates may step.
    pub step_limit: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { max_slew_ppm: 500, step_threshold: None, step_limit: 3 }
    }
}

/// A parameter out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} {problem}")]
pub struct InvalidParameter {
    /// The field's name.
    pub name: &'static str,
    /// What is wrong and what would be right.
    pub problem: &'static str,
}

impl Parameters {
    /// How fast a clock under this law runs away from true time at most, where the rate that is fed forward is right: ppm.
    #[must_use]
    pub fn fastest_drift_ppm(&self) -> u32 {
        // The integral, and what the kernel rounds, are below one ppm each.
        self.max_slew_ppm.saturating_add(2)
    }

    /// Checks all limits.
    ///
    /// # Errors
    /// The first parameter that is out of range.
    pub fn validate(&self) -> Result<(), InvalidParameter> {
        let millisecond = Duration::from_millis(1);
        let checks = [
            (
                "max_slew_ppm",
                (1..=50_000).contains(&self.max_slew_ppm),
                "must be 1 to 50000: the kernel takes no larger phase",
            ),
            (
                "step_threshold",
                self.step_threshold.is_none_or(|t| t >= millisecond),
                "must be 1 ms or more: less is slewed away in seconds",
            ),
        ];
        match checks.into_iter().find(|(_, good, _)| !good) {
            Some((name, _, problem)) => Err(InvalidParameter { name, problem }),
            None => Ok(()),
        }
    }
}

/// What is known at an update.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Input {
    /// The estimate minus CLOCK_REALTIME.
    pub offset: Duration,
    /// True time is within this of the estimate.
    pub half_width: Duration,
    /// True seconds per second of CLOCK_MONOTONIC_RAW, minus one.
    pub base: f64,
    /// Since the last update.
    pub elapsed: Duration,
}

/// The kernel's rate correction, split over its two words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelRate {
    /// Length of a tick in microseconds; a microsecond more is 100 ppm faster.
    pub tick_us: i64,
    /// 2^-16 ppm.
    pub frequency: i64,
}

impl KernelRate {
    /// The nearest that the kernel can be set to; `ratio` is the rate minus one.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a float-to-integer `as` saturates, and both are clamped"
    )]
    pub fn nearest(ratio: f64) -> Self {
        let ppm = if ratio.is_finite() { ratio * 1e6 } else { 0.0 };
        let ticks =
            if ppm.abs() <= TICK_FROM_PPM { 0 } else { (ppm / PPM_PER_TICK_US).round() as i64 };
        let ticks = ticks.clamp(-TICK_RANGE_US, TICK_RANGE_US);
        let rest = ppm - ticks as f64 * PPM_PER_TICK_US;
        let rest = rest.clamp(-FREQUENCY_LIMIT_PPM, FREQUENCY_LIMIT_PPM);
        Self { tick_us: NOMINAL_TICK_US + ticks, frequency: (rest * 65_536.0).round() as i64 }
    }

    /// The rate minus one.
    #[must_use]
    pub fn ratio(self) -> f64 {
        let ticks = (self.tick_us - NOMINAL_TICK_US) as f64 * PPM_PER_TICK_US;
        (ticks + self.frequency as f64 / 65_536.0) * 1e-6
    }
}

/// What to do with the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// To be added at once, before the rest; zero nearly always.
    pub step: Duration,
    /// The rate from now on.
    pub rate: KernelRate,
    /// What the kernel is to slew, replacing what is left of the last.
    pub phase: Duration,
}

/// The law's state.
#[derive(Clone, Debug)]
pub struct Steering {
    parameters: Parameters,
    integral: f64,
    updates: u32,
}

impl Steering {
    /// No update yet.
    #[must_use]
    pub const fn new(parameters: Parameters) -> Self {
        Self { parameters, integral: 0.0, updates: 0 }
    }

    /// One update, about once a second.
    pub fn update(&mut self, input: &Input) -> Command {
        self.updates = self.updates.saturating_add(1);
        let step = self.step(input);
        let offset = input.offset - step;
        if offset.abs() <= INTEGRAL_RANGE {
            let seconds = input.elapsed.as_secs_f64().clamp(0.0, 16.0);
            let gain = seconds / (PHASE_TIME_CONSTANT.as_secs_f64() * INTEGRAL_SECONDS);
            let clamped = offset.max(-INTEGRAL_CLAMP).min(INTEGRAL_CLAMP);
            let moved = self.integral + gain * clamped.as_secs_f64();
            self.integral = moved.clamp(-INTEGRAL_LIMIT, INTEGRAL_LIMIT);
        }
        let limit = self.phase_limit();
        Command {
            step,
            rate: KernelRate::nearest(input.base + self.integral),
            phase: offset.max(-limit).min(limit),
        }
    }

    /// While nothing reliable is known: the rate stays, nothing is slewed.
    #[must_use]
    pub fn hold(&self, base: f64) -> Command {
        Command {
            step: Duration::ZERO,
            rate: KernelRate::nearest(base + self.integral),
            phase: Duration::ZERO,
        }
    }

    fn step(&self, input: &Input) -> Duration {
        let Some(threshold) = self.parameters.step_threshold else { return Duration::ZERO };
        // Proven, not only estimated: the whole interval lies beyond the threshold.
        let proven = input.offset.abs() - input.half_width > threshold;
        if proven && self.updates <= self.parameters.step_limit {
            input.offset
        } else {
            Duration::ZERO
        }
    }

    /// An eighth of it per second is `max_slew`.
    fn phase_limit(&self) -> Duration {
        let per_second = i64::from(self.parameters.max_slew_ppm);
        Duration::from_micros(per_second * (PHASE_TIME_CONSTANT.to_bits() >> 64) as i64)
    }
}

#[cfg(test)]
#[path = "steering_tests.rs"]
mod tests;
