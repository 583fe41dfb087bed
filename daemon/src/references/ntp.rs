//! One NTP server: crates/protocols has the packet format and the state machine, crates/linux the
//! socket; this file adds the time stamps.
//!
//! Ta is read before the packet is sent and Tf after it has been received, so the bounds hold
//! whatever the kernel does. Where the kernel time-stamps packets, its stamps move Ta later and Tf
//! earlier, but never beyond what the brackets around the exchange prove.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Receiver, TryRecvError};

use anyhow::{Context, Result, ensure};
use timevisor_clock_page::Counter;
use timevisor_estimate::Exchange;
use timevisor_linux::clock::{Bracket, bracket, realtime};
use timevisor_linux::stamps::{KERNEL_SLEW_LIMIT, StampMap};
use timevisor_linux::udp::{Received, Sockets, UdpClient};
use timevisor_protocols::control::Reference as Report;
use timevisor_protocols::ntp::{
    Client, Config, Exchange as PairedExchange, KissCode, Outcome, Response, Status, refid,
};
use timevisor_time::{Duration, Instant, Utc};

use super::nts::{Nts, Progress};
use super::{Surroundings, Upstream, random};
use crate::config::{Operator, ReferenceConfig, ServerConfig};

const PORT: u16 = 123;
/// A failed name resolution or a missing route is retried after this time.
const RETRY: Duration = Duration::from_secs(10);
/// How often the daemon checks whether the resolver has answered.
const RESOLVING: Duration = Duration::from_millis(50);
/// Readings per bracket; the narrowest one is used.
const BRACKET_TRIES: usize = 3;

/// Our clocks when a request was sent: the counter before it, a bracket, and the kernel's time
/// stamp if there is one.
#[derive(Clone, Copy, Debug)]
struct Sent {
    ta: u64,
    before: Bracket,
    stamp: Option<Instant<Utc>>,
}

pub struct Ntp {
    name: String,
    client: Client<Sent>,
    socket: Option<UdpClient>,
    /// Why there is no socket, and when to retry.
    unreachable: Option<(String, Duration)>,
    last: Option<(Response, Duration)>,
    leap_problem: Option<String>,
    /// The result of the resolver's thread. An unresponsive name server must not block the daemon.
    resolving: Option<Receiver<Result<SocketAddr>>>,
    told_kiss: Option<KissCode>,
    nts: Option<Nts>,
    /// Whether to ask for precise bounds; by default, the operator decides.
    precise: Option<bool>,
}

impl Ntp {
    pub fn new(address: &str, config: Config, nts: Option<Nts>, now: Duration) -> Result<Self> {
        let client = Client::new(config, now).with_context(|| format!("reference {address}"))?;
        Ok(Self {
            name: address.to_owned(),
            client,
            socket: None,
            unreachable: None,
            last: None,
            leap_problem: None,
            resolving: None,
            told_kiss: None,
            nts,
            precise: None,
        })
    }

