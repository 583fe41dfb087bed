//! The configuration: one commented TOML file, unknown keys refused, every value checked before anything starts.
//!
//! The file that packages install, with every key explained, is packaging/timevisord.toml; a test parses it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use timevisor_estimate::Parameters;
use timevisor_linux::counter::Choice;
use timevisor_protocols::control::TimeType;
use timevisor_time::{Duration, RateError};

/// Where the daemon looks when it is not told.
pub const DEFAULT_PATH: &str = "/etc/timevisor/timevisord.toml";

/// The whole file. Every key has a default; with no file at all, the host follows its own CLOCK_REALTIME.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub run_directory: PathBuf,
    pub counter: CounterChoice,
    pub clock: ClockConfig,
    #[serde(rename = "reference")]
    pub references: Vec<ReferenceConfig>,
    pub guests: GuestsConfig,
}

/// `counter = "auto" | "tsc" | "cntvct" | "monotonic-raw"`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
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
    pub unmeasured_rate_ppm: u32,
    pub measured_rate_ppm: u32,
    /// Without a new exchange for this long the clock is free running.
    #[serde(with = "humantime_serde")]
    pub stale_after: StdDuration,
}

/// `[[reference]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReferenceConfig {
    /// This machine's CLOCK_REALTIME, kept by somebody else.
    System {
        /// The bound to use instead of the kernel's; for machines whose clock nobody disciplines.
        #[serde(default, with = "humantime_serde::option")]
        assumed_max_error: Option<StdDuration>,
        #[serde(default = "one_second", with = "humantime_serde")]
        poll: StdDuration,
    },
    /// An NTP server.
    Ntp {
        /// `host`, `host:port` or `[address]:port`.
        address: String,
        #[serde(default = "sixteen_seconds", with = "humantime_serde")]
        poll: StdDuration,
        #[serde(default = "eight")]
        burst: u32,
        #[serde(default = "two_seconds", with = "humantime_serde")]
        burst_spacing: StdDuration,
    },
}

/// `[guests]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuestsConfig {
    /// Serve QEMU processes that have a page for us without being told.
    pub discover: bool,
    /// How often to look for them.
    #[serde(with = "humantime_serde")]
    pub discover_interval: StdDuration,
    /// The timescale of VMs' pages: TAI for guest kernels >= 7.0, UTC for older ones.
    pub time_type: TimeType,
    /// `[guests.vm.NAME]`.
    pub vm: BTreeMap<String, VmConfig>,
}

/// `[guests.vm.NAME]`: what differs for one VM.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmConfig {
    pub time_type: Option<TimeType>,
}

fn one_second() -> StdDuration {
    StdDuration::from_secs(1)
}
fn two_seconds() -> StdDuration {
    StdDuration::from_secs(2)
}
fn sixteen_seconds() -> StdDuration {
    StdDuration::from_secs(16)
}
fn eight() -> u32 {
    8
}

impl Default for Config {
    fn default() -> Self {
        Self {
            run_directory: PathBuf::from("/run/timevisor"),
            counter: CounterChoice::Auto,
            clock: ClockConfig::default(),
            references: vec![ReferenceConfig::System {
                assumed_max_error: None,
                poll: one_second(),
            }],
            guests: GuestsConfig::default(),
        }
    }
}

impl Default for ClockConfig {
    fn default() -> Self {
        Self {
            leap_table: PathBuf::from(timevisor_time::leap::SYSTEM_PATH),
            tai_offset: None,
            publish_interval: one_second(),
            validity: StdDuration::from_secs(10),
            unmeasured_rate_ppm: 100,
            measured_rate_ppm: 15,
            stale_after: StdDuration::from_secs(80),
        }
    }
}

