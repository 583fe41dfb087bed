//! Proposals: every participant fires at one time, or learns who did not.
//!
//! The proposer asks all participants for a vote. If every one of them accepts and the proposer's
//! clock is surely before `decide_by`, it commits. A participant that knows of the commit fires when
//! its clock shows `at`. Who does not know of it does not fire.
//!
//! # What is guaranteed, whatever the network and the processes do
//! - Nobody fires unless all participants have accepted.
//! - A member fires only between `at` minus its bound and `at` plus `late_at_most` plus its bound,
//!   as long as bounds hold. [`Event::Fire`] says how late it surely was.
//! - An [`Outcome`] never lists a member under `fired` or `quiet` wrongly. Whoever is not heard is
//!   listed under `unknown`. So two members may end up in different states, but not silently.
//! - A member that voted against it, or heard that the proposer gave up, knows that nobody fires.
//!
//! # What cannot be guaranteed
//! No protocol makes several members act at one time or not at all where messages can be lost (the
//! two generals' problem). Here members end up in different states if one of them accepts and then
//! is cut off, stopped or without a good clock from the commit until `at`. The commit is at
//! `decide_by` at the latest, half way between the proposal and `at`. It is repeated until it is
//! known, so losses alone hardly ever do it. A longer time between the proposal and `at` makes it
//! less likely, never impossible. Such a member reports [`Why::Undecided`], [`Why::Late`] or
//! [`Why::Clock`], and everybody's outcome says so as soon as they hear each other again.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the interface, votes and decisions |
//! | `entry.rs` | one proposal: its phase, firing, reports |

mod entry;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use timevisor_time::{Duration, Instant, Interval, Local};

use crate::bus::To;
use crate::clock::{Next, Now, Reading};
use crate::message::{MemberId, Message, Proposal, ProposalId, Report, Why};
use crate::wire::{MAX_PARTICIPANTS, MAX_PAYLOAD};
use entry::{Entry, Phase};

/// Parameters of a member's proposals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// A proposal has to be at least this long before its time.
    pub least_lead: Duration,
    /// The first wait for an answer; twice as long each time.
    pub first_retry: Duration,
    /// The longest wait for an answer.
    pub last_retry: Duration,
    /// How long after its time a proposal's missing reports are waited for before the application
    /// gets an outcome with unknowns.
    pub reports_within: Duration,
    /// How long a proposal is remembered after its time, to answer others and to correct outcomes.
    pub keep: Duration,
    /// The most proposals that are remembered at once.
    pub most: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            least_lead: Duration::from_millis(2),
            first_retry: Duration::from_millis(5),
            last_retry: Duration::from_millis(500),
            reports_within: Duration::from_millis(500),
            keep: Duration::from_secs(60),
            most: 1024,
        }
    }
}

/// Why a proposal cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProposeError {
    /// The page says nothing reliable, or does not meet the member's requirement.
    #[error(
        "the clock does not meet the member's requirement now; wait for the quality (wait_for), then \
         propose"
    )]
    Clock,
    /// Too soon to ask everybody.
    #[error("the time is too close; propose a time at least {0:?} ahead")]
    TooSoon(Duration),
    /// The proposer is not among the participants.
    #[error("the proposer has to be a participant, too")]
    NotAmongThem,
    /// Too many participants.
    #[error("{0} participants, more than {MAX_PARTICIPANTS}")]
    TooManyParticipants(usize),
    /// Too long a payload.
    #[error("a payload of {0} bytes, more than {MAX_PAYLOAD}")]
    TooLong(usize),
    /// Too many proposals at once.
    #[error("{0} proposals are remembered already; wait for their outcomes")]
    TooMany(usize),
}

/// What to propose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// When everybody fires, on the timeline as it is now.
    pub at: Instant<Local>,
    /// A wake-up that is later than this does not fire.
    pub late_at_most: Duration,
    /// Who fires, the proposer included.
    pub participants: Vec<MemberId>,
    /// For the application.
    pub payload: Vec<u8>,
}

/// What the caller does, or tells the application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Somebody asks for our vote: answer with [`Proposals::answer`].
    Asked(Box<Proposal>),
    /// The decision is known.
    Decided {
        /// On which proposal.
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
        /// How much later than `at` it surely is; zero if it may be on time.
        late: Duration,
    },
    /// Who fired and who did not. If some are unknown, another outcome follows when they are heard.
    Outcome(Outcome),
}

