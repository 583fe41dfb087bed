//! The client's end: begins a session, and another one whenever the server has lost it, until told to stop.
//!
//! Requests are numbered, matched with their answers and timed out; the session is kept alive where its leases need it; the
//! server's rate limit is kept on this side, because the server does not answer what exceeds it.
//!
//! What it does not do: bind again after a session was lost (the caller knows what it wants), or repeat requests.

use std::collections::BTreeMap;

use timevisor_time::Duration;

use super::bucket::{Bucket, interval};
use super::check::InvalidRequest;
use super::frame::{EncodeError, Frame, Kind};
use super::message::{Event, Hello, Problem, ProblemCode, Request, Response, Welcome};
use super::outbox::Outbox;
use super::reader::{Direction, FrameReader, Received};
use super::server::{MAX_UNANSWERED, duration_from_ms};
use super::{VERSION, problem};

/// Two hellos are at least this far apart, so that a server that ends every session is not flooded.
const HELLO_INTERVAL: Duration = Duration::from_secs(1);

/// Leases are taken to be at least this long, so that no server makes a client send without pause.
const MIN_LEASE: Duration = Duration::from_secs(1);

/// Who begins sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientConfig {
    /// Program and version, for the operator's eyes.
    pub client: String,
    /// Where request ids begin: best a number unlikely to have been used on this stream before (a clock, a random number), so
    /// that an answer to somebody before is not taken for one to this client. Only 62 bits of it count.
    pub first_id: u64,
    /// How long a request, or a hello, may remain without an answer.
    pub timeout: Duration,
}

/// What happened, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum ClientAction {
    /// The session is open; nothing is bound in it.
    Began(Welcome),
    /// The server did not begin a session. The next attempt comes by itself after the time-out.
    Refused(Problem),
    /// No answer to a hello. The next attempt has been made.
    Unanswered,
    /// The answer to [`ClientSession::request`] with this id.
    Response {
        /// As [`ClientSession::request`] returned it.
        id: u64,
        /// The answer.
        response: Response,
    },
    /// No answer came in time, and none will be delivered. Whether it was carried out is not known: where that matters, go on
    /// with [`ClientSession::restart`].
    TimedOut {
        /// As [`ClientSession::request`] returned it.
        id: u64,
    },
    /// Something unasked; never [`Event::Closing`].
    Event(Event),
    /// The session is gone with all its bindings and unanswered requests. The next attempt comes by itself.
    Lost {
        /// Why.
        reason: String,
    },
}

/// A request that is not sent.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No session.
    #[error("no session is open; wait until one has begun")]
    NotOpen,
    /// Too many at the same time.
    #[error("as many requests wait for their answers as may; wait for some of them")]
    Unanswered,
    /// Too many in a second.
    #[error("beyond the server's limit of requests a second; wait until ready_at()")]
    TooFast,
    /// The stream does not take what is there.
    #[error("the server does not read; check whether it runs")]
    Unread,
    /// The server would refuse it.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// Hello and keep-alive.
    #[error("the session sends hellos and keep-alives by itself; leave it to it")]
    Own,
    /// No frame.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    deadline: Duration,
    /// A keep-alive: nobody else waits for its answer.
    own: bool,
}

#[derive(Clone, Debug)]
struct Open {
    session: u64,
    /// Keep-alives are due this long after the last request.
    lease: Option<Duration>,
    heard: Duration,
    asked: Duration,
    unanswered: BTreeMap<u64, Waiting>,
    /// How many may be unanswered. No more than a second's: when the server was away, they all arrive at once.
    window: usize,
}

#[derive(Clone, Debug)]
enum State {
    Off,
    Resting { until: Duration },
    Hello { id: u64, deadline: Duration },
    Open(Open),
}

/// The client's end of one connection.
#[derive(Clone, Debug)]
pub struct ClientSession {
    config: ClientConfig,
    last_id: u64,
    last_hello: Option<Duration>,
    /// The server's rate and what it leaves; it counts over all sessions of a connection.
    pace: Option<(u32, Bucket)>,
    reader: FrameReader,
    outbox: Outbox,
    state: State,
}

