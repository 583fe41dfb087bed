//! The server's end of one connection: on the host for applications and guests, in a guest for
//! applications.
//!
//! A connection carries one session at a time. Limits bound everything that a peer can cause: the
//! tenant's rate bounds the requests, the requests bound the answers, and one frame,
//! [`MAX_UNANSWERED`] requests and [`MAX_UNSENT`] bytes bound the memory. Garbage costs one step
//! per byte, and beyond [`MAX_GARBAGE`] it costs the connection.
//!
//! What it does not do: know timelines or bindings, limit a tenant across connections, or identify
//! the tenant. The caller identifies it by the socket.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use serde::Serialize;
use timevisor_time::Duration;

use super::bucket::{Bucket, interval};
use super::frame::{Frame, FrameHeader, Kind};
use super::incoming::{Arrived, Incoming, RequestReader};
use super::message::{
    Event, Hello, HostPage, Limits, Problem, ProblemCode, Request, Response, Welcome,
};
use super::outbox::{MAX_UNSENT, Outbox};
use super::{VERSION, problem};

/// After this many bytes without a frame, the connection is given up.
pub const MAX_GARBAGE: u64 = 1 << 20;

/// Most requests that may wait for their answers.
pub const MAX_UNANSWERED: usize = 64;

/// The client and its limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerConfig {
    /// The client's identity, from the socket: `uid:1000`, `vm:web`, `guest uid:1000`.
    pub tenant: String,
    /// The page for clients on the host.
    pub page: Option<HostPage>,
    /// The limits to tell the client. This session enforces the rate and the lease, the caller the
    /// others.
    pub limits: Limits,
}

/// What the caller must do, in order. One `Ended`, `Expired` or `Close` follows every `Began`.
#[derive(Clone, PartialEq, Debug)]
pub enum ServerAction {
    /// A session began; the client was welcomed.
    Began {
        /// The session's number.
        session: u64,
        /// The client's text about itself.
        client: String,
    },
    /// The next hello ended a session: release its leases.
    Ended {
        /// The session's number.
        session: u64,
    },
    /// The client was silent for the lease's time: release the session's leases. The connection
    /// stays.
    Expired {
        /// The session's number.
        session: u64,
    },
    /// Bind, update, unbind or timelines: answer with [`ServerSession::respond`].
    Request {
        /// The client's session.
        session: u64,
        /// The id that the answer must repeat.
        id: u64,
        /// The request; it has passed [`Request::check`].
        request: Request,
    },
    /// Close the connection and release the leases of its session. Always the last action.
    Close(Over),
}

/// Why a connection must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Over {
    /// The peer speaks another protocol.
    #[error("{MAX_GARBAGE} bytes without a frame; check what is connected to this end")]
    Garbage,
    /// The peer does not read.
    #[error("{MAX_UNSENT} bytes were not read by the peer; read responses and events as they come")]
    Unread,
    /// The peer's bytes were lost with the reader that parsed them ([`ServerSession::take_reader`]).
    #[error("its bytes could not be parsed, which is a bug; please report it")]
    Unparsed,
}

/// Counts of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerCounters {
    /// Frames refused by the rate limit.
    pub rate_limited: u64,
    /// Frames of another session, of none, or with an old id.
    pub wrong_session: u64,
    /// Payloads that are not a request.
    pub malformed: u64,
    /// Frames of another version.
    pub other_version: u64,
}

#[derive(Clone, Debug)]
struct Session {
    number: u64,
    last_id: u64,
    heard: Duration,
    unanswered: BTreeSet<u64>,
}

/// The server's end of one connection.
#[derive(Clone, Debug)]
pub struct ServerSession {
    config: ServerConfig,
    lease: Option<Duration>,
    reader: RequestReader,
    outbox: Outbox,
    bucket: Bucket,
    /// The peer was told that it exceeds the rate, and no request was admitted since.
    told: bool,
    session: Option<Session>,
    counters: ServerCounters,
    over: Option<Over>,
}