/// Who fired and who did not, as far as this member knows. What it lists is certain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Which proposal.
    pub id: ProposalId,
    /// Who fired, and what their pages said when they did.
    pub fired: Vec<(MemberId, Interval<Local>)>,
    /// Who did not fire and never will.
    pub quiet: Vec<(MemberId, Why)>,
    /// Who was not heard.
    pub unknown: Vec<MemberId>,
}

impl Outcome {
    /// `Some(true)`: all fired. `Some(false)`: nobody did. `None`: they differ, or it is not known.
    #[must_use]
    pub fn agreed(&self) -> Option<bool> {
        if !self.unknown.is_empty() {
            None
        } else if self.quiet.is_empty() {
            Some(true)
        } else {
            self.fired.is_empty().then_some(false)
        }
    }
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send this.
    Send(To, Message),
    /// Tell the application.
    Tell(Event),
}

/// All proposals that one member knows.
#[derive(Clone, Debug)]
pub struct Proposals {
    own: MemberId,
    settings: Settings,
    number: u64,
    entries: BTreeMap<ProposalId, Entry>,
    /// Those that have something to do by themselves. All others are only remembered.
    active: BTreeSet<ProposalId>,
    /// When each may be forgotten.
    ends: BTreeSet<(Duration, ProposalId)>,
}

impl Proposals {
    /// Those of a member that has just joined.
    #[must_use]
    pub fn new(own: MemberId, settings: Settings) -> Self {
        let (entries, active, ends) = Default::default();
        Self { own, settings, number: 0, entries, active, ends }
    }

    fn insert(&mut self, entry: Entry) {
        let id = entry.proposal.id;
        self.active.insert(id);
        self.ends.insert((entry.forget_at(), id));
        self.entries.insert(id, entry);
    }

    /// Proposes. The caller has accepted it by this.
    ///
    /// # Errors
    /// See [`ProposeError`].
    pub fn propose(
        &mut self,
        plan: Plan,
        now: &Now,
        out: &mut Vec<Action>,
    ) -> Result<ProposalId, ProposeError> {
        let Plan { at, late_at_most, mut participants, payload } = plan;
        let reading = now.reading.filter(|reading| reading.met).ok_or(ProposeError::Clock)?;
        if reading.latest() + self.settings.least_lead > at {
            return Err(ProposeError::TooSoon(self.settings.least_lead));
        }
        participants.sort_unstable();
        participants.dedup();
        if participants.len() > MAX_PARTICIPANTS {
            return Err(ProposeError::TooManyParticipants(participants.len()));
        }
        if !participants.contains(&self.own) {
            return Err(ProposeError::NotAmongThem);
        }
        if payload.len() > MAX_PAYLOAD {
            return Err(ProposeError::TooLong(payload.len()));
        }
        if self.entries.len() >= self.settings.most {
            return Err(ProposeError::TooMany(self.settings.most));
        }
        let id = ProposalId { proposer: self.own, number: self.number };
        self.number += 1;
        let decide_by = reading.latest() + (at - reading.latest()).half();
        let origin = reading.origin;
        let proposal = Proposal { id, at, origin, decide_by, late_at_most, participants, payload };
        let mut entry = Entry::new(proposal, self.own, &reading, now, &self.settings);
        entry.phase = Phase::Accepted;
        entry.votes.insert(self.own);
        out.push(Action::Send(To::All, Message::Propose(Box::new(entry.proposal.clone()))));
        entry.wait(now, &self.settings);
        self.insert(entry);
        self.decide(id, now, out);
        Ok(id)
    }

    /// The application's vote. Says nothing about proposals that are not asked about any more.
    pub fn answer(&mut self, id: ProposalId, accepts: bool, now: &Now, out: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.phase != Phase::Asked {
            return;
        }
        // A clock that has failed meanwhile is not promised.
        let accepts = accepts && now.fit(entry.proposal.origin).is_some();
        entry.vote(accepts, now, &self.settings, out);
        if !accepts {
            entry.end(Report::Quiet(Why::Rejected), now, out);
        }
    }

    /// A message of another member. Returns whether it was one about proposals.
    pub fn heard(
        &mut self,
        from: MemberId,
        message: &Message,
        now: &Now,
        out: &mut Vec<Action>,
    ) -> bool {
        match message {
            Message::Propose(proposal) => self.asked(from, proposal, now, out),
            Message::Vote { id, accepts, attempt } => {
                self.voted(from, *id, *accepts, *attempt, now, out);
            }
            Message::Decide { id, commits } => self.decided(from, *id, *commits, now, out),
            Message::Report { id, report } => {
                if let Some(entry) = self.entries.get_mut(id) {
                    entry.reported(from, *report, now, out);
                }
            }
            Message::Ask { id } => {
                let Some(entry) = self.entries.get(id) else { return true };
                if let Some(report) = entry.result {
                    out.push(Action::Send(To::Member(from), Message::Report { id: *id, report }));
                }
            }
            _ => return false,
        }
        true
    }

