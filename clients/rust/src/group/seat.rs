//! [`Seat`]: one member, as the group's thread looks after it: joining, joining again, its lease, what is due.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use timevisor_coordination::{MemberId, hub};
use timevisor_linux::event_fd::EventFd;
use timevisor_protocols::bus::{FromBus, Gone, Refusal, Sides, ToBus, Who};
use timevisor_time::Duration as Span;

use super::error::JoinError;
use super::events::Reported;
use super::span;
use super::state::{Join, Shared, State};

/// The first and the last wait before something is tried again.
pub const FIRST_RETRY: Duration = Duration::from_millis(50);
pub const LAST_RETRY: Duration = Duration::from_secs(2);

/// How long the last frames may take to be written when the member leaves.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// How long a member is left alone at most: a clock may fail at any time.
const NAP: Span = Span::from_millis(100);

/// The bus dropped frames for this connection.
pub struct MissedFrames;

/// A member, and what the thread keeps for it.
pub struct Seat {
    shared: Arc<Shared>,
    /// Who waits for the first answer to the join.
    answered: Option<Sender<Result<(), JoinError>>>,
    /// A manually driven clock has moved.
    pub moved: Option<Arc<EventFd>>,
    alive_at: Span,
    met: Option<bool>,
    lease: Span,
    /// The bus refused it, or let it go.
    rejoin_at: Option<Span>,
    retry: Duration,
    /// It leaves; by then it has gone in any case.
    end: Option<Instant>,
    pub due_at: Instant,
}

impl Seat {
    pub fn new(
        shared: &Arc<Shared>,
        answered: Sender<Result<(), JoinError>>,
    ) -> std::io::Result<Self> {
        let moved = shared.timeline.shared.waiters.as_ref();
        let moved = moved.map(|waiters| waiters.register()).transpose()?;
        Ok(Self {
            shared: Arc::clone(shared),
            answered: Some(answered),
            moved,
            alive_at: Span::ZERO,
            met: None,
            lease: span(shared.join.lease),
            rejoin_at: None,
            retry: FIRST_RETRY,
            end: None,
            due_at: Instant::now(),
        })
    }

    pub fn handle(&self) -> u32 {
        self.shared.place.handle
    }

    /// Asks to join, unless the member leaves: nothing follows its Leave.
    pub fn join(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        self.ask_to_join(&mut state);
    }

    fn ask_to_join(&mut self, state: &mut State) {
        self.rejoin_at = None;
        if !state.ends {
            state.send(&join_frame(self.handle(), &self.shared.join));
        }
    }

    /// Whether there may be something to do.
    pub fn is_due(&self, now: Instant) -> bool {
        let has_moved = self.moved.as_ref().is_some_and(|moved| moved.clear().unwrap_or(false));
        self.shared.take_woken() || has_moved || self.due_at <= now || self.end.is_some()
    }

    /// Does what is due. False when the member has gone.
    pub fn turn(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let now = shared.now();
        if self.rejoin_at.is_some_and(|at| now.elapsed >= at) {
            self.ask_to_join(&mut state);
        }
        self.say_alive(&mut state);
        state.on_timer(&shared.join, &now);
        if state.ends {
            // A bus that takes nothing does not keep the program from ending.
            let end = *self.end.get_or_insert(Instant::now() + PATIENCE);
            // Asked while nobody can send: what was published before it left goes first.
            if shared.place.line.has_written() || Instant::now() >= end {
                return false;
            }
        }
        let now = shared.now();
        let alive = state.has_joined.then(|| self.alive_at - now.elapsed);
        let rejoin = self.rejoin_at.map(|at| at - now.elapsed);
        let due = [alive, rejoin, state.due(&now), Some(NAP)];
        let due = due.into_iter().flatten().min().unwrap_or(NAP).max(Span::ZERO);
        let due = Duration::from_nanos(u64::try_from(due.ceil_nanos()).unwrap_or(0));
        self.due_at = Instant::now() + due;
        drop(state);
        shared.notify();
        true
    }

    /// Nobody looks after it any more.
    pub fn ends(&self) {
        let mut state = self.shared.lock();
        state.ends = true;
        state.is_over = true;
        state.end_inboxes();
        drop(state);
        self.shared.notify();
    }

    /// The connection has ended.
    pub fn disconnected(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if let Some(answered) = self.answered.take() {
            let _ = answered.send(Err(JoinError::Silent));
            state.ends = true;
        }
        self.rejoin_at = None;
        self.left_out(&mut state);
    }

