//! `[[cluster]]`: one clock for a cluster of hosts, and `type = "cluster"` references to it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Deserializer};
use timevisor_cluster::address::Address as _;
use timevisor_cluster::node::{Node, Settings};
use timevisor_cluster::{settle, succession};
use timevisor_estimate::RateLimits;
use timevisor_linux::state_file;
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::nts::negotiation::DEFAULT_NTP_PORT;
use timevisor_protocols::nts::server::CookieKeys;
use timevisor_protocols::nts::shared::{self, Sealer, Secret, session};
use timevisor_time::{Duration, Period, RateError};
use zeroize::Zeroizing;

use super::{Config, span};

/// `[[cluster]]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// By which its hosts know it.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// Whom this host asks at first; empty on the root.
    #[serde(default, deserialize_with = "addresses")]
    pub seeds: Vec<SocketAddr>,
    /// A file with the secret that its hosts have in common; without it, anybody may be a host of it.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// The root, if it is believed alone.
    #[serde(default, deserialize_with = "address")]
    pub master: Option<SocketAddr>,
    /// Whether this host's server answers others; it needs `server.listen`.
    #[serde(default = "yes")]
    pub serve: bool,
    /// How many hosts it answers itself; others are referred to these.
    #[serde(default = "a_thousand")]
    pub children: usize,
    /// How many of them may have one address: anybody who asks can name any port as its own. One IPv6 /64 has half of
    /// all at most.
    #[serde(default = "sixteen")]
    pub children_per_address: usize,
    /// A host that does not ask for so long is none of them any more.
    #[serde(default = "five_minutes", with = "humantime_serde")]
    pub lease: StdDuration,
    /// Answers of the burst at the start, at most.
    #[serde(default = "eight")]
    pub exchanges: u32,
    /// The burst ends when the bounds are this wide, from earliest to latest.
    #[serde(default, with = "humantime_serde::option")]
    pub wanted_width: Option<StdDuration>,
    /// How many hosts are asked afterwards; 0: none, offline from then on.
    #[serde(default = "three")]
    pub peers: usize,
    /// How often each of them is asked.
    #[serde(default = "four_seconds", with = "humantime_serde")]
    pub poll: StdDuration,
    /// So many hosts may lie. With any, only `seeds` and `master` are asked.
    #[serde(default)]
    pub liars: usize,
    /// The name of a timeline of its own: the counter of one of its hosts. Without it, the cluster's
    /// time is UTC.
    #[serde(default)]
    pub timeline: Option<String>,
    /// The timeline's master is gone when nobody has heard it for so long; another host continues it.
    #[serde(default = "fifteen_seconds", with = "humantime_serde")]
    pub takeover_after: StdDuration,
    /// How far off the timeline's hosts may have measured their counters' rates when their daemons started,
    /// ppm. It is added to what `[oscillator]` states, until the rate between two hosts is measured.
    #[serde(default = "three_hundred")]
    pub calibration_ppm: u32,
}

/// `type = "cluster"`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterReference {
    /// The `name` of a `[[cluster]]`.
    pub cluster: String,
    /// That table; set by [`Config::parse`], like what follows.
    #[serde(skip)]
    pub settings: Option<ClusterConfig>,
    /// Where this host serves others; 0 if it does not.
    #[serde(skip)]
    pub port: u16,
    /// `oscillator.unmeasured_rate_ppm`.
    #[serde(skip)]
    pub unmeasured_rate_ppm: u32,
}

fn yes() -> bool {
    true
}
fn three() -> usize {
    3
}
fn sixteen() -> usize {
    16
}
fn a_thousand() -> usize {
    1000
}
fn eight() -> u32 {
    8
}
fn four_seconds() -> StdDuration {
    StdDuration::from_secs(4)
}
fn fifteen_seconds() -> StdDuration {
    StdDuration::from_secs(15)
}
/// 180 ppm were seen on a busy virtual machine.
fn three_hundred() -> u32 {
    300
}
fn five_minutes() -> StdDuration {
    StdDuration::from_secs(300)
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let usable = !text.is_empty() && text != "tai" && Name::new(&text).is_some();
    if usable {
        return Ok(text);
    }
    Err(serde::de::Error::custom("a cluster's name has 1 to 16 bytes, and is not `tai`"))
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<SocketAddr>().ok();
    let host = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, DEFAULT_NTP_PORT));
    with_port.or_else(host).filter(|at| at.port() != 0).ok_or_else(|| {
        format!("{text:?} is no address; write 192.0.2.1, 192.0.2.1:123 or [2001:db8::1]:123")
    })
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    socket_address(&text).map(Some).map_err(serde::de::Error::custom)
}

fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parsed: Result<_, _> = texts.iter().map(|text| socket_address(text)).collect();
    parsed.map_err(serde::de::Error::custom)
}

