//! Processes with threads that have a record: their connections, and how many each user may have.
//!
//! A connection brings one request and holds at most one record, which ends with it. Whose thread
//! it is the kernel says: the process that connected, and a thread of that process.

use std::os::fd::{AsFd, BorrowedFd};

use timevisor_linux::bpf::record::{FineAge, TASKS};
use timevisor_linux::bpf::{BpfError, ElapsedBpf};
use timevisor_linux::process::{FoundThread, MOST_THREADS, find_thread, has_thread};
use timevisor_linux::seqpacket::PacketStream;
use timevisor_linux::{descriptors, peer};
use timevisor_protocols::ages::{Answer, REQUEST, Request};
use timevisor_time::Duration;

/// Threads that one user may have registered.
const MAX_PER_USER: usize = 64;
/// Records that are root's, whatever all others do; one is the daemon's own.
const KEPT_FOR_ROOT: usize = 16;
/// Connections at a time. Those beyond the records are answered why.
const MAX_CONNECTIONS: usize = TASKS + 64;
/// Of these, one user may have so many.
const MAX_CONNECTIONS_PER_USER: usize = MAX_PER_USER + 8;
/// Descriptors that must stay free when a client is given two.
const RESERVED_DESCRIPTORS: usize = 16;
/// A client that has asked nothing by then is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What clients are answered.
pub enum Answers<'a> {
    /// Records, by these programs, for the reason that is told.
    Serve(&'a ElapsedBpf, &'a str),
    /// Nothing, for this reason.
    Refuse(&'a str),
}

/// A thread that has a record.
#[derive(Clone, Copy)]
struct Held {
    place: u32,
    /// In the initial pid namespace.
    tid: u32,
}

struct Client {
    stream: PacketStream,
    pid: u32,
    uid: u32,
    since: Duration,
    held: Option<Held>,
}

/// All connections.
#[derive(Default)]
pub struct Clients {
    open: Vec<Client>,
    /// Moves of threads that are not registered any more.
    moves: u64,
}

