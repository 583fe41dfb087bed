//! One connection of the read-only socket.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use timevisor_linux::poll::PollFd;
use timevisor_protocols::control::{ControlError, Question, Request, ServerCodec};
use timevisor_time::Duration;

/// The longest request line, bytes. A question has about thirty.
const MAX_REQUEST: usize = 1024;
/// How long a request may take to arrive, and an answer to be read.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection may be silent between two requests.
const SILENCE: Duration = Duration::from_secs(60);

/// What a connection waits for.
#[derive(Debug)]
enum State {
    /// The rest of a request.
    Request,
    /// The event loop's answer.
    Answer(Question),
    /// The client, to read these bytes, of which so many are written.
    Reader(Arc<[u8]>, usize),
}

/// A connection. It has one request at a time: the next one is looked at when the answer to the last
/// one is written.
pub struct Client {
    stream: UnixStream,
    pub user: u32,
    codec: ServerCodec,
    /// Requests that came together.
    waiting: VecDeque<Result<Request, ControlError>>,
    state: State,
    deadline: Duration,
    /// Its user has no requests left until then.
    pub paused_until: Duration,
}

impl Client {
    pub fn new(stream: UnixStream, user: u32, now: Duration) -> Self {
        Self {
            stream,
            user,
            codec: ServerCodec::with_limit(MAX_REQUEST),
            waiting: VecDeque::new(),
            state: State::Request,
            deadline: now + PATIENCE,
            paused_until: Duration::ZERO,
        }
    }

    /// The descriptor to wait for. An end is noticed in every state.
    pub fn poll_fd(&self) -> PollFd<'_> {
        match self.state {
            State::Request if self.waiting.is_empty() => PollFd::readable(self.stream.as_fd()),
            State::Request | State::Answer(_) => PollFd::idle(self.stream.as_fd()),
            State::Reader(..) => PollFd::writable(self.stream.as_fd()),
        }
    }

    /// When it ends, or must be looked at again.
    pub fn due(&self) -> Duration {
        match self.state {
            State::Request if !self.waiting.is_empty() => self.paused_until,
            _ => self.deadline,
        }
    }

    pub fn is_late(&self, now: Duration) -> bool {
        let pauses = matches!(self.state, State::Request) && !self.waiting.is_empty();
        now >= self.deadline && !pauses
    }

    pub fn waits_for(&self) -> Option<Question> {
        match self.state {
            State::Answer(question) => Some(question),
            _ => None,
        }
    }

    pub fn wait_for(&mut self, question: Question, until: Duration) {
        self.state = State::Answer(question);
        self.deadline = until;
    }

    /// Reads what is there. Returns false at the connection's end.
    pub fn read(&mut self, now: Duration) -> bool {
        let mut buffer = [0u8; MAX_REQUEST];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.waiting.extend(self.codec.on_bytes(&buffer[..count]));
                // A request that comes byte by byte has no more time than any other.
                if self.deadline > now + PATIENCE {
                    self.deadline = now + PATIENCE;
                }
                true
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// The next request, if it is its turn.
    pub fn next_request(&mut self, now: Duration) -> Option<Result<Request, ControlError>> {
        let turn = matches!(self.state, State::Request) && now >= self.paused_until;
        if turn { self.waiting.pop_front() } else { None }
    }

    pub fn has_request(&self, now: Duration) -> bool {
        let turn = matches!(self.state, State::Request) && now >= self.paused_until;
        turn && !self.waiting.is_empty()
    }

    /// Begins to write an answer. Returns false at the connection's end.
    pub fn answer(&mut self, bytes: Arc<[u8]>, now: Duration) -> bool {
        self.state = State::Reader(bytes, 0);
        self.deadline = now + PATIENCE;
        self.write(now)
    }

    /// Goes on writing. Returns false at the connection's end.
    pub fn write(&mut self, now: Duration) -> bool {
        let State::Reader(bytes, done) = &mut self.state else { return true };
        match self.stream.write(&bytes[*done..]) {
            Ok(0) => false,
            Ok(count) => {
                *done += count;
                if *done == bytes.len() {
                    self.state = State::Request;
                    self.deadline = now + SILENCE;
                }
                true
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}