impl ClusterConfig {
    /// The name on the wire.
    pub fn wire_name(&self) -> Name {
        Name::new(&self.name).unwrap_or_default()
    }

    /// The name of its own timeline on the wire, if it has one.
    pub fn wire_timeline(&self) -> Option<Name> {
        self.timeline.as_deref().and_then(Name::new)
    }

    /// When another host continues the timeline; one that serves others at `port`, or 0, and has measured its
    /// counter's rate within `calibrated`. Others refuse a master that states more than they allow for
    /// (`calibration_ppm`), so such a host does not become one.
    pub fn succession(&self, port: u16, calibrated: RateError) -> succession::Settings {
        // A canvass of hosts of which some do not answer takes most of a second.
        let (after, step) =
            (span(self.takeover_after), span(self.poll).max(Duration::from_secs(1)));
        let leads = self.serve && port != 0 && self.allows(calibrated);
        succession::Settings { after, step, leads }
    }

    /// Whether a host that has measured its counter's rate so well may be master of the timeline.
    pub fn allows(&self, calibrated: RateError) -> bool {
        calibrated <= RateError::from_ppm(self.calibration_ppm)
    }

    /// The key of the cookies under this of its names, if it has a secret.
    ///
    /// # Errors
    /// When the secret cannot be read.
    pub fn cookie_keys(&self, name: Name) -> Result<Option<CookieKeys>> {
        let Some(file) = &self.key else { return Ok(None) };
        let bytes = state_file::read_secret(file, shared::MOST_BYTES).map(Zeroizing::new);
        let secret = bytes.context("a file that only root can read, and no link, is needed");
        let secret = secret.and_then(|bytes| Ok(Secret::parse(&bytes)?));
        let secret =
            secret.with_context(|| format!("[[cluster]] {}: key {}", self.name, file.display()))?;
        Ok(Some(secret.cookie_keys(name)))
    }

    /// What seals this host's questions under this of its names, if it has a secret.
    ///
    /// # Errors
    /// When the secret cannot be read, or there are no random numbers.
    pub fn sealer(&self, name: Name) -> Result<Option<Sealer>> {
        let Some(keys) = self.cookie_keys(name)? else { return Ok(None) };
        let session = session(|bytes| getrandom::fill(bytes).is_ok());
        let session = session.context("the kernel returns no random numbers")?;
        Ok(Some(Sealer::new(keys, &session)))
    }

    /// This host as a node of it, which others know as `own`.
    pub fn node(
        &self,
        own: SocketAddr,
        rate: RateLimits,
        nominal: Period,
        succession: Option<succession::Settings>,
        random: u64,
        now: Duration,
    ) -> Node<SocketAddr> {
        let settings = Settings {
            burst: self.burst(),
            spacing: Duration::ZERO,
            children: self.children,
            lease: span(self.lease),
            peers: self.peers,
            poll: span(self.poll),
            liars: self.liars,
            trusted: self.master,
            succession,
            rate,
            nominal,
        };
        Node::new(own, settings, self.seeds.clone(), random, now)
    }

    /// Whether too few hosts are listed to outvote those that lie, without this one at `own`.
    pub fn lists_too_few(&self, own: SocketAddr) -> bool {
        let hosts = self.seeds.iter().map(|at| at.host()).filter(|host| *host != own.host());
        let hosts: BTreeSet<SocketAddr> = hosts.collect();
        let is_asked = self.liars > 0 && self.master.is_none() && !self.seeds.is_empty();
        is_asked && hosts.len() <= 2 * self.liars
    }

    /// When the burst ends.
    pub fn burst(&self) -> settle::Limits {
        settle::Limits { wanted: self.wanted_width.map(span), most: self.exchanges }
    }

    fn validate(&self, serves: bool) -> Result<()> {
        ensure!((1..=100_000).contains(&self.children), "children must be from 1 to 100000");
        let per_address = "children_per_address must be 1 or more";
        ensure!(self.children_per_address >= 1, per_address);
        ensure!((1..=64).contains(&self.exchanges), "exchanges must be from 1 to 64");
        ensure!(self.peers <= 8, "peers must be from 0 to 8");
        ensure!(self.liars <= 3, "liars must be from 0 to 3");
        let poll = StdDuration::from_millis(100);
        ensure!(self.poll >= poll, "poll must be 100ms or more");
        ensure!(self.lease >= self.poll * 2, "lease must be two polls or more");
        ensure!(self.wanted_width != Some(StdDuration::ZERO), "wanted_width must not be 0");
        ensure!(
            self.liars == 0 || self.master.is_some() || self.peers > 2 * self.liars,
            "of {} peers {} may lie: nobody could tell; set master, or peers = {}",
            self.peers,
            self.liars,
            2 * self.liars + 1
        );
        self.validate_timeline()?;
        self.validate_liars()?;
        ensure!(
            !self.seeds.is_empty() || serves && self.serve,
            "it has no seeds, so this is its root, and nobody can ask it: set server.listen"
        );
        Ok(())
    }
}

