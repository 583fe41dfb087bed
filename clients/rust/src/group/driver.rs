//! The group's thread: joins, joins again, answers others, wakes up when something is due.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use timevisor_coordination::{MemberId, hub};
use timevisor_linux::event_fd::EventFd;
use timevisor_linux::poll::{self, PollFd};
use timevisor_linux::timer_fd::TimerFd;
use timevisor_protocols::bus::{FromBus, Refusal, Sides, ToBus, Who};
use timevisor_time::Duration as Span;

use super::connection::{Connection, HANDLE};
use super::error::JoinError;
use super::events::Reported;
use super::span;
use super::state::{Join, Shared, State};

/// The first and the last wait before the bus is tried again.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// How long the last frames may take to be written when the group ends.
const PATIENCE: Span = Span::from_secs(1);

/// How long the thread sleeps at most: a clock may fail at any time.
const NAP: Span = Span::from_millis(100);

/// What the thread keeps for itself.
struct Driver<'a> {
    shared: &'a Arc<Shared>,
    /// Who waits for the first answer to the join.
    answered: Option<&'a Sender<Result<(), JoinError>>>,
    timer: TimerFd,
    /// A manually driven clock has moved.
    moved: Option<Arc<EventFd>>,
    alive_at: Span,
    retry: Duration,
    reconnect_at: Option<Span>,
    /// A connection that another thread opens: over the network that takes long, and what is due must not wait.
    opening: Option<Receiver<Result<Connection, JoinError>>>,
    met: Option<bool>,
    lease: Span,
    end: Option<Span>,
}

/// Runs until the group ends.
pub fn run(shared: &Arc<Shared>, connection: Connection, answered: &Sender<Result<(), JoinError>>) {
    let timer = match TimerFd::new() {
        Ok(timer) => timer,
        Err(error) => return drop(answered.send(Err(error.into()))),
    };
    let moved = shared.timeline.shared.waiters.as_ref();
    let moved = match moved.map(|waiters| waiters.register()).transpose() {
        Ok(moved) => moved,
        Err(error) => return drop(answered.send(Err(error.into()))),
    };
    let mut driver = Driver {
        shared,
        answered: Some(answered),
        timer,
        moved,
        alive_at: Span::ZERO,
        retry: FIRST_RETRY,
        reconnect_at: None,
        opening: None,
        met: None,
        lease: span(shared.join.lease),
        end: None,
    };
    {
        let mut state = shared.lock();
        state.connection = Some(connection);
        state.send(&join_frame(&shared.join));
    }
    while driver.turn() {
        shared.notify();
    }
    shared.lock().end_inboxes();
    shared.notify();
}

