//! An NTP server: requests in, replies out (RFC 5905 section 9.2, RFC 9769 for the interleaved
//! mode).
//!
//! | module | owns |
//! | --- | --- |
//! | [`config`] | every tunable, with unit and reason |
//! | [`access`] | which clients are answered: address prefixes |
//! | [`clients`] | the table of clients, of fixed size: rate limit, and the last departure for the interleaved mode |
//! | [`clock`] | the served clock and its header: [`ServedClock`] |
//! | [`cluster`](mod@cluster) | clusters under names of their own, and whom their members are referred to |
//! | [`leap`] | TAI - UTC around the next leap second |
//! | [`tally`] | counts of requests by outcome |
//!
//! The server answers only clients (mode 3, versions 1 to 4, each in its own version). A reply has
//! 48 bytes, and more only for a client that asks for precise bounds ([`super::precise`]); it is
//! never longer than the request. There is no control or monitoring mode that could amplify
//! traffic.
//!
//! With NTS ([`Server::serve_nts`]), or for hosts that share a secret with this one, a request that is authentic gets an answer that its client can
//! authenticate: the plain one, which [`Protector`] completes. Plain requests are served as before.
//!
//! What it does not do: open sockets, read clocks, smear leap seconds, or serve symmetric and
//! broadcast modes. A request with a MAC, or with NTS where no cookies are known, gets no answer,
//! because an unauthenticated answer is worthless to its sender. A flood from forged addresses can
//! use up a victim's share of the rate limit; the victim gets no answers here while it lasts.

pub mod access;
pub mod clients;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod leap;
pub mod tally;

use std::net::{IpAddr, SocketAddr};

use timevisor_time::{Duration, Instant, Utc};

use super::datagram::Datagram;
use super::extension::Fields;
use super::format::NtpTimestamp;
use super::packet::{HEADER_LEN, Mode, Packet, VERSION};
use super::precise::{self, Errors, Name};
use crate::nts::field::AUTHENTICATOR;
use crate::nts::server::{Protector, Request as NtsRequest};
use clients::{Clients, Verdict};

pub use access::{AccessList, Prefix};
pub use clock::{OwnTimeline, PreciseTime, ServedClock, ServedTime, Unsynchronized};
pub use cluster::{Cluster, Referrer};
pub use config::{Config, ConfigError};
pub use leap::LeapPlan;
pub use tally::{Counters, Tally};

/// The reply to a request, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "a reply in place costs less than an allocation")]
pub enum Action {
    /// Send this to the request's source.
    Reply {
        /// The datagram.
        bytes: Datagram,
        /// The client will ask when this reply left: pass its departure to [`Server::departed`] if
        /// the kernel reports it.
        departure: Option<Departure>,
    },
    /// The same, but the reply is a kiss of death (RATE).
    Kiss {
        /// The datagram.
        bytes: [u8; HEADER_LEN],
    },
    /// Send [`Server::protected`] to the request's source: it has asked with NTS.
    Protected {
        /// As what the reply is counted: [`Tally::Answered`], [`Tally::Kissed`] or
        /// [`Tally::NtsNak`].
        outcome: Tally,
        /// As in a plain reply.
        departure: Option<Departure>,
    },
    /// No reply; the reason is counted already.
    Drop(Tally),
}

/// Identifies a reply whose departure is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure {
    slot: usize,
    /// The receive stamp of the reply, by which the client will ask.
    name: NtpTimestamp,
}

/// The lowest bit of a server's stamps tells their kind, as in chronyd: it is set in receive stamps
/// and clear in transmit stamps. A client's origin field then shows whether it asks for the
/// interleaved mode, and departures are measured and kept only for such clients.
const RECEIVE_FLAG: u64 = 1;

/// The kiss code beside [`precise::Status::KeyRequired`]; codes that begin with X are for experiments
/// (RFC 5905 section 7.4).
const KEY_REQUIRED: [u8; 4] = *b"XKEY";

/// The server. Every `now` is monotonic time since an origin that the caller chooses.
#[derive(Debug)]
pub struct Server {
    config: Config,
    access: AccessList,
    clients: Clients,
    counters: Counters,
    /// `None` where NTS is not served.
    nts: Option<Box<Protector>>,
    clusters: Vec<Cluster>,
}

impl Server {
    /// Makes a server that knows no client yet. `seed` is random and keeps attackers from choosing
    /// addresses that crowd one set of the table.
    ///
    /// # Errors
    /// What [`Config::validate`] finds.
    pub fn new(config: Config, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        let access = AccessList::new(&config.allow, &config.deny);
        let clients = Clients::new(&config, seed);
        let (counters, nts, clusters) = (Counters::default(), None, Vec::new());
        Ok(Self { config, access, clients, counters, nts, clusters })
    }

