//! One NTP server: crates/protocols has the packet format and the state machine, crates/linux the
//! socket; this file adds the time stamps. Answers are parsed, and authenticated, in a thread without
//! rights (`parser.rs` of the daemon).
//!
//! Ta is read before the packet is sent and Tf after it has been received, so the bounds hold
//! whatever the kernel does. Where the kernel time-stamps packets, its stamps move Ta later and Tf
//! earlier, but never beyond what the brackets around the exchange prove.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use timevisor_clock_page::Counter;
use timevisor_estimate::Exchange;
use timevisor_linux::clock::bracket;
use timevisor_linux::udp::stamped::{Arrival, BRACKET_TRIES, Sent, narrowed};
use timevisor_protocols::control::{NtpData, Reference as Report};
use timevisor_protocols::ntp::{
    Answer, Client, Config, ERA_PIVOT, Exchange as PairedExchange, Outcome, Port, RejectReason,
    Response, Source, Status, Step, refid,
};
use timevisor_time::{Duration, Instant};

use super::nts::{Nts, Progress};
use super::path::{Opened, Path};
use super::sources::Sources;
use super::{Details, Surroundings, Upstream, random};
use crate::config::{Operator, ReferenceConfig, ServerConfig};
use crate::parser::Parser;

/// A request that the kernel refused to send is tried again after this time.
const UNSENT: Duration = Duration::from_secs(2);

/// The last answer that was used.
#[derive(Clone, Copy, Debug)]
struct Last {
    response: Response,
    /// Who gave it.
    peer: IpAddr,
    round_trip: Duration,
    at: Duration,
    /// The kernel stamped the request and the answer.
    stamped: [bool; 2],
}

