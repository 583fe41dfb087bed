//! What the program's threads and the group's own thread share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use timevisor_coordination::member::{Event, Member, TICKS_LAST};
use timevisor_coordination::propose::Outcome;
use timevisor_coordination::{
    Envelope, MemberId, Name, Now, ProposalId, Reading as Page, To, leader,
};
use timevisor_linux::event_fd::EventFd;
use timevisor_protocols::bus::{Gone, Info, Sides, ToBus, Who};
use timevisor_protocols::nts::shared::Secret;
use timevisor_time::{Duration as Span, Interval, TimescaleId};

use super::error::GroupError;
use super::events::{Inbox, Proposed, Reported, Sender};
use super::line::Place;
use super::subscriptions::Subscriber;
use super::{Accept, span};
use crate::timeline::Timeline;
use crate::unpoisoned;

/// How often members tick where somebody wants messages in the order of time.
const TICK: Span = Span::from_millis(20);

/// How often ticks are asked for.
const ASK_FOR_TICKS: Span = Span::from_secs(5);

/// Decisions and outcomes that are remembered for who waits for them.
const MOST_OUTCOMES: usize = 1024;

/// How this member joins, and joins again.
#[derive(Clone)]
pub struct Join {
    pub group: Name,
    pub own: MemberId,
    pub timeline: String,
    pub requirement: Option<Sides>,
    pub lease: Duration,
    pub key: Option<Secret>,
}

/// Shared by all threads.
pub struct Shared {
    pub timeline: Timeline,
    pub join: Join,
    pub place: Place,
    /// The group's thread should look after this member.
    is_woken: AtomicBool,
    begun: Instant,
    state: Mutex<State>,
    news: Condvar,
    /// Descriptors of waits, which are told of news, too.
    listeners: Mutex<Vec<Weak<EventFd>>>,
    /// The one that joined.
    process: u32,
}

/// Everything that changes.
pub struct State {
    pub member: Member,
    /// How this member reaches the bus.
    pub(super) place: Place,
    /// The bus has let this member join.
    pub has_joined: bool,
    pub members: BTreeMap<String, Info>,
    pub accept: Accept,
    pub released: BTreeMap<Name, Duration>,
    /// Barriers at which nobody waits any more, but whose release was under way then.
    pub abandoned: BTreeSet<Name>,
    pub decided: Remembered<bool>,
    pub outcomes: Remembered<Outcome>,
    pub ends: bool,
    /// The group's thread looks after it no more.
    pub is_over: bool,
    pub(super) subscribers: Vec<Subscriber>,
    /// How many have subscribed.
    pub(super) subscribed: u64,
    /// Whose subscriptions the bus has not answered, by topic, in order; `None`: nobody's alone.
    pub(super) unanswered: BTreeMap<Name, VecDeque<Option<u64>>>,
    watchers: Vec<Sender<Reported>>,
    proposals: Vec<Sender<Proposed>>,
    /// Until when others want ticks, and when the next one is due.
    ticks: Option<(Span, Span)>,
    pub(super) asked_for_ticks: Option<Span>,
    pub(super) origin: Option<u64>,
}

impl Shared {
    pub fn new(timeline: Timeline, join: Join, member: Member, place: Place) -> Self {
        let state = State {
            member,
            place: place.clone(),
            has_joined: false,
            members: BTreeMap::new(),
            accept: Accept::Nothing,
            released: BTreeMap::new(),
            abandoned: BTreeSet::new(),
            decided: Remembered::default(),
            outcomes: Remembered::default(),
            ends: false,
            is_over: false,
            subscribers: Vec::new(),
            subscribed: 0,
            unanswered: BTreeMap::new(),
            watchers: Vec::new(),
            proposals: Vec::new(),
            ticks: None,
            asked_for_ticks: None,
            origin: None,
        };
        let (begun, state, news) = (Instant::now(), Mutex::new(state), Condvar::new());
        let listeners = Mutex::default();
        let process = std::process::id();
        let is_woken = AtomicBool::new(false);
        Self { timeline, join, place, is_woken, begun, state, news, listeners, process }
    }

