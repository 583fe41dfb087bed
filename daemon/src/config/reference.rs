//! `[[reference]]`: what the clock follows. The keys of an NTP server are here; those of local
//! clocks are in `local.rs`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use timevisor_estimate::polling;
use timevisor_protocols::nts::negotiation::DEFAULT_KE_PORT;
use timevisor_time::Duration;

use super::address::ServerAddress;
use super::cluster::ClusterReference;
use super::local::{self, ChronyConfig, PhcConfig, PtpConfig, VisitsConfig, VmclockConfig};
use super::nts::NtsServer;
use super::politeness::{Operator, PollPolicy};
use super::span;

/// `[[reference]]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReferenceConfig {
    /// This machine's CLOCK_REALTIME, which another program disciplines.
    System {
        /// The bound to use instead of the kernel's; for machines whose clock nobody disciplines.
        #[serde(default, with = "humantime_serde::option")]
        assumed_max_error: Option<StdDuration>,
        #[serde(default = "one_second", with = "humantime_serde")]
        poll: StdDuration,
    },
    /// A PTP hardware clock that something else synchronizes.
    Phc(PhcConfig),
    /// A clock that ptp4l steers.
    Ptp(PtpConfig),
    /// The host's page, if this machine is a guest.
    Vmclock(VmclockConfig),
    /// The knowledge of a running chronyd.
    Chrony(ChronyConfig),
    /// What servers said when they were asked once.
    Visits(VisitsConfig),
    /// The hosts of a cluster that is one clock.
    Cluster(ClusterReference),
    /// An NTP server, or several behind one name.
    Ntp {
        /// `host`, `host:port` or `[address]:port`.
        #[serde(default)]
        address: String,
        /// Replaces `address`: a name with many addresses, of which `servers` are used.
        pool: Option<String>,
        #[serde(default = "four")]
        servers: u32,
        /// The index of this server within the pool; [`super::Config::parse`] creates one entry for
        /// each.
        #[serde(skip)]
        member: Option<u32>,
        /// With a required bound: the limits for the poll interval.
        #[serde(default = "two_seconds", with = "humantime_serde")]
        poll_min: StdDuration,
        #[serde(default = "seventeen_minutes", with = "humantime_serde")]
        poll_max: StdDuration,
        /// The default depends on the server's operator; see [`Operator::packets_per_hour`].
        max_packets_per_hour: Option<u32>,
        /// The default depends on the server's operator; see [`Operator::poll`].
        #[serde(default, with = "humantime_serde::option")]
        poll: Option<StdDuration>,
        #[serde(default = "eight")]
        burst: u32,
        #[serde(default = "two_seconds", with = "humantime_serde")]
        burst_spacing: StdDuration,
        /// Use the interleaved mode: ask when the replies really left (RFC 9769).
        #[serde(default)]
        interleaved: bool,
        /// An answer that takes longer is late. Default 1.5 s, or `poll` or `burst_spacing` if that
        /// is shorter; up to 16 s.
        #[serde(default, with = "humantime_serde::option")]
        request_timeout: Option<StdDuration>,
        /// Answers whose server states a larger error (its root distance) are refused.
        #[serde(default = "one_and_a_half", with = "humantime_serde")]
        max_distance: StdDuration,
        /// Ask for bounds in nanoseconds, which a timevisord's server has. The default depends on
        /// the server's operator; see [`Operator::asks_precise`].
        precise: Option<bool>,
        /// Accept a server that declares leap smearing.
        #[serde(default)]
        allow_smear: bool,
        /// Authenticate the server and its replies (Network Time Security, RFC 8915).
        #[serde(default)]
        nts: bool,
        /// TCP port of the key establishment server at `address`; 4460 when absent.
        nts_ke_port: Option<u16>,
        /// PEM file with the certificate authorities to trust; by default, the system's.
        ca_file: Option<PathBuf>,
    },
}

