//! The thread of the read-only socket: who is connected, and which answers are fresh.

use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration as StdDuration;

use timevisor_linux::clock::monotonic;
use timevisor_linux::peer::peer_uid;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_protocols::control::{
    ControlError, ErrorCode, OBSERVERS, Question, Request, Response, ServerCodec,
};
use timevisor_time::Duration;

use super::Shared;
use super::allowance::Allowances;
use super::client::Client;
use crate::announce::Budget;
use crate::listening::Pause;
use crate::report::error_response;

/// Connections at a time.
pub const MOST_CLIENTS: usize = 64;
/// Those of one user.
pub const MOST_OF_A_USER: usize = 16;
/// An answer is given again for this long: the event loop makes each report four times a second at
/// most.
pub const FRESH: Duration = Duration::from_millis(250);
/// The event loop answers within milliseconds, or is stuck.
const PATIENCE: Duration = Duration::from_secs(3);
/// The thread looks at least so often whether the daemon is still there.
const LOOK: Duration = Duration::from_secs(1);

/// An answer that was made.
#[derive(Clone, Default)]
struct Known {
    bytes: Option<(Arc<[u8]>, Duration)>,
    /// When the event loop was asked for a newer one.
    asked_at: Option<Duration>,
}

pub struct Serving {
    listener: UnixListener,
    shared: Arc<Shared>,
    told: Receiver<(Question, Response)>,
    clients: Vec<Client>,
    known: [Known; Question::ALL.len()],
    allowances: Allowances,
    pause: Pause,
    lines: Budget,
    /// Who is served first: another one each turn.
    turn: usize,
}

impl Serving {
    pub fn new(
        listener: UnixListener,
        shared: Arc<Shared>,
        told: Receiver<(Question, Response)>,
    ) -> Self {
        Self {
            listener,
            shared,
            told,
            clients: Vec::new(),
            known: Default::default(),
            allowances: Allowances::default(),
            pause: Pause::default(),
            lines: Budget::default(),
            turn: 0,
        }
    }

    /// Serves until the daemon ends.
    pub fn run(mut self) {
        while self.turn() {}
    }

    /// Waits and serves once. Returns false when the daemon ends.
    fn turn(&mut self) -> bool {
        let now = monotonic();
        let accepts = self.pause.is_over(now);
        let due = self.clients.iter().map(Client::due).chain([self.pause.ends_at(), now + LOOK]);
        let until = due.min().unwrap_or(now + LOOK);
        let mut fds = vec![PollFd::readable(self.shared.answered.as_fd())];
        fds.extend(self.clients.iter().map(Client::poll_fd));
        if accepts {
            fds.push(PollFd::readable(self.listener.as_fd()));
        }
        let nanos = u64::try_from((until - now).ceil_nanos()).unwrap_or(0);
        if let Err(error) = wait(&mut fds, Some(StdDuration::from_nanos(nanos))) {
            tracing::error!("the read-only socket answers nobody: it cannot wait: {error}");
            return false;
        }
        let ready: Vec<_> = fds.iter().map(PollFd::ready).collect();
        let arrived = accepts && ready.last().is_some_and(|ready| ready.readable);
        let now = monotonic();
        let mut of_clients = ready[1..].iter();
        self.clients.retain_mut(|client| {
            let Some(ready) = of_clients.next() else { return false };
            if ready.error || (ready.hangup && !ready.readable) {
                return false;
            }
            if client.is_late(now) {
                return client.waits_for().is_some() && client.answer(encode(&late()), now);
            }
            if ready.writable && !client.write(now) {
                return false;
            }
            !ready.readable || client.read(now)
        });
        if !self.hear(now) {
            return false;
        }
        self.answer_requests(now);
        if arrived {
            self.accept(now);
        }
        true
    }

