//! The hosts of a cluster: crates/cluster decides whom to ask and what their answers prove together;
//! this file adds sockets and time stamps.
//!
//! What the clock gets of it is the interval that all of them allow at the moment of an answer, as if
//! a clock of this machine had been read: each answer is of another server, over another path, so
//! there are no round trips that one could compare.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use timevisor_clock_page::Counter;
use timevisor_cluster::client::Client;
use timevisor_cluster::facts::middle;
use timevisor_cluster::mesh::Standing;
use timevisor_cluster::node::{Event, Node, Settings};
use timevisor_estimate::{Exchange, RateLimits};
use timevisor_linux::clock::bracket;
use timevisor_linux::udp::UdpClient;
use timevisor_protocols::control::Reference as Report;
use timevisor_protocols::ntp::{ERA_PIVOT, refid};
use timevisor_time::{Duration, Instant, RateError, Utc};

use super::ntp::describe;
use super::path::source;
use super::stamped::{Arrival, BRACKET_TRIES, Sent, narrowed};
use super::tally::{PROBING, Refused, Tally};
use super::{Driver, Surroundings, Upstream, random};
use crate::config::{ClusterConfig, ClusterReference, span};

/// Packets that are taken at a time, so that a flood does not block the daemon's other work.
const MOST_PACKETS: usize = 16;

pub struct Cluster {
    settings: ClusterConfig,
    /// Where this host serves others; 0 if it does not.
    port: u16,
    unmeasured: RateError,
    tally: Tally,
    /// Made when the counter's calibration is known.
    client: Option<Client>,
    socket: Option<UdpClient>,
    sent: Option<Sent>,
    /// Whose answer came last.
    answered: Option<SocketAddr>,
    start: Duration,
}

impl Cluster {
    pub fn new(config: &ClusterReference, name: String, now: Duration) -> Result<Self> {
        let settings = config.settings.clone();
        let settings =
            settings.with_context(|| format!("there is no [[cluster]] {}", config.cluster))?;
        Ok(Self {
            settings,
            port: config.port,
            unmeasured: RateError::from_ppm(config.unmeasured_rate_ppm),
            tally: Tally::new(name),
            client: None,
            socket: None,
            sent: None,
            answered: None,
            start: now,
        })
    }

    fn client(&mut self, now: Duration, around: &Surroundings<'_>) -> &mut Client {
        let (settings, port) = (&self.settings, self.port);
        let (nominal, error) = around.calibration;
        let limits = self.unmeasured.plus(error);
        self.client.get_or_insert_with(|| {
            let unspecified = IpAddr::from([0, 0, 0, 0]);
            let own = around.own_server.listen.first().copied();
            let own = own.unwrap_or(SocketAddr::new(unspecified, port));
            let node = Settings {
                burst: settings.burst(),
                spacing: Duration::ZERO,
                children: settings.children,
                lease: span(settings.lease),
                peers: settings.peers,
                poll: span(settings.poll),
                liars: settings.liars,
                trusted: settings.master,
                rate: RateLimits::around(nominal, limits),
                nominal,
            };
            let node = Node::new(own, node, settings.seeds.clone(), random(), now);
            Client::new(node, settings.wire_name(), port)
        })
    }

    /// Opens a socket to `server` unless there is one.
    fn connect(
        &mut self,
        server: SocketAddr,
        around: &Surroundings<'_>,
    ) -> Result<&mut UdpClient, Refused> {
        let is_there = self.socket.as_ref().is_some_and(|socket| socket.peer() == server);
        if !is_there {
            self.socket = None;
            let own = source(server).is_ok_and(|source| around.own_server.is_own(server, source));
            if own {
                return Err(Refused::new("own-server", format!("{server} is this host itself")));
            }
            let opened = UdpClient::open(server, around.sockets);
            let opened = opened.map_err(|error| Refused::new("unreachable", describe(&error)))?;
            self.socket = Some(opened);
        }
        let text = "the socket is gone";
        self.socket.as_mut().ok_or_else(|| Refused::new("unreachable", text))
    }

    fn ask(&mut self, now: Duration, around: &Surroundings<'_>) -> Result<(), Refused> {
        let client = self.client(now, around);
        let Some((server, question)) = client.on_timer(now, random()) else { return Ok(()) };
        let counter = around.counter;
        let before = bracket(counter, BRACKET_TRIES);
        let socket = self.connect(server, around)?;
        let ta = counter.read_ordered();
        socket.send(&question).map_err(|error| Refused::new("unreachable", describe(&error)))?;
        let stamp = socket.recv_tx_stamp().ok().flatten();
        self.sent = Some(Sent { ta, before, stamp });
        if let Some(client) = &mut self.client {
            client.sent(ta);
        }
        Ok(())
    }