    /// Serves a cluster's members, too.
    pub fn serve_cluster(&mut self, cluster: Cluster) {
        self.clusters.push(cluster);
    }

    /// The cluster's own timeline that a request asks for, if it asks for one that is served here: its
    /// clock is what [`Self::respond`] has to be given then.
    #[must_use]
    pub fn asks_for(&self, request: &[u8]) -> Option<Name> {
        if !self.clusters.iter().any(|cluster| cluster.is_timeline) {
            return None;
        }
        let (_, tail) = Packet::parse(request).ok()?;
        let name =
            Fields::new(tail).find_map(|field| precise::Request::parse(&field.ok()?))?.timeline;
        let mut timelines = self.clusters.iter().filter(|cluster| cluster.is_timeline);
        timelines.any(|cluster| cluster.name == name).then_some(name)
    }

    /// Serves requests with NTS, too: those with cookies that this protector can read.
    pub fn serve_nts(&mut self, protector: Protector) {
        self.nts = Some(Box::new(protector));
    }

    /// Returns the part that knows NTS's keys, to replace them.
    pub fn nts(&mut self) -> Option<&mut Protector> {
        self.nts.as_deref_mut()
    }

    /// The datagram of the last [`Action::Protected`].
    #[must_use]
    pub fn protected(&self) -> &[u8] {
        self.nts.as_ref().map_or(&[], |nts| nts.answer())
    }

    /// Judges and answers one datagram that arrived from `from`.
    ///
    /// `received` is its arrival on the served clock. Its error must be within
    /// [`ServedTime::error`], except that it may be later than the real arrival. It is not used
    /// while the clock is unknown.
    pub fn respond(
        &mut self,
        now: Duration,
        request: &[u8],
        received: Instant<Utc>,
        clock: &ServedClock,
        from: SocketAddr,
    ) -> Action {
        self.counters.add(Tally::Received);
        let action = self.judged(now, request, received, clock, from);
        self.counters.add(match &action {
            Action::Reply { .. } => Tally::Answered,
            Action::Kiss { .. } => Tally::Kissed,
            Action::Protected { outcome: told, .. } | Action::Drop(told) => *told,
        });
        action
    }

    /// Stores a reply's departure as the kernel stamped it: UTC as served, never later than the
    /// real departure, with its errors.
    pub fn departed(&mut self, departure: Departure, at: Instant<Utc>, errors: Errors) {
        self.clients.departed(departure.slot, departure.name, transmit_stamp(at), errors);
    }

    /// The clients.
    #[must_use]
    pub const fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Returns the counts of everything that has happened.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    fn judged(
        &mut self,
        now: Duration,
        request: &[u8],
        received: Instant<Utc>,
        clock: &ServedClock,
        from: SocketAddr,
    ) -> Action {
        let address = from.ip().to_canonical();
        if from.port() == 0 || !is_host(address) || !self.access.admits(address) {
            return Action::Drop(Tally::Denied);
        }
        let asked = match understood(request, self.nts.is_some()) {
            Ok(understood) => understood,
            Err(reason) => return Action::Drop(reason),
        };
        let verdict = self.clients.visit(address, now);
        if verdict == Verdict::Limited {
            return Action::Drop(Tally::Limited);
        }
        let by = By { from, now, secret: None };
        match &asked.nts {
            None => self.plain(&asked, received, clock, verdict, by),
            Some(nts) => self.protect(nts, &asked, received, clock, verdict, by),
        }
    }

    fn plain(
        &mut self,
        asked: &Asked<'_>,
        received: Instant<Utc>,
        clock: &ServedClock,
        verdict: Verdict,
        by: By,
    ) -> Action {
        let packet = &asked.packet;
        if let Some(field) = asked.precise.as_ref().filter(|field| self.is_closed(field, by)) {
            return self.key_required(packet, field);
        }
        let slot = match verdict {
            Verdict::Admitted(slot) => slot,
            Verdict::Kiss => return self.kiss(packet, received, clock),
            Verdict::Limited => return Action::Drop(Tally::Limited),
        };
        match clock {
            ServedClock::Known(time) if time.is_usable() => {
                self.answer(packet, asked.precise.as_ref(), received, time, slot, by)
            }
            ServedClock::Known(_) => self.decline(asked, Unsynchronized::Starting, by),
            ServedClock::Unknown(why) => self.decline(asked, *why, by),
            ServedClock::Mute => Action::Drop(Tally::Stepped),
        }
    }

