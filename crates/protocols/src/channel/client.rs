//! The client's end: starts a session, and starts another one whenever the server loses it, until
//! told to stop.
//!
//! The session numbers requests, matches them with their answers and times them out. It sends
//! keep-alives if leases need them. It enforces the server's rate limit on the client's side,
//! because the server does not answer requests beyond it.
//!
//! What it does not do: bind again after a session was lost (only the caller knows what it wants),
//! or repeat requests.

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

/// Shortest time between two hellos, so that a server that ends every session is not flooded.
const HELLO_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest lease that a client assumes, so that no server can make it send continuously.
const MIN_LEASE: Duration = Duration::from_secs(1);

/// How a client begins sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientConfig {
    /// Program and version, for the operator.
    pub client: String,
    /// The first request id. Choose a number unlikely to have been used on this stream before (a
    /// clock, a random number), so that an answer to an earlier client is not mistaken for one to
    /// this client. Only 62 bits of it count.
    pub first_id: u64,
    /// How long a request or a hello may wait for its answer.
    pub timeout: Duration,
}

/// What happened, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum ClientAction {
    /// The session is open; it has no bindings yet.
    Began(Welcome),
    /// The server refused a session. The client tries again after the timeout.
    Refused(Problem),
    /// A hello got no answer. The client has tried again.
    Unanswered,
    /// The answer to [`ClientSession::request`] with this id.
    Response {
        /// The id that [`ClientSession::request`] returned.
        id: u64,
        /// The answer.
        response: Response,
    },
    /// No answer came in time, and none will be delivered. The server may or may not have carried
    /// the request out. Where that matters, continue with [`ClientSession::restart`].
    TimedOut {
        /// The id that [`ClientSession::request`] returned.
        id: u64,
    },
    /// An event from the server; never [`Event::Closing`].
    Event(Event),
    /// The session is gone with all its bindings and unanswered requests. The client begins another
    /// one.
    Lost {
        /// The reason.
        reason: String,
    },
}

/// Why a request is not sent.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no session.
    #[error("no session is open; wait until one has begun")]
    NotOpen,
    /// Too many requests are unanswered.
    #[error("as many requests wait for their answers as may; wait for some of them")]
    Unanswered,
    /// The rate limit is reached.
    #[error("beyond the server's limit of requests a second; wait until ready_at()")]
    TooFast,
    /// The stream does not accept the bytes that wait already.
    #[error("the server does not read; check whether it runs")]
    Unread,
    /// The server would refuse the request.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The client itself sends hello and keep-alive.
    #[error("the session sends hellos and keep-alives by itself; leave it to it")]
    Own,
    /// The request does not fit into a frame.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    deadline: Duration,
    /// A keep-alive, whose answer no caller waits for.
    own: bool,
}

#[derive(Clone, Debug)]
struct Open {
    session: u64,
    /// A keep-alive is due this long after the last request.
    lease: Option<Duration>,
    heard: Duration,
    asked: Duration,
    unanswered: BTreeMap<u64, Waiting>,
    /// Maximum number of unanswered requests: those of one second, because they all arrive at once
    /// when the server returns after an absence.
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
    /// The server's rate limit, counted over all sessions of a connection.
    pace: Option<(u32, Bucket)>,
    reader: FrameReader,
    outbox: Outbox,
    state: State,
}

impl ClientSession {
    /// Makes a session that does nothing until [`Self::begin`].
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

    /// Begins on a new stream: sends a hello.
    pub fn begin(&mut self, now: Duration) {
        self.reader = FrameReader::new(Direction::ToClient);
        self.pace = None;
        self.hello(now);
    }

    /// Ends the session, because the stream is gone.
    pub fn end(&mut self) {
        self.state = State::Off;
        self.outbox.clear();
    }

    /// Gives up the session and begins another one, for callers that no longer know the state of
    /// the old one.
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
    /// See [`RequestError`]; nothing was sent then.
    pub fn request(&mut self, now: Duration, request: &Request) -> Result<u64, RequestError> {
        if matches!(request, Request::Hello(_) | Request::KeepAlive) {
            return Err(RequestError::Own);
        }
        request.check()?;
        self.send(now, request)
    }

    /// Reads bytes that arrived at `now`.
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

    /// Returns when [`Self::on_timer`] has something to do.
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

    /// Times requests out, sends keep-alives, begins sessions.
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
                    // If the rate is used up or the server does not read, the next keep-alive will
                    // do.
                    open.asked = now;
                    let _unsent = self.send(now, &Request::KeepAlive);
                }
            }
            State::Off | State::Resting { .. } | State::Hello { .. } => {}
        }
        actions
    }

    /// Returns when another request would be sent rather than refused; a time in the past means
    /// now. `None` if waiting alone does not help.
    #[must_use]
    pub fn ready_at(&self) -> Option<Duration> {
        match &self.state {
            State::Open(open) if open.unanswered.len() < open.window => {
                self.pace.map(|(_, bucket)| bucket.ready_at())
            }
            _ => None,
        }
    }

    /// Returns the session's number while it is open.
    #[must_use]
    pub fn session(&self) -> Option<u64> {
        match &self.state {
            State::Open(open) => Some(open.session),
            _ => None,
        }
    }

    /// Returns the bytes to write to the stream.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.outbox.unsent()
    }

    /// Removes this many bytes of [`Self::output`], which the stream has accepted.
    pub fn sent(&mut self, count: usize) {
        self.outbox.sent(count);
    }

    /// Returns the number of bytes that were not part of a frame.
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
        // Unsent bytes belong to no session any more. Half a frame may have been sent; servers find
        // the next one.
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
            // A newer server may send events that this client does not know.
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
        // An eighth slower than the limit, and half its burst: requests may bunch up on their way,
        // and the two clocks differ.
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
        // A hello beyond the rate would get no answer.
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
