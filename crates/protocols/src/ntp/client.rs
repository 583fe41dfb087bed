//! The client side of one association with a server: when to send requests, which datagrams to
//! accept, and which stamps belong together.
//!
//! At most one request is in flight; while it waits for its answer, the next one waits too, so a
//! timeout may be longer than the poll interval. Each request has a random 64-bit cookie that the answer must
//! echo, so only an attacker who saw the request can forge an answer (RFC 5905 section 8, TEST1 to
//! TEST3, with a cookie in place of a time). A request ends exactly once: accepted, rejected by
//! content, kissed, or lost by timeout. A packet without the cookie in flight never ends it.
//!
//! `schedule.rs` decides when to ask: in a burst at the start and when the server returns after an
//! outage, then in polls. A late timer skips polls; it never makes up for them in a volley. Losses
//! do not lengthen the interval, because a fast recovery from a broken network is worth one small
//! packet per poll.
//!
//! Interleaved mode (RFC 9769; [`Config::interleaved`]): a request names the server's last receive
//! stamp, and the server answers with the measured departure of its previous answer. Each answer
//! then completes the previous exchange. If the server has forgotten that exchange, it sends a
//! basic answer, which is accepted as such.
//!
//! Pairing of stamps: the caller reports its stamp of each request ([`Client::sent`]) and converts
//! it to Ta and Tf when the answer arrives. The client keeps both until their exchange is complete.
//!
//! What it does not do: choose among servers, add jitter to the schedule, resolve names, or keep a
//! clock.

use timevisor_time::{Duration, Instant, Utc};

use super::answer::Answer;
use super::asking::Asking;
use super::config::{Config, ConfigError};
use super::datagram::Datagram;
use super::format::NtpTimestamp;
use super::packet::Packet;
use super::pairing::{Cookies, InFlight, Last, Past};
use super::precise::{self, Bounds};
use super::reject::RejectReason;
use super::response::{KissCode, Policy, Response};
use super::schedule::Schedule;
use super::status::{Counters, Reach, Status};

/// After this many requests without an answer, the next request is a basic one: the server may have
/// forgotten the exchange that interleaved requests name (RFC 9769 section 2; chronyd uses four,
/// too).
const MAX_INTERLEAVED_UNANSWERED: u32 = 4;

/// A request to send now. Take the send stamp around this and report it with [`Client::sent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Counts up from 1; [`Response::request_id`] refers to it.
    pub id: u64,
    /// The datagram.
    pub bytes: Datagram,
}

/// A complete exchange: the server's stamps and ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// Our counter, no later than the request's departure (Ta).
    pub ta: u64,
    /// Our counter, no earlier than the answer's arrival (Tf).
    pub tf: u64,
    /// The server's stamps (Tb and Te) and the error budget, from the same exchange as `ta` and
    /// `tf`.
    pub response: Response,
}

/// The outcome of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Hand it to the estimator.
    Exchange(Exchange),
    /// The answer was accepted, but no exchange follows from it now. Either it is the first
    /// interleaved answer after a basic one, whose exchange was handed out before; or the caller
    /// reported no stamp.
    Kept {
        /// The request that was answered.
        answered: u64,
    },
    /// Counted; nothing else to do.
    Rejected(RejectReason),
    /// The server declined; the schedule already obeys. The caller may log it.
    KissOfDeath(KissCode),
}

/// The outcome of the last request that ended.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Never,
    Accepted,
    Lost,
    Rejected(RejectReason),
    Kissed(KissCode),
}

/// One association. Every `now` is monotonic time since an origin that the caller chooses. `S` is
/// the caller's stamp of a request: a counter value, or what the caller needs to compute one when
/// the answer arrives.
#[derive(Clone, Debug)]
pub struct Client<S> {
    schedule: Schedule,
    in_flight: Option<InFlight<S>>,
    asking: Asking,
    /// Cookies of ended requests and whether an answer ended them.
    past: Past,
    /// DENY or RSTR, until the next accepted answer.
    denied: Option<KissCode>,
    last_exchange: Option<Last>,
    /// Requests since the last accepted answer.
    unanswered: u32,
    own_ids: Vec<[u8; 4]>,
    last: Ended,
    ended: u64,
    /// `ended` at the last accepted answer.
    accepted_at: u64,
    /// The last datagram that was refused without ending a request, and `ended` at that time; until
    /// the next accepted answer.
    stray: Option<(RejectReason, u64)>,
    /// The error that a server stated when it was too large.
    stated: Option<Duration>,
    reach: Reach,
    /// The last acceptance or the first request, for [`Status::Unreachable`].
    since: Option<Duration>,
    counters: Counters,
}

