//! `counter` and `[clock]`: the host's counter, its estimate and CLOCK_REALTIME.

use std::path::PathBuf;
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::IgnoredAny;
use timevisor_estimate::steering;
use timevisor_linux::counter::Choice;

use super::span;

/// `counter = "auto" | "tsc" | "cntvct" | "monotonic-raw"`.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CounterChoice {
    #[default]
    Auto,
    Tsc,
    Cntvct,
    MonotonicRaw,
}

impl From<CounterChoice> for Choice {
    fn from(choice: CounterChoice) -> Self {
        match choice {
            CounterChoice::Auto => Self::Auto,
            CounterChoice::Tsc => Self::Tsc,
            CounterChoice::Cntvct => Self::Cntvct,
            CounterChoice::MonotonicRaw => Self::MonotonicRaw,
        }
    }
}

/// `[clock]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClockConfig {
    /// The leap second table; rejected after its expiry date.
    pub leap_table: PathBuf,
    /// TAI - UTC in seconds, stated by the operator instead of the table.
    pub tai_offset: Option<i16>,
    /// How often pages are written without other events.
    #[serde(with = "humantime_serde")]
    pub publish_interval: StdDuration,
    /// How long a page's status is valid after the daemon's last write.
    #[serde(with = "humantime_serde")]
    pub validity: StdDuration,
    /// The former place of the statement about the oscillator, now in `[oscillator]`.
    pub unmeasured_rate_ppm: Option<IgnoredAny>,
    pub measured_rate_ppm: Option<IgnoredAny>,
    /// Without a new exchange for this long, the clock is free running.
    #[serde(with = "humantime_serde")]
    pub stale_after: StdDuration,
    /// The half-width that somebody requires; servers are then polled as often as it takes.
    #[serde(with = "humantime_serde::option")]
    pub required_bound: Option<StdDuration>,
    /// Steer CLOCK_REALTIME by the estimate.
    pub discipline: bool,
    /// The maximum slew rate of CLOCK_REALTIME.
    pub max_slew_ppm: u32,
    /// A proven offset above this is stepped, at one of the first `step_limit` updates; without it,
    /// CLOCK_REALTIME is never stepped.
    #[serde(with = "humantime_serde::option")]
    pub step_threshold: Option<StdDuration>,
    pub step_limit: u32,
}

impl Default for ClockConfig {
    fn default() -> Self {
        Self {
            leap_table: PathBuf::from(timevisor_time::leap::SYSTEM_PATH),
            tai_offset: None,
            publish_interval: StdDuration::from_secs(1),
            validity: StdDuration::from_secs(10),
            unmeasured_rate_ppm: None,
            measured_rate_ppm: None,
            stale_after: StdDuration::from_secs(80),
            required_bound: None,
            discipline: false,
            max_slew_ppm: 500,
            step_threshold: None,
            step_limit: 3,
        }
    }
}

impl ClockConfig {
    /// Validates every key.
    pub fn validate(&self) -> Result<()> {
        let interval = self.publish_interval;
        ensure!(
            interval >= StdDuration::from_millis(10) && interval <= StdDuration::from_secs(60),
            "clock.publish_interval must be from 10ms to 60s"
        );
        ensure!(
            self.validity >= 3 * interval,
            "clock.validity must be at least 3 publish intervals"
        );
        ensure!(!self.stale_after.is_zero(), "clock.stale_after must be positive");
        for (key, value) in [
            ("unmeasured_rate_ppm", &self.unmeasured_rate_ppm),
            ("measured_rate_ppm", &self.measured_rate_ppm),
        ] {
            ensure!(
                value.is_none(),
                "clock.{key} is now oscillator.{key}: write it below [oscillator]"
            );
        }
        self.steering().validate().context("[clock]")
    }

    /// How CLOCK_REALTIME is steered, if enabled.
    pub fn steering(&self) -> steering::Parameters {
        steering::Parameters {
            max_slew_ppm: self.max_slew_ppm,
            step_threshold: self.step_threshold.map(span),
            step_limit: self.step_limit,
        }
    }
}