    /// Creates the association with `address` as configured, polled every `interval`.
    pub fn of(
        config: &ReferenceConfig,
        address: &str,
        interval: Duration,
        now: Duration,
    ) -> Result<Self> {
        let nts = config.nts_server().map(|server| Nts::new(address, server)).transpose()?;
        let ntp = Self::new(address, config.ntp_config(interval)?, nts, now)?;
        Ok(Self { precise: config.precise(), ..ntp })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns false while this server provides no time. A server that rate-limits us still serves.
    pub fn serves(&self) -> bool {
        let status = self.client.status();
        let good =
            matches!(status, Status::Probing | Status::Reachable | Status::RateLimited { .. });
        self.unreachable.is_none() && good
    }

    /// Returns the server's address once it is known.
    pub fn peer(&self) -> Option<IpAddr> {
        self.socket.as_ref().map(|socket| socket.peer().ip())
    }

    /// The interval in force: the one that was set, or the one that the server imposes.
    pub fn interval(&self) -> Duration {
        self.client.interval()
    }

    /// Polls every `interval` from now on, with `burst` requests each.
    pub fn set_poll(&mut self, interval: Duration, burst: u32) -> Result<()> {
        Ok(self.client.set_poll(interval, burst)?)
    }

    pub fn poll_at(&self) -> Duration {
        match &self.unreachable {
            Some((_, again)) => *again,
            None => self.client.poll_at(),
        }
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub fn restart(&mut self, now: Duration) {
        self.unreachable = None;
        self.client.restart(now);
    }

    pub fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) {
        if now < self.poll_at() {
            return;
        }
        if let Some(Progress::Waiting { problem, again }) = self.nts.as_mut().map(|n| n.poll(now)) {
            self.socket = None;
            self.unreachable = Some((problem, again));
            return;
        }
        if self.socket.is_none() {
            match self.connect(around) {
                Ok(Some(socket)) => {
                    tracing::info!("reference {}: asking {}", self.name, socket.peer());
                    let operator = Operator::of(socket.peer().ip());
                    self.client.set_precise(self.precise.unwrap_or(operator.asks_precise()));
                    self.socket = Some(socket);
                    self.unreachable = None;
                }
                Ok(None) => {
                    let problem = match self.unreachable.take() {
                        Some((problem, _)) => problem,
                        None => "waiting for the name server; check DNS if this lasts".to_owned(),
                    };
                    self.unreachable = Some((problem, now + RESOLVING));
                    return;
                }
                Err(error) => return self.give_up(format!("{error:#}"), now),
            }
        }
        let Some(request) = self.client.on_timer(now, random()) else { return };
        let sealed = match &mut self.nts {
            None => request.bytes.to_vec(),
            Some(nts) => match nts.seal(&request.bytes) {
                Some(sealed) => sealed,
                None => return,
            },
        };
        let before = bracket(around.counter, BRACKET_TRIES);
        let Some(socket) = &mut self.socket else { return };
        let ta = around.counter.read_ordered();
        if let Err(error) = socket.send(&sealed) {
            return self.give_up(describe(&error), now);
        }
        let stamp = socket.recv_tx_stamp().ok().flatten();
        self.client.sent(Sent { ta, before, stamp });
    }

    /// Opens a socket to the server; returns `None` while the name is being resolved.
    fn connect(&mut self, around: &Surroundings<'_>) -> Result<Option<UdpClient>> {
        let name = &self.name;
        let keyed = self.nts.as_ref().and_then(Nts::peer);
        let peer = match (keyed.or_else(|| literal(name)), &self.resolving) {
            (Some(peer), _) => peer,
            (None, None) => {
                self.resolving = Some(resolve(name.clone())?);
                return Ok(None);
            }
            (None, Some(answer)) => match answer.try_recv() {
                Err(TryRecvError::Empty) => return Ok(None),
                answer => {
                    self.resolving = None;
                    answer.context("the resolver's thread ended without an answer")??
                }
            },
        };
        if around.sockets == Sockets::Stamped {
            self.check_own(peer, around.own_server)?;
        }
        Ok(Some(UdpClient::open(peer, around.sockets)?))
    }

    /// Refuses our own server, and makes the client refuse servers that follow us.
    fn check_own(&mut self, peer: SocketAddr, own: &ServerConfig) -> Result<()> {
        if own.listen.is_empty() {
            return Ok(());
        }
        let any: IpAddr = if peer.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        // Our address as that server sees it. Without a route, opening the real socket will report
        // the error.
        let local = || -> std::io::Result<IpAddr> {
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(peer)?;
            Ok(socket.local_addr()?.ip())
        };
        let Ok(local) = local() else { return Ok(()) };
        ensure!(
            !own.is_own(peer, local),
            "{peer} is this daemon's own server; remove the reference or the server"
        );
        let addresses = own.listen.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified());
        self.client.set_own_ids(addresses.chain([local]).map(refid::of_address).collect());
        Ok(())
    }

    fn give_up(&mut self, problem: String, now: Duration) {
        if self.unreachable.as_ref().is_none_or(|(known, _)| *known != problem) {
            tracing::warn!("reference {}: {problem}", self.name);
        }
        self.socket = None;
        self.unreachable = Some((problem, now + RETRY));
    }