pub struct Ntp {
    name: String,
    client: Client<Sent>,
    path: Path,
    /// Failures in a row that the path has been told.
    told_failures: u64,
    last: Option<Last>,
    /// The sources of the facts that count.
    sources: Sources,
    /// Our address for which loops were excluded.
    loops_of: Option<IpAddr>,
    leap_problem: Option<String>,
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
            path: Path::new(address, nts.is_some())?,
            told_failures: 0,
            last: None,
            sources: Sources::default(),
            loops_of: None,
            leap_problem: None,
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
        self.path.trouble().is_none() && self.leap_problem.is_none() && good
    }

    /// Returns the server's address once it is known.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.path.peer()
    }

    /// Another server with the same name is asked from now on, if there is one. If not, the name
    /// may have another one later.
    pub fn leave(&mut self, now: Duration) -> bool {
        let others = self.path.has_others();
        if others {
            self.path.leave();
            self.change_server(now);
        } else {
            self.path.look_again(now);
        }
        others
    }

    /// What was said so far counts no more.
    pub fn forget(&mut self) {
        self.last = None;
        self.sources.clear();
    }

    /// The way to the server.
    #[cfg(test)]
    pub fn path(&mut self) -> &mut Path {
        &mut self.path
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
        let due = match self.path.trouble() {
            Some(trouble) => trouble.again,
            None => self.client.poll_at(),
        };
        self.path.look_at().map_or(due, |look| due.min(look))
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.path.open_socket().map(AsFd::as_fd)
    }

    pub fn restart(&mut self, now: Duration) {
        self.path.forget_trouble();
        self.client.restart(now);
        self.told_failures = self.client.failed_in_a_row();
    }

    /// Routes or addresses of this machine changed. Returns true if that concerns this server.
    pub fn network_changed(&mut self, now: Duration) -> bool {
        let changed = self.path.network_changed();
        if changed {
            self.restart(now);
        }
        changed
    }

    pub fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) {
        if now < self.poll_at() {
            return;
        }
        if self.path.hear(now) {
            self.change_server(now);
        }
        self.client.expire(now);
        self.heed_failures(now);
        if self.path.trouble().is_some_and(|trouble| now < trouble.again) {
            return;
        }
        let poll = |nts: &mut Nts| nts.poll(now, around.certificate_time());
        if let Some(Progress::Waiting { problem, again }) = self.nts.as_mut().map(poll) {
            return self.path.wait(problem, again);
        }
        if let Some(keyed) = self.nts.as_ref().and_then(Nts::peer) {
            self.path.use_only(keyed);
        }
        if now < self.client.poll_at() && self.path.open_socket().is_some() {
            return;
        }
        match self.path.open(now, around) {
            Opened::Nothing => return,
            Opened::Same => {}
            Opened::Other => {
                self.change_server(now);
                self.choose_precise();
            }
        }
        self.refuse_loops(around.own_server);
        self.ask(now, around);
    }

    fn ask(&mut self, now: Duration, around: &Surroundings<'_>) {
        let Some(request) = self.client.on_timer(now, random()) else { return };
        let sealed = match &mut self.nts {
            None => request.bytes.to_vec(),
            Some(nts) => match nts.seal(&request.bytes) {
                Some(sealed) => sealed,
                None => return,
            },
        };
        let before = bracket(around.counter, BRACKET_TRIES);
        let Some(socket) = self.path.socket() else { return };
        let ta = around.counter.read_ordered();
        if let Err(error) = socket.send(&sealed) {
            let text = describe(&error);
            if self.path.has_others() {
                self.path.leave();
                self.change_server(now);
            }
            return self.path.wait(text, now + UNSENT);
        }
        let stamp = socket.recv_tx_stamp().ok().flatten();
        self.client.sent(Sent { ta, before, stamp });
    }

    fn change_server(&mut self, now: Duration) {
        // Where all have been tried in vain, nobody is asked faster than a single server would be.
        let eager = !self.path.is_hopeless();
        self.client.change_server(now, eager);
        self.told_failures = self.client.failed_in_a_row();
    }

    /// Tells the path of requests that failed since the last time, and does what follows from it.
    fn heed_failures(&mut self, now: Duration) {
        let failures = self.client.failed_in_a_row();
        if failures == 0 && self.told_failures > 0 {
            self.told_failures = 0;
        }
        if let Status::Denied { retry_at, .. } = self.client.status() {
            self.told_failures = failures;
            if self.path.denied(now, retry_at) {
                self.change_server(now);
            }
            return;
        }
        while self.told_failures < failures {
            self.told_failures += 1;
            match self.path.failed(now, self.client.interval()) {
                Step::Stay | Step::NewSocket => {}
                Step::AskSoon => self.client.ask_soon(),
                Step::NextAddress => return self.change_server(now),
            }
        }
    }

    /// Asks for precise bounds if configured, or else if the server is of our own network.
    fn choose_precise(&mut self) {
        let operator = self.path.peer().map(|peer| Operator::of(peer.ip()));
        let default = operator.is_some_and(Operator::asks_precise);
        self.client.set_precise(self.precise.unwrap_or(default));
    }

    /// Makes the client refuse servers that follow us.
    fn refuse_loops(&mut self, own: &ServerConfig) {
        let source = self.path.source();
        if own.listen.is_empty() || source.is_none() || self.loops_of == source {
            return;
        }
        self.loops_of = source;
        let addresses = own.listen.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified());
        let all = addresses.chain(self.path.source());
        self.client.set_own_ids(all.map(refid::of_address).collect());
    }

    pub fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        let mut exchanges = Vec::new();
        // A reply with eight NTS cookies is longer than 1024 bytes.
        let mut buffer = [0u8; 2048];
        // The limit keeps a flood of packets from blocking the daemon's other work.
        for _ in 0..16 {
            let Some(socket) = self.path.socket() else { break };
            let stamp = socket.take_stamps().ok().flatten();
            if let Some(sent) = self.client.sent_mut().filter(|s| s.stamp.is_none()) {
                sent.stamp = stamp;
            }
            match socket.recv(&mut buffer) {
                Ok(Some(received)) if received.stranger => self.client.on_stranger(now),
                Ok(Some(received)) => {
                    let tf = around.counter.read_ordered();
                    // Before the answer is parsed, which takes longer.
                    let after = bracket(around.counter, BRACKET_TRIES);
                    let arrival = Arrival { tf, after, stamp: received.stamp };
                    let bytes = &buffer[..received.len.min(buffer.len())];
                    exchanges.extend(self.on_datagram(now, bytes, arrival, around));
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
        arrival: Arrival,
        around: &Surroundings<'_>,
    ) -> Option<Exchange> {
        let answer = self.parse(bytes, around.parser)?;
        let mut stamped = [false, arrival.stamp.is_some()];
        let stamps = |sent: Sent| {
            stamped[0] = sent.stamp.is_some();
            narrowed(&sent, &arrival, around.calibration)
        };
        // Neither CLOCK_REALTIME nor another reference may move a server's time by 136 years.
        let outcome = self.client.on_answer(now, answer, ERA_PIVOT, stamps);
        if matches!(outcome, Outcome::Exchange(_) | Outcome::Kept { .. }) {
            self.path.answered();
        }
        self.heed_failures(now);
        match outcome {
            Outcome::Exchange(exchange) => self.complete(now, &exchange, stamped, around),
            Outcome::Kept { .. } => None,
            Outcome::Rejected(reason) => {
                tracing::debug!("reference {}: answer rejected: {reason}", self.name);
                None
            }
            Outcome::KissOfDeath(code) => {
                tracing::debug!("reference {}: kiss of death {code}", self.name);
                None
            }
        }
    }

    /// What a datagram says, authenticated if there are keys. `None` if it says nothing that the state
    /// machine should know.
    fn parse(&mut self, bytes: &[u8], parser: &Parser) -> Option<Result<Answer, RejectReason>> {
        let bytes = bytes.to_vec();
        let Some(nts) = &mut self.nts else {
            return parser.run(move || Answer::parse(&bytes)).ok();
        };
        let opening = nts.opening();
        let opened = parser.run(move || {
            let opened = opening.open(&bytes)?;
            let answer = Answer::parse(&opened.plain);
            Ok((opened, answer))
        });
        nts.opened(opened.ok()?)
    }

    /// Converts the exchange to TAI for the estimate; returns `None` while TAI - UTC is not known.
    fn complete(
        &mut self,
        now: Duration,
        exchange: &PairedExchange,
        stamped: [bool; 2],
        around: &Surroundings<'_>,
    ) -> Option<Exchange> {
        let PairedExchange { ta, tf, response } = *exchange;
        let tai = |utc| around.leap.to_tai(utc);
        let (tb, te) = match (tai(response.tb), tai(response.te)) {
            (Ok(tb), Ok(te)) => (tb, te),
            (Err(problem), _) | (_, Err(problem)) => {
                self.leap_problem = Some(problem);
                return None;
            }
        };
        self.leap_problem = None;
        let period = around.calibration.0;
        let round_trip = period.span(tf.wrapping_sub(ta)) - (te - tb);
        if let Some(peer) = self.path.peer().map(|peer| peer.ip()) {
            self.last = Some(Last { response, peer, round_trip, at: now, stamped });
            let source = Source::new(peer, response.stratum, response.reference_id);
            let source =
                if self.path.leads_here() { source.on_this_machine(Port::Ntp) } else { source };
            self.sources.heard(source, now);
        }
        Some(Exchange { ta, tb, te, tf, error: response.error_budget() })
    }

    /// Returns this server's stratum and id, for our own server's answers.
    pub fn upstream(&self) -> Option<Upstream> {
        let Last { response, peer, .. } = self.last?;
        Some(Upstream { stratum: response.stratum, id: refid::of_address(peer) })
    }

    /// Returns the sources of what it says, and of what it said that still counts.
    pub fn sources(&self) -> Vec<Source> {
        self.sources.iter().collect()
    }

    /// Facts of these sources are kept from another association.
    pub fn inherit(&mut self, sources: Vec<Source>, now: Duration) {
        sources.into_iter().for_each(|source| self.sources.heard(source, now));
    }

    /// Returns the certificates of the party that answers, with NTS.
    pub fn certificates(&self) -> Vec<&[u8]> {
        self.nts.iter().flat_map(Nts::certificates).collect()
    }

    /// Returns the server that another reference asks already instead of this one.
    pub fn duplicate(&self) -> Option<SocketAddr> {
        self.path.trouble().filter(|trouble| trouble.word == "duplicate")?;
        self.path.first_address()
    }

    pub fn report(&self, now: Duration) -> Report {
        let status = self.client.status();
        let (status, detail) = match (self.path.trouble(), &self.leap_problem) {
            (Some(trouble), _) => (trouble.word.to_owned(), trouble.text.clone()),
            (None, Some(problem)) => ("leap-table".to_owned(), problem.clone()),
            (None, None) => (status.name().to_owned(), status.describe(now)),
        };
        let interleaved = self.last.is_some_and(|last| last.response.is_interleaved());
        let detail = if interleaved { format!("{detail} (interleaved)") } else { detail };
        let precise = self.last.is_some_and(|last| last.response.precise.is_some());
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
            stratum: self.last.map(|last| last.response.stratum),
            offset_ns: None,
            rtt_ns: self.last.map(|last| last.round_trip.floor_nanos()),
            accepted: counters.accepted,
            rejected,
            reach: self.client.reach().to_string(),
            poll_s: self.client.interval().as_secs_f64(),
            polling: None,
            shares_vote_with: Vec::new(),
            suggestion: None,
        };
        if let Some(nts) = &self.nts {
            nts.report(now, &mut report);
        }
        report
    }
}