    /// Whether this is a child's copy: there, nobody answers, and a lock may be held for ever.
    pub fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }

    /// What the page says now.
    pub fn now(&self) -> Now {
        let reading = self.timeline.now().ok().filter(crate::Reading::is_trustworthy);
        let reading = reading.and_then(|it| {
            let interval = Interval::new(it.earliest(), it.latest())?;
            // TAI and UTC are the same on every host; a timeline's own time is its clock's.
            let is_local = it.timescale() == TimescaleId::Local;
            let origin = if is_local { self.timeline.clock_of(&it)? } else { 0 };
            Some(Page { interval, estimate: it.estimate(), origin, met: it.met() })
        });
        Now { elapsed: span(self.begun.elapsed()), reading }
    }

    /// Whether so many members are there, this one included, whose clocks meet their requirements. Of
    /// this one the page is asked: others hear a moment later what it says.
    pub fn has_met(&self, state: &State, count: usize) -> bool {
        state.members.values().filter(|it| it.met).count() >= count && self.meets()
    }

    /// Whether these members are there, and their clocks meet their requirements.
    pub fn has_met_names(&self, state: &State, names: &[impl AsRef<str>]) -> bool {
        let own = self.join.own.name.to_string();
        let met = |name: &str| {
            let is_told = state.members.get(name).is_some_and(|it| it.met);
            is_told && (name != own || self.meets())
        };
        names.iter().all(|name| met(name.as_ref()))
    }

    fn meets(&self) -> bool {
        self.now().reading.is_some_and(|reading| reading.met)
    }

    /// Does something with the member, sends what comes of it, and wakes the group's thread.
    pub fn act<T>(
        &self,
        action: impl FnOnce(&mut State, &Now) -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        if self.is_forked() {
            return Err(GroupError::Forked);
        }
        let mut state = self.lock();
        let now = self.now();
        let done = action(&mut state, &now);
        state.settle(&self.join, &now);
        drop(state);
        self.wake();
        done
    }

    /// Wakes everybody.
    pub fn wake(&self) {
        self.is_woken.store(true, Ordering::Release);
        self.place.line.wake();
        self.notify();
    }

    /// Whether the group's thread was woken for this member since it asked last.
    pub fn take_woken(&self) -> bool {
        self.is_woken.swap(false, Ordering::Acquire)
    }

    /// Tells waiting threads that something may have happened.
    pub fn notify(&self) {
        self.news.notify_all();
        let is_told = |listener: &Weak<EventFd>| match listener.upgrade() {
            Some(listener) => listener.set().is_ok(),
            None => false,
        };
        unpoisoned(self.listeners.lock()).retain(is_told);
    }

    /// A descriptor that is readable at once, and then whenever something may have happened.
    pub fn listen(&self) -> std::io::Result<Arc<EventFd>> {
        let listener = Arc::new(EventFd::new()?);
        listener.set()?;
        unpoisoned(self.listeners.lock()).push(Arc::downgrade(&listener));
        Ok(listener)
    }

    pub fn wait<T>(
        &self,
        end: Option<Instant>,
        mut is: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, GroupError> {
        if self.is_forked() {
            return Err(GroupError::Forked);
        }
        let mut state = self.lock();
        loop {
            if let Some(found) = is(&mut state) {
                return Ok(found);
            }
            if state.ends {
                return Err(GroupError::Left);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            state = match left {
                Some(Duration::ZERO) => return Err(GroupError::TimedOut),
                Some(left) => unpoisoned(self.news.wait_timeout(state, left)).0,
                None => unpoisoned(self.news.wait(state)),
            };
        }
    }
}

impl Shared {
    /// Waits until nobody looks after this member any more.
    pub fn wait_until_over(&self, timeout: Duration) {
        let goes_on = |state: &mut State| !state.is_over;
        drop(unpoisoned(self.news.wait_timeout_while(self.lock(), timeout, goes_on)));
    }
}

impl State {
    pub fn is_connected(&self) -> bool {
        self.has_joined && self.place.line.takes_frames()
    }

    /// Ends all inboxes: what is in them can still be read.
    pub fn end_inboxes(&mut self) {
        self.subscribers.clear();
        self.watchers.clear();
        self.proposals.clear();
    }

    pub fn send(&mut self, frame: &ToBus) {
        self.place.line.send(frame);
    }

    pub fn watch(&mut self) -> Inbox<Reported> {
        let (inbox, sender) = Inbox::new();
        self.watchers.push(sender);
        inbox
    }

    pub fn proposals(&mut self) -> Inbox<Proposed> {
        let (inbox, sender) = Inbox::new();
        self.proposals.push(sender);
        inbox
    }

    pub fn report(&mut self, reported: &Reported) {
        self.watchers.retain(|watcher| watcher.push(reported.clone()));
    }

    pub fn participants(&self, names: Option<&[&str]>) -> Result<Vec<MemberId>, GroupError> {
        let Some(names) = names else {
            return Ok(self.members.values().filter_map(|info| id_of(&info.who)).collect());
        };
        let find = |name: &&str| {
            let info = self.members.get(*name);
            info.and_then(|info| id_of(&info.who))
                .ok_or_else(|| GroupError::NoMember((*name).to_owned()))
        };
        names.iter().map(find).collect()
    }

    /// Somebody is there or has changed.
    pub fn present(&mut self, info: Info) {
        if let Some(id) = id_of(&info.who) {
            let orders = self.subscribers.iter_mut().filter_map(|it| it.order.as_mut());
            orders.for_each(|order| order.joined(id));
        }
        let before = self.members.insert(info.who.name.clone(), info.clone());
        if before.as_ref() != Some(&info) {
            self.report(&Reported::Present(info));
        }
    }

    /// Somebody has gone.
    pub fn gone(&mut self, who: &Who, why: Gone) {
        if self.members.get(&who.name).is_some_and(|info| info.who == *who) {
            self.members.remove(&who.name);
        }
        let Some(id) = id_of(who) else { return };
        self.member.left(id);
        let orders = self.subscribers.iter_mut().filter_map(|it| it.order.as_mut());
        orders.for_each(|order| order.left(id));
        self.report(&Reported::Gone(id, why));
    }

    /// A message arrives.
    pub fn heard(&mut self, bytes: &[u8], is_old: bool, join: &Join, now: &Now) {
        let Ok(envelope) = Envelope::decode(bytes) else { return };
        if is_old {
            return self.heard_old(envelope);
        }
        self.member.heard(envelope, now);
        self.settle(join, now);
    }

    /// Does what is due.
    pub fn on_timer(&mut self, join: &Join, now: &Now) {
        self.member.on_timer(now);
        if let Some((until, next)) = self.ticks {
            if now.elapsed >= until {
                self.ticks = None;
            } else if now.elapsed >= next {
                self.member.tick(now);
                self.ticks = Some((until, now.elapsed + TICK));
            }
        }
        self.drop_unread();
        self.give_up_abandoned();
        let is_timed = self.subscribers.iter().any(|it| it.order.is_some());
        let asks = self.asked_for_ticks.is_none_or(|asked| now.elapsed >= asked + ASK_FOR_TICKS);
        if is_timed && asks && self.has_joined {
            self.asked_for_ticks = Some(now.elapsed);
            self.member.want_ticks(TICK, now);
        }
        self.settle(join, now);
    }

    /// Barriers that nobody waits at any more, once their release is over.
    fn give_up_abandoned(&mut self) {
        let Self { abandoned, released, member, .. } = self;
        abandoned.retain(|barrier| released.remove(barrier).is_none() && !member.give_up(*barrier));
    }

    /// When [`Self::on_timer`] has something to do, from now.
    pub fn due(&self, now: &Now) -> Option<Span> {
        let next = self.member.next(now);
        let at = next.at.zip(now.reading).map(|(at, reading)| at - reading.estimate);
        let holds = self.subscribers.iter().filter_map(|it| it.order.as_ref()?.next());
        let is_timed = self.subscribers.iter().any(|it| it.order.is_some());
        let asks = (is_timed && self.has_joined)
            .then(|| self.asked_for_ticks.map(|asked| asked + ASK_FOR_TICKS));
        let elapsed = next
            .elapsed
            .into_iter()
            .chain(self.ticks.map(|(_, next)| next))
            .chain(holds)
            .chain(asks.flatten());
        elapsed.map(|elapsed| elapsed - now.elapsed).chain(at).min()
    }

    /// Sends what the member wants to send, and tells what it wants to tell.
    pub fn settle(&mut self, join: &Join, now: &Now) {
        loop {
            let (mail, events) = (self.member.outbox(), self.member.events());
            if mail.is_empty() && events.is_empty() {
                break;
            }
            // Who has not joined, or not again yet, says nothing; what matters is repeated.
            for (to, envelope) in mail {
                if self.has_joined {
                    self.send(&frame_of(self.place.handle, to, &envelope));
                }
            }
            for event in events {
                self.told(event, now);
            }
        }
        self.deliver(join.own, now);
    }

    fn told(&mut self, event: Event, now: &Now) {
        match event {
            Event::Received { from, sequence, stamp, topic, payload } => {
                self.received(topic, (from, sequence), stamp, &payload, now);
            }
            Event::Passed { from, earliest } => {
                let orders = self.subscribers.iter_mut().filter_map(|it| it.order.as_mut());
                orders.for_each(|order| order.passed(from, earliest));
            }
            Event::WantsTicks(_) => {
                let next = self.ticks.map_or(now.elapsed, |(_, next)| next);
                self.ticks = Some((now.elapsed + TICKS_LAST, next));
            }
            Event::Lost { from, topic, count } => {
                self.report(&Reported::Lost { from: Some(from), topic, count });
            }
            Event::FromTheFuture { from, by } => {
                self.report(&Reported::FromTheFuture { from, by_ns: by.ceil_nanos() });
            }
            Event::AnotherOrigin { from, .. } => self.report(&Reported::AnotherOrigin(from)),
            Event::Asked(proposal) => match self.accept {
                Accept::All => self.member.answer(proposal.id, true, now),
                Accept::Nothing => self.member.answer(proposal.id, false, now),
                Accept::Ask => self.propose(&Proposed::Asked(proposal)),
            },
            Event::Decided { id, commits } => {
                self.decided.insert(id, commits);
                self.propose(&Proposed::Decided(id, commits));
            }
            Event::Fire { id, interval, late, payload } => {
                let late_ns = late.ceil_nanos();
                self.propose(&Proposed::Fire { id, interval, late_ns, payload });
            }
            Event::Outcome(outcome) => {
                self.outcomes.insert(outcome.id, outcome.clone());
                self.propose(&Proposed::Outcome(outcome));
            }
            Event::Released { barrier, late, .. } => {
                let late = Duration::from_nanos(u64::try_from(late.ceil_nanos()).unwrap_or(0));
                self.released.insert(barrier, late);
            }
            Event::Split { barrier, outcome } => {
                let (fired, quiet) = (outcome.fired.len(), outcome.quiet.len());
                // Who was released has returned from that use of the barrier; who was not waits on.
                self.report(&Reported::Split { barrier, fired, quiet });
            }
            Event::Leader(leader::Event::Leads { office, until }) => {
                self.report(&Reported::Leads { office, until_ns: until.floor_nanos() });
            }
            Event::Leader(leader::Event::Ended { office }) => {
                self.report(&Reported::LeadsNoMore(office));
            }
        }
    }

    fn propose(&mut self, proposed: &Proposed) {
        self.proposals.retain(|inbox| inbox.push(proposed.clone()));
    }
}

/// The newest of what became of proposals.
pub struct Remembered<T> {
    all: BTreeMap<ProposalId, T>,
    order: std::collections::VecDeque<ProposalId>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), order: std::collections::VecDeque::new() }
    }
}

impl<T> Remembered<T> {
    pub fn get(&self, id: &ProposalId) -> Option<&T> {
        self.all.get(id)
    }

    fn insert(&mut self, id: ProposalId, what: T) {
        if self.all.insert(id, what).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > MOST_OUTCOMES
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

pub(super) fn id_of(who: &Who) -> Option<MemberId> {
    Some(MemberId { name: who.name.parse().ok()?, incarnation: who.incarnation })
}

fn frame_of(handle: u32, to: To, envelope: &Envelope) -> ToBus {
    let to = match to {
        To::All => None,
        To::Member(id) => Some(Who { name: id.name.to_string(), incarnation: id.incarnation }),
    };
    let topic = match &envelope.message {
        timevisor_coordination::Message::Publication { topic, .. } => Some(topic.to_string()),
        _ => None,
    };
    ToBus::Send { handle, to, topic, message: envelope.encode() }
}

/// Keeps the shared state out of a program's debug output.
impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("group", &self.join.group).finish_non_exhaustive()
    }
}