    /// Answers a request with NTS: a client takes nothing else than what it can authenticate, except
    /// that its cookie cannot be read.
    fn protect(
        &mut self,
        nts: &NtsRequest<'_>,
        asked: &Asked<'_>,
        received: Instant<Utc>,
        clock: &ServedClock,
        verdict: Verdict,
        by: By,
    ) -> Action {
        let Some(protector) = &mut self.nts else { return Action::Drop(Tally::Authenticated) };
        let Some(session) = protector.open(nts) else {
            let nak = clock::refusal(&asked.packet, self.config.suggested_poll(), *b"NTSN");
            protector.nak(nts, &nak.to_bytes());
            return Action::Protected { outcome: Tally::NtsNak, departure: None };
        };
        let by = By { secret: session.secret(), ..by };
        let action = self.plain(asked, received, clock, verdict, by);
        let (plain, outcome, departure) = match &action {
            Action::Reply { bytes, departure } => (&bytes[..], Tally::Answered, *departure),
            Action::Kiss { bytes } => (&bytes[..], Tally::Kissed, None),
            Action::Protected { .. } | Action::Drop(_) => return action,
        };
        let made = self.nts.as_mut().is_some_and(|p| p.protect(nts, &session, plain));
        if !made {
            // A request that is shorter than its own answer is none of the RFC's.
            return Action::Drop(Tally::Malformed);
        }
        self.counters.add(Tally::Nts);
        Action::Protected { outcome, departure }
    }

    fn answer(
        &mut self,
        request: &Packet,
        field: Option<&precise::Request>,
        received: Instant<Utc>,
        time: &ServedTime,
        slot: usize,
        by: By,
    ) -> Action {
        if received > time.transmit {
            // The clock stepped between the two readings: no true statement is possible.
            return Action::Drop(Tally::Stepped);
        }
        let own = time.precise.and_then(|precise| precise.timeline);
        // Departures are stored as the server's own clock.
        let asks_departure = self.config.interleaved && own.is_none() && asks_departure(request);
        let receive = self.clients.unique(slot, receive_stamp(received));
        let mut reply = time.header(request, self.config.suggested_poll());
        reply.receive = receive;
        reply.origin = request.transmit;
        reply.transmit = transmit_stamp(time.transmit);
        let mut before = None;
        let mut departure = None;
        if asks_departure {
            before = self.clients.take_departure(slot, request.origin);
            self.clients.expect_departure(slot, receive);
            departure = Some(Departure { slot, name: receive });
        }
        if let Some(before) = &before {
            self.counters.add(Tally::Interleaved);
            reply.origin = request.receive;
            reply.transmit = before.at;
            // The stamp has the clock's error of that time, which may have been larger than the
            // present one.
            reply.root_dispersion = clock::dispersion(time.error.max(before.errors.largest()));
        }
        let plain = |reply: &Packet| Action::Reply { bytes: Datagram::new(reply), departure };
        let Some(field) = field else { return plain(&reply) };
        let cluster = self.clusters.iter_mut().find(|cluster| cluster.name == field.timeline);
        let is_served = match &own {
            Some(own) => own.name == field.timeline,
            None => {
                let of_host = cluster.as_ref().is_some_and(|cluster| !cluster.is_timeline);
                field.timeline.is_host() || of_host
            }
        };
        let is_closed = cluster
            .as_ref()
            .is_some_and(|cluster| cluster.secret.is_some_and(|secret| by.secret != Some(secret)));
        let told = if is_closed {
            precise::Reply::key_required(field.timeline)
        } else if is_served {
            let Some(precise) = &time.precise else { return plain(&reply) };
            let referrals = cluster
                .filter(|_| field.referrals > 0)
                .map(|cluster| cluster.asked(by.from, field.member, by.now))
                .unwrap_or_default();
            let errors = before.map(|before| before.errors);
            let told = precise.reply(field, time.stratum, errors, referrals);
            // Such a cluster has one clock: UTC, which every one of its servers names alike.
            if field.timeline.is_host() || own.is_some() { told } else { told.of_utc() }
        } else {
            precise::Reply::no_such_timeline(field.timeline)
        };
        if told.status.is_bounded() {
            // A client compares the two statements.
            reply.root_dispersion = clock::dispersion(told.bounds.largest());
        }
        self.counters.add(Tally::Precise);
        let mut bytes = Datagram::new(&reply);
        told.write(&mut bytes, field.referrals);
        Action::Reply { bytes, departure }
    }

    /// Whether the timeline belongs to members who have shown that they are, and this is none.
    fn is_closed(&self, field: &precise::Request, by: By) -> bool {
        let cluster = self.clusters.iter().find(|cluster| cluster.name == field.timeline);
        let secret = cluster.and_then(|cluster| cluster.secret);
        secret.is_some_and(|secret| by.secret != Some(secret))
    }