    pub fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        let mut exchanges = Vec::new();
        // A reply with eight NTS cookies is longer than 1024 bytes.
        let mut buffer = [0u8; 2048];
        // The limit keeps a flood of packets from blocking the daemon's other work.
        for _ in 0..16 {
            let Some(socket) = &mut self.socket else { break };
            if let Some(sent) = self.client.sent_mut().filter(|s| s.stamp.is_none()) {
                sent.stamp = socket.recv_tx_stamp().ok().flatten();
            }
            match socket.recv(&mut buffer) {
                Ok(Some(received)) => {
                    let tf = around.counter.read_ordered();
                    let bytes = &buffer[..received.len.min(buffer.len())];
                    exchanges.extend(self.on_datagram(now, bytes, &received, tf, around));
                }
                Ok(None) => break,
                // "Connection refused" and similar errors: the request is lost, and the state
                // machine counts its timeout.
                Err(error) => {
                    tracing::debug!("reference {}: {}", self.name, describe(&error));
                    break;
                }
            }
        }
        exchanges
    }

    fn on_datagram(
        &mut self,
        now: Duration,
        bytes: &[u8],
        received: &Received,
        tf: u64,
        around: &Surroundings<'_>,
    ) -> Option<Exchange> {
        let opened;
        let bytes = match &mut self.nts {
            None => bytes,
            Some(nts) => {
                opened = nts.open(bytes)?;
                &opened[..]
            }
        };
        let stamps = |sent: Sent| narrowed(&sent, received, tf, around);
        match self.client.on_datagram(now, bytes, realtime(), stamps) {
            Outcome::Exchange(exchange) => self.complete(&exchange, around),
            Outcome::Kept { .. } => None,
            Outcome::Rejected(reason) => {
                tracing::debug!("reference {}: answer rejected: {reason}", self.name);
                None
            }
            Outcome::KissOfDeath(code) => {
                if self.told_kiss.replace(code) != Some(code) {
                    tracing::warn!("reference {}: kiss of death {code}", self.name);
                }
                None
            }
        }
    }

    /// Converts the exchange to TAI for the estimate; returns `None` while TAI - UTC is not known.
    fn complete(
        &mut self,
        exchange: &PairedExchange,
        around: &Surroundings<'_>,
    ) -> Option<Exchange> {
        let PairedExchange { ta, tf, response } = *exchange;
        let tai = |utc| around.leap.to_tai(utc);
        let (tb, te) = match (tai(response.tb), tai(response.te)) {
            (Ok(tb), Ok(te)) => (tb, te),
            (Err(problem), _) | (_, Err(problem)) => {
                if self.leap_problem.as_ref() != Some(&problem) {
                    tracing::warn!("reference {}: {problem}", self.name);
                }
                self.leap_problem = Some(problem);
                return None;
            }
        };
        self.leap_problem = None;
        self.told_kiss = None;
        let period = around.calibration.0;
        let round_trip = period.span(tf.wrapping_sub(ta)) - (te - tb);
        self.last = Some((response, round_trip));
        Some(Exchange { ta, tb, te, tf, error: response.error_budget() })
    }

    /// Returns this server's stratum and id, for our own server's answers.
    pub fn upstream(&self) -> Option<Upstream> {
        let (response, _) = self.last?;
        let id = refid::of_address(self.socket.as_ref()?.peer().ip());
        Some(Upstream { stratum: response.stratum, id })
    }

    pub fn report(&self, now: Duration) -> Report {
        let status = self.client.status();
        let (status, detail) = match (&self.unreachable, &self.leap_problem) {
            (Some((problem, _)), _) => ("unreachable".to_owned(), problem.clone()),
            (None, Some(problem)) => ("leap-table".to_owned(), problem.clone()),
            (None, None) => (status.name().to_owned(), status.describe(now)),
        };
        let interleaved = self.last.is_some_and(|(response, _)| response.is_interleaved());
        let detail = if interleaved { format!("{detail} (interleaved)") } else { detail };
        let precise = self.last.is_some_and(|(response, _)| response.precise.is_some());
        let detail = if precise { format!("{detail} (precise bounds)") } else { detail };
        let counters = self.client.counters();
        let rejected = timevisor_protocols::ntp::RejectReason::ALL
            .iter()
            .map(|reason| (reason.name().to_owned(), counters.rejected_for(*reason)))
            .chain([("kiss_of_death".to_owned(), counters.kisses)])
            .filter(|(_, count)| *count > 0)
            .collect();
        let mut report = Report {
            name: self.name.clone(),
            kind: "ntp".to_owned(),
            status,
            detail,
            stratum: self.last.map(|(r, _)| r.stratum),
            offset_ns: None,
            rtt_ns: self.last.map(|(_, round_trip)| round_trip.floor_nanos()),
            accepted: counters.accepted,
            rejected,
            reach: self.client.reach().to_string(),
            poll_s: self.client.interval().as_secs_f64(),
            polling: None,
            suggestion: None,
        };
        if let Some(nts) = &self.nts {
            nts.report(now, &mut report);
        }
        report
    }
}

/// Computes Ta and Tf, and narrows them by the kernel's time stamps where these exist.
fn narrowed(sent: &Sent, received: &Received, tf: u64, around: &Surroundings<'_>) -> (u64, u64) {
    if sent.stamp.is_none() && received.stamp.is_none() {
        return (sent.ta, tf);
    }
    let after = bracket(around.counter, BRACKET_TRIES);
    let (period, error) = around.calibration;
    let Some(map) = StampMap::new(sent.before, after, period, KERNEL_SLEW_LIMIT.plus(error)) else {
        return (sent.ta, tf);
    };
    let send = sent.stamp.and_then(|stamp| map.send_bound(stamp)).unwrap_or(sent.ta);
    let receive = received.stamp.and_then(|stamp| map.receive_bound(stamp)).unwrap_or(tf);
    let (ta, earlier) = (sent.ta.max(send), tf.min(receive));
    if ta <= earlier { (ta, earlier) } else { (sent.ta, tf) }
}

/// Parses an address literal, which needs no resolver.
fn literal(name: &str) -> Option<SocketAddr> {
    let ip = || Some(SocketAddr::new(name.parse().ok()?, PORT));
    name.parse().ok().or_else(ip)
}

/// Resolves a name in a thread, because getaddrinfo waits many seconds for an unresponsive name
/// server.
fn resolve(name: String) -> Result<Receiver<Result<SocketAddr>>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("resolver".to_owned())
        .spawn(move || sender.send(ask_resolver(&name)))
        .context("cannot start the resolver's thread")?;
    Ok(receiver)
}

fn ask_resolver(name: &str) -> Result<SocketAddr> {
    let target = if name.contains(':') { name.to_owned() } else { format!("{name}:{PORT}") };
    let mut found = target
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {name}; check the name and DNS"))?;
    found.next().with_context(|| format!("{name} has no address"))
}

fn describe(error: &timevisor_linux::udp::UdpError) -> String {
    let cause = std::error::Error::source(error).map(|s| format!(": {s}")).unwrap_or_default();
    format!("{error}{cause}")
}