    fn left_out(&mut self, state: &mut State) {
        self.due_at = Instant::now();
        if std::mem::replace(&mut state.has_joined, false) {
            state.report(&Reported::Disconnected);
        }
    }

    /// A frame for this member.
    pub fn take(&mut self, frame: &FromBus) -> Result<(), MissedFrames> {
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.lock();
        let state = &mut *guard;
        let join = &shared.join;
        self.due_at = Instant::now();
        match frame {
            FromBus::Welcome { .. } => {}
            FromBus::Challenge { .. } if state.ends => {}
            FromBus::Challenge { nonce, .. } => {
                let about = hub::about(join.group, join.own.name);
                let proof = match &join.key {
                    Some(key) => key.proof(hub::PURPOSE, &about, nonce),
                    None => [0; 16],
                };
                state.send(&ToBus::Prove { handle: self.handle(), proof });
            }
            FromBus::Joined { members, lease_ms, .. } => {
                let again = std::mem::replace(&mut state.has_joined, true);
                self.lease = Span::from_millis(i64::from(*lease_ms));
                if self.answered.is_none() {
                    // Meanwhile another process may have been this voter.
                    state.member.rejoined();
                }
                (self.retry, self.met, self.rejoin_at) = (FIRST_RETRY, None, None);
                self.alive_at = Span::ZERO;
                let stale: Vec<Who> = state.members.values().map(|it| it.who.clone()).collect();
                for who in stale {
                    if !members.iter().any(|info| info.who == who) {
                        state.gone(&who, Gone::Unheard);
                    }
                }
                members.iter().for_each(|info| state.present(info.clone()));
                state.subscribe_again();
                if let Some(answered) = self.answered.take() {
                    let _ = answered.send(Ok(()));
                } else if !again {
                    state.report(&Reported::Connected);
                }
            }
            FromBus::Refused { refusal, text, .. } => self.refused(state, *refusal, text),
            FromBus::Members { present, gone, .. } => {
                gone.iter().for_each(|(who, why)| state.gone(who, *why));
                present.iter().for_each(|info| state.present(info.clone()));
            }
            FromBus::Deliver { is_old, message, .. } => {
                let now = shared.now();
                state.heard(message, *is_old, join, &now);
            }
            FromBus::History { topic, dropped, .. } => {
                if let Ok(topic) = topic.parse() {
                    state.subscribed(topic, *dropped);
                }
            }
            FromBus::Overrun { count } => {
                state.report(&Reported::Lost { from: None, topic: None, count: *count });
                // Changes of the membership may be among them: it joins again and gets all members.
                return Err(MissedFrames);
            }
        }
        Ok(())
    }

    fn refused(&mut self, state: &mut State, refusal: Refusal, text: &str) {
        if let Some(answered) = self.answered.take() {
            let _ = answered.send(Err(JoinError::Refused(refusal, text.to_owned())));
            state.ends = true;
            return;
        }
        state.report(&Reported::Refused(text.to_owned()));
        // What does not end the membership is only told.
        if !state.has_joined || matches!(refusal, Refusal::Removed | Refusal::Version) {
            self.left_out(state);
            self.rejoin_at = Some(self.shared.now().elapsed + span(self.retry));
            self.retry = (self.retry * 2).min(LAST_RETRY);
        }
    }

    /// Renews the lease, and says at once when the clock begins or ceases to suffice.
    fn say_alive(&mut self, state: &mut State) {
        let now = self.shared.now();
        let met = now.reading.is_some_and(|reading| reading.met);
        if !state.has_joined || (now.elapsed < self.alive_at && self.met == Some(met)) {
            return;
        }
        let achieved = now.reading.map(|reading| Sides {
            below_ns: ns(reading.estimate - reading.earliest()),
            above_ns: ns(reading.latest() - reading.estimate),
        });
        state.send(&ToBus::Alive { handle: self.handle(), achieved, met });
        self.met = Some(met);
        self.alive_at = now.elapsed + self.lease.half().half();
    }
}

fn ns(span: Span) -> u64 {
    u64::try_from(span.ceil_nanos()).unwrap_or(0)
}

fn join_frame(handle: u32, join: &Join) -> ToBus {
    let MemberId { name, incarnation } = join.own;
    ToBus::Join {
        handle,
        group: join.group.to_string(),
        who: Who { name: name.to_string(), incarnation },
        timeline: join.timeline.clone(),
        requirement: join.requirement,
        lease_ms: u32::try_from(join.lease.as_millis()).unwrap_or(u32::MAX),
    }
}
