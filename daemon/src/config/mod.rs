//! The configuration: one commented TOML file. Unknown keys are rejected, and every value is
//! validated before anything starts.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the whole file: reading it, and the consistency between its tables |
//! | `successor.rs` | what of a changed file can be taken over while the daemon runs |
//! | `clock.rs` | `counter` and `[clock]` |
//! | `oscillator.rs` | `[oscillator]` |
//! | `reference.rs` | `[[reference]]`, and the keys of an NTP server |
//! | `address.rs` | addresses of servers in all spellings |
//! | `local.rs` | `[[reference]]`: the keys of clocks that are read on this machine |
//! | `politeness.rs` | default poll rates of NTP servers |
//! | `nts.rs` | the key establishment server of an authenticated NTP server |
//! | `cluster.rs` | `[[cluster]]`, and references to it |
//! | `timelines.rs` | `[[timeline]]` |
//! | `guests.rs` | `[guests]` |
//! | `reserve.rs` | `[[guests.vm.NAME.reserve]]` |
//! | `introspection.rs` | `[introspection]` |
//! | `server.rs` | `[server]` |
//! | `audit.rs` | `[audit]` |
//! | `clockbound.rs` | `[clockbound]` |
//!
//! This is the daemon's lowest layer: it imports no other part of the daemon, and all others import
//! it. The file that packages install, with every key explained, is packaging/timevisord.toml; a
//! test parses it.

mod address;
mod audit;
mod clock;
mod clockbound;
mod cluster;
mod guests;
mod introspection;
mod local;
mod nts;
mod oscillator;
mod politeness;
mod reference;
mod reserve;
mod server;
mod successor;
mod timelines;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use timevisor_estimate::{Parameters, steering};
use timevisor_protocols::control::{ReserveApply, TimeType};
use timevisor_time::Duration;

pub use address::ServerAddress;
pub use audit::AuditConfig;
pub use clock::{ClockConfig, CounterChoice};
pub use clockbound::ClockboundConfig;
pub use cluster::{ClusterConfig, ClusterReference};
pub use guests::GuestsConfig;
pub use introspection::{IntrospectionConfig, KvmChoice};
pub use local::{
    ChronyAddress, ChronyConfig, PhcConfig, PtpConfig, Scale, VisitsConfig, VmclockConfig,
};
pub use nts::NtsServer;
pub use oscillator::OscillatorConfig;
pub use politeness::{Operator, PollPolicy};
pub use reference::ReferenceConfig;
pub use server::ServerConfig;
pub use timelines::TimelineConfig;

/// The path that is used when none is given.
pub const DEFAULT_PATH: &str = "/etc/timevisor/timevisord.toml";

/// The whole file. Every key has a default; without a file, the host follows its own
/// CLOCK_REALTIME.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub run_directory: PathBuf,
    /// What outlives a reboot; by default systemd's STATE_DIRECTORY, or nothing.
    pub state_directory: Option<PathBuf>,
    pub counter: CounterChoice,
    pub clock: ClockConfig,
    pub oscillator: OscillatorConfig,
    #[serde(rename = "reference")]
    pub references: Vec<ReferenceConfig>,
    #[serde(rename = "cluster")]
    pub clusters: Vec<ClusterConfig>,
    #[serde(rename = "timeline")]
    pub timelines: Vec<TimelineConfig>,
    pub guests: GuestsConfig,
    pub introspection: IntrospectionConfig,
    pub server: ServerConfig,
    pub audit: AuditConfig,
    pub clockbound: ClockboundConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            run_directory: PathBuf::from("/run/timevisor"),
            state_directory: None,
            counter: CounterChoice::Auto,
            clock: ClockConfig::default(),
            oscillator: OscillatorConfig::default(),
            references: vec![ReferenceConfig::system()],
            clusters: Vec::new(),
            timelines: Vec::new(),
            guests: GuestsConfig::default(),
            introspection: IntrospectionConfig::default(),
            server: ServerConfig::default(),
            audit: AuditConfig::default(),
            clockbound: ClockboundConfig::default(),
        }
    }
}

impl Config {
    /// Reads `path`, or else the default file if it exists, or else uses the defaults.
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

    /// Where to keep what outlives a reboot, if anywhere.
    pub fn state(&self) -> Option<PathBuf> {
        let of_systemd = || std::env::var_os("STATE_DIRECTORY").map(PathBuf::from);
        self.state_directory.clone().or_else(of_systemd).filter(|path| path.is_absolute())
    }

    /// Parses and validates the text.
    pub fn parse(text: &str) -> Result<Self> {
        let mut config: Self = toml::from_str(text)?;
        config.validate()?;
        config.complete();
        Ok(config)
    }

