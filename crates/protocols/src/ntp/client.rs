//! The client side of one server association: when to ask, which datagram answers, and which stamps belong together.
//!
//! At most one request is in flight. A request is known by its 64-bit random cookie, which the answer must echo, so only
//! somebody who saw the request can forge an answer (RFC 5905 section 8, TEST1 to TEST3, with a cookie in place of a
//! time). A request ends exactly once: accepted, rejected by content, kissed, or lost by timeout. A packet that does not
//! carry the cookie in flight never ends it.
//!
//! `schedule.rs` decides when to ask: a burst at the start and when the server comes back after an outage, then polls. A
//! late timer skips polls and never catches up with a volley. Losses do not lengthen the interval: recovering fast from a
//! broken network is worth one small packet per poll.
//!
//! Interleaved mode (RFC 9769; [`Config::interleaved`]): a request that names the server's last receive stamp is
//! answered with the departure of the previous answer, measured instead of predicted. Each answer then completes the
//! previous exchange. The server decides by each answer whether it still knows that exchange. Where it does not, its
//! answer is a basic one and is taken as such.
//!
//! The caller reports its stamp of each request ([`Client::sent`]) and turns it into Ta and Tf when the answer is there.
//! The client keeps both until the exchange that they belong to is complete.
//!
//! What it does not do: choose among servers, add jitter to the schedule, resolve names, or keep any clock.

use std::collections::VecDeque;

use timevisor_time::{Duration, Instant, Utc};

use super::config::{Config, ConfigError};
use super::extension::Tail;
use super::format::NtpTimestamp;
use super::packet::{HEADER_LEN, Mode, Packet, VERSION};
use super::response::{KissCode, Policy, Response};
use super::schedule::Schedule;
use super::status::{Counters, Reach, RejectReason, Status};

/// How many ended requests are remembered to tell late and duplicate answers from forged ones.
const REMEMBERED: usize = 16;

/// After this many requests without an answer the next is a basic one: the server must not be asked for ever about an
/// exchange it has forgotten (RFC 9769 section 2; chronyd takes four, too).
const MAX_INTERLEAVED_UNANSWERED: u32 = 4;

/// A request to send now. Take the send stamp around this and report it with [`Client::sent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Counts up from 1; [`Response::request_id`] refers to it.
    pub id: u64,
    /// The datagram.
    pub bytes: [u8; HEADER_LEN],
}

/// A complete exchange: the server's stamps and ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// Our counter not after the request left (Ta).
    pub ta: u64,
    /// Our counter not before the answer arrived (Tf).
    pub tf: u64,
    /// The server's stamps (Tb and Te) and the error budget, from the same exchange as `ta` and `tf`.
    pub response: Response,
}

/// What became of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Hand it to the estimator.
    Exchange(Exchange),
    /// The answer was accepted, and no exchange follows from it now. It is the first interleaved answer after a basic
    /// one, so the exchange that it completes was handed out before; or the caller never reported a stamp.
    Kept {
        /// The request that was answered.
        answered: u64,
    },
    /// Counted; nothing to do.
    Rejected(RejectReason),
    /// The server declined; the schedule already obeys. Worth a log line.
    KissOfDeath(KissCode),
}

/// What an answer's origin field must be.
#[derive(Clone, Copy, Debug)]
struct Cookies {
    /// The request's transmit field: a basic answer.
    basic: NtpTimestamp,
    /// The request's receive field: an interleaved answer. Zero (which matches nothing) in a basic request.
    interleaved: NtpTimestamp,
}

impl Cookies {
    fn has(&self, origin: NtpTimestamp) -> bool {
        !origin.is_zero() && (self.basic == origin || self.interleaved == origin)
    }
}

#[derive(Clone, Debug)]
struct InFlight<S> {
    id: u64,
    cookies: Cookies,
    deadline: Duration,
    /// The caller's stamp, once it is reported.
    stamp: Option<S>,
}

/// The last exchange that was answered, for the interleaved mode.
#[derive(Clone, Copy, Debug)]
struct Last {
    exchange: Response,
    /// The server's name for it: its receive stamp as it was on the wire.
    name: NtpTimestamp,
    /// Our Ta and Tf of it; `None` if the caller reported no stamp.
    stamps: Option<(u64, u64)>,
    /// It was handed to the estimator already, from a basic answer.
    used: bool,
}

