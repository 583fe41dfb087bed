//! The thread of a [`Line`]: reads what comes for its members, connects again, wakes up when something is due.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use timevisor_linux::poll::{self, PollFd};
use timevisor_linux::timer_fd::TimerFd;
use timevisor_protocols::bus::FromBus;

use super::connection::Connection;
use super::error::JoinError;
use super::line::Line;
use super::seat::{FIRST_RETRY, LAST_RETRY, MissedFrames, Seat};

/// How long the thread sleeps at most.
const NAP: Duration = Duration::from_secs(1);

/// How long what has come is dispatched before the thread looks at what is due: a fire does not wait for megabytes of
/// other members' messages.
const SLICE: Duration = Duration::from_micros(500);

struct Driver {
    line: Arc<Line>,
    seats: BTreeMap<u32, Seat>,
    timer: TimerFd,
    /// The connection's, to be polled.
    socket: Option<OwnedFd>,
    /// Has come, and is not dispatched yet.
    frames: VecDeque<FromBus>,
    /// The bus dropped frames behind those: when they are dispatched, the connection is made again.
    missed: bool,
    retry: Duration,
    reconnect_at: Option<Instant>,
    /// A connection that another thread opens: over the network that takes long, and what is due must not wait.
    opening: Option<Receiver<Result<Connection, JoinError>>>,
}

/// Starts the thread, which runs until the line has no members.
pub fn start(line: &Arc<Line>) -> std::io::Result<()> {
    let mut driver = Driver {
        socket: socket(line),
        line: Arc::clone(line),
        seats: BTreeMap::new(),
        frames: VecDeque::new(),
        missed: false,
        timer: TimerFd::new()?,
        retry: FIRST_RETRY,
        reconnect_at: None,
        opening: None,
    };
    let run = move || {
        while driver.turn() {}
        *driver.line.connection() = None;
    };
    std::thread::Builder::new().name("timevisor-group".to_owned()).spawn(run)?;
    Ok(())
}

fn socket(line: &Line) -> Option<OwnedFd> {
    line.connection().as_ref()?.as_fd().try_clone_to_owned().ok()
}

impl Driver {
    /// Everything that is due, then a sleep. False when nobody is left.
    fn turn(&mut self) -> bool {
        let _ = self.line.flag.clear();
        let _ = self.timer.clear();
        for mut seat in self.line.new_seats() {
            seat.join();
            self.seats.insert(seat.handle(), seat);
        }
        self.dispatch_for(SLICE);
        self.look_after_connection();
        let goes_on = self.look_after_members();
        let (has_more, writes) = match &mut *self.line.connection() {
            Some(connection) => {
                connection.flush();
                (connection.has_more() || connection.is_over(), connection.wants_to_write())
            }
            None => (false, false),
        };
        if goes_on && !has_more && self.frames.is_empty() {
            self.sleep(writes);
        }
        goes_on
    }

    /// Gives what has come to its members, for so long.
    fn dispatch_for(&mut self, span: Duration) {
        let begun = Instant::now();
        if self.frames.is_empty() {
            let come = self.line.connection().as_mut().map(Connection::read);
            self.frames.extend(come.unwrap_or_default());
        }
        while begun.elapsed() < span
            && let Some(frame) = self.frames.pop_front()
        {
            self.missed |= self.dispatch(&frame).is_err();
        }
        // What was read behind a gap is not lost.
        if self.missed && self.frames.is_empty() {
            self.disconnect();
        }
    }

    /// Gives a frame to the members that it is for.
    fn dispatch(&mut self, frame: &FromBus) -> Result<(), MissedFrames> {
        let everybody;
        if matches!(frame, FromBus::Joined { .. }) {
            // Who is let in is not refused the next moment; a bus that only accepts connections is asked more and more seldom.
            self.retry = FIRST_RETRY;
        }
        let handles = match frame {
            FromBus::Deliver { handles, .. } | FromBus::Members { handles, .. } => {
                handles.as_slice()
            }
            FromBus::Challenge { handle, .. }
            | FromBus::Joined { handle, .. }
            | FromBus::History { handle, .. } => std::slice::from_ref(handle),
            FromBus::Refused { handle, .. } if *handle != 0 => std::slice::from_ref(handle),
            FromBus::Refused { .. } | FromBus::Welcome { .. } | FromBus::Overrun { .. } => {
                everybody = self.seats.keys().copied().collect::<Vec<_>>();
                everybody.as_slice()
            }
        };
        let mut done = Ok(());
        for handle in handles {
            if let Some(seat) = self.seats.get_mut(handle) {
                done = done.and(seat.take(frame));
            }
        }
        done
    }

    /// False when nobody is left.
    fn look_after_members(&mut self) -> bool {
        let now = Instant::now();
        let before = self.seats.len();
        self.seats.retain(|_, seat| {
            let stays = !seat.is_due(now) || seat.turn();
            if !stays {
                seat.ends();
            }
            stays
        });
        let gone = before - self.seats.len();
        if gone > 0 {
            self.line.leave(gone);
        }
        !self.line.is_over()
    }

    /// Notices the end of a connection, and connects again.
    fn look_after_connection(&mut self) {
        let is_over = self.line.connection().as_ref().is_some_and(Connection::is_over);
        if is_over && self.frames.is_empty() {
            self.disconnect();
        }
        if self.reconnect_at.is_some_and(|at| at <= Instant::now()) {
            self.reconnect_at = None;
            self.open();
        }
        let Some(opening) = &self.opening else { return };
        let opened = match opening.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) | Ok(Err(_)) => None,
            Ok(Ok(connection)) => Some(connection),
        };
        self.opening = None;
        let Some(connection) = opened else { return self.try_again() };
        *self.line.connection() = Some(connection);
        self.socket = socket(&self.line);
        self.seats.values_mut().for_each(Seat::join);
    }

    /// Opens a connection in a thread of its own.
    fn open(&mut self) {
        let (opened, opening) = channel();
        let line = Arc::clone(&self.line);
        let open = move || {
            let _ = opened.send(Connection::open(&line.buses));
            line.wake();
        };
        // Where there can be no thread, the channel's other end is gone, and that is a failure as any other.
        let _ = std::thread::Builder::new().name("timevisor-join".to_owned()).spawn(open);
        self.opening = Some(opening);
    }

    fn disconnect(&mut self) {
        self.missed = false;
        *self.line.connection() = None;
        self.socket = None;
        self.seats.values_mut().for_each(Seat::disconnected);
        self.try_again();
    }

    fn try_again(&mut self) {
        self.reconnect_at = Some(Instant::now() + self.retry);
        self.retry = (self.retry * 2).min(LAST_RETRY);
    }

    fn sleep(&self, writes: bool) {
        let now = Instant::now();
        let due = self.seats.values().map(|seat| seat.due_at).chain(self.reconnect_at).min();
        let left = due.map_or(NAP, |due| due.saturating_duration_since(now)).min(NAP);
        if left.is_zero() || self.timer.arm(left).is_err() {
            return;
        }
        let mut fds =
            vec![PollFd::readable(self.line.flag.as_fd()), PollFd::readable(self.timer.as_fd())];
        if let Some(socket) = &self.socket {
            let socket = socket.as_fd();
            fds.push(if writes {
                PollFd::readable_or_writable(socket)
            } else {
                PollFd::readable(socket)
            });
        }
        let moved = self.seats.values().filter_map(|seat| seat.moved.as_ref());
        fds.extend(moved.map(|moved| PollFd::readable(moved.as_fd())));
        let _ = poll::wait(&mut fds, None);
    }
}