    /// Takes the event loop's answers. Returns false when it has ended.
    fn hear(&mut self, now: Duration) -> bool {
        let _ = self.shared.answered.clear();
        loop {
            match self.told.try_recv() {
                Ok((question, response)) => {
                    let bytes = encode(&response);
                    let known = &mut self.known[question as usize];
                    *known = Known { bytes: Some((Arc::clone(&bytes), now)), asked_at: None };
                    self.clients.retain_mut(|client| {
                        client.waits_for() != Some(question)
                            || client.answer(Arc::clone(&bytes), now)
                    });
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Answers one request of each client, another one first each time.
    fn answer_requests(&mut self, now: Duration) {
        let count = self.clients.len();
        if count == 0 {
            return;
        }
        self.turn = (self.turn + 1) % count;
        let first = self.turn;
        let mut gone = Vec::new();
        for place in (0..count).map(|place| (place + first) % count) {
            if !self.clients[place].has_request(now) {
                continue;
            }
            if let Err(after) = self.allowances.take(self.clients[place].user, now) {
                self.clients[place].paused_until = now + after;
                continue;
            }
            let Some(request) = self.clients[place].next_request(now) else { continue };
            if !self.answer(place, request, now) {
                gone.push(place);
            }
        }
        gone.sort_unstable();
        for place in gone.into_iter().rev() {
            self.clients.swap_remove(place);
        }
    }

    /// Answers a request, now or when the event loop has. Returns false at the connection's end.
    fn answer(
        &mut self,
        place: usize,
        request: Result<Request, ControlError>,
        now: Duration,
    ) -> bool {
        let client = &mut self.clients[place];
        let question = match request {
            Err(error) => return client.answer(encode(&error.to_response()), now),
            Ok(request) => match request.question() {
                Some(question) => question,
                None => return client.answer(encode(&refusal()), now),
            },
        };
        let known = &mut self.known[question as usize];
        if let Some((bytes, at)) = &known.bytes
            && now - *at < FRESH
        {
            return client.answer(Arc::clone(bytes), now);
        }
        if known.asked_at.is_none_or(|at| now - at >= PATIENCE) {
            known.asked_at = Some(now);
            self.shared.ask(question);
        }
        client.wait_for(question, now + PATIENCE);
        true
    }

    fn accept(&mut self, now: Duration) {
        let accepted = self.listener.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let Some(stream) = self.pause.heed(now, accepted) else { return };
        let Ok(user) = peer_uid(&stream) else { return };
        let of_user = self.clients.iter().filter(|client| client.user == user).count();
        if self.clients.len() >= MOST_CLIENTS || of_user >= MOST_OF_A_USER {
            turn_away(stream, of_user);
            if self.lines.take(now) {
                tracing::warn!(
                    "the read-only socket turned a client of user {user} away: {of_user} of that user's are connected, {} of all",
                    self.clients.len()
                );
            }
            return;
        }
        self.clients.push(Client::new(stream, user, now));
    }
}

/// Says why, if the socket takes it at once, and closes.
fn turn_away(stream: UnixStream, of_user: usize) {
    let whose = if of_user >= MOST_OF_A_USER { "this user has" } else { "there are" };
    let response = error_response(
        ErrorCode::Unavailable,
        &format!("{whose} too many connections to the read-only socket"),
        "close some of them",
    );
    let _ = Client::new(stream, 0, Duration::ZERO).answer(encode(&response), Duration::ZERO);
}

fn refusal() -> Response {
    let names = Question::ALL.map(Question::name).join(", ");
    error_response(
        ErrorCode::Permission,
        &format!("this socket is for reading, for the group {OBSERVERS}; it answers {names}"),
        "run as root for anything else",
    )
}

fn late() -> Response {
    error_response(
        ErrorCode::Unavailable,
        &format!("the clock's thread has not answered within {} s", PATIENCE.as_secs_f64()),
        "try again; `journalctl -u timevisord` says what it is doing",
    )
}

fn encode(response: &Response) -> Arc<[u8]> {
    let encoded = ServerCodec::encode(response).or_else(|error| {
        tracing::warn!("an answer could not be sent: {error}");
        let text = error.to_string();
        ServerCodec::encode(&error_response(ErrorCode::Internal, &text, "report this"))
    });
    encoded.unwrap_or_default().into()
}
