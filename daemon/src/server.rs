//! `[server]`: this host's clock served over NTP, so that hosts can follow hosts and guests without a page are served.
//!
//! | file | owns |
//! | --- | --- |
//! | `server.rs` | the configuration, starting the thread, what the daemon tells it and asks of it |
//! | `server/serving.rs` | the thread: sockets, the page, stamps |
//!
//! The server has a thread of its own and reads the published page like any other program, so that no flood of requests
//! can delay a measurement. What the page does not say (stratum, reference id, the next leap second) comes over a
//! channel that the daemon never waits for.
//!
//! What it does not do: drop privileges, or serve more than NTP's client/server mode.

mod serving;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use timevisor_clock_page::Counter;
use timevisor_linux::counter::Calibration;
use timevisor_linux::udp_server::UdpServer;
use timevisor_protocols::control::ServerSummary;
use timevisor_protocols::ntp::server::{Config, LeapPlan, Prefix, Tally, access};
use timevisor_time::{Duration, Tai};

use self::serving::Serving;
use crate::clock::HostClock;
use crate::references::Reference;

/// Facts wait here when the server is busy; more than a few would be out of date anyway.
const FACTS_WAITING: usize = 4;

/// `[server]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Where to listen, such as `0.0.0.0:123` or `[::]:123`; none: no server.
    pub listen: Vec<SocketAddr>,
    /// Address prefixes that are answered.
    pub allow: Vec<String>,
    /// Address prefixes that are not, where they are longer than an allowed one.
    pub deny: Vec<String>,
    /// How many clients are remembered, for the rate limit and the interleaved mode.
    pub clients: usize,
    /// One request per this span is answered to each address in the long run; 0 switches the limit off.
    #[serde(with = "humantime_serde")]
    pub rate_interval: StdDuration,
    /// So many may come at once.
    pub rate_burst: u32,
    /// The interleaved mode for whoever asks for it (RFC 9769).
    pub interleaved: bool,
    /// What is said where the reference is no NTP server, whose stratum would be known.
    pub stratum: u8,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let defaults = Config::default();
        Self {
            listen: Vec::new(),
            allow: access::local_networks().iter().map(ToString::to_string).collect(),
            deny: Vec::new(),
            clients: defaults.clients,
            rate_interval: StdDuration::from_millis(500),
            rate_burst: defaults.rate_burst,
            interleaved: defaults.interleaved,
            stratum: 10,
        }
    }
}

impl ServerConfig {
    /// Checks every key.
    ///
    /// # Errors
    /// The first one that is wrong, with what would be right.
    pub fn validate(&self) -> Result<()> {
        self.protocol()?;
        ensure!((1..=15).contains(&self.stratum), "server.stratum must be from 1 to 15");
        for (index, address) in self.listen.iter().enumerate() {
            ensure!(
                !self.listen[..index].contains(address),
                "server.listen has {address} twice; remove one"
            );
            ensure!(address.port() != 0, "server.listen: {address} needs a port; NTP's is 123");
        }
        Ok(())
    }

    /// The protocol's part of it.
    fn protocol(&self) -> Result<Config> {
        let prefixes = |key: &str, texts: &[String]| {
            let parse = |text: &String| text.parse::<Prefix>();
            texts.iter().map(parse).collect::<Result<Vec<_>, _>>().context(format!("server.{key}"))
        };
        let config = Config {
            allow: prefixes("allow", &self.allow)?,
            deny: prefixes("deny", &self.deny)?,
            clients: self.clients,
            rate_interval: crate::config::span(self.rate_interval),
            rate_burst: self.rate_burst,
            interleaved: self.interleaved,
        };
        config.validate().context("[server]")?;
        Ok(config)
    }

    /// True when a server at `address` is this one: `local` is our address on the way to it.
    pub fn is_own(&self, address: SocketAddr, local: IpAddr) -> bool {
        let same = |listen: &SocketAddr| {
            listen.port() == address.port()
                && (listen.ip().is_unspecified() || listen.ip() == address.ip())
        };
        address.ip() == local && self.listen.iter().any(same)
    }
}

/// What the page does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Stratum and reference id of what the clock follows; `None` where it is no NTP server.
    pub upstream: Option<Upstream>,
    /// Counter value of the newest exchange that went in.
    pub as_of: u64,
    /// TAI - UTC; `None` while it is not known, and then UTC is not served.
    pub leap: Option<LeapPlan>,
}

/// An NTP server that the clock follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upstream {
    /// Its own stratum.
    pub stratum: u8,
    /// The reference id of who is synchronized to it.
    pub id: [u8; 4],
}

type Counts = [AtomicU64; Tally::ALL.len()];

