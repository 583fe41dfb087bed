//! A leader by lease on the timeline.
//!
//! Voters are named. A candidate asks all of them to let it lead until a certain time, and leads if
//! more than half of them grant it. A voter that has granted an office until then grants it to
//! nobody else before its clock is surely past that (commit-wait). So two members never lead at one
//! time, as long as bounds hold: the first stops when its latest reaches the end of its lease, and the
//! second gets its grants when a voter's earliest is beyond it.
//!
//! A voter that restarts has forgotten its grants. It grants nothing until the longest lease that it
//! may have granted has surely ended. The same goes for a timeline that gets another origin.
//!
//! What it does not do: choose the best candidate. The first that gets a majority leads, and
//! candidates that lose wait for random times.

use std::collections::{BTreeMap, BTreeSet};

use timevisor_time::{Duration, Instant, Local};

use crate::bus::To;
use crate::clock::{Next, Now, Reading};
use crate::message::{MemberId, Message};
use crate::{Name, member::Draw};

/// Parameters of an office, the same at all members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Who votes; more than half of them make a leader.
    pub voters: Vec<Name>,
    /// How long a lease is. Half way through it is renewed.
    pub term: Duration,
    /// How long a candidate waits for answers before it asks again.
    pub retry: Duration,
}

/// The longest term, unless a group states another. A member that joins votes for nobody for so
/// long.
pub const LONGEST_TERM: Duration = Duration::from_secs(5);

/// Why nobody can be elected by these settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LeaderError {
    /// Without voters.
    #[error("an office needs voters: name the members that vote")]
    NoVoters,
    /// A name twice.
    #[error("voter {0} is listed twice")]
    Twice(Name),
    /// Too long or no time at all.
    #[error("a term has to be longer than 0 and at most the group's longest, {0:?}")]
    Term(Duration),
}

/// What a candidate is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// This member leads while its latest is before `until`.
    Leads {
        /// The office.
        office: Name,
        /// The end of its lease.
        until: Instant<Local>,
    },
    /// It leads no longer.
    Ended {
        /// The office.
        office: Name,
    },
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send this.
    Send(To, Message),
    /// Tell the application.
    Tell(Event),
}

#[derive(Clone, Copy, Debug)]
struct Granted {
    to: MemberId,
    until: Instant<Local>,
}

#[derive(Clone, Debug)]
struct Candidacy {
    settings: Settings,
    /// The end of the lease that is asked for, on the timeline of this origin.
    asked: Option<(Instant<Local>, u64)>,
    granted: BTreeSet<Name>,
    leads: Option<(Instant<Local>, u64)>,
    next: Duration,
}

/// All offices of a group, as one member sees them: it votes, and it may be a candidate.
#[derive(Clone, Debug)]
pub struct Offices {
    own: MemberId,
    /// No lease ends later than this after it was granted; the same at all members.
    longest: Duration,
    draw: Draw,
    granted: BTreeMap<Name, Granted>,
    /// Since when, of which origin, and until when nothing is granted.
    origin: Option<(u64, Instant<Local>)>,
    candidacies: BTreeMap<Name, Candidacy>,
}

impl Offices {
    /// Those of a member that has just joined. `random` separates candidates that begin together.
    #[must_use]
    pub fn new(own: MemberId, longest: Duration, random: u64) -> Self {
        Self {
            own,
            longest,
            draw: Draw::new(random),
            granted: BTreeMap::new(),
            origin: None,
            candidacies: BTreeMap::new(),
        }
    }