impl Driver<'_> {
    /// Everything that is due, then a sleep. False when the group ends.
    fn turn(&mut self) -> bool {
        let shared = Arc::clone(self.shared);
        let mut state = shared.lock();
        let _ = shared.flag.clear();
        let _ = self.timer.clear();
        if let Some(moved) = &self.moved {
            let _ = moved.clear();
        }
        let frames = state.connection.as_mut().map(Connection::read).unwrap_or_default();
        for frame in frames {
            self.take(&mut state, frame);
        }
        let now = shared.now();
        self.look_after_connection(&mut state, now.elapsed);
        self.say_alive(&mut state);
        state.on_timer(&shared.join, &now);
        if let Some(connection) = &mut state.connection {
            connection.flush();
        }
        let has_written = state.connection.as_ref().is_none_or(|it| !it.wants_to_write());
        if state.ends {
            // A bus that takes nothing does not keep the program from ending.
            let end = *self.end.get_or_insert(now.elapsed + PATIENCE);
            if has_written || now.elapsed >= end {
                return false;
            }
        }
        if state.connection.as_mut().is_some_and(Connection::has_more) {
            return true;
        }
        let now = shared.now();
        let reconnect = self.reconnect_at.map(|at| at - now.elapsed);
        let alive = state.has_joined.then(|| self.alive_at - now.elapsed);
        let due = [alive, state.due(&now), reconnect, Some(NAP)];
        let due = due.into_iter().flatten().min().unwrap_or(NAP).max(Span::ZERO);
        self.sleep(state, due)
    }

    fn sleep(&mut self, state: std::sync::MutexGuard<'_, State>, due: Span) -> bool {
        if due == Span::ZERO {
            return true;
        }
        let due = Duration::from_nanos(u64::try_from(due.ceil_nanos()).unwrap_or(0));
        if self.timer.arm(due).is_err() {
            return true;
        }
        // The connection is only used by this thread and by those that write; it is replaced here only.
        let socket = state.connection.as_ref().and_then(|it| it.as_fd().try_clone_to_owned().ok());
        let writes = state.connection.as_ref().is_some_and(Connection::wants_to_write);
        drop(state);
        self.shared.notify();
        let mut fds =
            vec![PollFd::readable(self.shared.flag.as_fd()), PollFd::readable(self.timer.as_fd())];
        if let Some(socket) = &socket {
            let socket = socket.as_fd();
            fds.push(if writes {
                PollFd::readable_or_writable(socket)
            } else {
                PollFd::readable(socket)
            });
        }
        if let Some(moved) = &self.moved {
            fds.push(PollFd::readable(moved.as_fd()));
        }
        let _ = poll::wait(&mut fds, None);
        true
    }

    fn take(&mut self, state: &mut State, frame: FromBus) {
        let join = &self.shared.join;
        match frame {
            FromBus::Welcome { .. } => {}
            FromBus::Challenge { nonce, .. } => {
                let about = hub::about(join.group, join.own.name);
                let proof = match &join.key {
                    Some(key) => key.proof(hub::PURPOSE, &about, &nonce),
                    None => [0; 16],
                };
                state.send(&ToBus::Prove { handle: HANDLE, proof });
            }
            FromBus::Joined { members, lease_ms, .. } => {
                let again = std::mem::replace(&mut state.has_joined, true);
                self.lease = Span::from_millis(i64::from(lease_ms));
                if self.answered.is_none() {
                    // Meanwhile another process may have been this voter.
                    state.member.rejoined();
                }
                (self.retry, self.met) = (FIRST_RETRY, None);
                self.alive_at = Span::ZERO;
                let stale: Vec<Who> = state.members.values().map(|it| it.who.clone()).collect();
                for who in stale {
                    if !members.iter().any(|info| info.who == who) {
                        state.gone(&who, timevisor_protocols::bus::Gone::Unheard);
                    }
                }
                members.into_iter().for_each(|info| state.present(info));
                state.subscribe_again();
                if let Some(answered) = self.answered.take() {
                    let _ = answered.send(Ok(()));
                } else if !again {
                    state.report(&Reported::Connected);
                }
            }
            FromBus::Refused { refusal, text, .. } => self.refused(state, refusal, text),
            FromBus::Members { present, gone, .. } => {
                gone.iter().for_each(|(who, why)| state.gone(who, *why));
                present.into_iter().for_each(|info| state.present(info));
            }
            FromBus::Deliver { is_old, message, .. } => {
                let now = self.shared.now();
                state.heard(&message, is_old, join, &now);
            }
            FromBus::History { topic, dropped, .. } => {
                if let Ok(topic) = topic.parse()
                    && dropped > 0
                {
                    state.report(&Reported::HistoryIncomplete { topic, dropped });
                }
            }
            FromBus::Overrun { count } => {
                state.report(&Reported::Lost { from: None, topic: None, count });
                // Changes of the membership may be among them: it joins again and gets all members.
                self.disconnect(state);
            }
        }
    }

    fn refused(&mut self, state: &mut State, refusal: Refusal, text: String) {
        if let Some(answered) = self.answered.take() {
            let _ = answered.send(Err(JoinError::Refused(refusal, text)));
            state.ends = true;
            return;
        }
        state.report(&Reported::Refused(text));
        // What does not end the membership is only told.
        let ends = !state.has_joined || matches!(refusal, Refusal::Removed | Refusal::Version);
        if ends {
            self.disconnect(state);
        }
    }

    /// Notices the end of a connection, and connects again.
    fn look_after_connection(&mut self, state: &mut State, elapsed: Span) {
        if state.connection.as_ref().is_some_and(Connection::is_over) {
            if let Some(answered) = self.answered.take() {
                let _ = answered.send(Err(JoinError::Silent));
                state.ends = true;
            }
            self.disconnect(state);
        }
        if state.ends && state.connection.is_none() {
            return;
        }
        if self.reconnect_at.is_some_and(|at| elapsed >= at) {
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
        match opened {
            Some(connection) => {
                state.connection = Some(connection);
                state.send(&join_frame(&self.shared.join));
            }
            None => self.try_again(elapsed),
        }
    }

    /// Opens a connection in a thread of its own.
    fn open(&mut self) {
        let (opened, opening) = channel();
        let shared = Arc::clone(self.shared);
        let open = move || {
            let _ = opened.send(Connection::open(&shared.join.buses));
            shared.wake();
        };
        // Where there can be no thread, the channel's other end is gone, and that is a failure as any other.
        let _ = std::thread::Builder::new().name("timevisor-join".to_owned()).spawn(open);
        self.opening = Some(opening);
    }

    fn disconnect(&mut self, state: &mut State) {
        state.connection = None;
        if std::mem::replace(&mut state.has_joined, false) {
            state.report(&Reported::Disconnected);
        }
        self.try_again(self.shared.now().elapsed);
    }

    fn try_again(&mut self, elapsed: Span) {
        self.reconnect_at = Some(elapsed + span(self.retry));
        self.retry = (self.retry * 2).min(LAST_RETRY);
    }

    /// Renews the lease, and says at once when the clock begins or ceases to suffice.
    fn say_alive(&mut self, state: &mut State) {
        let reading = self.shared.now().reading;
        let met = reading.is_some_and(|reading| reading.met);
        let elapsed = self.shared.now().elapsed;
        if !state.has_joined || (elapsed < self.alive_at && self.met == Some(met)) {
            return;
        }
        let achieved = reading.map(|reading| Sides {
            below_ns: ns(reading.estimate - reading.earliest()),
            above_ns: ns(reading.latest() - reading.estimate),
        });
        state.send(&ToBus::Alive { handle: HANDLE, achieved, met });
        self.met = Some(met);
        self.alive_at = elapsed + self.lease.half().half();
    }
}

fn ns(span: Span) -> u64 {
    u64::try_from(span.ceil_nanos()).unwrap_or(0)
}

fn join_frame(join: &Join) -> ToBus {
    let MemberId { name, incarnation } = join.own;
    ToBus::Join {
        handle: HANDLE,
        group: join.group.to_string(),
        who: Who { name: name.to_string(), incarnation },
        timeline: join.timeline.clone(),
        requirement: join.requirement,
        lease_ms: u32::try_from(join.lease.as_millis()).unwrap_or(u32::MAX),
    }
}
