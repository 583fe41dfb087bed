//! The client side of one server association: when to ask, and which datagram answers.
//!
//! At most one request is in flight. A request is known by its 64-bit random cookie; the answer must echo it, so only
//! who saw the request can forge one (RFC 5905 section 8, TEST1 to TEST3, with a cookie in place of a time). A
//! request ends exactly once: accepted, rejected by content, kissed, or lost by timeout. A packet that does not carry
//! the cookie in flight never ends it.
//!
//! Asking: a burst at the start and when the server comes back after an outage, then every `poll_min`. RATE kisses
//! lengthen the interval for good; DENY and RSTR leave one attempt per `denied_retry`. A late timer skips polls, it
//! never catches up with a volley. Losses do not lengthen the interval: recovering fast from a broken network is worth
//! one small packet per poll.
//!
//! What it does not do: choose among servers, add jitter to the schedule, resolve names, or keep any clock.

use std::collections::VecDeque;

use timevisor_time::{Duration, Instant, Utc};

use super::config::{Config, ConfigError};
use super::extension::Tail;
use super::format::NtpTimestamp;
use super::packet::{HEADER_LEN, Mode, Packet, VERSION};
use super::response::{KissCode, Response};
use super::status::{Counters, Reach, RejectReason, Status};

/// How many ended requests are remembered to tell late and duplicate answers from forged ones.
const REMEMBERED: usize = 16;

/// The longest interval that the poll field of a RATE kiss can impose above `poll_max`: a forged or mistaken field
/// must not silence a server for a day.
const MAX_ASKED_POLL: Duration = Duration::from_secs(3600);

/// A request to send now. Take the send stamp (Ta) around this and file it under `id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Counts up from 1; [`Response::request_id`] refers to it.
    pub id: u64,
    /// The datagram.
    pub bytes: [u8; HEADER_LEN],
}

/// What became of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Hand it to the estimator.
    Accepted(Response),
    /// Counted; nothing to do.
    Rejected(RejectReason),
    /// The server declined; the schedule already obeys. Worth a log line.
    KissOfDeath(KissCode),
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    id: u64,
    cookie: NtpTimestamp,
    deadline: Duration,
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

/// One association. All `now` are monotonic time since an origin of the caller's choice.
#[derive(Clone, Debug)]
pub struct Client {
    config: Config,
    /// Interval outside bursts; RATE raises it, nothing lowers it.
    interval: Duration,
    next_request: Duration,
    last_sent: Option<Duration>,
    burst_left: u32,
    in_flight: Option<InFlight>,
    /// Cookies of ended requests and whether an answer ended them.
    past: VecDeque<(NtpTimestamp, bool)>,
    denied: Option<KissCode>,
    last: Ended,
    ended: u64,
    reach: Reach,
    /// For [`Status::Unreachable`]: the last acceptance, or the first request.
    since: Option<Duration>,
    counters: Counters,
}

