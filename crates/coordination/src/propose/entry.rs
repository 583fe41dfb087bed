//! One proposal as one member sees it.

use std::collections::{BTreeMap, BTreeSet};

use timevisor_time::Duration;

use super::{Action, Event, Outcome, Settings};
use crate::bus::To;
use crate::clock::{Next, Now, Reading};
use crate::message::{MemberId, Message, Proposal, Report, Why};

/// How often a clock that has failed is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The application has not voted yet.
    Asked,
    /// This member has accepted and knows no decision.
    Accepted,
    /// It has voted against it.
    Rejected,
    Committed,
    Aborted,
}

impl Phase {
    /// The decision, if it is known.
    pub fn commits(self) -> Option<bool> {
        match self {
            Self::Committed => Some(true),
            Self::Aborted => Some(false),
            Self::Asked | Self::Accepted | Self::Rejected => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub proposal: Proposal,
    pub phase: Phase,
    /// Who has accepted; kept by the proposer.
    pub votes: BTreeSet<MemberId>,
    /// What this member did; `None` until it has fired or surely will not.
    pub result: Option<Report>,
    own: MemberId,
    reports: BTreeMap<MemberId, Report>,
    /// How many reports the last outcome had.
    told: Option<usize>,
    attempt: u32,
    retry: Duration,
    next: Option<Duration>,
    /// By now the time has passed even if the clock is unknown.
    past: Duration,
    outcome_at: Duration,
    forget_at: Duration,
}

impl Entry {
    /// A proposal that was heard when the page said this.
    pub fn new(
        proposal: Proposal,
        own: MemberId,
        reading: &Reading,
        now: &Now,
        settings: &Settings,
    ) -> Self {
        let left = proposal.at + proposal.late_at_most - reading.earliest();
        // A machine's own clock may run slower than the timeline.
        let past = now.elapsed + left + left.half() + settings.last_retry;
        Self {
            own,
            phase: Phase::Asked,
            votes: BTreeSet::new(),
            result: None,
            reports: BTreeMap::new(),
            told: None,
            attempt: 0,
            retry: settings.first_retry,
            next: None,
            past,
            outcome_at: past + settings.reports_within,
            forget_at: past + settings.keep,
            proposal,
        }
    }

    /// The next repetition is due after this wait, the one after that later still.
    pub fn wait(&mut self, now: &Now, settings: &Settings) {
        self.next = Some(now.elapsed + self.retry);
        self.retry = (self.retry + self.retry).min(settings.last_retry);
    }

    pub fn vote(&mut self, accepts: bool, now: &Now, settings: &Settings, out: &mut Vec<Action>) {
        self.phase = if accepts { Phase::Accepted } else { Phase::Rejected };
        self.repeat_vote(out);
        self.wait(now, settings);
    }

    pub fn repeat_vote(&mut self, out: &mut Vec<Action>) {
        let accepts = match self.phase {
            Phase::Asked | Phase::Aborted => return,
            Phase::Rejected => false,
            Phase::Accepted | Phase::Committed => true,
        };
        let (id, attempt) = (self.proposal.id, self.attempt);
        let vote = Message::Vote { id, accepts, attempt };
        out.push(Action::Send(To::Member(id.proposer), vote.clone()));
        // The proposer does not answer: somebody else may know what it decided.
        if accepts && attempt > 0 && self.phase == Phase::Accepted {
            let others = &self.proposal.participants;
            let other = others[attempt as usize % others.len()];
            if other != self.own && other != id.proposer {
                out.push(Action::Send(To::Member(other), vote));
            }
        }
        self.attempt += 1;
    }

    /// Whether this member answers that attempt to learn the decision.
    pub fn is_turn_of(&self, own: MemberId, attempt: u32) -> bool {
        let others = &self.proposal.participants;
        others[attempt as usize % others.len()] == own
    }

    pub fn decide(&mut self, commits: bool, now: &Now, out: &mut Vec<Action>) {
        self.phase = if commits { Phase::Committed } else { Phase::Aborted };
        let id = self.proposal.id;
        if self.own == id.proposer {
            out.push(Action::Send(To::All, Message::Decide { id, commits }));
        }
        out.push(Action::Tell(Event::Decided { id, commits }));
        if !commits {
            self.end(Report::Quiet(Why::Aborted), now, out);
        }
    }

    /// This member has fired, or never will.
    pub fn end(&mut self, report: Report, now: &Now, out: &mut Vec<Action>) {
        if self.result.is_some() {
            return;
        }
        self.result = Some(report);
        self.next = Some(now.elapsed + self.retry);
        if !matches!(report, Report::Quiet(why) if why.excludes_all()) {
            let id = self.proposal.id;
            out.push(Action::Send(To::All, Message::Report { id, report }));
        }
        self.reported(self.own, report, now, out);
    }

    pub fn reported(&mut self, from: MemberId, report: Report, now: &Now, out: &mut Vec<Action>) {
        if !self.proposal.participants.contains(&from) {
            return;
        }
        self.reports.entry(from).or_insert(report);
        if matches!(report, Report::Quiet(why) if why.excludes_all())
            && matches!(self.phase, Phase::Asked | Phase::Accepted)
        {
            self.decide(false, now, out);
        }
        self.tell_if_complete(out);
    }

    pub fn on_timer(&mut self, now: &Now, settings: &Settings, out: &mut Vec<Action>) {
        if self.result.is_none() {
            self.fire(now, settings, out);
        }
        if self.result.is_some() && now.elapsed >= self.outcome_at && self.told.is_none() {
            self.tell(out);
        }
        if self.next.is_none_or(|next| now.elapsed < next) {
            return;
        }
        self.next = None;
        if self.result.is_none() {
            self.repeat_question(out);
            self.wait(now, settings);
        } else if !self.missing().is_empty() {
            let id = self.proposal.id;
            let missing = self.missing();
            // One question to everybody is cheaper than many.
            if missing.len() > 8 {
                out.push(Action::Send(To::All, Message::Ask { id }));
            } else {
                let ask = |at: &MemberId| Action::Send(To::Member(*at), Message::Ask { id });
                out.extend(missing.iter().map(ask));
            }
            self.wait(now, settings);
        }
    }

    fn repeat_question(&mut self, out: &mut Vec<Action>) {
        let proposal = &self.proposal;
        match self.phase {
            Phase::Accepted if self.own == proposal.id.proposer => {
                let question = Message::Propose(Box::new(proposal.clone()));
                let missing = proposal.participants.iter().filter(|at| !self.votes.contains(at));
                let missing: Vec<_> = missing.copied().collect();
                if missing.len() > 8 {
                    out.push(Action::Send(To::All, question));
                } else {
                    let one = |at: MemberId| Action::Send(To::Member(at), question.clone());
                    out.extend(missing.into_iter().map(one));
                }
            }
            Phase::Accepted => self.repeat_vote(out),
            Phase::Asked | Phase::Rejected | Phase::Committed | Phase::Aborted => {}
        }
    }

    /// Fires if it is time, or never if that has passed.
    fn fire(&mut self, now: &Now, settings: &Settings, out: &mut Vec<Action>) {
        let (id, at) = (self.proposal.id, self.proposal.at);
        let reading = now.fit(self.proposal.origin);
        let late = |reading: &Reading| (reading.earliest() - at).max(Duration::ZERO);
        let too_late = match &reading {
            Some(reading) => late(reading) > self.proposal.late_at_most,
            // The clock has failed, so only waiting tells that the time is over.
            None => now.elapsed > self.past,
        };
        match (self.phase, reading) {
            (Phase::Committed, Some(_)) if too_late => {
                self.end(Report::Quiet(Why::Late), now, out);
            }
            (Phase::Committed, Some(reading)) if reading.estimate.to_bits() >= at.to_bits() => {
                let (interval, late) = (reading.interval, late(&reading));
                out.push(Action::Tell(Event::Fire { id, interval, late }));
                self.end(Report::Fired(interval), now, out);
            }
            (Phase::Committed, None) if too_late => {
                self.end(Report::Quiet(Why::Clock), now, out);
            }
            (Phase::Accepted, _) if too_late => self.end(Report::Quiet(Why::Undecided), now, out),
            (Phase::Asked, reading) => {
                let decide_by = self.proposal.decide_by;
                let over = |reading: Reading| reading.earliest().to_bits() > decide_by.to_bits();
                if reading.map_or(too_late, over) {
                    self.vote(false, now, settings, out);
                    self.end(Report::Quiet(Why::Rejected), now, out);
                }
            }
            _ => {}
        }
    }

    /// Nothing of it happens by itself any more: messages about it are answered, and then it is forgotten.
    pub fn is_settled(&self) -> bool {
        self.result.is_some() && self.told.is_some() && self.next.is_none()
    }

    /// When it may be forgotten.
    pub fn forget_at(&self) -> Duration {
        self.forget_at
    }

    /// It was kept for long enough.
    pub fn is_over(&self, now: &Now) -> bool {
        self.result.is_some() && now.elapsed >= self.forget_at
    }

    pub fn next(&self, now: &Now) -> Next {
        let proposal = &self.proposal;
        let sooner = |other: Option<Duration>| self.next.into_iter().chain(other).min();
        if self.result.is_some() {
            let outcome = self.told.is_none().then_some(self.outcome_at);
            return Next { elapsed: sooner(outcome), at: None };
        }
        let Some(reading) = now.fit(proposal.origin) else {
            // The clock may come back at any time.
            return Next { elapsed: sooner(Some(now.elapsed + LOOK_AGAIN)), at: None };
        };
        // The estimate when the earliest, or the latest, gets there.
        let surely = reading.estimate - reading.earliest() + Duration::EPSILON;
        let perhaps = reading.latest() - reading.estimate;
        let at = match self.phase {
            Phase::Accepted if self.own == proposal.id.proposer => proposal.decide_by - perhaps,
            Phase::Asked => proposal.decide_by + surely,
            Phase::Committed => proposal.at,
            _ => proposal.at + proposal.late_at_most + surely,
        };
        Next { elapsed: self.next, at: Some(at) }
    }

    fn nobody_fires(&self) -> bool {
        let excludes = |report: &Report| matches!(report, Report::Quiet(why) if why.excludes_all());
        self.reports.values().any(excludes)
    }

    fn missing(&self) -> Vec<MemberId> {
        if self.nobody_fires() {
            return Vec::new();
        }
        let all = self.proposal.participants.iter();
        all.filter(|at| !self.reports.contains_key(at)).copied().collect()
    }

    fn tell_if_complete(&mut self, out: &mut Vec<Action>) {
        // An outcome that was told is corrected with everything that is heard.
        let is_news = match self.told {
            None => self.missing().is_empty(),
            Some(told) => told < self.reports.len(),
        };
        if self.result.is_some() && is_news {
            self.tell(out);
        }
    }

    fn tell(&mut self, out: &mut Vec<Action>) {
        self.told = Some(self.reports.len());
        let mut outcome = Outcome {
            id: self.proposal.id,
            fired: Vec::new(),
            quiet: Vec::new(),
            unknown: Vec::new(),
        };
        let nobody = self.nobody_fires();
        for at in &self.proposal.participants {
            match self.reports.get(at) {
                Some(Report::Fired(interval)) => outcome.fired.push((*at, *interval)),
                Some(Report::Quiet(why)) => outcome.quiet.push((*at, *why)),
                None if nobody => outcome.quiet.push((*at, Why::Aborted)),
                None => outcome.unknown.push(*at),
            }
        }
        out.push(Action::Tell(Event::Outcome(outcome)));
    }
}