impl Clients {
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.open.iter().map(|client| client.stream.as_fd())
    }

    /// A process has connected. Returns false if there are too many, and it is not answered.
    pub fn add(&mut self, stream: PacketStream, now: Duration) -> bool {
        let (Ok(pid), Ok(uid)) = (peer::peer_pid(&stream), peer::peer_uid(&stream)) else {
            return false;
        };
        let own = self.open.iter().filter(|client| client.uid == uid).count();
        let kept = if uid == 0 { 0 } else { KEPT_FOR_ROOT };
        let full = self.open.len() >= MAX_CONNECTIONS - kept || own >= MAX_CONNECTIONS_PER_USER;
        if full || !descriptors::are_free(RESERVED_DESCRIPTORS) {
            return false;
        }
        self.open.push(Client { stream, pid, uid, since: now, held: None });
        true
    }

    /// Serves the client at `index`. Returns false if it is to be closed.
    pub fn serve(&mut self, index: usize, answers: &Answers<'_>) -> bool {
        let Some(client) = self.open.get(index) else { return false };
        let mut buffer = [0; REQUEST + 1];
        let request = match client.stream.receive_bytes(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
            // It has ended, or asks a second time.
            Ok(0) | Err(_) => return false,
            Ok(_) if client.held.is_some() => return false,
            Ok(length) => Request::from_bytes(&buffer[..length]),
        };
        let answer = self.answer(index, request, answers);
        let Some(client) = self.open.get_mut(index) else { return false };
        match (answer, answers) {
            (Ok(held), Answers::Serve(programs, _)) => {
                client.held = Some(held);
                let given = Answer::Given { place: held.place, tid: held.tid }.to_bytes();
                programs.descriptors().is_ok_and(|[cores, tasks]| {
                    client.stream.send(&given, &[cores.as_fd(), tasks.as_fd()]).is_ok()
                })
            }
            (Ok(_), Answers::Refuse(_)) => false,
            (Err(answer), _) => {
                let _ = client.stream.send(&answer.to_bytes(), &[]);
                false
            }
        }
    }

    fn answer(
        &self,
        index: usize,
        request: Option<Request>,
        answers: &Answers<'_>,
    ) -> Result<Held, Answer> {
        let refused = |reason: String| Answer::Refused(reason);
        let tid = match request {
            None => {
                let text = "this is no request of this version; use the timevisor of the same version as timevisord";
                return Err(refused(text.to_owned()));
            }
            Some(Request::Source) => {
                let (Answers::Serve(_, reason) | Answers::Refuse(reason)) = answers;
                return Err(Answer::Source((*reason).to_owned()));
            }
            Some(Request::Register(tid)) => tid,
        };
        match answers {
            Answers::Serve(programs, _) => self.register(index, tid, programs).map_err(refused),
            Answers::Refuse(reason) => Err(refused((*reason).to_owned())),
        }
    }

    /// Gives the thread that the client at `index` calls `own` a record.
    fn register(&self, index: usize, own: u32, programs: &ElapsedBpf) -> Result<Held, String> {
        let Some(Client { pid, uid, .. }) = self.open.get(index) else {
            return Err("it has gone".to_owned());
        };
        let all = self.open.iter().filter(|client| client.held.is_some()).count();
        let users = self.open.iter().filter(|client| client.held.is_some() && client.uid == *uid);
        if !has_room(*uid, all, users.count()) {
            return Err(format!(
                "user {uid} has {MAX_PER_USER} threads with an age, or all {TASKS} places are taken; end one of them"
            ));
        }
        let tid = match find_thread(*pid, own) {
            Ok(FoundThread::Thread { tid, uid: is }) if is == *uid => tid,
            Ok(FoundThread::Thread { .. }) => {
                return Err("the thread belongs to another user by now; begin again as that user"
                    .to_owned());
            }
            Ok(FoundThread::Cut) => {
                return Err(format!(
                    "the process has more than {MOST_THREADS} threads; begin before it starts that many"
                ));
            }
            Ok(FoundThread::None) | Err(_) => {
                return Err(format!(
                    "the process that has connected has no thread {own}; begin in the thread whose age it is"
                ));
            }
        };
        let has_one = |client: &Client| client.held.is_some_and(|held| held.tid == tid);
        if self.open.iter().any(has_one) {
            return Err("this thread has an age already; drop it first".to_owned());
        }
        match programs.register(tid, FineAge::default()) {
            Ok(place) => Ok(Held { place, tid }),
            Err(error @ BpfError::Full) => Err(error.to_string()),
            Err(error) => Err(format!("the kernel refused: {error}; see timevisord's log")),
        }
    }

    /// Ends what has ended: clients that are silent, and threads that are gone.
    pub fn on_timer(&mut self, now: Duration, programs: Option<&ElapsedBpf>) {
        let gone = |client: &Client| match client.held {
            Some(held) => !has_thread(client.pid, held.tid),
            None => now - client.since > PATIENCE,
        };
        let mut index = self.open.len();
        while index > 0 {
            index -= 1;
            if gone(&self.open[index]) {
                self.close(index, programs);
            }
        }
    }

    /// Closes a connection, and takes its record back.
    pub fn close(&mut self, index: usize, programs: Option<&ElapsedBpf>) {
        if index >= self.open.len() {
            return;
        }
        let client = self.open.remove(index);
        if let (Some(held), Some(programs)) = (client.held, programs) {
            self.moves += programs.task(held.place).map_or(0, |task| task.migrations);
            programs.release(held.place, held.tid);
        }
    }

    pub fn close_all(&mut self) {
        self.open.clear();
    }

    /// Registered threads, their moves so far, and events that their records missed.
    pub fn count(&self, programs: &ElapsedBpf) -> (u64, u64, u64) {
        let held = self.open.iter().filter_map(|client| client.held);
        let records = held.filter_map(|held| programs.task(held.place));
        records.fold((0, self.moves, 0), |(threads, moves, missed), task| {
            (threads + 1, moves + task.migrations, missed + task.missed)
        })
    }
}

/// Whether a user with `own` of `all` registered threads may register another one.
fn has_room(uid: u32, all: usize, own: usize) -> bool {
    let places = TASKS - 1;
    if uid == 0 { all < places } else { own < MAX_PER_USER && all < places - KEPT_FOR_ROOT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_gets_a_share_and_root_what_is_kept() {
        assert!(has_room(1000, 0, 0) && has_room(1000, 63, 63));
        assert!(!has_room(1000, 64, 64) && has_room(1001, 64, 0));
        let others = TASKS - 1 - KEPT_FOR_ROOT;
        assert!(!has_room(1001, others, 0) && has_room(0, others, 0));
        assert!(has_room(0, TASKS - 2, TASKS - 2) && !has_room(0, TASKS - 1, 0));
    }
}