    /// Tells a stranger so, and no time: the clock that he has asked for may be the cluster's own.
    fn key_required(&mut self, request: &Packet, field: &precise::Request) -> Action {
        self.counters.add(Tally::Precise);
        let reply = clock::refusal(request, self.config.suggested_poll(), KEY_REQUIRED);
        let mut bytes = Datagram::new(&reply);
        precise::Reply::key_required(field.timeline).write(&mut bytes, field.referrals);
        Action::Reply { bytes, departure: None }
    }

    /// No time. A member of a cluster gets its place all the same, or is told who has one: all of them will know the
    /// time as soon as this one.
    fn decline(&mut self, asked: &Asked<'_>, why: Unsynchronized, by: By) -> Action {
        self.counters.add(Tally::Unsynchronized);
        let reply = why.header(&asked.packet, self.config.suggested_poll());
        let mut bytes = Datagram::new(&reply);
        if let Some(field) = asked.precise.as_ref().filter(|field| field.referrals > 0)
            && let Some(cluster) = self.clusters.iter_mut().find(|it| it.name == field.timeline)
        {
            let referrals = cluster.asked(by.from, field.member, by.now);
            precise::Reply::unknown(field.timeline, referrals).write(&mut bytes, field.referrals);
        }
        Action::Reply { bytes, departure: None }
    }

    fn kiss(&self, request: &Packet, received: Instant<Utc>, clock: &ServedClock) -> Action {
        let mut reply = clock::refusal(request, self.config.suggested_poll(), *b"RATE");
        if let ServedClock::Known(time) = clock {
            // Without stamps, clients do not accept the packet as an answer.
            reply.receive = receive_stamp(received);
            reply.transmit = transmit_stamp(time.transmit);
        }
        Action::Kiss { bytes: reply.to_bytes() }
    }
}

/// Who asks, and when.
#[derive(Clone, Copy)]
struct By {
    from: SocketAddr,
    now: Duration,
    /// The timeline whose secret it has, if it has shown that.
    secret: Option<Name>,
}

/// A request that can be answered.
struct Asked<'a> {
    packet: Packet,
    /// It asks for precise bounds.
    precise: Option<precise::Request>,
    /// It asks with NTS.
    nts: Option<NtsRequest<'a>>,
}

/// Returns a request that can be answered, or the reason why it is not answered.
fn understood(request: &[u8], serves_nts: bool) -> Result<Asked<'_>, Tally> {
    let (packet, tail) = Packet::parse(request).map_err(|_| Tally::Malformed)?;
    if packet.mode != Mode::Client || !(1..=VERSION).contains(&packet.version) {
        return Err(Tally::Unsupported);
    }
    if tail.is_empty() {
        return Ok(Asked { packet, precise: None, nts: None });
    }
    if packet.version < VERSION {
        // Versions before 4 have no extension fields: this is a MAC.
        return Err(Tally::Authenticated);
    }
    let (mut precise, mut has_nts) = (None, false);
    let mut fields = Fields::new(tail);
    for field in &mut fields {
        let field = field.map_err(|_| Tally::Malformed)?;
        has_nts |= field.kind == AUTHENTICATOR;
        precise = precise.or_else(|| precise::Request::parse(&field));
    }
    let has_mac = fields.mac().map_err(|_| Tally::Malformed)?.is_some();
    if has_mac || has_nts && !serves_nts {
        return Err(Tally::Authenticated);
    }
    // Nothing stands behind the authenticator, so it covers the question for precise bounds.
    let nts = has_nts.then(|| NtsRequest::parse(request).ok_or(Tally::Malformed)).transpose()?;
    Ok(Asked { packet, precise, nts })
}

/// Returns true if the request is in interleaved mode, or would be if we knew the exchange that it
/// names (RFC 9769 section 2).
fn asks_departure(request: &Packet) -> bool {
    request.version == VERSION
        && request.origin.to_bits() & RECEIVE_FLAG != 0
        && request.receive != request.transmit
}

/// Returns true for an address from which one host can have sent.
const fn is_host(address: IpAddr) -> bool {
    let broadcast = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(_) => false,
    };
    !address.is_unspecified() && !address.is_multicast() && !broadcast
}

/// Rounds up and sets the flag: later by less than 2^-30 s, the safe direction for an arrival.
fn receive_stamp(at: Instant<Utc>) -> NtpTimestamp {
    let up = NtpTimestamp::from_instant(at + NtpTimestamp::RESOLUTION).to_bits();
    NtpTimestamp::from_bits(up | RECEIVE_FLAG)
}

/// Rounds down and clears the flag: earlier by less than 2^-30 s, the safe direction for a
/// departure. Never zero, which would mean "unknown".
fn transmit_stamp(at: Instant<Utc>) -> NtpTimestamp {
    match NtpTimestamp::from_instant(at).to_bits() & !RECEIVE_FLAG {
        0 => NtpTimestamp::from_bits(2),
        bits => NtpTimestamp::from_bits(bits),
    }
}