    /// This configuration with other references.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn with_references(&self, references: Vec<ReferenceConfig>) -> Result<Self> {
        let mut config = Self { references, ..self.clone() };
        config.complete();
        config.validate()?;
        Ok(config)
    }

    /// Makes one reference of each member of a pool, and tells references where our own sockets
    /// are.
    fn complete(&mut self) {
        self.references = self.references.iter().flat_map(ReferenceConfig::members).collect();
        for reference in &mut self.references {
            match reference {
                ReferenceConfig::Ptp(ptp) => {
                    ptp.own_directory.clone_from(&self.run_directory);
                    ptp.unmeasured_rate_ppm = self.oscillator.unmeasured_rate_ppm;
                }
                ReferenceConfig::Chrony(chrony) => {
                    chrony.own_directory.clone_from(&self.run_directory);
                }
                ReferenceConfig::Cluster(cluster) => {
                    let port = self.server.listen.first().map_or(0, SocketAddr::port);
                    let ppm = self.oscillator.unmeasured_rate_ppm;
                    cluster.complete(&self.clusters, port, ppm);
                }
                _ => {}
            }
        }
    }

    /// The checks of [`Self::parse`], for values from other sources.
    pub fn validate(&self) -> Result<()> {
        ensure!(self.run_directory.is_absolute(), "run_directory must be an absolute path");
        if let Some(state) = &self.state_directory {
            ensure!(state.is_absolute(), "state_directory must be an absolute path");
        }
        ensure!(!self.references.is_empty(), "there must be at least one [[reference]]");
        self.clock.validate()?;
        self.oscillator.validate()?;
        self.parameters().validate()?;
        self.server.validate()?;
        self.clockbound.validate()?;
        self.validate_discipline()?;
        self.guests.validate()?;
        self.introspection.validate()?;
        self.audit.validate()?;
        for reference in &self.references {
            reference.validate()?;
        }
        let names: Vec<_> = self.references.iter().map(ReferenceConfig::name).collect();
        for (index, name) in names.iter().enumerate() {
            if names[..index].contains(name) {
                bail!("reference {name} is listed twice; a second copy would vote twice");
            }
        }
        self.validate_witnesses()?;
        cluster::validate(self)?;
        self.timeline_setup().map(drop)
    }

    /// One server in two spellings is listed twice, too. Names that resolve alike are noticed at run
    /// time.
    fn validate_witnesses(&self) -> Result<()> {
        let mut seen: Vec<(ServerAddress, String)> = Vec::new();
        for reference in &self.references {
            let Some(address) = reference.server_address()? else { continue };
            if let Some((_, first)) = seen.iter().find(|(known, _)| *known == address) {
                bail!(
                    "reference {} is the same server as {first}; a second copy would vote twice: remove one of them",
                    reference.name()
                );
            }
            seen.push((address, reference.name()));
        }
        Ok(())
    }

    /// The timelines' model, and for each clock besides the host's own, the references that it
    /// follows.
    pub fn timeline_setup(&self) -> Result<(timevisor_timelines::Setup, Vec<Vec<usize>>)> {
        let names: Vec<_> = self.references.iter().map(ReferenceConfig::name).collect();
        timelines::setup(&self.timelines, &self.clusters, &names)
    }

    /// CLOCK_REALTIME cannot be steered by a reference that itself reads it.
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

    /// How CLOCK_REALTIME is steered, if enabled.
    pub fn steering(&self) -> steering::Parameters {
        self.clock.steering()
    }

    /// The estimate's parameters.
    pub fn parameters(&self) -> Parameters {
        Parameters {
            stale_after: self.stale_after(),
            validity: span(self.clock.validity),
            ..self.oscillator.parameters()
        }
    }

    /// Without an exchange for this long, the status is "freerunning": `clock.stale_after`, but at
    /// least three polls of the reference that is polled most often, so that one lost reply does
    /// not change the status.
    pub fn stale_after(&self) -> Duration {
        let poll = self.references.iter().map(ReferenceConfig::longest_poll).min();
        let polls: Duration = (0..3).filter_map(|_| poll).sum();
        span(self.clock.stale_after).max(polls)
    }

    /// All configured reservations, of all VMs.
    pub fn reservations(&self) -> Vec<ReserveApply> {
        let all = self.guests.vm.iter();
        all.flat_map(|(name, vm)| vm.reserve.iter().map(|r| r.request(name))).collect()
    }

    /// The timescale of VM `name`'s page, unless the VM was added with another one.
    pub fn time_type_of(&self, name: &str) -> TimeType {
        self.guests.vm.get(name).and_then(|vm| vm.time_type).unwrap_or(self.guests.time_type)
    }
}

/// Converts a span from the configuration; one that exceeds i64 nanoseconds is clamped.
pub fn span(std: StdDuration) -> Duration {
    Duration::from_nanos(i64::try_from(std.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