    fn take(
        &mut self,
        now: Duration,
        bytes: &[u8],
        arrival: Arrival,
        around: &Surroundings<'_>,
    ) -> Option<Exchange> {
        let (peer, sent) = (self.socket.as_ref()?.peer(), self.sent?);
        let client = self.client.as_mut()?;
        let (query, bytes) = (client.waits_for(peer)?, bytes.to_vec());
        // Neither CLOCK_REALTIME nor another host may move a server's time by 136 years.
        let said = around.parser.run(move || query.read(&bytes, ERA_PIVOT)).ok()?;
        let (ta, tf) = narrowed(&sent, &arrival, around);
        client.sent(ta);
        let has_answered = said.is_ok();
        let tai = |utc: Instant<Utc>| around.leap.to_tai(utc).ok();
        let events = client.heard(peer, said, tf, tai, now);
        for event in events {
            log(&self.settings.name, &event);
        }
        if has_answered {
            self.answered = Some(peer);
        }
        let outcome = self.known(arrival.tf);
        self.tally.take(outcome)
    }

    /// What all answers prove together at this value of the counter.
    fn known(&self, counter: u64) -> Result<Exchange, Refused> {
        let probing = |text: String| Refused::new(PROBING, text);
        let client = self.client.as_ref().ok_or_else(|| probing("not asked yet".to_owned()))?;
        let found = client.node().at(counter).filter(|_| client.node().vouches());
        match found {
            Some((interval, Standing::Vouched)) => {
                let (time, error) =
                    (middle(&interval), interval.width().half() + Duration::EPSILON);
                Ok(Exchange { ta: counter, tb: time, te: time, tf: counter, error })
            }
            _ => Err(self.trouble().unwrap_or_else(|| probing("asking the seeds".to_owned()))),
        }
    }

    /// Why nobody who was asked is of use, if that is known.
    fn trouble(&self) -> Option<Refused> {
        let (server, why) = self.client.as_ref()?.refusals().next()?;
        Some(Refused::new("refused", format!("{server}: {why}")))
    }

    /// That of the server nearest to the time's source: of UTC, the level that servers state is their
    /// stratum.
    fn stratum(&self) -> Option<u8> {
        self.client.as_ref()?.node().level()?.checked_sub(1)
    }

    fn detail(&self) -> String {
        let Some(client) = &self.client else { return "not asked yet".to_owned() };
        let node = client.node();
        let (heard, named) = (node.heard().count(), node.named().count());
        let liars = if named == 0 { String::new() } else { format!(", {named} named as liars") };
        format!("{heard} hosts heard{liars}, {} questions", client.questions())
    }
}

fn log(cluster: &str, event: &Event<SocketAddr>) {
    match event {
        Event::Vouches => tracing::info!("cluster {cluster}: this host has bounds"),
        Event::BeganAnew => tracing::warn!("cluster {cluster}: its timeline began anew"),
        Event::Named(liar) => tracing::warn!(
            "cluster {cluster}: {liar} contradicts the others, and is not asked any more"
        ),
        Event::Stranger(host) => {
            tracing::warn!("cluster {cluster}: {host} has another timeline of this name");
        }
    }
}

impl Driver for Cluster {
    fn poll_at(&self) -> Duration {
        self.client.as_ref().map_or(self.start, Client::poll_at)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.socket.iter().map(AsFd::as_fd).collect()
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        if now < self.poll_at() {
            return None;
        }
        // A question that was not sent counts as lost when its time is over.
        match self.ask(now, around) {
            Ok(()) => None,
            Err(refused) => self.tally.take(Err(refused)),
        }
    }

    fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        let mut exchanges = Vec::new();
        let mut buffer = [0; 2048];
        for _ in 0..MOST_PACKETS {
            let Some(socket) = &mut self.socket else { break };
            let stamp = socket.take_stamps().ok().flatten();
            if let Some(sent) = self.sent.as_mut().filter(|sent| sent.stamp.is_none()) {
                sent.stamp = stamp;
            }
            match socket.recv(&mut buffer) {
                Ok(Some(received)) => {
                    let tf = around.counter.read_ordered();
                    let after = bracket(around.counter, BRACKET_TRIES);
                    let arrival = Arrival { tf, after, stamp: received.stamp };
                    let bytes = &buffer[..received.len.min(buffer.len())];
                    exchanges.extend(self.take(now, bytes, arrival, around));
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!("{}: {}", self.tally.name, describe(&error));
                    break;
                }
            }
        }
        exchanges
    }

    fn network_changed(&mut self, _now: Duration) {
        self.socket = None;
    }

    fn asked(&self) -> Vec<SocketAddr> {
        self.settings.seeds.clone()
    }

    fn restart(&mut self, now: Duration) {
        self.client = None;
        self.socket = None;
        self.start = now;
    }

    fn upstream(&self) -> Option<Upstream> {
        Some(Upstream { stratum: self.stratum()?, id: refid::of_address(self.answered?.ip()) })
    }

    fn report(&self, _now: Duration) -> Report {
        let report = self.tally.report("cluster", &self.detail(), span(self.settings.poll), None);
        Report { stratum: self.stratum(), ..report }
    }
}