fn one_second() -> StdDuration {
    StdDuration::from_secs(1)
}
fn two_seconds() -> StdDuration {
    StdDuration::from_secs(2)
}
fn one_and_a_half() -> StdDuration {
    StdDuration::from_millis(1500)
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

impl ReferenceConfig {
    /// This machine's CLOCK_REALTIME, with the kernel's bound.
    pub fn system() -> Self {
        Self::System { assumed_max_error: None, poll: one_second() }
    }

    /// An NTP server with the default schedule.
    pub fn ntp(address: String) -> Self {
        Self::Ntp {
            address,
            pool: None,
            servers: four(),
            member: None,
            poll_min: two_seconds(),
            poll_max: seventeen_minutes(),
            max_packets_per_hour: None,
            poll: None,
            burst: eight(),
            burst_spacing: two_seconds(),
            interleaved: false,
            request_timeout: None,
            max_distance: one_and_a_half(),
            precise: None,
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
            Self::Visits(visits) => format!("visits {}", visits.file.display()),
            Self::Cluster(cluster) => format!("cluster {}", cluster.cluster),
            Self::Ntp { pool: Some(pool), member: Some(n), .. } => format!("{pool}#{n}"),
            Self::Ntp { pool: Some(pool), member: None, .. } => pool.clone(),
            Self::Ntp { address, .. } => address.clone(),
        }
    }

    /// Whether a command means this reference: by its name, or its pool's.
    pub fn is_called(&self, name: &str) -> bool {
        self.name() == name || self.pool() == Some(name)
    }

    /// The clock of this machine that it reads, in one spelling: two that read the same clock are
    /// one witness.
    pub fn local_clock(&self) -> Option<PathBuf> {
        let device = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        match self {
            Self::System { .. } | Self::Chrony(_) => Some("CLOCK_REALTIME".into()),
            Self::Ptp(ptp) if ptp.is_realtime() => Some("CLOCK_REALTIME".into()),
            Self::Ptp(ptp) => Some(device(&ptp.device)),
            Self::Phc(phc) => Some(device(&phc.device)),
            Self::Vmclock(vmclock) => Some(device(&vmclock.device)),
            Self::Visits(_) | Self::Cluster(_) | Self::Ntp { .. } => None,
        }
    }

    /// The pool to which it belongs.
    pub fn pool(&self) -> Option<&str> {
        match self {
            Self::Ntp { pool, .. } => pool.as_deref(),
            _ => None,
        }
    }

    /// Expands a pool into its members; anything else stays as it is.
    pub fn members(&self) -> Vec<Self> {
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

    /// How the NTP server at `peer` is polled. Without an address (a name before it is resolved),
    /// it is polled like somebody else's server.
    pub fn poll_policy(&self, peer: Option<IpAddr>) -> PollPolicy {
        let limits = polling::Limits::default();
        let Self::Ntp { pool, poll, .. } = self else {
            return PollPolicy { reason: "configured", interval: Duration::from_secs(1), limits };
        };
        let operator = match (pool, peer) {
            (None, Some(peer)) => Operator::of(peer),
            _ => Operator::Public,
        };
        let limits = self.poll_limits(operator);
        let (reason, interval) = match (poll, pool, operator) {
            (Some(poll), ..) => ("configured", span(*poll)),
            (None, Some(_), _) => ("pool", operator.poll()),
            (None, None, Operator::Own) => ("own-server", operator.poll()),
            (None, None, Operator::Public) => ("public-server", operator.poll()),
        };
        let within = interval.max(limits.shortest()).min(limits.poll_max);
        let interval = if poll.is_some() { interval } else { within };
        PollPolicy { reason, interval, limits }
    }

    fn poll_limits(&self, operator: Operator) -> polling::Limits {
        match self {
            Self::Ntp { poll_min, poll_max, max_packets_per_hour, .. } => polling::Limits {
                poll_min: span(*poll_min),
                poll_max: span(*poll_max),
                packets_per_hour: max_packets_per_hour
                    .unwrap_or_else(|| operator.packets_per_hour()),
                ..polling::Limits::default()
            },
            _ => polling::Limits::default(),
        }
    }

    /// The longest interval between two requests to this reference without a requirement.
    pub fn longest_poll(&self) -> Duration {
        match self {
            Self::Ntp { address, .. } => self.poll_policy(literal_ip(address)).interval,
            Self::System { poll, .. } => span(*poll),
            Self::Phc(phc) => span(phc.poll),
            Self::Ptp(ptp) => span(ptp.poll),
            Self::Vmclock(vmclock) => span(vmclock.poll),
            Self::Chrony(chrony) => span(chrony.poll),
            Self::Visits(visits) => span(visits.poll),
            Self::Cluster(cluster) => span(cluster.poll()),
        }
    }

    /// Validates every key.
    pub fn validate(&self) -> Result<()> {
        self.validate_local()?;
        self.validate_pool()?;
        let Self::Ntp { address, nts, nts_ke_port, ca_file, pool, .. } = self else {
            return Ok(());
        };
        // A pool is a name, too.
        let written = pool.as_ref().unwrap_or(address);
        written.parse::<ServerAddress>().with_context(|| format!("[[reference]] {written}"))?;
        let interval = self.poll_policy(literal_ip(address)).interval;
        self.ntp_config(interval).with_context(|| format!("[[reference]] {address}"))?;
        ensure!(
            *nts || (nts_ke_port.is_none() && ca_file.is_none()),
            "[[reference]] {address}: nts_ke_port and ca_file have no effect without nts = true; add it"
        );
        ensure!(*nts_ke_port != Some(0), "[[reference]] {address}: nts_ke_port must not be 0");
        Ok(())
    }

    fn validate_local(&self) -> Result<()> {
        match self {
            Self::Phc(phc) => {
                local::check_path(&phc.device, "phc")?;
                local::check_poll(phc.poll, "phc")
            }
            Self::Ptp(ptp) => ptp.validate(),
            Self::Vmclock(vmclock) => {
                local::check_path(&vmclock.device, "vmclock")?;
                local::check_poll(vmclock.poll, "vmclock")
            }
            Self::Visits(visits) => {
                local::check_path(&visits.file, "visits")?;
                local::check_poll(visits.poll, "visits")
            }
            Self::Chrony(chrony) => {
                chrony.address()?;
                local::check_poll(chrony.poll, "chrony")
            }
            Self::System { poll, .. } => {
                ensure!(
                    *poll >= StdDuration::from_millis(10),
                    "the poll of a system reference must be 10ms or more"
                );
                Ok(())
            }
            Self::Cluster(_) | Self::Ntp { .. } => Ok(()),
        }
    }

    fn validate_pool(&self) -> Result<()> {
        let Self::Ntp { address, pool, servers, nts, .. } = self else { return Ok(()) };
        // Which of the two applies is known only when the name has been resolved.
        for operator in [Operator::Own, Operator::Public] {
            let limits = self.poll_limits(operator);
            limits.validate().with_context(|| format!("[[reference]] {}", self.name()))?;
        }
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

    /// The association's parameters, validated, with this initial poll interval.
    pub fn ntp_config(&self, poll: Duration) -> Result<timevisor_protocols::ntp::Config> {
        let Self::Ntp {
            burst,
            burst_spacing,
            interleaved,
            allow_smear,
            request_timeout,
            max_distance,
            ..
        } = self
        else {
            bail!("not an NTP reference")
        };
        let defaults = timevisor_protocols::ntp::Config::default();
        let burst_spacing = span(*burst_spacing);
        let config = timevisor_protocols::ntp::Config {
            poll_min: poll,
            poll_max: defaults.poll_max.max(poll),
            burst_count: *burst,
            burst_spacing,
            interleaved: *interleaved,
            allow_smear: *allow_smear,
            // Unless the operator expects more, a reply arrives before the next request leaves.
            request_timeout: request_timeout
                .map_or_else(|| defaults.request_timeout.min(poll).min(burst_spacing), span),
            max_distance: span(*max_distance),
            ..defaults
        };
        config.validate()?;
        Ok(config)
    }

    /// Where a single NTP server is, as configured; `None` for a pool and for any other reference.
    ///
    /// # Errors
    /// When the address cannot be understood.
    pub fn server_address(&self) -> Result<Option<ServerAddress>> {
        match self {
            Self::Ntp { address, pool: None, .. } => address.parse().map(Some),
            _ => Ok(None),
        }
    }

    /// The key `precise` of an NTP server.
    pub fn precise(&self) -> Option<bool> {
        match self {
            Self::Ntp { precise, .. } => *precise,
            _ => None,
        }
    }

    /// The key establishment server of an authenticated NTP server.
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

/// The address, if it is a literal that needs no resolver.
fn literal_ip(address: &str) -> Option<IpAddr> {
    address.parse::<ServerAddress>().ok()?.ip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ntp(lines: &str) -> ReferenceConfig {
        toml::from_str(&format!("type = \"ntp\"\n{lines}")).unwrap()
    }

    fn policy(lines: &str, peer: &str) -> (&'static str, f64, u32) {
        let policy = ntp(lines).poll_policy(peer.parse().ok());
        (policy.reason, policy.interval.as_secs_f64(), policy.limits.packets_per_hour)
    }

    #[test]
    fn the_poll_follows_whose_server_it_is() {
        let (named, pool) = ("address = \"ntp\"\n", "pool = \"p\"\n");
        assert_eq!(policy(named, "10.0.0.1"), ("own-server", 4.0, 3600));
        assert_eq!(policy(named, "192.0.2.1"), ("public-server", 64.0, 450));
        assert_eq!(policy(named, "not resolved"), ("public-server", 64.0, 450));
        // A pool belongs to other people, whatever its addresses are.
        assert_eq!(policy(pool, "10.0.0.1"), ("pool", 64.0, 450));
        assert_eq!(policy(pool, "192.0.2.1"), ("pool", 64.0, 450));
    }

    #[test]
    fn what_is_configured_wins() {
        let poll = "address = \"ntp\"\npoll = \"16s\"\n";
        assert_eq!(policy(poll, "10.0.0.1"), ("configured", 16.0, 3600));
        assert_eq!(policy(poll, "192.0.2.1"), ("configured", 16.0, 450));
        // The default stays within the reference's limits.
        let slow = "address = \"ntp\"\npoll_min = \"10s\"\npoll_max = \"32s\"\n";
        assert_eq!(policy(slow, "10.0.0.1"), ("own-server", 10.0, 3600));
        assert_eq!(policy(slow, "192.0.2.1"), ("public-server", 32.0, 450));
        let few = "address = \"ntp\"\nmax_packets_per_hour = 360\n";
        assert_eq!(policy(few, "10.0.0.1"), ("own-server", 10.0, 360));
    }

    #[test]
    fn references_that_read_one_clock_say_so() {
        let clock = |text: &str| {
            let config: ReferenceConfig = toml::from_str(text).unwrap();
            config.local_clock().map(|path| path.display().to_string())
        };
        let realtime = Some("CLOCK_REALTIME".to_owned());
        assert_eq!(clock("type = \"system\""), realtime);
        assert_eq!(clock("type = \"chrony\""), realtime);
        assert_eq!(clock("type = \"ptp\"\ndevice = \"realtime\""), realtime);
        assert_eq!(
            clock("type = \"phc\"\ndevice = \"/dev/../dev/null\"").as_deref(),
            Some("/dev/null")
        );
        assert_eq!(clock("type = \"ptp\"\ndevice = \"/dev/null\"").as_deref(), Some("/dev/null"));
        assert_eq!(clock("type = \"ntp\"\naddress = \"a\""), None);
    }

    #[test]
    fn the_longest_poll_is_known_before_a_name_is_resolved() {
        let seconds = |address: &str| ReferenceConfig::ntp(address.into()).longest_poll();
        assert_eq!(seconds("10.0.0.1:123"), Duration::from_secs(4));
        assert_eq!(seconds("[fd00::1]:123"), Duration::from_secs(4));
        assert_eq!(seconds("ntp.example"), Duration::from_secs(64));
        assert_eq!(ReferenceConfig::system().longest_poll(), Duration::from_secs(1));
    }
}