impl Default for GuestsConfig {
    fn default() -> Self {
        Self {
            discover: true,
            discover_interval: StdDuration::from_millis(500),
            time_type: TimeType::Tai,
            vm: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Reads `path`, or the default file if it is there, or takes the defaults.
    pub fn load(path: Option<&Path>) -> Result<(Self, String)> {
        let default = Path::new(DEFAULT_PATH);
        let path = match path {
            Some(path) => path,
            None if default.exists() => default,
            None => {
                return Ok((
                    Self::default(),
                    format!("built-in defaults ({DEFAULT_PATH} does not exist)"),
                ));
            }
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let config =
            Self::parse(&text).with_context(|| format!("{} is not usable", path.display()))?;
        Ok((config, path.display().to_string()))
    }

    /// Parses and checks.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text)?;
        config.validate()?;
        Ok(config)
    }

    fn validate(&self) -> Result<()> {
        ensure!(self.run_directory.is_absolute(), "run_directory must be an absolute path");
        ensure!(!self.references.is_empty(), "there must be at least one [[reference]]");
        let clock = &self.clock;
        let interval = clock.publish_interval;
        ensure!(
            interval >= StdDuration::from_millis(10) && interval <= StdDuration::from_secs(60),
            "clock.publish_interval must be from 10ms to 60s"
        );
        ensure!(
            clock.validity >= 3 * interval,
            "clock.validity must be at least 3 publish intervals"
        );
        self.parameters().validate().context("[clock]")?;
        ensure!(
            self.guests.discover_interval >= StdDuration::from_millis(10),
            "guests.discover_interval must be 10ms or more"
        );
        for reference in &self.references {
            if let ReferenceConfig::System { poll, .. } = reference {
                ensure!(
                    *poll >= StdDuration::from_millis(10),
                    "the poll of a system reference must be 10ms or more"
                );
            }
            if let ReferenceConfig::Ntp { address, .. } = reference {
                ensure!(!address.trim().is_empty(), "the address of an ntp reference is empty");
                reference.ntp_config().with_context(|| format!("[[reference]] {address}"))?;
            }
        }
        let names: Vec<_> = self.references.iter().map(ReferenceConfig::name).collect();
        for (index, name) in names.iter().enumerate() {
            if names[..index].contains(name) {
                bail!("reference {name} is there twice; a second copy would vote twice");
            }
        }
        for name in self.guests.vm.keys() {
            timevisor_protocols::control::request::check_name(name)
                .with_context(|| format!("[guests.vm.{name}]"))?;
        }
        Ok(())
    }

    /// The estimate's parameters.
    pub fn parameters(&self) -> Parameters {
        Parameters {
            unmeasured_rate: RateError::from_ppm(self.clock.unmeasured_rate_ppm),
            measured_rate: RateError::from_ppm(self.clock.measured_rate_ppm),
            stale_after: span(self.clock.stale_after),
            ..Parameters::default()
        }
    }

    /// The timescale of VM `name`'s page, unless it was added with another one.
    pub fn time_type_of(&self, name: &str) -> TimeType {
        self.guests.vm.get(name).and_then(|vm| vm.time_type).unwrap_or(self.guests.time_type)
    }
}

impl ReferenceConfig {
    /// The name in status output.
    pub fn name(&self) -> String {
        match self {
            Self::System { .. } => "system".to_owned(),
            Self::Ntp { address, .. } => address.clone(),
        }
    }

    /// The association's parameters, checked.
    pub fn ntp_config(&self) -> Result<timevisor_protocols::ntp::Config> {
        let Self::Ntp { poll, burst, burst_spacing, .. } = self else {
            bail!("not an NTP reference")
        };
        let defaults = timevisor_protocols::ntp::Config::default();
        let (poll, burst_spacing) = (span(*poll), span(*burst_spacing));
        let config = timevisor_protocols::ntp::Config {
            poll_min: poll,
            poll_max: defaults.poll_max.max(poll),
            burst_count: *burst,
            burst_spacing,
            // An answer must be in before the next request leaves.
            request_timeout: defaults.request_timeout.min(poll).min(burst_spacing),
            ..defaults
        };
        config.validate()?;
        Ok(config)
    }
}

/// Configuration spans are small; a longer one than i64 nanoseconds is the longest.
pub fn span(std: StdDuration) -> Duration {
    Duration::from_nanos(i64::try_from(std.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn the_packaged_file_is_valid_and_states_the_defaults() {
        let packaged = Config::parse(include_str!("../../packaging/timevisord.toml")).unwrap();
        assert_eq!(format!("{packaged:?}"), format!("{:?}", Config::default()));
    }

    #[test]
    fn unknown_keys_are_refused_by_name() {
        assert!(error("countr = \"tsc\"").contains("countr"));
        assert!(error("[clock]\nvalidty = \"10s\"").contains("validty"));
        assert!(
            error("[[reference]]\ntype = \"ntp\"\naddress = \"x\"\niburst = true")
                .contains("iburst")
        );
    }

    #[test]
    fn values_out_of_range_say_what_would_be_right() {
        assert!(error("reference = []").contains("at least one"));
        assert!(error("[clock]\nvalidity = \"2s\"").contains("3 publish intervals"));
        assert!(error("[clock]\nmeasured_rate_ppm = 200").contains("must not exceed"));
        assert!(error("[[reference]]\ntype = \"ntp\"\naddress = \"a\"\nburst = 99").contains("16"));
        let twice = "[[reference]]\ntype = \"ntp\"\naddress = \"a\"\n";
        assert!(error(&twice.repeat(2)).contains("twice"));
        assert!(error("[guests.vm.\"../x\"]\ntime_type = \"tai\"").contains("../x"));
        assert!(error("[guests]\ndiscover_interval = \"0s\"").contains("discover_interval"));
        assert!(error("[[reference]]\ntype = \"ntp\"\naddress = \"\"").contains("address"));
    }
}
