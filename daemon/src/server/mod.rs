//! `[server]`: serves this host's clock over NTP, to other hosts and to guests without a page.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | starts the thread, exchanges data with the daemon |
//! | `serving.rs` | the thread: sockets, the page, time stamps |
//! | `timeline.rs` | clusters' own timelines, as the thread serves them |
//! | `clients.rs` | the list of clients, which the thread makes when one is asked for |
//! | `nts/` | the threads that give clients keys, so that they can authenticate the time (NTS) |
//!
//! The server runs in its own thread and reads the published page like any other program, so that a
//! flood of requests cannot delay a measurement. Facts that the page lacks (stratum, reference id,
//! the next leap second) arrive over a channel on which the daemon never waits.
//!
//! Threads that hear clients have nothing but their sockets: another user, no capabilities, a filter of
//! system calls.
//!
//! Limitations: only NTP's client/server mode is served.

mod clients;
mod nts;
mod serving;
mod timeline;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, anyhow};
use timevisor_clock_page::{ClockStatus, Counter, Lines};
use timevisor_cluster::children::Children;
use timevisor_cluster::node::Origin;
use timevisor_linux::confine::{Permitted, confine_thread};
use timevisor_linux::counter::Calibration;
use timevisor_linux::udp_server::UdpServer;
use timevisor_protocols::control::{Clients, ServerSummary};
use timevisor_protocols::ntp::precise::{Name, RateLimits};
use timevisor_protocols::ntp::server::{Cluster, LeapPlan, Tally};
use timevisor_time::{Duration, Tai};

use self::clients::ClientList;
use self::nts::Nts;
use self::serving::Serving;
use crate::clock::HostClock;
use crate::config::{ClusterConfig, ServerConfig, span};
use crate::references::{Reference, Upstream};

/// Capacity of the channel of facts to the server. If the server is too busy to read these, the
/// older ones are out of date anyway.
const FACTS_WAITING: usize = 4;

/// The facts that the page lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Stratum and reference id of the server that the clock follows; `None` if it follows no NTP
    /// server.
    pub upstream: Option<Upstream>,
    /// Counter value of the newest exchange in the estimate.
    pub as_of: u64,
    /// TAI - UTC; without it, UTC is not served.
    pub leap: Option<LeapPlan>,
}

/// A cluster's own timeline, for its members.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimelineFacts {
    /// Its name on the wire.
    pub name: Name,
    /// `None` while nothing is known of it.
    pub lines: Option<Lines<Tai>>,
    pub status: ClockStatus,
    pub origin: Origin,
    /// Servers between this host and its master.
    pub level: u8,
    pub rate: RateLimits,
    /// When its master was last heard, monotonic; [`Duration::MAX`] on the master itself.
    pub heard: Option<Duration>,
}

/// What the server is told.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    pub facts: Facts,
    pub timelines: Vec<TimelineFacts>,
}

type Counts = [AtomicU64; Tally::ALL.len()];

/// The running server; it ends when this is dropped.
pub struct Server {
    facts: SyncSender<Told>,
    counts: Arc<Counts>,
    clients: Arc<ClientList>,
    listen: Vec<String>,
    nts: Option<Nts>,
}

impl Server {
    /// Starts the server for the page in the run directory, which exists; returns `None` when no
    /// server is configured.
    ///
    /// # Errors
    /// When an address cannot be bound, the page cannot be read, or NTS's certificate cannot be
    /// used.
    pub fn start(
        config: &ServerConfig,
        clusters: &[ClusterConfig],
        directory: &Path,
        calibration: Calibration,
    ) -> Result<Option<Self>> {
        if config.listen.is_empty() {
            return Ok(None);
        }
        let sockets = config.listen.iter().map(|address| UdpServer::bind(*address));
        let sockets = sockets.collect::<Result<Vec<_>, _>>().context("[server]")?;
        let mut protocol = timevisor_protocols::ntp::server::Server::new(
            config.protocol()?,
            getrandom::u64().map_err(|e| anyhow!("the kernel returns no random numbers: {e}"))?,
        )?;
        let mut shared = Vec::new();
        for cluster in clusters.iter().filter(|cluster| cluster.serve) {
            let children = Children::new(cluster.children, span(cluster.lease))
                .with_most_per_address(cluster.children_per_address);
            let own = cluster.wire_timeline().map(|name| (name, true));
            for (name, is_timeline) in own.into_iter().chain([(cluster.wire_name(), false)]) {
                let keys = cluster.cookie_keys(name)?;
                let secret = keys.is_some().then_some(name);
                shared.extend(keys.map(|keys| (name, keys)));
                let referrer = Box::new(children.clone());
                protocol.serve_cluster(Cluster { name, is_timeline, secret, referrer });
            }
        }
        let counts = Arc::new(Counts::default());
        let (facts, told) = sync_channel(FACTS_WAITING);
        let nts = Nts::start(config, directory)?;
        let (mut keys, mut protector) = (None, None);
        if let Some(nts) = &nts {
            let (own, view) = nts.protector()?;
            (keys, protector) = (Some(view), Some(own));
        }
        for (name, keys) in &shared {
            protector.get_or_insert_with(nts::without_keys).share(*name, keys);
        }
        if let Some(protector) = protector {
            protocol.serve_nts(protector);
        }
        let page = directory.join("clock");
        let serving = Serving::new(sockets, protocol, &page, calibration, config.stratum, keys)?;
        let shared = Arc::clone(&counts);
        let clients = Arc::new(ClientList::default());
        let list = Arc::clone(&clients);
        std::thread::Builder::new()
            .name("ntp-server".to_owned())
            .spawn(move || match confine_thread(Permitted::ItsSockets) {
                Ok(()) => serving.run(&told, &shared, &list),
                Err(error) => {
                    let error = anyhow::Error::new(error);
                    tracing::error!("nothing is served over NTP: {error:#}");
                }
            })
            .context("cannot start the server's thread")?;
        for address in &config.listen {
            tracing::info!("serving NTP at {address}");
        }
        let listen = config.listen.iter().map(ToString::to_string).collect();
        Ok(Some(Self { facts, counts, clients, listen, nts }))
    }

    /// Sends new facts to the server. Never waits: if the server is busy, the next call will
    /// deliver them.
    pub fn tell(&self, told: Told) {
        let _ = self.facts.try_send(told);
    }

    /// Answers `clients`: the last list, and asks for a new one if that is not newer than `after`.
    pub fn clients(&self, after: Option<u64>) -> Clients {
        self.clients.ask(after)
    }

    /// Returns the state for `timevisor status`.
    pub fn report(&self) -> ServerSummary {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let names = Tally::ALL.iter().map(|tally| tally.name().to_owned());
        ServerSummary {
            listen: self.listen.clone(),
            problem: None,
            requests: names.zip(counts).collect(),
            nts: self.nts.as_ref().map(Nts::report),
        }
    }
}

/// The facts that the daemon knows and the page lacks.
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

/// Converts a span; a negative one becomes zero.
fn nonnegative(span: Duration) -> StdDuration {
    StdDuration::from_nanos(u64::try_from(span.ceil_nanos()).unwrap_or(0))
}
