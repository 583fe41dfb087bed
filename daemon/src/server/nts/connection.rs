//! One client's key establishment over TCP: crates/protocols' `Exchange`, without ever waiting.
//!
//! A connection ends by itself: when the client has its answer and closes, when it breaks a rule, or
//! at its deadline.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration as StdDuration, Instant};

use timevisor_linux::poll::PollFd;
use timevisor_protocols::nts::server::{Exchange, Progress, SessionKeys};

use super::Outcome;

/// A client that takes longer has failed. A TLS handshake needs a few round trips.
pub(super) const DEADLINE: StdDuration = StdDuration::from_secs(5);
/// How long a client that has its answer may take to close the connection. Closing it first could
/// destroy what the client has not read yet.
const FAREWELL: StdDuration = StdDuration::from_secs(1);
/// A client's handshake and message have less than 2 kB.
const MAX_RECEIVED: usize = 32 * 1024;
/// Bytes that are read in one turn, so that no client keeps others waiting.
const READ_IN_TURN: usize = 8 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Talking,
    /// There is nothing more to say than what is unsent.
    Leaving,
    /// All is sent; the client closes.
    Left,
}

pub(super) struct Connection {
    stream: TcpStream,
    from: IpAddr,
    exchange: Exchange,
    stage: Stage,
    unsent: Vec<u8>,
    received: usize,
    deadline: Instant,
}

impl Connection {
    /// The stream must not block.
    pub(super) fn new(stream: TcpStream, from: IpAddr, exchange: Exchange, now: Instant) -> Self {
        Self {
            stream,
            from,
            exchange,
            stage: Stage::Talking,
            unsent: Vec::new(),
            received: 0,
            deadline: now + DEADLINE,
        }
    }

    pub(super) fn from(&self) -> IpAddr {
        self.from
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The deadline has passed: returns the outcome, unless there was one before.
    pub(super) fn expire(&self) -> Option<Outcome> {
        (self.stage == Stage::Talking).then_some(Outcome::Late)
    }

    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let fd = self.stream.as_fd();
        if self.unsent.is_empty() { PollFd::readable(fd) } else { PollFd::readable_or_writable(fd) }
    }

    /// Reads and writes what is possible now. `grant` makes the answer to a client that gets keys,
    /// which is told at which of our addresses it asked. Returns whether the connection goes on,
    /// and the outcome when it becomes known.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        grant: impl FnMut(&SessionKeys, Option<IpAddr>) -> Option<Vec<u8>>,
    ) -> (bool, Option<Outcome>) {
        let was_talking = self.stage == Stage::Talking;
        let (open, outcome) = self.read(grant);
        // A client may have closed its side behind its message: it gets its answer.
        let open = self.write() && open;
        if was_talking && self.stage != Stage::Talking {
            self.deadline = self.deadline.min(now + FAREWELL);
        }
        let lost = was_talking && !open && outcome.is_none();
        (open, if lost { Some(Outcome::Failed) } else { outcome })
    }

    fn read(
        &mut self,
        mut grant: impl FnMut(&SessionKeys, Option<IpAddr>) -> Option<Vec<u8>>,
    ) -> (bool, Option<Outcome>) {
        let mut buffer = [0; 4096];
        let (mut in_turn, mut outcome) = (0, None);
        while in_turn < READ_IN_TURN {
            let len = match self.stream.read(&mut buffer) {
                Ok(0) => return (false, outcome),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return (error.kind() == ErrorKind::WouldBlock, outcome),
            };
            in_turn += len;
            self.received += len;
            if self.received > MAX_RECEIVED {
                return (false, outcome);
            }
            if self.stage == Stage::Talking {
                outcome = self.take(&buffer[..len], &mut grant);
            }
        }
        (true, outcome)
    }

    fn take(
        &mut self,
        bytes: &[u8],
        grant: &mut impl FnMut(&SessionKeys, Option<IpAddr>) -> Option<Vec<u8>>,
    ) -> Option<Outcome> {
        let outcome = match self.exchange.on_bytes(bytes) {
            Ok(Progress::Going) => return None,
            Ok(Progress::Agreed(session)) => {
                let local =
                    self.stream.local_addr().ok().map(|address| address.ip().to_canonical());
                let answered = grant(&session, local)
                    .is_some_and(|message| self.exchange.answer(&message).is_ok());
                if answered { Outcome::Established } else { Outcome::Failed }
            }
            Ok(Progress::Refused(refusal)) => {
                tracing::debug!("NTS key establishment with {} is refused: {refusal:?}", self.from);
                Outcome::Refused
            }
            Err(error) => {
                tracing::debug!("NTS key establishment with {} failed: {error}", self.from);
                Outcome::Failed
            }
        };
        self.stage = Stage::Leaving;
        Some(outcome)
    }

    /// Sends what is there, and says goodbye after the last byte.
    fn write(&mut self) -> bool {
        self.unsent.extend(self.exchange.output());
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => {
                    self.unsent.drain(..sent);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        if self.stage == Stage::Leaving {
            self.stage = Stage::Left;
            return self.stream.shutdown(Shutdown::Write).is_ok();
        }
        true
    }
}
