//! The configuration: one commented TOML file, unknown keys refused, every value checked before anything starts.
//!
//! The file that packages install, with every key explained, is packaging/timevisord.toml; a test parses it. The
//! references that are read on this machine are in `config/references.rs`.

mod introspection;
mod references;
mod reserve;
mod timelines;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use timevisor_estimate::{Parameters, polling};
use timevisor_linux::adjust::steering;
use timevisor_linux::counter::Choice;
use timevisor_protocols::control::{ReserveApply, TimeType};
use timevisor_protocols::nts::negotiation::DEFAULT_KE_PORT;
use timevisor_time::{Duration, RateError};

use crate::references::NtsServer;

pub use introspection::{IntrospectionConfig, KvmChoice};
pub use timelines::TimelineConfig;

pub use references::{ChronyAddress, ChronyConfig, PhcConfig, PtpConfig, Scale, VmclockConfig};

use self::reserve::ReserveConfig;
use crate::server::ServerConfig;

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
    #[serde(rename = "timeline")]
    pub timelines: Vec<TimelineConfig>,
    pub guests: GuestsConfig,
    pub introspection: IntrospectionConfig,
    pub server: ServerConfig,
}

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
    pub unmeasured_rate_ppm: u32,
    pub measured_rate_ppm: u32,
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
    /// A proven offset above this is stepped, at one of the first `step_limit` updates; never without it.
    #[serde(with = "humantime_serde::option")]
    pub step_threshold: Option<StdDuration>,
    pub step_limit: u32,
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
    /// A PTP hardware clock that somebody keeps right.
    Phc(PhcConfig),
    /// A clock that ptp4l keeps.
    Ptp(PtpConfig),
    /// The host's page, in a guest.
    Vmclock(VmclockConfig),
    /// A running chronyd's knowledge.
    Chrony(ChronyConfig),
    /// An NTP server, or several behind one name.
    Ntp {
        /// `host`, `host:port` or `[address]:port`.
        #[serde(default)]
        address: String,
        /// Instead: a name with many addresses, of which `servers` are asked.
        pool: Option<String>,
        #[serde(default = "four")]
        servers: u32,
        /// Which of the pool's servers this is; [`Config::parse`] makes one entry of each.
        #[serde(skip)]
        member: Option<u32>,
        /// With `clock.required_bound`: the limits of what `poll` becomes.
        #[serde(default = "two_seconds", with = "humantime_serde")]
        poll_min: StdDuration,
        #[serde(default = "seventeen_minutes", with = "humantime_serde")]
        poll_max: StdDuration,
        #[serde(default = "packets_per_hour")]
        max_packets_per_hour: u32,
        #[serde(default = "sixteen_seconds", with = "humantime_serde")]
        poll: StdDuration,
        #[serde(default = "eight")]
        burst: u32,
        #[serde(default = "two_seconds", with = "humantime_serde")]
        burst_spacing: StdDuration,
        /// Ask when its answers really left (RFC 9769).
        #[serde(default)]
        interleaved: bool,
        /// Accept a server that declares that it smears leap seconds.
        #[serde(default)]
        allow_smear: bool,
        /// Authenticate the server and its answers (Network Time Security, RFC 8915).
        #[serde(default)]
        nts: bool,
        /// TCP port of the key establishment server at `address`; 4460 when absent.
        nts_ke_port: Option<u16>,
        /// PEM file of the authorities that may vouch for it; the system's when absent.
        ca_file: Option<PathBuf>,
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
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmConfig {
    pub time_type: Option<TimeType>,
    /// `[[guests.vm.NAME.reserve]]`.
    pub reserve: Vec<ReserveConfig>,
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
fn four() -> u32 {
    4
}
fn seventeen_minutes() -> StdDuration {
    StdDuration::from_secs(1024)
}
fn packets_per_hour() -> u32 {
    polling::Limits::default().packets_per_hour
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
            timelines: Vec::new(),
            guests: GuestsConfig::default(),
            introspection: IntrospectionConfig::default(),
            server: ServerConfig::default(),
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
            required_bound: None,
            discipline: false,
            max_slew_ppm: 500,
            step_threshold: None,
            step_limit: 3,
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
        let mut config: Self = toml::from_str(text)?;
        config.validate()?;
        config.references = config.references.iter().flat_map(ReferenceConfig::members).collect();
        for reference in &mut config.references {
            match reference {
                ReferenceConfig::Ptp(ptp) => ptp.own_directory.clone_from(&config.run_directory),
                ReferenceConfig::Chrony(chrony) => {
                    chrony.own_directory.clone_from(&config.run_directory);
                }
                _ => {}
            }
        }
        Ok(config)
    }

    /// What [`Self::parse`] checks, for values that came from elsewhere.
    pub fn validate(&self) -> Result<()> {
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
        self.server.validate()?;
        self.steering().validate().context("[clock]")?;
        self.validate_discipline()?;
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
            reference.validate_local()?;
            reference.validate_pool()?;
            if let ReferenceConfig::Ntp { address, nts, nts_ke_port, ca_file, pool, .. } = reference
            {
                ensure!(
                    pool.is_some() || !address.trim().is_empty(),
                    "the address of an ntp reference is empty"
                );
                reference.ntp_config().with_context(|| format!("[[reference]] {address}"))?;
                ensure!(
                    *nts || (nts_ke_port.is_none() && ca_file.is_none()),
                    "[[reference]] {address}: nts_ke_port and ca_file have no effect without nts = true; add it"
                );
                ensure!(
                    *nts_ke_port != Some(0),
                    "[[reference]] {address}: nts_ke_port must not be 0"
                );
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
        for (name, vm) in &self.guests.vm {
            reserve::validate(&vm.reserve)
                .with_context(|| format!("[[guests.vm.{name}.reserve]]"))?;
        }
        self.timeline_setup().map(drop)
    }

    /// The timelines' model, and for each clock beyond the host's own the references it follows.
    pub fn timeline_setup(&self) -> Result<(timevisor_timelines::Setup, Vec<Vec<usize>>)> {
        let names: Vec<_> = self.references.iter().map(ReferenceConfig::name).collect();
        timelines::setup(&self.timelines, &names)
    }

    /// A clock cannot be kept by what it is itself read for.
    fn validate_discipline(&self) -> Result<()> {
        if !self.clock.discipline {
            return Ok(());
        }
        for reference in &self.references {
            let reads_realtime = match reference {
                ReferenceConfig::System { .. } | ReferenceConfig::Chrony(_) => true,
                ReferenceConfig::Ptp(ptp) => ptp.is_realtime(),
                _ => false,
            };
            ensure!(
                !reads_realtime,
                "clock.discipline = true steers CLOCK_REALTIME, which reference {} reads: a loop; remove one of them",
                reference.name()
            );
        }
        Ok(())
    }

    /// How CLOCK_REALTIME is steered, if it is.
    pub fn steering(&self) -> steering::Parameters {
        steering::Parameters {
            max_slew_ppm: self.clock.max_slew_ppm,
            step_threshold: self.clock.step_threshold.map(span),
            step_limit: self.clock.step_limit,
        }
    }

    /// The estimate's parameters.
    pub fn parameters(&self) -> Parameters {
        Parameters {
            unmeasured_rate: RateError::from_ppm(self.clock.unmeasured_rate_ppm),
            measured_rate: RateError::from_ppm(self.clock.measured_rate_ppm),
            stale_after: span(self.clock.stale_after),
            validity: span(self.clock.validity),
            ..Parameters::default()
        }
    }

    /// What is to be reserved, of all VMs.
    pub fn reservations(&self) -> Vec<ReserveApply> {
        let all = self.guests.vm.iter();
        all.flat_map(|(name, vm)| vm.reserve.iter().map(|r| r.request(name))).collect()
    }

    /// The timescale of VM `name`'s page, unless it was added with another one.
    pub fn time_type_of(&self, name: &str) -> TimeType {
        self.guests.vm.get(name).and_then(|vm| vm.time_type).unwrap_or(self.guests.time_type)
    }
}

impl ReferenceConfig {
    /// An NTP server with the default schedule.
    pub fn ntp(address: String) -> Self {
        Self::Ntp {
            address,
            pool: None,
            servers: four(),
            member: None,
            poll_min: two_seconds(),
            poll_max: seventeen_minutes(),
            max_packets_per_hour: packets_per_hour(),
            poll: sixteen_seconds(),
            burst: eight(),
            burst_spacing: two_seconds(),
            interleaved: false,
            allow_smear: false,
            nts: false,
            nts_ke_port: None,
            ca_file: None,
        }
    }

    /// The name in status output.
    pub fn name(&self) -> String {
        match self {
            Self::System { .. } => "system".to_owned(),
            Self::Phc(phc) => phc.device.display().to_string(),
            Self::Ptp(ptp) => format!("ptp {}", ptp.device.display()),
            Self::Vmclock(_) => "vmclock".to_owned(),
            Self::Chrony(_) => "chrony".to_owned(),
            Self::Ntp { pool: Some(pool), member: Some(n), .. } => format!("{pool}#{n}"),
            Self::Ntp { pool: Some(pool), member: None, .. } => pool.clone(),
            Self::Ntp { address, .. } => address.clone(),
        }
    }

    /// The pool that it is a member of.
    pub fn pool(&self) -> Option<&str> {
        match self {
            Self::Ntp { pool, .. } => pool.as_deref(),
            _ => None,
        }
    }

    /// A pool as its members; anything else as it is.
    fn members(&self) -> Vec<Self> {
        let one = |n| {
            let mut member = self.clone();
            if let Self::Ntp { member: number, .. } = &mut member {
                *number = Some(n);
            }
            member
        };
        match self {
            Self::Ntp { pool: Some(_), servers, member: None, .. } => {
                (1..=*servers).map(one).collect()
            }
            _ => vec![self.clone()],
        }
    }

    /// The limits of the poll controller.
    pub fn poll_limits(&self) -> polling::Limits {
        match self {
            Self::Ntp { poll_min, poll_max, max_packets_per_hour, .. } => polling::Limits {
                poll_min: span(*poll_min),
                poll_max: span(*poll_max),
                packets_per_hour: *max_packets_per_hour,
                ..polling::Limits::default()
            },
            _ => polling::Limits::default(),
        }
    }

    fn validate_local(&self) -> Result<()> {
        match self {
            Self::Phc(phc) => {
                references::check_path(&phc.device, "phc")?;
                references::check_poll(phc.poll, "phc")
            }
            Self::Ptp(ptp) => ptp.validate(),
            Self::Vmclock(vmclock) => {
                references::check_path(&vmclock.device, "vmclock")?;
                references::check_poll(vmclock.poll, "vmclock")
            }
            Self::Chrony(chrony) => {
                chrony.address()?;
                references::check_poll(chrony.poll, "chrony")
            }
            Self::System { .. } | Self::Ntp { .. } => Ok(()),
        }
    }

    fn validate_pool(&self) -> Result<()> {
        let Self::Ntp { address, pool, servers, nts, .. } = self else { return Ok(()) };
        self.poll_limits().validate().with_context(|| format!("[[reference]] {}", self.name()))?;
        let Some(pool) = pool else { return Ok(()) };
        ensure!(!pool.trim().is_empty(), "the pool of an ntp reference is empty");
        ensure!(
            address.is_empty(),
            "an ntp reference has an address or a pool, not both; remove one"
        );
        ensure!((1..=16).contains(servers), "[[reference]] {pool}: servers must be from 1 to 16");
        ensure!(!nts, "[[reference]] {pool}: nts needs a server's name, not a pool's; use address");
        Ok(())
    }

    /// The association's parameters, checked.
    pub fn ntp_config(&self) -> Result<timevisor_protocols::ntp::Config> {
        let Self::Ntp { poll, burst, burst_spacing, interleaved, allow_smear, .. } = self else {
            bail!("not an NTP reference")
        };
        let defaults = timevisor_protocols::ntp::Config::default();
        let (poll, burst_spacing) = (span(*poll), span(*burst_spacing));
        let config = timevisor_protocols::ntp::Config {
            poll_min: poll,
            poll_max: defaults.poll_max.max(poll),
            burst_count: *burst,
            burst_spacing,
            interleaved: *interleaved,
            allow_smear: *allow_smear,
            // An answer must be in before the next request leaves.
            request_timeout: defaults.request_timeout.min(poll).min(burst_spacing),
            ..defaults
        };
        config.validate()?;
        Ok(config)
    }

    /// Where an authenticated NTP server gives out keys.
    pub fn nts_server(&self) -> Option<NtsServer> {
        match self {
            Self::Ntp { address, nts: true, nts_ke_port, ca_file, .. } => {
                let port = nts_ke_port.unwrap_or(DEFAULT_KE_PORT);
                Some(NtsServer::new(address, port, ca_file.clone()))
            }
            _ => None,
        }
    }
}

/// Configuration spans are small; a longer one than i64 nanoseconds is the longest.
pub fn span(std: StdDuration) -> Duration {
    Duration::from_nanos(i64::try_from(std.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
