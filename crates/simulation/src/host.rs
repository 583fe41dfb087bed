//! The simulated machine's deviations from a perfect one: stamping noise, timer lateness, daemon
//! restarts.
//!
//! What it does not do: run anything. [`crate::world`] runs the daemon's parts on it.

use serde::Deserialize;
use timevisor_time::Duration;

use crate::link::micros;
use crate::random::Random;

/// The client's machine and how its daemon is configured.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostModel {
    /// Nominal frequency of the counter, Hz.
    pub counter_hz: u64,
    /// Counter value at the start; near 2^64 it wraps.
    pub counter_start: u64,
    /// The claimed error of the nominal frequency (the calibration's error), ppm. The true error is
    /// `oscillator.frequency_ppm`.
    pub calibration_error_ppm: f64,
    /// Interval between requests, s.
    pub poll_s: f64,
    /// Requests at the start.
    pub burst: u32,
    /// Interval within the burst, s.
    pub burst_spacing_s: f64,
    /// Mean of the exponential lateness of timers, us.
    pub timer_latency_us: f64,
    /// Mean of the exponential time between a stamp and the wire, each way, us.
    pub stamp_noise_us: f64,
    /// Stamps that are milliseconds off, like those of a virtual machine that lost the processor.
    pub outliers: Option<Outliers>,
    /// Stops and restarts of the daemon.
    pub restarts: Vec<Restart>,
}

/// An additional error with this probability per stamp, uniform on a range.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outliers {
    /// Per stamp.
    pub probability: f64,
    /// Smallest, us.
    pub from_us: f64,
    /// Largest, us.
    pub to_us: f64,
}

/// The daemon dies at `at_s`, and restarts `down_s` later.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// When, s.
    pub at_s: f64,
    /// How long nothing is published, s.
    #[serde(default = "two")]
    pub down_s: f64,
    /// Resumes from the published lines, as after a crash; otherwise starts from scratch, as after
    /// a lost journal.
    #[serde(default = "yes")]
    pub warm: bool,
}

fn two() -> f64 {
    2.0
}

fn yes() -> bool {
    true
}

impl Default for HostModel {
    /// The daemon's defaults on a machine with perfect stamps, so that a run measures the network
    /// and the estimate.
    fn default() -> Self {
        Self {
            counter_hz: 1_000_000_000,
            counter_start: 5_000_000_000,
            calibration_error_ppm: 0.0,
            poll_s: 4.0,
            burst: 8,
            burst_spacing_s: 2.0,
            timer_latency_us: 50.0,
            stamp_noise_us: 0.0,
            outliers: None,
            restarts: Vec::new(),
        }
    }
}

/// The random part of a host.
#[derive(Clone, Debug)]
pub struct Noise {
    timer_latency_us: f64,
    stamp_noise_us: f64,
    outliers: Option<Outliers>,
    timers: Random,
    stamps: Random,
    stolen: Random,
}

impl Noise {
    /// The noise of `model` in the world of `seed`.
    #[must_use]
    pub fn new(model: &HostModel, seed: u64) -> Self {
        Self {
            timer_latency_us: model.timer_latency_us,
            stamp_noise_us: model.stamp_noise_us,
            outliers: model.outliers,
            timers: Random::stream(seed, "host timers"),
            stamps: Random::stream(seed, "host stamps"),
            stolen: Random::stream(seed, "host outliers"),
        }
    }

    /// Draws a timer's lateness.
    pub fn lateness(&mut self) -> Duration {
        micros(self.timer_latency_us * self.timers.exponential())
    }

    /// Draws the time between a stamp and the packet on the wire.
    pub fn stamp(&mut self) -> Duration {
        let mut us = self.stamp_noise_us * self.stamps.exponential();
        if let Some(outliers) = self.outliers {
            let (hit, place) = (self.stolen.chance(outliers.probability), self.stolen.uniform());
            us += if hit {
                outliers.from_us + place * (outliers.to_us - outliers.from_us)
            } else {
                0.0
            };
        }
        micros(us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_have_their_share_and_their_range() {
        let outliers = Some(Outliers { probability: 0.05, from_us: 2000.0, to_us: 10_000.0 });
        let mut noise = Noise::new(&HostModel { outliers, ..HostModel::default() }, 1);
        let stamps: Vec<_> = (0..20_000).map(|_| noise.stamp()).collect();
        let hit: Vec<_> = stamps.iter().filter(|s| **s > Duration::ZERO).collect();
        assert!((hit.len() as f64 / 20_000.0 - 0.05).abs() < 0.006, "{}", hit.len());
        let range = Duration::from_millis(2)..=Duration::from_millis(10);
        assert!(hit.iter().all(|s| range.contains(*s)));
    }
}