impl Last {
    /// The exchange with our stamps, as this response says it was.
    fn outcome(&self, response: Response, answered: u64) -> Outcome {
        match self.stamps {
            Some((ta, tf)) => Outcome::Exchange(Exchange { ta, tf, response }),
            None => Outcome::Kept { answered },
        }
    }
}

/// How the last ended request ended.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Never,
    Accepted,
    Lost,
    Rejected(RejectReason),
    Kissed(KissCode),
}

/// One association. All `now` are monotonic time since an origin of the caller's choice. `S` is the caller's stamp of a
/// request: a counter value, or what is needed to compute one when the answer is there.
#[derive(Clone, Debug)]
pub struct Client<S> {
    schedule: Schedule,
    in_flight: Option<InFlight<S>>,
    /// Cookies of ended requests and whether an answer ended them.
    past: VecDeque<(Cookies, bool)>,
    /// DENY or RSTR, until an answer is accepted.
    denied: Option<KissCode>,
    last_exchange: Option<Last>,
    /// Requests since then.
    unanswered: u32,
    own_ids: Vec<[u8; 4]>,
    last: Ended,
    ended: u64,
    reach: Reach,
    /// For [`Status::Unreachable`]: the last acceptance, or the first request.
    since: Option<Duration>,
    counters: Counters,
}