/// The running server; it ends when this is dropped.
pub struct Server {
    facts: SyncSender<Facts>,
    counts: Arc<Counts>,
    listen: Vec<String>,
}

impl Server {
    /// Starts the server of a page that is already there; `None` when none is configured.
    ///
    /// # Errors
    /// When an address cannot be had or the page cannot be read.
    pub fn start(
        config: &ServerConfig,
        page: &Path,
        calibration: Calibration,
    ) -> Result<Option<Self>> {
        if config.listen.is_empty() {
            return Ok(None);
        }
        let sockets = config.listen.iter().map(|address| UdpServer::bind(*address));
        let sockets = sockets.collect::<Result<Vec<_>, _>>().context("[server]")?;
        let protocol = timevisor_protocols::ntp::server::Server::new(
            config.protocol()?,
            getrandom::u64().map_err(|e| anyhow!("the kernel gives no random numbers: {e}"))?,
        )?;
        let counts = Arc::new(Counts::default());
        let (facts, told) = sync_channel(FACTS_WAITING);
        let serving = Serving::new(sockets, protocol, page, calibration, config.stratum)?;
        let shared = Arc::clone(&counts);
        std::thread::Builder::new()
            .name("ntp-server".to_owned())
            .spawn(move || serving.run(&told, &shared))
            .context("cannot start the server's thread")?;
        for address in &config.listen {
            tracing::info!("serving NTP at {address}");
        }
        let listen = config.listen.iter().map(ToString::to_string).collect();
        Ok(Some(Self { facts, counts, listen }))
    }

    /// Tells it what has changed. When it is too busy to listen the next call will do: never waits.
    pub fn tell(&self, facts: Facts) {
        let _ = self.facts.try_send(facts);
    }

    /// For `timevisor status`.
    pub fn report(&self) -> ServerSummary {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let names = Tally::ALL.iter().map(|tally| tally.name().to_owned());
        ServerSummary { listen: self.listen.clone(), requests: names.zip(counts).collect() }
    }
}

/// What the daemon knows beside the page.
pub fn facts(clock: &HostClock, references: &[Reference]) -> Facts {
    let chosen = clock.estimate().chosen().and_then(|index| references.get(index));
    let lines = clock.writer().in_force().map(|lines| lines.shifted::<Tai>(Duration::ZERO));
    let now = lines.map(|lines| lines.at(clock.counter.read_ordered()).estimate);
    Facts {
        upstream: chosen.and_then(Reference::upstream),
        as_of: clock.knowledge().clock.as_ref().map_or(0, |known| known.as_of),
        leap: now.and_then(|now| clock.leap.plan(now)),
    }
}

/// Zero or more.
fn nonnegative(span: Duration) -> StdDuration {
    StdDuration::from_nanos(u64::try_from(span.ceil_nanos()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: fn(&mut ServerConfig)) -> String {
        let mut config = ServerConfig::default();
        change(&mut config);
        format!("{:#}", config.validate().unwrap_err())
    }

    #[test]
    fn the_default_is_valid_and_the_protocols_own() {
        let config = ServerConfig::default();
        config.validate().unwrap();
        assert_eq!(config.protocol().unwrap(), Config::default());
    }

    #[test]
    fn mistakes_are_named() {
        assert!(error(|c| c.allow = vec!["10.0.0.1/8".into()]).contains("write 10.0.0.0/8"));
        assert!(error(|c| c.deny = vec!["x".into()]).starts_with("server.deny"));
        assert!(error(|c| c.stratum = 16).contains("1 to 15"));
        assert!(error(|c| c.clients = 1).contains("clients is 1"));
        assert!(error(|c| c.rate_burst = 0).contains("rate_burst"));
        let twice: fn(&mut ServerConfig) = |c| c.listen = vec!["0.0.0.0:123".parse().unwrap(); 2];
        assert!(error(twice).contains("twice"));
        assert!(error(|c| c.listen = vec!["0.0.0.0:0".parse().unwrap()]).contains("123"));
    }

    #[test]
    fn a_reference_that_is_this_server_is_recognized() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let here: IpAddr = "192.0.2.1".parse().unwrap();
        let config = ServerConfig {
            listen: vec![at("0.0.0.0:123"), at("127.0.0.1:1123")],
            ..Default::default()
        };
        assert!(config.is_own(at("192.0.2.1:123"), here));
        assert!(config.is_own(at("127.0.0.1:1123"), "127.0.0.1".parse().unwrap()));
        assert!(!config.is_own(at("192.0.2.1:1123"), here), "not at this address");
        assert!(!config.is_own(at("192.0.2.9:123"), here), "another machine");
        assert!(!ServerConfig::default().is_own(at("192.0.2.1:123"), here), "no server");
    }
}