impl ClientSession {
    /// Does nothing until [`Self::begin`].
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        Self {
            last_id: config.first_id >> 2,
            config,
            last_hello: None,
            pace: None,
            reader: FrameReader::new(Direction::ToClient),
            outbox: Outbox::default(),
            state: State::Off,
        }
    }

    /// The stream is there: says hello.
    pub fn begin(&mut self, now: Duration) {
        self.reader = FrameReader::new(Direction::ToClient);
        self.pace = None;
        self.hello(now);
    }

    /// The stream is gone, and the session with it.
    pub fn end(&mut self) {
        self.state = State::Off;
        self.outbox.clear();
    }

    /// Gives the session up and begins another one: for callers that no longer know what holds in it.
    pub fn restart(&mut self, now: Duration, reason: &str) -> Vec<ClientAction> {
        let mut actions = Vec::new();
        if matches!(self.state, State::Open(_)) {
            self.lose(now, reason.to_owned(), &mut actions);
        }
        actions
    }

    /// Sends a request and returns its id.
    ///
    /// # Errors
    /// What [`RequestError`] lists; nothing was sent then.
    pub fn request(&mut self, now: Duration, request: &Request) -> Result<u64, RequestError> {
        if matches!(request, Request::Hello(_) | Request::KeepAlive) {
            return Err(RequestError::Own);
        }
        request.check()?;
        self.send(now, request)
    }

    /// Takes what was read at `now`.
    pub fn on_bytes(&mut self, now: Duration, bytes: &[u8]) -> Vec<ClientAction> {
        let mut actions = Vec::new();
        if matches!(self.state, State::Off) {
            return actions;
        }
        for received in self.reader.feed(bytes) {
            match received {
                Received::Frame(frame) if frame.header.kind == Kind::Event => {
                    self.take_event(now, &frame, &mut actions);
                }
                Received::Frame(frame) => self.take_response(now, &frame, &mut actions),
                Received::OtherVersion(header) => {
                    let message =
                        format!("the server speaks version {}, not {VERSION}", header.version);
                    let next_step = "install the same version of timevisor on both ends";
                    let problem = problem(ProblemCode::Version, &message, next_step);
                    self.refused(now, problem, &mut actions);
                }
            }
        }
        actions
    }

    /// When [`Self::on_timer`] has something to do.
    #[must_use]
    pub fn poll_at(&self) -> Option<Duration> {
        match &self.state {
            State::Off => None,
            State::Resting { until } => Some(*until),
            State::Hello { deadline, .. } => Some(*deadline),
            State::Open(open) => {
                let lease = open
                    .lease
                    .map(|lease| (open.heard + lease).min(keep_alive_at(open.asked, lease)));
                let unanswered = open.unanswered.first_key_value().map(|(_, w)| w.deadline);
                lease.into_iter().chain(unanswered).reduce(Duration::min)
            }
        }
    }

    /// Times out, keeps alive, begins again.
    pub fn on_timer(&mut self, now: Duration) -> Vec<ClientAction> {
        let mut actions = Vec::new();
        match &mut self.state {
            State::Resting { until } if now >= *until => self.hello(now),
            State::Hello { deadline, .. } if now >= *deadline => {
                actions.push(ClientAction::Unanswered);
                self.hello(now);
            }
            State::Open(open) => {
                // Deadlines grow with the ids.
                while let Some(first) = open.unanswered.first_entry() {
                    if now < first.get().deadline {
                        break;
                    }
                    let (id, waiting) = first.remove_entry();
                    if !waiting.own {
                        actions.push(ClientAction::TimedOut { id });
                    }
                }
                let Some(lease) = open.lease else { return actions };
                if now >= open.heard + lease {
                    let reason = format!("nothing was heard from the server for {lease}");
                    self.lose(now, reason, &mut actions);
                } else if now >= keep_alive_at(open.asked, lease) {
                    // Not sent if the rate is used up or the server does not read; then the next one counts.
                    open.asked = now;
                    let _unsent = self.send(now, &Request::KeepAlive);
                }
            }
            State::Off | State::Resting { .. } | State::Hello { .. } => {}
        }
        actions
    }

    /// When a further request would be sent rather than refused; the past means now. Nothing: not by waiting alone.
    #[must_use]
    pub fn ready_at(&self) -> Option<Duration> {
        match &self.state {
            State::Open(open) if open.unanswered.len() < open.window => {
                self.pace.map(|(_, bucket)| bucket.ready_at())
            }
            _ => None,
        }
    }

    /// The session's number while it is open.
    #[must_use]
    pub fn session(&self) -> Option<u64> {
        match &self.state {
            State::Open(open) => Some(open.session),
            _ => None,
        }
    }

    /// What to write to the stream.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.outbox.unsent()
    }

    /// The stream has taken so many bytes of [`Self::output`].
    pub fn sent(&mut self, count: usize) {
        self.outbox.sent(count);
    }

    /// Bytes that were no part of a frame.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.reader.skipped()
    }

    fn hello(&mut self, now: Duration) {
        self.last_id += 1;
        self.last_hello = Some(now);
        if let Some((_, bucket)) = &mut self.pace {
            bucket.charge(now);
        }
        self.state = State::Hello { id: self.last_id, deadline: now + self.config.timeout };
        // What was not sent belongs to no session any more. Half a frame may have been: servers find the next one.
        self.outbox.clear();
        let hello = Request::Hello(Hello { client: self.config.client.clone() });
        if let Ok(frame) = Frame::of(Kind::Request, 0, self.last_id, &hello) {
            let _fits = self.outbox.push(&frame.encode());
        }
    }

    fn send(&mut self, now: Duration, request: &Request) -> Result<u64, RequestError> {
        let State::Open(open) = &mut self.state else { return Err(RequestError::NotOpen) };
        if open.unanswered.len() >= open.window {
            return Err(RequestError::Unanswered);
        }
        let id = self.last_id + 1;
        let frame = Frame::of(Kind::Request, open.session, id, request)?;
        let Some((_, bucket)) = self.pace.as_mut().filter(|(_, b)| now >= b.ready_at()) else {
            return Err(RequestError::TooFast);
        };
        if !self.outbox.push(&frame.encode()) {
            return Err(RequestError::Unread);
        }
        bucket.charge(now);
        open.asked = now;
        let waiting =
            Waiting { deadline: now + self.config.timeout, own: *request == Request::KeepAlive };
        open.unanswered.insert(id, waiting);
        self.last_id = id;
        Ok(id)
    }

    fn take_event(&mut self, now: Duration, frame: &Frame, actions: &mut Vec<ClientAction>) {
        let State::Open(open) = &mut self.state else { return };
        if frame.header.session != open.session {
            return;
        }
        open.heard = now;
        match serde_json::from_slice(&frame.payload) {
            Ok(Event::Closing { reason }) => self.lose(now, reason, actions),
            Ok(event) => actions.push(ClientAction::Event(event)),
            // A newer server may tell what this client does not know.
            Err(_) => {}
        }
    }

    fn take_response(&mut self, now: Duration, frame: &Frame, actions: &mut Vec<ClientAction>) {
        let response = serde_json::from_slice(&frame.payload).unwrap_or_else(|error| {
            let message = format!("the answer is not understood: {error}");
            let next_step = "install the same version of timevisor on both ends";
            Response::Problem(problem(ProblemCode::Unavailable, &message, next_step))
        });
        let (session, id) = (frame.header.session, frame.header.id);
        match &mut self.state {
            State::Hello { id: own, .. } if *own == id => match response {
                Response::Welcome(welcome) if welcome.session == session && session != 0 => {
                    self.open(now, &welcome);
                    actions.push(ClientAction::Began(welcome));
                }
                Response::Problem(problem) => self.refused(now, problem, actions),
                _ => {}
            },
            State::Open(open) if open.session == session => {
                open.heard = now;
                let Some(waiting) = open.unanswered.remove(&id) else { return };
                match response {
                    Response::Problem(problem) if problem.code == ProblemCode::Session => {
                        self.lose(now, problem.message, actions);
                    }
                    response if !waiting.own => {
                        actions.push(ClientAction::Response { id, response });
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn open(&mut self, now: Duration, welcome: &Welcome) {
        let rate = welcome.limits.requests_per_second;
        // An eighth slower than the limit and half its burst: requests may bunch up on their way, and the two clocks are not
        // the same.
        if self.pace.is_none_or(|(known, _)| known != rate) {
            let interval = interval(rate);
            let interval = interval + Duration::from_bits(interval.to_bits() / 7);
            self.pace = Some((rate, Bucket::new(interval, rate)));
        }
        self.state = State::Open(Open {
            session: welcome.session,
            lease: welcome.limits.lease_ms.map(|ms| duration_from_ms(ms).max(MIN_LEASE)),
            heard: now,
            asked: now,
            unanswered: BTreeMap::new(),
            window: usize::try_from(rate).map_or(MAX_UNANSWERED, |n| n.clamp(1, MAX_UNANSWERED)),
        });
    }

    fn refused(&mut self, now: Duration, problem: Problem, actions: &mut Vec<ClientAction>) {
        if matches!(self.state, State::Hello { .. }) {
            self.state = State::Resting { until: now + self.config.timeout };
            actions.push(ClientAction::Refused(problem));
        }
    }

    fn lose(&mut self, now: Duration, reason: String, actions: &mut Vec<ClientAction>) {
        actions.push(ClientAction::Lost { reason });
        // A hello beyond the rate would go without an answer.
        let after = self.last_hello.map(|last| last + HELLO_INTERVAL);
        let ready = self.pace.map(|(_, bucket)| bucket.ready_at());
        let until = after.into_iter().chain(ready).fold(now, Duration::max);
        if now >= until {
            self.hello(now);
        } else {
            self.outbox.clear();
            self.state = State::Resting { until };
        }
    }
}

fn keep_alive_at(asked: Duration, lease: Duration) -> Duration {
    asked + Duration::from_bits(lease.to_bits() / 3)
}