impl Ntp {
    /// Returns everything about the last answer, for `timevisor sources NAME`.
    pub fn details(&self, now: Duration) -> Details {
        let counters = self.client.counters();
        let seconds = |span: Duration| span.max(Duration::ZERO).as_secs_f64();
        let ntp = self.last.map(|Last { response, at, stamped, .. }| NtpData {
            remote: self.path.peer().map(|peer| peer.to_string()),
            local: self.path.source().map(|source| source.to_string()),
            answered_s: Some(seconds(now - at)),
            version: response.version,
            leap: response.leap.name().to_owned(),
            stratum: response.stratum,
            reference_id: refid::shown(response.reference_id, response.stratum),
            reference_time_unix_s: response
                .reference_time()
                .map(|time| (time - Instant::from_bits(0)).as_secs_f64()),
            precision: response.precision,
            root_delay_ns: response.root_delay.ceil_nanos(),
            root_dispersion_ns: response.root_dispersion.ceil_nanos(),
            error_ns: response.error_budget().ceil_nanos(),
            response_ns: (response.te - response.tb).floor_nanos(),
            interleaved: response.is_interleaved(),
            precise: response.precise.is_some(),
            stamps: stamped.map(|kernel| if kernel { "kernel" } else { "daemon" }.to_owned()),
            sent: counters.sent,
            lost: counters.lost,
            kisses: counters.kisses,
        });
        Details { ntp, nts: self.nts.as_ref().map(|nts| nts.details(now)) }
    }

    /// Asks several times now, as after the start.
    pub fn burst(&mut self, now: Duration) {
        self.restart(now);
    }
}

pub(super) fn describe(error: &timevisor_linux::udp::UdpError) -> String {
    let cause = std::error::Error::source(error).map(|s| format!(": {s}")).unwrap_or_default();
    format!("{error}{cause}")
}

#[cfg(test)]
#[path = "ntp_tests.rs"]
mod tests;
