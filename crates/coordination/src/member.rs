//! One member of a group: stamps what it sends, reads what comes, and runs the proposals, barriers
//! and offices of the group on one bus.
//!
//! The caller sends what [`Member::outbox`] returns, calls [`Member::on_timer`] when [`Member::next`]
//! says so, and hands over every envelope and every change of the membership.

use std::collections::{BTreeMap, VecDeque};

use timevisor_time::{Duration, Instant, Interval, Local};

use crate::Name;
use crate::barrier::Barriers;
use crate::bus::To;
use crate::clock::{Next, Now, Stamp};
use crate::leader::{self, LeaderError, Offices};
use crate::message::{Envelope, MemberId, Message, Proposal, ProposalId};
use crate::propose::{self, Outcome, Plan, Proposals, ProposeError};

/// Random numbers to spread retries: no security depends on them.
#[derive(Clone, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A part of a span, at random (splitmix64).
    pub fn part(&mut self, span: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        Duration::from_bits((span.to_bits() >> 16) * i128::from(z >> 48))
    }
}

/// What a member tells its application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A message.
    Received {
        /// Who sent it.
        from: MemberId,
        /// Counts the sender's messages.
        sequence: u64,
        /// When it was sent, as its sender saw it; `None` if the sender did not know.
        stamp: Option<Stamp>,
        /// Its topic.
        topic: Name,
        /// For the application.
        payload: Vec<u8>,
    },
    /// A member's clock has come so far; it stamps nothing before that any more.
    Passed {
        /// Whose.
        from: MemberId,
        /// How far.
        earliest: Instant<Local>,
    },
    /// Somebody wants messages in the order of time: call [`Member::tick`] so often for
    /// [`TICKS_LAST`].
    WantsTicks(Duration),
    /// Messages of a member were lost.
    Lost {
        /// Whose.
        from: MemberId,
        /// On which topic; `None`: of those by which members agree.
        topic: Option<Name>,
        /// How many.
        count: u64,
    },
    /// A stamp that contradicts our clock: it surely lies in our future. Either clock is wrong.
    FromTheFuture {
        /// Who sent it.
        from: MemberId,
        /// By how much at least.
        by: Duration,
    },
    /// A stamp of another timeline, or of this one with another origin: it has no order with ours.
    AnotherOrigin {
        /// Who sent it.
        from: MemberId,
        /// The origin of its stamp.
        origin: u64,
    },
    /// Somebody asks for our vote: answer with [`Member::answer`].
    Asked(Box<Proposal>),
    /// The decision on a proposal is known.
    Decided {
        /// On which.
        id: ProposalId,
        /// Everybody fires, or nobody.
        commits: bool,
    },
    /// Fire now.
    Fire {
        /// Which proposal.
        id: ProposalId,
        /// What the page says now.
        interval: Interval<Local>,
        /// How much later than its time it surely is.
        late: Duration,
        /// The proposal's payload.
        payload: Vec<u8>,
    },
    /// Who fired and who did not.
    Outcome(Outcome),
    /// Released from a barrier.
    Released {
        /// Which one.
        barrier: Name,
        /// By which proposal.
        id: ProposalId,
        /// What the page says now.
        interval: Interval<Local>,
        /// How much later than the agreed time it surely is.
        late: Duration,
    },
    /// Not everybody was released from a barrier together. This member still waits if it was not.
    Split {
        /// Which one.
        barrier: Name,
        /// Who was.
        outcome: Outcome,
    },
    /// About offices.
    Leader(leader::Event),
}

/// Members that have gone whose sequences are remembered.
const MOST_GONE: usize = 4096;

/// For how long members tick after somebody has asked for it.
pub const TICKS_LAST: Duration = Duration::from_secs(15);

/// Parameters of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Of its proposals.
    pub proposals: propose::Settings,
    /// How far ahead the release of a barrier is proposed.
    pub release_lead: Duration,
    /// A release that wakes up later than this is none.
    pub release_late: Duration,
    /// The longest term of a leader, the same at all members.
    pub longest_term: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            proposals: propose::Settings::default(),
            release_lead: Duration::from_millis(20),
            release_late: Duration::from_millis(500),
            longest_term: leader::LONGEST_TERM,
        }
    }
}