impl Client {
    /// An association whose first request is due at `start`.
    ///
    /// # Errors
    /// What [`Config::validate`] finds.
    pub fn new(config: Config, start: Duration) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            interval: config.poll_min,
            next_request: start,
            last_sent: None,
            burst_left: config.burst_count,
            in_flight: None,
            past: VecDeque::with_capacity(REMEMBERED),
            denied: None,
            last: Ended::Never,
            ended: 0,
            reach: Reach::default(),
            since: None,
            counters: Counters::default(),
        })
    }

    /// When [`Self::on_timer`] next has something to do. Ask again after every call that takes `&mut self`.
    #[must_use]
    pub fn poll_at(&self) -> Duration {
        self.in_flight.map_or(self.next_request, |f| f.deadline)
    }

    /// Ends a request that timed out and, when one is due, makes the next. `random` must be unpredictable to others.
    pub fn on_timer(&mut self, now: Duration, random: u64) -> Option<Request> {
        self.expire(now);
        if now < self.next_request {
            return None;
        }
        debug_assert!(
            self.in_flight.is_none(),
            "a valid configuration times out before the next request is due"
        );
        self.counters.sent += 1;
        let (id, cookie) = (self.counters.sent, self.fresh_cookie(random));
        self.in_flight = Some(InFlight { id, cookie, deadline: now + self.config.request_timeout });
        self.since.get_or_insert(now);
        self.last_sent = Some(now);
        self.burst_left = self.burst_left.saturating_sub(1);
        self.next_request = now + self.gap();
        Some(Request { id, bytes: Packet::request(cookie, log2_floor(self.interval)).to_bytes() })
    }

    /// Judges a datagram from the server. `approx_utc` only chooses the era (68 years off still works).
    pub fn on_datagram(
        &mut self,
        now: Duration,
        bytes: &[u8],
        approx_utc: Instant<Utc>,
    ) -> Outcome {
        self.expire(now);
        let (request, packet) = match self.matching(bytes) {
            Ok(found) => found,
            Err(reason) => return self.reject(reason),
        };
        self.in_flight = None;
        self.remember(request.cookie, true);
        if packet.stratum == 0 {
            return self.kissed(now, &packet);
        }
        match Response::check(&packet, request.id, approx_utc, self.config.max_distance) {
            Ok(response) => self.accept(now, response),
            Err(reason) => {
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
            self.lose(request);
        }
        if self.may_burst() {
            self.burst_left = self.config.burst_count;
            self.next_request =
                self.last_sent.map_or(now, |t| now.max(t + self.config.burst_spacing));
        }
    }

    /// The state to show.
    #[must_use]
    pub fn status(&self) -> Status {
        if let Some(code) = self.denied {
            return Status::Denied { code, retry_at: self.next_request };
        }
        match self.last {
            Ended::Rejected(reason) => Status::Unusable { reason },
            Ended::Kissed(KissCode::Rate) => Status::RateLimited { poll: self.interval },
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

    /// The interval between requests outside bursts.
    #[must_use]
    pub fn interval(&self) -> Duration {
        if self.denied.is_some() {
            self.config.denied_retry.max(self.interval)
        } else {
            self.interval
        }
    }

    /// As it was passed to [`Self::new`].
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn gap(&self) -> Duration {
        if self.burst_left > 0 { self.config.burst_spacing } else { self.interval() }
    }

    fn may_burst(&self) -> bool {
        self.denied.is_none() && self.interval == self.config.poll_min
    }

    /// Eight requests in a row failed.
    fn is_out(&self) -> bool {
        !self.reach.any() && self.ended >= Reach::BITS
    }

    /// The checks that need only the packet and our cookies; they come before anything in the packet is believed.
    fn matching(&self, bytes: &[u8]) -> Result<(InFlight, Packet), RejectReason> {
        let (packet, tail) = Packet::parse(bytes).map_err(|_| RejectReason::TooShort)?;
        if packet.mode != Mode::Server {
            return Err(RejectReason::Mode);
        }
        if packet.version != VERSION {
            return Err(RejectReason::Version);
        }
        Tail::parse(tail).map_err(|_| RejectReason::MalformedTail)?;
        match self.in_flight {
            Some(request) if request.cookie == packet.origin => Ok((request, packet)),
            _ => Err(match self.past.iter().find(|(cookie, _)| *cookie == packet.origin) {
                Some((_, true)) => RejectReason::Duplicate,
                Some((_, false)) => RejectReason::Late,
                None => RejectReason::BogusOrigin,
            }),
        }
    }

    fn accept(&mut self, now: Duration, response: Response) -> Outcome {
        if self.is_out() && self.may_burst() {
            self.burst_left = self.config.burst_count - 1;
        }
        let was_denied = self.denied.take().is_some();
        if let Some(sent) = self.last_sent
            && (was_denied || self.burst_left > 0)
        {
            self.next_request = self.next_request.min(sent + self.gap());
        }
        self.since = Some(now);
        self.counters.accepted += 1;
        self.end(Ended::Accepted);
        Outcome::Accepted(response)
    }

    /// RFC 5905 section 7.4. The cookie matched, so only the server, or one on the path to it, can have sent this.
    fn kissed(&mut self, now: Duration, packet: &Packet) -> Outcome {
        let code = KissCode::from_reference_id(packet.reference_id);
        self.counters.kisses += 1;
        self.end(Ended::Kissed(code));
        match code {
            KissCode::Rate => {
                let doubled = (self.interval + self.interval).min(self.config.poll_max);
                let asked = match packet.poll {
                    exponent @ 0..=17 => Duration::from_secs(1 << exponent).min(MAX_ASKED_POLL),
                    _ => Duration::ZERO,
                };
                self.interval = self.interval.max(doubled).max(asked);
            }
            KissCode::Deny | KissCode::Restrict => self.denied = Some(code),
            KissCode::Other(_) => return Outcome::KissOfDeath(code),
        }
        self.burst_left = 0;
        self.next_request = now + self.interval();
        Outcome::KissOfDeath(code)
    }

    fn expire(&mut self, now: Duration) {
        if let Some(request) = self.in_flight.take_if(|f| now >= f.deadline) {
            self.lose(request);
        }
    }

    fn lose(&mut self, request: InFlight) {
        self.remember(request.cookie, false);
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

    fn remember(&mut self, cookie: NtpTimestamp, answered: bool) {
        self.past.truncate(REMEMBERED - 1);
        self.past.push_front((cookie, answered));
    }

    /// `random`, moved on past zero ("no time") and past cookies still remembered: even a broken generator cannot make
    /// an old answer match a new request.
    fn fresh_cookie(&self, random: u64) -> NtpTimestamp {
        let mut cookie = NtpTimestamp::from_bits(random);
        while cookie.is_zero() || self.past.iter().any(|(past, _)| *past == cookie) {
            cookie = NtpTimestamp::from_bits(cookie.to_bits().wrapping_add(1));
        }
        cookie
    }
}

/// The largest power of two not above `span`, as log2 s: the poll field's format.
fn log2_floor(span: Duration) -> i8 {
    span.to_bits()
        .checked_ilog2()
        .and_then(|bit| i8::try_from(i64::from(bit) - 64).ok())
        .unwrap_or(0)
}