impl<S> Client<S> {
    /// Makes an association whose first request is due at `start`.
    ///
    /// # Errors
    /// What [`Config::validate`] finds.
    pub fn new(config: Config, start: Duration) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            asking: Asking::new(config.precise),
            schedule: Schedule::new(config, start),
            in_flight: None,
            past: Past::default(),
            denied: None,
            last_exchange: None,
            unanswered: 0,
            own_ids: Vec::new(),
            last: Ended::Never,
            ended: 0,
            accepted_at: 0,
            stray: None,
            stated: None,
            reach: Reach::default(),
            since: None,
            counters: Counters::default(),
        })
    }

    /// Sets the reference ids that a server synchronized to this host shows:
    /// [`super::refid::of_address`] of our addresses as the server sees them. Its answers are
    /// refused as [`RejectReason::Loop`].
    pub fn set_own_ids(&mut self, ids: Vec<[u8; 4]>) {
        self.own_ids = ids;
    }

    /// Switches [`Config::precise`].
    pub fn set_precise(&mut self, precise: bool) {
        self.asking.set(precise);
    }

    /// Polls every `interval` from now on, with `burst` requests each, [`Config::burst_spacing`]
    /// apart.
    ///
    /// A server that limited us (RATE) keeps its interval and gets single requests. A server that
    /// denied us is not asked sooner. Bursts at the start and after outages stay as configured.
    ///
    /// # Errors
    /// As [`Config::validate`] with this interval as `poll_min`, and if the requests do not fit
    /// into it. Nothing changes then.
    pub fn set_poll(&mut self, interval: Duration, burst: u32) -> Result<(), ConfigError> {
        self.schedule.set_poll(interval, burst)
    }

    /// Returns when [`Self::on_timer`] next has something to do. Ask again after every call that
    /// takes `&mut self`.
    #[must_use]
    pub fn poll_at(&self) -> Duration {
        self.in_flight.as_ref().map_or(self.schedule.next(), |f| f.deadline)
    }

    /// Ends a request that timed out, and makes the next request if one is due. `random` must be
    /// unpredictable to others.
    pub fn on_timer(&mut self, now: Duration, random: u64) -> Option<Request> {
        self.expire(now);
        if self.in_flight.is_some() || now < self.schedule.next() {
            return None;
        }
        self.counters.sent += 1;
        let id = self.counters.sent;
        let before = self.interleave_with();
        let cookies = self.past.fresh(random, before.is_some());
        let deadline = now + self.config().request_timeout;
        let precise = self.asking.wants(now);
        self.in_flight = Some(InFlight { id, cookies, deadline, precise, stamp: None });
        self.since.get_or_insert(now);
        self.unanswered += 1;
        self.schedule.sent(now);
        let packet = Packet {
            origin: before.unwrap_or(NtpTimestamp::ZERO),
            receive: cookies.interleaved,
            ..Packet::request(cookies.basic, log2_floor(self.schedule.interval()))
        };
        let mut bytes = Datagram::new(&packet);
        if precise {
            precise::Request::HOST.write(&mut bytes);
        }
        Some(Request { id, bytes })
    }

    /// Stores the caller's stamp of the request in flight and replaces an earlier one. Without a
    /// request in flight, the stamp is dropped.
    pub fn sent(&mut self, stamp: S) {
        if let Some(request) = &mut self.in_flight {
            request.stamp = Some(stamp);
        }
    }

    /// Returns the stamp of the request in flight, to complete it after the send (with a kernel's
    /// time stamp, for instance).
    pub fn sent_mut(&mut self) -> Option<&mut S> {
        self.in_flight.as_mut()?.stamp.as_mut()
    }

    /// Parses a datagram from the server and judges it: [`Self::on_answer`] for a caller that parses
    /// where it keeps its state.
    pub fn on_datagram(
        &mut self,
        now: Duration,
        bytes: &[u8],
        approx_utc: Instant<Utc>,
        stamps: impl FnOnce(S) -> (u64, u64),
    ) -> Outcome {
        self.on_answer(now, Answer::parse(bytes), approx_utc, stamps)
    }

    /// Judges what a datagram from the server says. `approx_utc` only chooses the era (68 years off
    /// still works). For an accepted answer, `stamps` converts the stamp of its request to Ta and Tf.
    pub fn on_answer(
        &mut self,
        now: Duration,
        answer: Result<Answer, RejectReason>,
        approx_utc: Instant<Utc>,
        stamps: impl FnOnce(S) -> (u64, u64),
    ) -> Outcome {
        self.expire(now);
        let Answer { packet, field } = match answer {
            Ok(answer) => answer,
            Err(reason) => return self.reject(reason),
        };
        let Some(request) = self.in_flight.take_if(|f| f.cookies.has(packet.origin)) else {
            return self.reject(self.unmatched(packet.origin));
        };
        let (cookies, carried) = (request.cookies, request.precise);
        // What we did not ask for is not ours.
        let field = field.filter(|_| carried);
        self.past.push(cookies, true);
        if packet.stratum == 0 {
            return self.kissed(now, &packet);
        }
        let judged = if packet.origin == cookies.basic {
            self.basic(&packet, field.as_ref(), request, approx_utc, stamps)
        } else {
            self.interleaved(&packet, field.as_ref(), request, approx_utc, stamps)
        };
        match judged {
            Ok(outcome) => {
                self.asking.answered(now, carried, field.is_some());
                self.accepted(now);
                outcome
            }
            Err(reason) => {
                self.last_exchange = None;
                self.stated =
                    (reason == RejectReason::Distance).then(|| Response::error_stated_by(&packet));
                self.end(Ended::Rejected(reason));
                self.reject(reason)
            }
        }
    }

    /// Counts a datagram that came from another address or port than the one that is asked. Its
    /// content is not looked at.
    pub fn on_stranger(&mut self, now: Duration) {
        self.expire(now);
        self.reject(RejectReason::Source);
    }

    /// Another server is asked, from `now` on. Its schedule starts with a burst if `eager`, and
    /// otherwise goes on where the one before would have. What the old one imposed (kisses) does not
    /// bind the new one, except that a server which is not asked eagerly may be an old one, so an
    /// imposed interval stays. Counters and reachability go on.
    pub fn change_server(&mut self, now: Duration, eager: bool) {
        if let Some(request) = self.in_flight.take() {
            self.lose(request.cookies);
        }
        if eager {
            self.schedule = Schedule::new(*self.config(), now);
        } else {
            self.schedule.pass_on();
        }
        self.last_exchange = None;
        self.denied = None;
        self.unanswered = 0;
        self.asking.forget();
        (self.stray, self.stated) = (None, None);
    }

    /// Asks again as soon as the spacing of a burst permits, once, unless the server limits us: to
    /// tell a lost packet from a lost server.
    pub fn ask_soon(&mut self) {
        self.schedule.ask_soon();
    }

    /// Gives up the request in flight if its time is over. [`Self::on_timer`] does that too; this
    /// lets the caller act on a loss before the next request is made.
    pub fn expire(&mut self, now: Duration) {
        if let Some(request) = self.in_flight.take_if(|f| now >= f.deadline) {
            self.asking.lost(request.precise);
            self.lose(request.cookies);
        }
    }

    /// Starts over with a burst, after the host was suspended or the network came back. Gives up
    /// the request in flight. Never asks sooner than `burst_spacing` after the last request, and a
    /// server that limited or denied us keeps its interval.
    pub fn restart(&mut self, now: Duration) {
        if let Some(request) = self.in_flight.take() {
            self.lose(request.cookies);
        }
        self.last_exchange = None;
        self.schedule.restart(now);
    }

    /// Returns the state to show.
    #[must_use]
    pub fn status(&self) -> Status {
        if let Some(code) = self.denied {
            return Status::Denied { code, retry_at: self.schedule.next() };
        }
        match self.last {
            Ended::Rejected(reason) => {
                let limit = self.config().max_distance;
                Status::Unusable { reason, distance: self.stated.map(|stated| (stated, limit)) }
            }
            Ended::Kissed(KissCode::Rate) => Status::RateLimited { poll: self.interval() },
            Ended::Kissed(code) => Status::Declined { code },
            Ended::Accepted => Status::Reachable,
            Ended::Lost if self.reach.any() => Status::Reachable,
            Ended::Never => Status::Probing,
            Ended::Lost => match self.recent_stray() {
                Some(reason) => Status::Unusable { reason, distance: None },
                None if self.is_out() => {
                    Status::Unreachable { since: self.since.unwrap_or(Duration::ZERO) }
                }
                None => Status::Probing,
            },
        }
    }

    /// Returns the counts of everything that has happened.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the outcomes of the last eight requests.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// Returns the interval between polls outside bursts.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.schedule.interval()
    }

    /// Returns the configuration passed to [`Self::new`], with the interval of the last
    /// [`Self::set_poll`].
    #[must_use]
    pub fn config(&self) -> &Config {
        self.schedule.config()
    }

    /// What arrived instead of an answer during the last eight requests.
    fn recent_stray(&self) -> Option<RejectReason> {
        let (reason, ended) = self.stray?;
        (self.ended - ended <= Reach::BITS).then_some(reason)
    }

    /// Requests in a row that ended without an accepted answer, up to now.
    #[must_use]
    pub fn failed_in_a_row(&self) -> u64 {
        self.ended - self.accepted_at
    }

    /// True if eight requests in a row failed.
    fn is_out(&self) -> bool {
        self.failed_in_a_row() >= Reach::BITS
    }

    /// Returns the name of the exchange whose departure the next request asks for.
    fn interleave_with(&self) -> Option<NtpTimestamp> {
        let wanted = self.config().interleaved && self.unanswered < MAX_INTERLEAVED_UNANSWERED;
        self.last_exchange.filter(|_| wanted).map(|last| last.name)
    }

    /// Says why a packet without the cookie in flight is refused.
    fn unmatched(&self, origin: NtpTimestamp) -> RejectReason {
        match self.past.was_answered(origin) {
            Some(true) => RejectReason::Duplicate,
            Some(false) => RejectReason::Late,
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
        field: Option<&precise::Reply>,
        InFlight { id, stamp, .. }: InFlight<S>,
        near: Instant<Utc>,
        stamps: impl FnOnce(S) -> (u64, u64),
    ) -> Result<Outcome, RejectReason> {
        let mut exchange = Response::check(packet, id, near, &self.policy())?;
        if let Some(bounds) = bounds(field, &exchange)? {
            // Stamps in reverse order were moved to their middle.
            let moved = (exchange.tb - packet.receive.to_instant(exchange.tb)).abs();
            exchange.precise = Some(bounds.widened(moved));
        }
        let stamps = stamp.map(stamps);
        let last = Last { exchange, name: packet.receive, stamps, used: true };
        self.last_exchange = Some(last);
        Ok(last.outcome(exchange, id))
    }

    fn interleaved(
        &mut self,
        packet: &Packet,
        field: Option<&precise::Reply>,
        InFlight { id, stamp, .. }: InFlight<S>,
        near: Instant<Utc>,
        stamps: impl FnOnce(S) -> (u64, u64),
    ) -> Result<Outcome, RejectReason> {
        // Only a request that named an exchange has an interleaved cookie, and that exchange is
        // still stored.
        let before = self.last_exchange.ok_or(RejectReason::BogusOrigin)?;
        let policy = self.policy();
        let (mut complete, mut exchange) =
            Response::check_interleaved(packet, id, near, &policy, &before.exchange)?;
        exchange.precise = bounds(field, &exchange)?;
        // The reply's two stamps belong to two exchanges, and so do its bounds.
        let both = before.exchange.precise.zip(exchange.precise);
        complete.precise = both.map(|(old, new)| Bounds { transmit: new.transmit, ..old });
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
        self.stray = None;
        self.stated = None;
        self.unanswered = 0;
        self.since = Some(now);
        self.counters.accepted += 1;
        self.end(Ended::Accepted);
        self.accepted_at = self.ended;
    }

    /// Obeys a kiss (RFC 5905 section 7.4). The cookie matched, so only the server or an attacker
    /// on the path can have sent it.
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

    fn lose(&mut self, cookies: Cookies) {
        self.past.push(cookies, false);
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
        if !reason.ends_request() {
            self.stray = Some((reason, self.ended));
        }
        Outcome::Rejected(reason)
    }
}

/// The bounds of a field that came with the header of `response`; `None` without a field, and from
/// a server that does not have its own clock's timeline.
fn bounds(
    field: Option<&precise::Reply>,
    response: &Response,
) -> Result<Option<Bounds>, RejectReason> {
    let says_nothing =
        |status| matches!(status, precise::Status::NoSuchTimeline | precise::Status::KeyRequired);
    let Some(field) = field.filter(|field| !says_nothing(field.status)) else { return Ok(None) };
    field.bounds(response).map(Some).map_err(|_| RejectReason::PreciseBounds)
}

/// Returns the largest power of two not above `span`, as log2 s: the poll field's format.
fn log2_floor(span: Duration) -> i8 {
    span.to_bits()
        .checked_ilog2()
        .and_then(|bit| i8::try_from(i64::from(bit) - 64).ok())
        .unwrap_or(0)
}