impl ServerSession {
    /// Makes a connection without a session.
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        let rate = config.limits.requests_per_second;
        Self {
            lease: config.limits.lease_ms.map(duration_from_ms),
            config,
            reader: RequestReader::default(),
            outbox: Outbox::default(),
            bucket: Bucket::new(interval(rate), rate.max(1).saturating_mul(2)),
            told: false,
            session: None,
            counters: ServerCounters::default(),
            over: None,
        }
    }

    /// Reads bytes that arrived at `now`: [`Self::on_arrived`] for a caller that parses where it keeps
    /// its state.
    pub fn on_bytes(
        &mut self,
        now: Duration,
        bytes: &[u8],
        new_session: &mut dyn FnMut() -> NonZeroU64,
    ) -> Vec<ServerAction> {
        if self.over.is_some() {
            return Vec::new();
        }
        let arrived = self.reader.read(bytes);
        self.on_arrived(now, arrived, new_session)
    }

    /// Takes the reader out, to parse the stream's next bytes elsewhere. Put it back before anything
    /// else is read; a stream whose reader is lost must end, or begin again.
    pub fn take_reader(&mut self) -> RequestReader {
        std::mem::take(&mut self.reader)
    }

    /// Puts the reader back.
    pub fn put_reader(&mut self, reader: RequestReader) {
        self.reader = reader;
    }

    /// Heeds what arrived at `now`. `new_session` returns a number for each session that begins: one
    /// that neither this server nor the one before has used.
    pub fn on_arrived(
        &mut self,
        now: Duration,
        arrived: Arrived,
        new_session: &mut dyn FnMut() -> NonZeroU64,
    ) -> Vec<ServerAction> {
        let mut actions = Vec::new();
        if self.over.is_some() {
            return actions;
        }
        for one in arrived.requests {
            let taken = match one {
                Incoming::Request { session, id, request } => {
                    self.take(now, (session, id), request, new_session, &mut actions)
                }
                Incoming::OtherVersion(header) => self.refuse_version(now, &header),
            };
            if let Err(over) = taken {
                actions.push(ServerAction::Close(over));
                return actions;
            }
        }
        if arrived.since_frame > MAX_GARBAGE {
            actions.push(ServerAction::Close(self.end(Over::Garbage)));
        }
        actions
    }

    /// Answers a request once. Drops an answer to an ended session or to an unknown request.
    ///
    /// # Errors
    /// The connection must be closed and the leases of its session released.
    pub fn respond(&mut self, session: u64, id: u64, response: &Response) -> Result<(), Over> {
        let own = self.session.as_mut().filter(|own| own.number == session);
        if own.is_some_and(|own| own.unanswered.remove(&id)) {
            return self.send_response(session, id, response);
        }
        self.over.map_or(Ok(()), Err)
    }

    /// Sends the client an event; drops it if the session has ended.
    ///
    /// # Errors
    /// The connection must be closed and the leases of its session released.
    pub fn send_event(&mut self, session: u64, event: &Event) -> Result<(), Over> {
        match self.session() {
            Some(own) if own == session => self.send(Kind::Event, session, 0, event),
            _ => self.over.map_or(Ok(()), Err),
        }
    }

    /// Ends the session, if there is one, and tells the client why. The connection stays. The
    /// caller releases the leases of the returned session.
    pub fn end_session(&mut self, reason: &str) -> Option<u64> {
        let session = self.session()?;
        let event = Event::Closing { reason: reason.to_owned() };
        // If it cannot be sent, the connection is over, and the next call reports that.
        let _over = self.send(Kind::Event, session, 0, &event);
        self.session = None;
        Some(session)
    }

    /// Returns when [`Self::on_timer`] has something to do. Read the stream first, because waiting
    /// bytes keep a session alive.
    #[must_use]
    pub fn poll_at(&self) -> Option<Duration> {
        Some(self.session.as_ref()?.heard + self.lease?)
    }

    /// Ends a session after too much silence.
    pub fn on_timer(&mut self, now: Duration) -> Option<ServerAction> {
        let lease = self.lease?;
        self.poll_at().filter(|at| now >= *at)?;
        let session = self.end_session(&format!("nothing was heard for {lease}"))?;
        Some(self.over.map_or(ServerAction::Expired { session }, ServerAction::Close))
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

    /// Returns the session's number while there is one.
    #[must_use]
    pub fn session(&self) -> Option<u64> {
        self.session.as_ref().map(|session| session.number)
    }

    /// Returns why the connection must be closed, if it must.
    #[must_use]
    pub fn over(&self) -> Option<Over> {
        self.over
    }

    /// Returns the client and its limits.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.config.tenant
    }

    /// Returns the counts of errors.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        self.counters
    }

    /// Returns the number of bytes that were not part of a frame.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.reader.skipped()
    }

    fn take(
        &mut self,
        now: Duration,
        (number, id): (u64, u64),
        request: Result<Request, Problem>,
        new_session: &mut dyn FnMut() -> NonZeroU64,
        actions: &mut Vec<ServerAction>,
    ) -> Result<(), Over> {
        // Even a frame beyond the rate proves that the client is alive, and it consumes its id.
        let standing = self.check_in(now, number, id);
        if !self.admit(now) {
            return self.refuse_rate(number, id);
        }
        let request = standing.and_then(|()| self.permit(number, request));
        match request {
            Err(problem) => self.send_response(number, id, &Response::Problem(problem)),
            Ok(Request::Hello(hello)) => self.begin(now, id, hello, new_session(), actions),
            Ok(Request::KeepAlive) => self.send_response(number, id, &Response::Alive),
            Ok(request) => {
                let Some(session) = &mut self.session else { return Ok(()) };
                session.unanswered.insert(id);
                actions.push(ServerAction::Request { session: number, id, request });
                Ok(())
            }
        }
    }

    /// Checks by its header whether a frame belongs to this session.
    fn check_in(&mut self, now: Duration, number: u64, id: u64) -> Result<(), Problem> {
        let wrong = |message: &str, next_step| problem(ProblemCode::Session, message, next_step);
        let checked = match &mut self.session {
            _ if id == 0 => Err(wrong("a request's id is 1 or more", "count from 1")),
            _ if number == 0 => Ok(()),
            Some(session) if session.number == number && id > session.last_id => {
                session.last_id = id;
                session.heard = now;
                Ok(())
            }
            Some(session) if session.number == number => {
                Err(wrong("the id was used before", "let ids grow within a session"))
            }
            _ => Err(wrong("this session has ended or is another's", "begin one with a hello")),
        };
        self.counters.wrong_session += u64::from(checked.is_err());
        checked
    }

    /// Checks a request against the session.
    fn permit(
        &mut self,
        number: u64,
        request: Result<Request, Problem>,
    ) -> Result<Request, Problem> {
        self.counters.malformed += u64::from(request.is_err());
        let request = request?;
        let is_hello = matches!(request, Request::Hello(_));
        let waiting = self.session.as_ref().map_or(0, |session| session.unanswered.len());
        if is_hello != (number == 0) {
            self.counters.wrong_session += 1;
            let message = "a hello, and nothing else, has session 0";
            return Err(problem(ProblemCode::Session, message, "begin a session with a hello"));
        }
        if waiting >= MAX_UNANSWERED && !is_hello && request != Request::KeepAlive {
            let message = format!("{waiting} requests wait for their answers");
            return Err(problem(ProblemCode::RateLimited, &message, "wait for some of them"));
        }
        Ok(request)
    }

    fn begin(
        &mut self,
        now: Duration,
        id: u64,
        hello: Hello,
        number: NonZeroU64,
        actions: &mut Vec<ServerAction>,
    ) -> Result<(), Over> {
        if let Some(old) = self.session.take() {
            actions.push(ServerAction::Ended { session: old.number });
        }
        let session = number.get();
        let unanswered = BTreeSet::new();
        self.session = Some(Session { number: session, last_id: id, heard: now, unanswered });
        actions.push(ServerAction::Began { session, client: hello.client });
        let ServerConfig { tenant, page, limits } = self.config.clone();
        let welcome = Welcome { session, tenant, page, limits };
        self.send_response(session, id, &Response::Welcome(welcome))
    }

    fn admit(&mut self, now: Duration) -> bool {
        let admitted = self.bucket.admit(now);
        self.told &= !admitted;
        admitted
    }

    /// Tells the peer once that it exceeds the rate, so that a flood causes no output.
    fn refuse_rate(&mut self, number: u64, id: u64) -> Result<(), Over> {
        self.counters.rate_limited += 1;
        if std::mem::replace(&mut self.told, true) {
            return Ok(());
        }
        let rate = self.config.limits.requests_per_second;
        let message = format!("more than {rate} requests a second");
        let next_step = "wait a second; requests until then are not answered";
        let problem = problem(ProblemCode::RateLimited, &message, next_step);
        self.send_response(number, id, &Response::Problem(problem))
    }

    fn refuse_version(&mut self, now: Duration, header: &FrameHeader) -> Result<(), Over> {
        self.counters.other_version += 1;
        if !self.admit(now) {
            return self.refuse_rate(header.session, header.id);
        }
        let message = format!("version {}, but this end speaks {VERSION}", header.version);
        let next_step = "install the same version of timevisor on both ends";
        let problem = problem(ProblemCode::Version, &message, next_step);
        self.send_response(header.session, header.id, &Response::Problem(problem))
    }

    fn send_response(&mut self, session: u64, id: u64, response: &Response) -> Result<(), Over> {
        self.send(Kind::Response, session, id, response)
    }

    fn send(
        &mut self,
        kind: Kind,
        session: u64,
        id: u64,
        message: &impl Serialize,
    ) -> Result<(), Over> {
        if let Some(over) = self.over {
            return Err(over);
        }
        let frame = match Frame::of(kind, session, id, message) {
            Ok(frame) => frame,
            // An answer too long for a frame is replaced by a problem; an event (they are short) is
            // not sent.
            Err(error) => {
                let message = format!("the answer cannot be sent: {error}");
                let problem = problem(ProblemCode::Unavailable, &message, "ask the operator");
                match Frame::of(Kind::Response, session, id, &Response::Problem(problem)) {
                    Ok(frame) if kind == Kind::Response => frame,
                    _ => return Ok(()),
                }
            }
        };
        if self.outbox.push(&frame.encode()) { Ok(()) } else { Err(self.end(Over::Unread)) }
    }

    fn end(&mut self, over: Over) -> Over {
        self.over = Some(over);
        self.session = None;
        over
    }
}

/// Saturates after 292 million years.
pub(super) fn duration_from_ms(ms: u64) -> Duration {
    Duration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX))
}