impl<S> Client<S> {
    /// An association whose first request is due at `start`.
    ///
    /// # Errors
    /// What [`Config::validate`] finds.
    pub fn new(config: Config, start: Duration) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            schedule: Schedule::new(config, start),
            in_flight: None,
            past: VecDeque::with_capacity(REMEMBERED),
            denied: None,
            last_exchange: None,
            unanswered: 0,
            own_ids: Vec::new(),
            last: Ended::Never,
            ended: 0,
            reach: Reach::default(),
            since: None,
            counters: Counters::default(),
        })
    }

    /// The reference ids that a server shows which has its time from this host: [`super::refid::of_address`] of our own
    /// addresses as that server knows them. Its answers are refused as [`RejectReason::Loop`].
    pub fn set_own_ids(&mut self, ids: Vec<[u8; 4]>) {
        self.own_ids = ids;
    }

    /// Polls every `interval` from now on, with `burst` requests each, [`Config::burst_spacing`] apart.
    ///
    /// A server that limited us (RATE) keeps the interval it asked for, and gets single requests; one that denied us is
    /// asked no sooner. Bursts at the start and after outages stay as configured.
    ///
    /// # Errors
    /// As [`Config::validate`] with this interval as `poll_min`, and where the requests do not fit into it; nothing
    /// changes then.
    pub fn set_poll(&mut self, interval: Duration, burst: u32) -> Result<(), ConfigError> {
        self.schedule.set_poll(interval, burst)
    }

    /// When [`Self::on_timer`] next has something to do. Ask again after every call that takes `&mut self`.
    #[must_use]
    pub fn poll_at(&self) -> Duration {
        self.in_flight.as_ref().map_or(self.schedule.next(), |f| f.deadline)
    }

    /// Ends a request that timed out and, when one is due, makes the next. `random` must be unpredictable to others.
    pub fn on_timer(&mut self, now: Duration, random: u64) -> Option<Request> {
        self.expire(now);
        if now < self.schedule.next() {
            return None;
        }
        debug_assert!(
            self.in_flight.is_none(),
            "a valid configuration times out before the next request is due"
        );
        self.counters.sent += 1;
        let id = self.counters.sent;
        let before = self.interleave_with();
        let cookies = self.fresh_cookies(random, before.is_some());
        let deadline = now + self.config().request_timeout;
        self.in_flight = Some(InFlight { id, cookies, deadline, stamp: None });
        self.since.get_or_insert(now);
        self.unanswered += 1;
        self.schedule.sent(now);
        let packet = Packet {
            origin: before.unwrap_or(NtpTimestamp::ZERO),
            receive: cookies.interleaved,
            ..Packet::request(cookies.basic, log2_floor(self.schedule.interval()))
        };
        Some(Request { id, bytes: packet.to_bytes() })
    }

    /// Files the caller's stamp of the request in flight, in place of one that was reported before. Without a request in
    /// flight, the stamp is dropped.
    pub fn sent(&mut self, stamp: S) {
        if let Some(request) = &mut self.in_flight {
            request.stamp = Some(stamp);
        }
    }

    /// The stamp of the request in flight, for what becomes known of it after the send (a kernel's time stamp).
    pub fn sent_mut(&mut self) -> Option<&mut S> {
        self.in_flight.as_mut()?.stamp.as_mut()
    }

    /// Judges a datagram from the server. `approx_utc` only chooses the era (68 years off still works). For an accepted
    /// answer, `stamps` turns the stamp of the request that it answers into Ta and Tf.
    pub fn on_datagram(
        &mut self,
        now: Duration,
        bytes: &[u8],
        approx_utc: Instant<Utc>,
        stamps: impl FnOnce(S) -> (u64, u64),
    ) -> Outcome {
        self.expire(now);
        let packet = match Self::server_packet(bytes) {
            Ok(packet) => packet,
            Err(reason) => return self.reject(reason),
        };
        let Some(request) = self.in_flight.take_if(|f| f.cookies.has(packet.origin)) else {
            return self.reject(self.unmatched(packet.origin));
        };
        let cookies = request.cookies;
        self.remember(cookies, true);
        if packet.stratum == 0 {
            return self.kissed(now, &packet);
        }
        let judged = if packet.origin == cookies.basic {
            self.basic(&packet, request, approx_utc, stamps)
        } else {
            self.interleaved(&packet, request, approx_utc, stamps)
        };
        match judged {
            Ok(outcome) => {
                self.accepted(now);
                outcome
            }
            Err(reason) => {
                self.last_exchange = None;
                self.end(Ended::Rejected(reason));
                self.reject(reason)
            }
        }
    }

    /// Starts over with a burst, for when the past has lost its meaning: the host was suspended, the network is back.
    /// Gives up the request in flight. Never asks sooner than `burst_spacing` after the last request, and a server that
    /// limited or denied us keeps its interval.
    pub fn restart(&mut self, now: Duration) {
        if let Some(request) = self.in_flight.take() {
            self.lose(request.cookies);
        }
        self.last_exchange = None;
        self.schedule.restart(now);
    }

    /// The state to show.
    #[must_use]
    pub fn status(&self) -> Status {
        if let Some(code) = self.denied {
            return Status::Denied { code, retry_at: self.schedule.next() };
        }
        match self.last {
            Ended::Rejected(reason) => Status::Unusable { reason },
            Ended::Kissed(KissCode::Rate) => Status::RateLimited { poll: self.interval() },
            Ended::Kissed(code) => Status::Declined { code },
            Ended::Lost if self.is_out() => {
                Status::Unreachable { since: self.since.unwrap_or(Duration::ZERO) }
            }
            Ended::Accepted => Status::Reachable,
            Ended::Lost if self.reach.any() => Status::Reachable,
            Ended::Lost | Ended::Never => Status::Probing,
        }
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The last eight requests.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// The interval between polls outside bursts.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.schedule.interval()
    }

    /// As it was passed to [`Self::new`], with the interval that [`Self::set_poll`] last asked for.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.schedule.config()
    }

    /// Eight requests in a row failed.
    fn is_out(&self) -> bool {
        !self.reach.any() && self.ended >= Reach::BITS
    }

    /// The name of the exchange whose departure the next request asks for.
    fn interleave_with(&self) -> Option<NtpTimestamp> {
        let wanted = self.config().interleaved && self.unanswered < MAX_INTERLEAVED_UNANSWERED;
        self.last_exchange.filter(|_| wanted).map(|last| last.name)
    }

    /// The checks that need only the datagram.
    fn server_packet(bytes: &[u8]) -> Result<Packet, RejectReason> {
        let (packet, tail) = Packet::parse(bytes).map_err(|_| RejectReason::TooShort)?;
        if packet.mode != Mode::Server {
            return Err(RejectReason::Mode);
        }
        if packet.version != VERSION {
            return Err(RejectReason::Version);
        }
        Tail::parse(tail).map_err(|_| RejectReason::MalformedTail)?;
        Ok(packet)
    }

    /// Why a packet without the cookie in flight is refused.
    fn unmatched(&self, origin: NtpTimestamp) -> RejectReason {
        match self.past.iter().find(|(cookies, _)| cookies.has(origin)) {
            Some((_, true)) => RejectReason::Duplicate,
            Some((_, false)) => RejectReason::Late,
            None => RejectReason::BogusOrigin,
        }
    }

    fn policy(&self) -> Policy<'_> {
        let Config { max_distance, allow_smear, .. } = *self.config();
        Policy { max_distance, allow_smear, own_ids: &self.own_ids }
    }

    fn basic(
        &mut self,
        packet: &Packet,
        InFlight { id, stamp, .. }: InFlight<S>,
        near: Instant<Utc>,
        stamps: impl FnOnce(S) -> (u64, u64),
    ) -> Result<Outcome, RejectReason> {
        let exchange = Response::check(packet, id, near, &self.policy())?;
        let stamps = stamp.map(stamps);
        let last = Last { exchange, name: packet.receive, stamps, used: true };
        self.last_exchange = Some(last);
        Ok(last.outcome(exchange, id))
    }

    fn interleaved(
        &mut self,
        packet: &Packet,
        InFlight { id, stamp, .. }: InFlight<S>,
        near: Instant<Utc>,
        stamps: impl FnOnce(S) -> (u64, u64),
    ) -> Result<Outcome, RejectReason> {
        // Only a request that named an exchange has a cookie for this; nothing since can have taken it away.
        let before = self.last_exchange.ok_or(RejectReason::BogusOrigin)?;
        let policy = self.policy();
        let (complete, exchange) =
            Response::check_interleaved(packet, id, near, &policy, &before.exchange)?;
        let stamps = stamp.map(stamps);
        self.last_exchange = Some(Last { exchange, name: packet.receive, stamps, used: false });
        Ok(if before.used { Outcome::Kept { answered: id } } else { before.outcome(complete, id) })
    }

    fn accepted(&mut self, now: Duration) {
        if self.is_out() {
            self.schedule.burst(true);
        }
        self.schedule.accepted();
        self.denied = None;
        self.unanswered = 0;
        self.since = Some(now);
        self.counters.accepted += 1;
        self.end(Ended::Accepted);
    }

    /// RFC 5905 section 7.4. The cookie matched, so only the server, or one on the path to it, can have sent this.
    fn kissed(&mut self, now: Duration, packet: &Packet) -> Outcome {
        let code = KissCode::from_reference_id(packet.reference_id);
        self.counters.kisses += 1;
        self.end(Ended::Kissed(code));
        match code {
            KissCode::Rate => self.schedule.limited(now, packet.poll),
            KissCode::Deny | KissCode::Restrict => {
                self.denied = Some(code);
                self.schedule.denied(now);
            }
            KissCode::Other(_) => {}
        }
        Outcome::KissOfDeath(code)
    }

    fn expire(&mut self, now: Duration) {
        if let Some(request) = self.in_flight.take_if(|f| now >= f.deadline) {
            self.lose(request.cookies);
        }
    }

    fn lose(&mut self, cookies: Cookies) {
        self.remember(cookies, false);
        self.counters.lost += 1;
        self.end(Ended::Lost);
    }

    fn end(&mut self, how: Ended) {
        self.ended += 1;
        self.reach = self.reach.pushed(matches!(how, Ended::Accepted));
        self.last = how;
    }

    fn reject(&mut self, reason: RejectReason) -> Outcome {
        *self.counters.rejected.entry(reason).or_default() += 1;
        Outcome::Rejected(reason)
    }

    fn remember(&mut self, cookies: Cookies, answered: bool) {
        self.past.truncate(REMEMBERED - 1);
        self.past.push_front((cookies, answered));
    }

    /// `random`, moved on past zero ("no time") and past cookies still remembered: even a broken generator cannot make
    /// an old answer match a new request. The second cookie follows from the first; both leave in one packet, so who
    /// has seen either has seen both.
    fn fresh_cookies(&self, random: u64, interleaved: bool) -> Cookies {
        let mut basic = random;
        loop {
            let second = if interleaved { scrambled(basic) } else { 0 };
            let cookies = Cookies {
                basic: NtpTimestamp::from_bits(basic),
                interleaved: NtpTimestamp::from_bits(second),
            };
            let known = |c: NtpTimestamp| self.past.iter().any(|(past, _)| past.has(c));
            let usable = basic != 0 && !known(cookies.basic) && !known(cookies.interleaved);
            if usable && basic != second && !(interleaved && second == 0) {
                return cookies;
            }
            basic = basic.wrapping_add(1);
        }
    }
}

/// A one-to-one mixing of 64 bits (the finalizer of splitmix64), so that different first cookies have different second
/// ones.
const fn scrambled(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The largest power of two not above `span`, as log2 s: the poll field's format.
fn log2_floor(span: Duration) -> i8 {
    span.to_bits()
        .checked_ilog2()
        .and_then(|bit| i8::try_from(i64::from(bit) - 64).ok())
        .unwrap_or(0)
}