    /// Wants to lead, until [`Self::resign`].
    ///
    /// # Errors
    /// When nobody can be elected by these settings.
    pub fn stand(
        &mut self,
        office: Name,
        settings: Settings,
        now: &Now,
    ) -> Result<(), LeaderError> {
        if settings.voters.is_empty() {
            return Err(LeaderError::NoVoters);
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = settings.voters.iter().find(|voter| !seen.insert(**voter)) {
            return Err(LeaderError::Twice(*twice));
        }
        if settings.term <= Duration::ZERO || settings.term > self.longest {
            return Err(LeaderError::Term(self.longest));
        }
        self.candidacies.entry(office).or_insert(Candidacy {
            settings,
            asked: None,
            granted: BTreeSet::new(),
            leads: None,
            next: now.elapsed,
        });
        Ok(())
    }

    /// Does not want to lead any more. The office is free at once.
    pub fn resign(&mut self, office: Name, out: &mut Vec<Action>) {
        let Some(candidacy) = self.candidacies.remove(&office) else { return };
        if self.granted.get(&office).is_some_and(|granted| granted.to == self.own) {
            self.granted.remove(&office);
        }
        // Only what it has asked for until now is given back: this may arrive after a later claim.
        let asked = candidacy.asked.into_iter().chain(candidacy.leads).map(|(until, _)| until);
        if let Some(until) = asked.reduce(Instant::max) {
            out.push(Action::Send(To::All, Message::Release { office, until }));
        }
        if candidacy.leads.is_some() {
            out.push(Action::Tell(Event::Ended { office }));
        }
    }

    /// Grants that were given in its name may not be known here: nothing is granted for the longest term.
    pub fn rejoined(&mut self) {
        self.origin = None;
        self.granted.clear();
    }

    /// Whether this member leads at a time that this reading cannot exclude.
    #[must_use]
    pub fn leads(&self, office: Name, now: &Now) -> bool {
        let leads = self.candidacies.get(&office).and_then(|candidacy| candidacy.leads);
        leads.is_some_and(|(until, origin)| {
            now.fit(origin).is_some_and(|reading| reading.latest().to_bits() < until.to_bits())
        })
    }

    /// A message of another member. Returns whether it was one about offices.
    pub fn heard(
        &mut self,
        from: MemberId,
        origin: Option<u64>,
        message: &Message,
        now: &Now,
        out: &mut Vec<Action>,
    ) -> bool {
        match message {
            Message::Claim { office, until } => {
                // A claim on another timeline has no meaning here.
                let reading =
                    now.reading.filter(|reading| Some(reading.origin) == origin && reading.met);
                if let Some(reading) = reading {
                    let taken_until = self.vote(from, *office, *until, &reading).err();
                    let (office, until) = (*office, *until);
                    let grant = Message::Grant { office, until, taken_until };
                    out.push(Action::Send(To::Member(from), grant));
                }
            }
            Message::Grant { office, until, taken_until } => {
                if let Some(origin) = origin {
                    self.granted_by(from, *office, (*until, origin), *taken_until, now, out);
                }
            }
            Message::Release { office, until } => {
                let is_meant = |granted: &Granted| {
                    granted.to == from && granted.until.to_bits() <= until.to_bits()
                };
                if self.granted.get(office).is_some_and(is_meant) {
                    self.granted.remove(office);
                }
            }
            _ => return false,
        }
        true
    }

    /// Claims, renews, ends.
    pub fn on_timer(&mut self, now: &Now, out: &mut Vec<Action>) {
        if let Some(reading) = now.reading {
            self.follow(&reading);
        }
        let offices: Vec<_> = self.candidacies.keys().copied().collect();
        for office in offices {
            self.end_if_over(office, now, out);
            let Some(candidacy) = self.candidacies.get(&office) else { continue };
            if now.elapsed >= candidacy.next {
                self.claim(office, now, out);
            }
        }
    }

    /// When [`Self::on_timer`] has something to do.
    #[must_use]
    pub fn next(&self, now: &Now) -> Next {
        let one = |candidacy: &Candidacy| {
            let at = candidacy.leads.and_then(|(until, origin)| {
                let reading = now.fit(origin)?;
                Some(until - (reading.latest() - reading.estimate))
            });
            Next { elapsed: Some(candidacy.next), at }
        };
        self.candidacies.values().map(one).fold(Next::default(), Next::and)
    }

    /// A new member, and one on a timeline with a new origin, knows of no grants.
    fn follow(&mut self, reading: &Reading) {
        if self.origin.is_none_or(|(origin, _)| origin != reading.origin) {
            // Longer than the longest lease by what two clocks may differ in their rates.
            let longest = self.longest + Duration::from_bits(self.longest.to_bits() >> 10);
            self.origin = Some((reading.origin, reading.latest() + longest));
            self.granted.clear();
        }
    }

    /// Grants the office, or says until when it is taken.
    fn vote(
        &mut self,
        to: MemberId,
        office: Name,
        until: Instant<Local>,
        reading: &Reading,
    ) -> Result<(), Instant<Local>> {
        self.follow(reading);
        let earliest = reading.earliest();
        let is_past = |until: Instant<Local>| earliest.to_bits() > until.to_bits();
        if let Some((_, quiet_until)) = self.origin.filter(|(_, until)| !is_past(*until)) {
            return Err(quiet_until);
        }
        let others = self.granted.get(&office).filter(|granted| granted.to != to);
        if let Some(granted) = others.filter(|granted| !is_past(granted.until)) {
            return Err(granted.until);
        }
        if until.to_bits() > (earliest + self.longest).to_bits() {
            return Err(earliest);
        }
        // What was promised before is kept.
        let before = self.granted.get(&office).filter(|granted| granted.to == to);
        let until = before.map_or(until, |granted| granted.until.max(until));
        self.granted.insert(office, Granted { to, until });
        Ok(())
    }

    fn claim(&mut self, office: Name, now: &Now, out: &mut Vec<Action>) {
        let retry = {
            let Some(candidacy) = self.candidacies.get_mut(&office) else { return };
            // Those who ask at one time do not ask again at one time.
            let retry = candidacy.settings.retry;
            candidacy.next = now.elapsed + retry + self.draw.part(retry);
            candidacy.settings.clone()
        };
        let Some(reading) = now.reading.filter(|reading| reading.met) else { return };
        let until = reading.earliest() + retry.term;
        let own = self.own;
        let granted_by_self =
            retry.voters.contains(&own.name) && self.vote(own, office, until, &reading).is_ok();
        let Some(candidacy) = self.candidacies.get_mut(&office) else { return };
        candidacy.asked = Some((until, reading.origin));
        candidacy.granted.clear();
        if granted_by_self {
            candidacy.granted.insert(own.name);
        }
        out.push(Action::Send(To::All, Message::Claim { office, until }));
        self.count(office, now, out);
    }

    fn granted_by(
        &mut self,
        voter: MemberId,
        office: Name,
        lease: (Instant<Local>, u64),
        taken_until: Option<Instant<Local>>,
        now: &Now,
        out: &mut Vec<Action>,
    ) {
        let Some(candidacy) = self.candidacies.get_mut(&office) else { return };
        if candidacy.asked == Some(lease)
            && taken_until.is_none()
            && candidacy.settings.voters.contains(&voter.name)
        {
            candidacy.granted.insert(voter.name);
            self.count(office, now, out);
        }
    }

    fn count(&mut self, office: Name, now: &Now, out: &mut Vec<Action>) {
        let Some(candidacy) = self.candidacies.get_mut(&office) else { return };
        let Some((until, origin)) = candidacy.asked else { return };
        if candidacy.granted.len() * 2 <= candidacy.settings.voters.len() {
            return;
        }
        let Some(reading) = now.fit(origin) else { return };
        let left = until - reading.latest();
        if left <= Duration::ZERO {
            return;
        }
        candidacy.asked = None;
        candidacy.leads = Some((until, origin));
        candidacy.next = now.elapsed + left.half();
        out.push(Action::Tell(Event::Leads { office, until }));
    }

    fn end_if_over(&mut self, office: Name, now: &Now, out: &mut Vec<Action>) {
        let leads = self.leads(office, now);
        let Some(candidacy) = self.candidacies.get_mut(&office) else { return };
        if candidacy.leads.is_some() && !leads {
            candidacy.leads = None;
            candidacy.next = now.elapsed;
            out.push(Action::Tell(Event::Ended { office }));
        }
    }
}

#[cfg(test)]
#[path = "leader_tests.rs"]
mod tests;
