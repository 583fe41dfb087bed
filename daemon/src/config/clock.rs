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
#[derive(Clone, Copy, Debug, Default, Deserialize, clap::ValueEnum)]
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
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClockConfig {
    /// The leap second table; refused when it has expired.
    pub leap_table: PathBuf,
    /// TAI - UTC in seconds, instead of the table: the operator's word.
    pub tai_offset: Option<i16>,
    /// How often pages are written when nothing else happens.
    #[serde(with = "humantime_serde")]
    pub publish_interval: StdDuration,
    /// How long a page's status holds without the daemon writing it again.
    #[serde(with = "humantime_serde")]
    pub validity: StdDuration,
    /// Where the statement about the oscillator was before `[oscillator]`.
    pub unmeasured_rate_ppm: Option<IgnoredAny>,
    pub measured_rate_ppm: Option<IgnoredAny>,
    /// Without a new exchange for this long the clock is free running.
    #[serde(with = "humantime_serde")]
    pub stale_after: StdDuration,
    /// The half-width that somebody needs; servers are then polled as often as that takes.
    #[serde(with = "humantime_serde::option")]
    pub required_bound: Option<StdDuration>,
    /// Keep CLOCK_REALTIME with the estimate.
    pub discipline: bool,
    /// The fastest that CLOCK_REALTIME is slewed.
    pub max_slew_ppm: u32,
    /// A proven offset above this is stepped, at one of the first `step_limit` updates; never
    /// without it.
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
    /// Checks every key.
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

    /// How CLOCK_REALTIME is steered, if it is.
    pub fn steering(&self) -> steering::Parameters {
        steering::Parameters {
            max_slew_ppm: self.max_slew_ppm,
            step_threshold: self.step_threshold.map(span),
            step_limit: self.step_limit,
        }
    }
}