impl ClusterConfig {
    /// Whether enough hosts are listed to outvote those that lie.
    fn validate_liars(&self) -> Result<()> {
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        ensure!(
            !self.lists_too_few(nobody),
            "where {} may lie, only the hosts in `seeds` are asked, and {} at different addresses have to answer, this host \
             not counted: list more, or set master",
            self.liars,
            2 * self.liars + 1
        );
        Ok(())
    }

    fn validate_timeline(&self) -> Result<()> {
        let Some(timeline) = &self.timeline else { return Ok(()) };
        let usable = Name::new(timeline).is_some_and(|name| !name.is_host());
        ensure!(usable, "a cluster's timeline has a name of 1 to 16 bytes");
        ensure!(
            *timeline != self.name,
            "its timeline needs another name than the cluster, whose hosts ask for UTC by that"
        );
        ensure!(!self.seeds.is_empty(), "a timeline of the hosts' own needs seeds: list its hosts");
        ensure!(self.peers > 0, "a timeline needs peers = 1 or more: its master may end");
        ensure!(
            self.master.is_none(),
            "its timeline has whatever master is there; remove `master` or `timeline`"
        );
        ensure!(
            self.liars == 0,
            "whoever is master of its timeline is believed alone; remove `liars` or `timeline`"
        );
        ensure!(
            self.takeover_after >= self.poll * 3,
            "takeover_after must be three polls or more: a lost answer is no lost master"
        );
        ensure!(
            (1..=10_000).contains(&self.calibration_ppm),
            "calibration_ppm must be 1 to 10000: `timevisor status` says how well this host's counter is \
             known after its start"
        );
        Ok(())
    }
}

/// Checks all `[[cluster]]` tables, and that each reference has one with seeds.
pub fn validate(config: &Config) -> Result<()> {
    let serves = !config.server.listen.is_empty();
    for (index, cluster) in config.clusters.iter().enumerate() {
        cluster.validate(serves).with_context(|| format!("[[cluster]] {}", cluster.name))?;
        let first = config.clusters[..index].iter().all(|other| other.name != cluster.name);
        ensure!(first, "[[cluster]] {} is there twice; remove one", cluster.name);
        if let Some(timeline) = &cluster.timeline {
            let mut others = config.clusters.iter().enumerate();
            let taken = others.any(|(at, other)| {
                other.name == *timeline || at != index && other.timeline.as_ref() == Some(timeline)
            });
            ensure!(!taken, "[[cluster]] {}: another one has {timeline} already", cluster.name);
            let wander = config.oscillator.wander.per_second();
            ensure!(
                wander <= 5e-7,
                "[[cluster]] {}: a timeline that is another host's counter needs oscillator.wander \
                 of 5e-7 or less, because both may wander",
                cluster.name
            );
        }
    }
    for reference in &config.references {
        let super::ReferenceConfig::Cluster(reference) = reference else { continue };
        let found = config.clusters.iter().find(|cluster| cluster.name == reference.cluster);
        let cluster = found.with_context(|| {
            format!("a reference follows the cluster {}: add that [[cluster]]", reference.cluster)
        })?;
        ensure!(
            !cluster.seeds.is_empty(),
            "a reference follows the cluster {}, whose root this host is; add seeds or remove the reference",
            reference.cluster
        );
    }
    Ok(())
}

impl ClusterReference {
    /// Fills in what other tables say.
    pub fn complete(&mut self, clusters: &[ClusterConfig], port: u16, unmeasured_rate_ppm: u32) {
        self.settings = clusters.iter().find(|cluster| cluster.name == self.cluster).cloned();
        let serves = self.settings.as_ref().is_some_and(|settings| settings.serve);
        self.port = if serves { port } else { 0 };
        self.unmeasured_rate_ppm = unmeasured_rate_ppm;
    }