    /// Fires, repeats questions, gives up.
    pub fn on_timer(&mut self, now: &Now, out: &mut Vec<Action>) {
        // Not all: a member remembers each for a minute, and hears of some every second.
        let ids: Vec<_> = self.active.iter().copied().collect();
        for id in ids {
            if id.proposer == self.own {
                self.decide(id, now, out);
            }
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.on_timer(now, &self.settings, out);
            if entry.is_settled() {
                self.active.remove(&id);
            }
        }
        while let Some((at, id)) = self.ends.first().copied().filter(|(at, _)| now.elapsed >= *at) {
            self.ends.remove(&(at, id));
            match self.entries.get(&id) {
                Some(entry) if !entry.is_over(now) => {
                    self.ends.insert((now.elapsed + self.settings.keep, id));
                }
                _ => {
                    self.entries.remove(&id);
                    self.active.remove(&id);
                }
            }
        }
    }

    /// When [`Self::on_timer`] has something to do.
    #[must_use]
    pub fn next(&self, now: &Now) -> Next {
        let end = self.ends.first().map(|(at, _)| *at);
        let active = self.active.iter().filter_map(|id| Some(self.entries.get(id)?.next(now)));
        active.fold(Next { elapsed: end, at: None }, Next::and)
    }

    /// A proposal that is remembered.
    #[must_use]
    pub fn get(&self, id: ProposalId) -> Option<&Proposal> {
        self.entries.get(&id).map(|entry| &entry.proposal)
    }

    fn asked(&mut self, from: MemberId, proposal: &Proposal, now: &Now, out: &mut Vec<Action>) {
        let id = proposal.id;
        if id.proposer != from || !proposal.participants.contains(&self.own) {
            return;
        }
        if let Some(entry) = self.entries.get_mut(&id) {
            // Our vote was lost.
            entry.repeat_vote(out);
            return;
        }
        let in_time = |reading: &Reading| reading.latest() < proposal.decide_by;
        let fit = now.fit(proposal.origin).filter(in_time);
        let Some(reading) = fit.filter(|_| self.entries.len() < self.settings.most) else {
            let vote = Message::Vote { id, accepts: false, attempt: 0 };
            out.push(Action::Send(To::Member(from), vote));
            return;
        };
        let entry = Entry::new(proposal.clone(), self.own, &reading, now, &self.settings);
        self.insert(entry);
        out.push(Action::Tell(Event::Asked(Box::new(proposal.clone()))));
    }

    fn voted(
        &mut self,
        from: MemberId,
        id: ProposalId,
        accepts: bool,
        attempt: u32,
        now: &Now,
        out: &mut Vec<Action>,
    ) {
        let own = self.own;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(commits) = entry.phase.commits() {
            if id.proposer == own || entry.is_turn_of(own, attempt) {
                out.push(Action::Send(To::Member(from), Message::Decide { id, commits }));
            }
            return;
        }
        if id.proposer != own || !entry.proposal.participants.contains(&from) {
            return;
        }
        if accepts {
            entry.votes.insert(from);
            self.decide(id, now, out);
        } else {
            entry.decide(false, now, out);
        }
    }

    fn decided(
        &mut self,
        from: MemberId,
        id: ProposalId,
        commits: bool,
        now: &Now,
        out: &mut Vec<Action>,
    ) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if !entry.proposal.participants.contains(&from) {
            return;
        }
        if entry.phase == Phase::Accepted && id.proposer != self.own
            || entry.phase == Phase::Asked && !commits
        {
            entry.decide(commits, now, out);
        }
    }

    /// The proposer's decision, if it is due.
    fn decide(&mut self, id: ProposalId, now: &Now, out: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.phase != Phase::Accepted {
            return;
        }
        let fit = now.fit(entry.proposal.origin);
        let in_time = fit.is_some_and(|reading| reading.latest() < entry.proposal.decide_by);
        if in_time && entry.votes.len() < entry.proposal.participants.len() {
            return;
        }
        entry.decide(in_time, now, out);
    }
}