/// One member of one group.
#[derive(Clone, Debug)]
pub struct Member {
    own: MemberId,
    settings: Settings,
    /// How many messages to everybody were sent on each topic, and without one.
    sequences: BTreeMap<Option<Name>, u64>,
    /// The greatest earliest that was stamped, and its origin: time does not go back, so neither
    /// does what it is not before.
    stamped: Option<(u64, Instant<Local>)>,
    /// The sequence of each member's last message to everybody on each topic, and without one.
    heard: BTreeMap<(MemberId, Option<Name>), u64>,
    /// Who has gone, the last ones.
    gone: VecDeque<MemberId>,
    proposals: Proposals,
    barriers: Barriers,
    offices: Offices,
    outbox: Vec<(To, Envelope)>,
    events: Vec<Event>,
}

impl Member {
    /// A member that joins. `random` separates the retries of several.
    #[must_use]
    pub fn new(own: MemberId, settings: Settings, random: u64) -> Self {
        Self {
            own,
            settings,
            sequences: BTreeMap::new(),
            stamped: None,
            heard: BTreeMap::new(),
            gone: VecDeque::new(),
            proposals: Proposals::new(own, settings.proposals),
            barriers: Barriers::new(own),
            offices: Offices::new(own, settings.longest_term, random),
            outbox: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Who it is.
    #[must_use]
    pub fn id(&self) -> MemberId {
        self.own
    }

    /// What to send, in this order.
    pub fn outbox(&mut self) -> Vec<(To, Envelope)> {
        std::mem::take(&mut self.outbox)
    }

    /// What to tell the application.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Publishes a message to everybody.
    pub fn publish(&mut self, topic: Name, payload: Vec<u8>, now: &Now) {
        self.send(To::All, Message::Publication { topic, payload }, now);
    }

    /// Says how far its clock is, for those who want messages in the order of time.
    pub fn tick(&mut self, now: &Now) {
        self.send(To::All, Message::Tick, now);
    }

    /// Asks all members for ticks, for those who want messages in the order of time. They come for
    /// [`TICKS_LAST`].
    pub fn want_ticks(&mut self, every: Duration, now: &Now) {
        self.send(To::All, Message::WantTicks { every }, now);
    }

    /// Proposes to fire at a time. See [`propose`].
    ///
    /// # Errors
    /// See [`ProposeError`].
    pub fn propose(&mut self, plan: Plan, now: &Now) -> Result<ProposalId, ProposeError> {
        let mut out = Vec::new();
        let id = self.proposals.propose(plan, now, &mut out)?;
        self.act(out, now);
        Ok(id)
    }

    /// The application's vote on a proposal.
    pub fn answer(&mut self, id: ProposalId, accepts: bool, now: &Now) {
        let mut out = Vec::new();
        self.proposals.answer(id, accepts, now, &mut out);
        self.act(out, now);
    }

    /// Waits at a barrier. See [`Barriers::arrive`].
    pub fn arrive(&mut self, barrier: Name, parties: u32, now: &Now) -> bool {
        let arrives = self.barriers.arrive(barrier, parties, now.elapsed);
        self.on_timer(now);
        arrives
    }

    /// Does not wait at a barrier any more: see [`Barriers::give_up`].
    pub fn give_up(&mut self, barrier: Name) -> bool {
        self.barriers.give_up(barrier)
    }

    /// It was removed from the group for a time, in which another process may have had its name: what it
    /// has voted for as a voter is not all that was voted for in its name.
    pub fn rejoined(&mut self) {
        self.offices.rejoined();
    }

    /// Wants to lead.
    ///
    /// # Errors
    /// When nobody can be elected by these settings.
    pub fn stand(
        &mut self,
        office: Name,
        settings: leader::Settings,
        now: &Now,
    ) -> Result<(), LeaderError> {
        self.offices.stand(office, settings, now)?;
        self.on_timer(now);
        Ok(())
    }

    /// Does not want to lead any more.
    pub fn resign(&mut self, office: Name, now: &Now) {
        let mut out = Vec::new();
        self.offices.resign(office, &mut out);
        self.act_on_offices(out, now);
    }

    /// Whether it leads now: see [`Offices::leads`].
    #[must_use]
    pub fn leads(&self, office: Name, now: &Now) -> bool {
        self.offices.leads(office, now)
    }

    /// A member left, or its lease ended.
    pub fn left(&mut self, member: MemberId) {
        // It may come back as the same incarnation: what it has sent before stays old.
        self.gone.push_back(member);
        if self.gone.len() > MOST_GONE
            && let Some(oldest) = self.gone.pop_front()
            && !self.gone.contains(&oldest)
        {
            self.heard.retain(|(from, _), _| *from != oldest);
        }
        self.barriers.left(member);
    }

    /// A message arrives.
    pub fn heard(&mut self, envelope: Envelope, now: &Now) {
        let Envelope { from, sequence, stamp, message } = envelope;
        if from == self.own {
            // A topic's subscribers get their own messages, too.
            if let Message::Publication { topic, payload } = message {
                self.events.push(Event::Received { from, sequence, stamp, topic, payload });
            }
            return;
        }
        if !self.is_new((from, topic_of(&message)), sequence) {
            return;
        }
        if !self.is_plausible(from, stamp, now) && !matches!(message, Message::Publication { .. }) {
            // Nothing is agreed with a clock that contradicts ours.
            return;
        }
        if let (Some(stamp), Some(reading)) = (stamp, now.reading)
            && stamp.origin == reading.origin
        {
            self.events.push(Event::Passed { from, earliest: stamp.interval.earliest() });
        }
        match message {
            Message::Publication { topic, payload } => {
                self.events.push(Event::Received { from, sequence, stamp, topic, payload });
            }
            Message::Tick => {}
            Message::WantTicks { every } => self.events.push(Event::WantsTicks(every)),
            Message::Arrive { barrier, round, .. } => {
                self.barriers.arrived(from, barrier, round, now.elapsed);
            }
            message => {
                let mut out = Vec::new();
                if self.proposals.heard(from, &message, now, &mut out) {
                    self.act(out, now);
                } else {
                    let (mut out, origin) = (Vec::new(), stamp.map(|stamp| stamp.origin));
                    self.offices.heard(from, origin, &message, now, &mut out);
                    self.act_on_offices(out, now);
                }
            }
        }
    }

    /// Does what is due.
    pub fn on_timer(&mut self, now: &Now) {
        let mut out = Vec::new();
        self.proposals.on_timer(now, &mut out);
        self.act(out, now);
        let mut out = Vec::new();
        self.offices.on_timer(now, &mut out);
        self.act_on_offices(out, now);
        let (messages, releases) = self.barriers.on_timer(now.elapsed);
        messages.into_iter().for_each(|message| self.send(To::All, message, now));
        for release in releases {
            let Some(reading) = now.reading else { continue };
            let plan = Plan {
                at: reading.latest() + self.settings.release_lead,
                late_at_most: self.settings.release_late,
                participants: release.participants,
                payload: release.payload,
            };
            let mut out = Vec::new();
            if let Ok(id) = self.proposals.propose(plan, now, &mut out) {
                self.barriers.proposed(release.barrier, id);
            }
            self.act(out, now);
        }
    }

    /// When [`Self::on_timer`] has something to do.
    #[must_use]
    pub fn next(&self, now: &Now) -> Next {
        let barriers = Next { elapsed: self.barriers.next(), at: None };
        self.proposals.next(now).and(self.offices.next(now)).and(barriers)
    }

    fn send(&mut self, to: To, message: Message, now: &Now) {
        let sequence = if to == To::All {
            let sequence = self.sequences.entry(topic_of(&message)).or_default();
            *sequence += 1;
            *sequence
        } else {
            0
        };
        let stamp = self.stamp(now);
        self.outbox.push((to, Envelope { from: self.own, sequence, stamp, message }));
    }

    fn stamp(&mut self, now: &Now) -> Option<Stamp> {
        let reading = now.reading?;
        let (origin, latest) = (reading.origin, reading.latest());
        let before = self.stamped.filter(|(before, _)| *before == origin);
        let earliest = before.map_or(reading.earliest(), |(_, at)| at.max(reading.earliest()));
        // A latest before an earliest of ours contradicts the clock: nothing is known.
        let interval = Interval::new(earliest, latest)?;
        self.stamped = Some((origin, earliest));
        Some(Stamp { interval, origin })
    }

    /// Notes the sequence. False for a repetition of a message to everybody.
    fn is_new(&mut self, of: (MemberId, Option<Name>), sequence: u64) -> bool {
        if sequence == 0 {
            return true;
        }
        let Some(last) = self.heard.get_mut(&of) else {
            self.heard.insert(of, sequence);
            return true;
        };
        if sequence <= *last {
            return false;
        }
        let count = sequence - *last - 1;
        *last = sequence;
        if count > 0 {
            let (from, topic) = of;
            self.events.push(Event::Lost { from, topic, count });
        }
        true
    }

    /// Whether a stamp can be right if our clock is.
    fn is_plausible(&mut self, from: MemberId, stamp: Option<Stamp>, now: &Now) -> bool {
        let (Some(stamp), Some(reading)) = (stamp, now.reading) else { return true };
        if stamp.origin != reading.origin {
            self.events.push(Event::AnotherOrigin { from, origin: stamp.origin });
            return false;
        }
        let by = stamp.interval.earliest() - reading.latest();
        if by > Duration::ZERO {
            self.events.push(Event::FromTheFuture { from, by });
        }
        by <= Duration::ZERO
    }

    fn act(&mut self, actions: Vec<propose::Action>, now: &Now) {
        for action in actions {
            match action {
                propose::Action::Send(to, message) => self.send(to, message, now),
                propose::Action::Tell(event) => self.tell(event, now),
            }
        }
    }

    /// Barriers deal with their own proposals; the application with all others.
    fn tell(&mut self, event: propose::Event, now: &Now) {
        let barrier_of = |id| {
            let proposal: Option<&Proposal> = self.proposals.get(id);
            proposal.and_then(|proposal| crate::barrier::barrier_of(&proposal.payload))
        };
        let told = match event {
            propose::Event::Asked(proposal) => match self.barriers.asked(&proposal) {
                Some(accepts) => return self.answer(proposal.id, accepts, now),
                None => Event::Asked(proposal),
            },
            propose::Event::Decided { id, commits } => {
                if barrier_of(id).is_some() {
                    if !commits {
                        self.barriers.ended(id, false, now.elapsed);
                    }
                    return;
                }
                Event::Decided { id, commits }
            }
            propose::Event::Fire { id, interval, late } => {
                match self.barriers.ended(id, true, now.elapsed) {
                    Some(barrier) => Event::Released { barrier, id, interval, late },
                    None => {
                        let payload = self.proposals.get(id).map(|it| it.payload.clone());
                        Event::Fire { id, interval, late, payload: payload.unwrap_or_default() }
                    }
                }
            }
            propose::Event::Outcome(outcome) => {
                if let Some((barrier, _)) = barrier_of(outcome.id) {
                    self.barriers.ended(outcome.id, false, now.elapsed);
                    if outcome.agreed() == Some(true) || outcome.fired.is_empty() {
                        return;
                    }
                    Event::Split { barrier, outcome }
                } else {
                    Event::Outcome(outcome)
                }
            }
        };
        self.events.push(told);
    }

    fn act_on_offices(&mut self, actions: Vec<leader::Action>, now: &Now) {
        for action in actions {
            match action {
                leader::Action::Send(to, message) => self.send(to, message, now),
                leader::Action::Tell(event) => self.events.push(Event::Leader(event)),
            }
        }
    }
}

/// Sequences are counted by topic, because not everybody gets every topic.
fn topic_of(message: &Message) -> Option<Name> {
    match message {
        Message::Publication { topic, .. } => Some(*topic),
        _ => None,
    }
}

#[cfg(test)]
#[path = "member_tests.rs"]
mod tests;