    /// How often somebody is asked.
    pub fn poll(&self) -> StdDuration {
        self.settings.as_ref().map_or_else(four_seconds, |settings| settings.poll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    const MEMBER: &str = "[[reference]]\ntype = \"cluster\"\ncluster = \"lab\"\n";

    #[test]
    fn a_member_and_a_root() {
        let text = format!(
            "{MEMBER}[server]\nlisten = [\"0.0.0.0:1123\"]\n[[cluster]]\nname = \"lab\"\nseeds = [\"192.0.2.1\", \"[2001:db8::1]:4123\"]\n"
        );
        let config = Config::parse(&text).unwrap();
        let super::super::ReferenceConfig::Cluster(reference) = &config.references[0] else {
            panic!("{config:?}");
        };
        let settings = reference.settings.as_ref().unwrap();
        assert_eq!(settings.seeds[0], "192.0.2.1:123".parse().unwrap());
        assert_eq!((settings.peers, settings.exchanges, reference.port), (3, 8, 1123));
        let root = "[server]\nlisten = [\"0.0.0.0:123\"]\n[[cluster]]\nname = \"lab\"\n";
        assert_eq!(Config::parse(root).unwrap().clusters[0].children, 1000);
    }

    #[test]
    fn the_packaged_file_states_the_defaults() {
        let packaged = include_str!("../../../packaging/timevisord.toml");
        let block = packaged.split("# [[cluster]]").nth(1).unwrap();
        let block = block.split("\n\n").next().unwrap();
        let keys = block.lines().filter_map(|line| line.strip_prefix("# "));
        let keys: Vec<&str> = keys.filter(|line| !line.starts_with('#')).collect();
        let parse = |keys: &[&str]| {
            toml::from_str::<ClusterConfig>(&keys.join("\n")).map(|config| format!("{config:?}"))
        };
        assert_eq!(keys.len(), 12, "{keys:?}");
        assert_eq!(parse(&keys).unwrap(), parse(&keys[..2]).unwrap());
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_next_step() {
        let long = "[[cluster]]\nname = \"0123456789abcdefg\"\nseeds = [\"192.0.2.1\"]\n";
        assert!(problem(long).contains("1 to 16 bytes"), "{}", problem(long));
        let word = "[[cluster]]\nname = \"lab\"\nseeds = [\"ntp.example\"]\n";
        assert!(problem(word).contains("is no address; write"), "{}", problem(word));
        let alone = "[[cluster]]\nname = \"lab\"\n";
        assert!(problem(alone).contains("set server.listen"), "{}", problem(alone));
        assert!(problem(MEMBER).contains("add that [[cluster]]"), "{}", problem(MEMBER));
        let own = |more: &str| {
            let seeds = "seeds = [\"192.0.2.1\"]\n";
            problem(&format!("[[cluster]]\nname = \"lab\"\n{seeds}timeline = \"cell\"\n{more}"))
        };
        assert!(own("liars = 1\npeers = 3\n").contains("believed alone"));
        assert!(own("peers = 0\n").contains("its master may end"));
        assert!(own("takeover_after = \"10s\"\n").contains("three polls"));
        assert!(own("calibration_ppm = 0\n").contains("must be 1 to 10000"));
        assert!(own("[oscillator]\nwander = 1e-6\n").contains("both may wander"));
        let same = "[[cluster]]\nname = \"lab\"\nseeds = [\"192.0.2.1\"]\ntimeline = \"lab\"\n";
        assert!(problem(same).contains("another name"), "{}", problem(same));
        let lying = "[[cluster]]\nname = \"lab\"\nseeds = [\"192.0.2.1\"]\nliars = 2\n";
        assert!(problem(lying).contains("peers = 5"), "{}", problem(lying));
        let one = "[[cluster]]\nname = \"lab\"\nseeds = [\"10.0.0.1\", \"10.0.0.1:124\", \"10.0.0.2\"]\nliars = 1\n";
        assert!(problem(one).contains("at different addresses"), "{}", problem(one));
    }

    #[test]
    fn a_host_that_others_would_refuse_is_never_master() {
        let text = "name = \"lab\"\nseeds = [\"192.0.2.1\"]\ntimeline = \"cell\"\n";
        let config: ClusterConfig = toml::from_str(text).unwrap();
        assert!(config.succession(123, RateError::from_ppm(300)).leads);
        assert!(!config.succession(123, RateError::from_ppm(301)).leads);
        assert!(!config.succession(0, RateError::from_ppm(1)).leads, "nobody can ask it");
    }

    #[test]
    fn a_key_is_a_secret_of_64_digits() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lab.key");
        let config = || {
            let text = format!("name = \"lab\"\nseeds = [\"192.0.2.1\"]\nkey = {file:?}\n");
            toml::from_str::<ClusterConfig>(&text).unwrap()
        };
        let problem = || format!("{:#}", config().sealer(Name::HOST).unwrap_err());
        assert!(problem().contains("[[cluster]] lab: key"), "{}", problem());
        let digits = "0123456789abcdef".repeat(4);
        std::fs::write(&file, &digits).unwrap();
        assert!(problem().contains("chmod 600"), "{}", problem());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).unwrap();
        assert!(config().sealer(Name::HOST).unwrap().is_some());
        assert!(config().cookie_keys(Name::HOST).unwrap().is_some());
        std::fs::write(&file, &digits[1..]).unwrap();
        assert!(problem().contains("timevisor cluster key"), "{}", problem());
    }
}
