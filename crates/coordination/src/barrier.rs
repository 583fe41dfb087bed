//! Barriers: all members are released at one time.
//!
//! A member that waits says so to everybody. As soon as enough have arrived, the first of them by
//! name proposes a time at which all are released ([`crate::propose`]), and the others accept. So a
//! release has the guarantees of a proposal: all are released at one time, or nobody is and they try
//! again, or a member learns who was released without it.
//!
//! What it does not do: let a member through that arrives after the others have been released. It
//! waits for the next use of the barrier.

use std::collections::{BTreeMap, BTreeSet};

use timevisor_time::Duration;

use crate::Name;
use crate::message::{MemberId, Message, Proposal, ProposalId};

/// How often a member repeats that it waits.
const REPEAT: Duration = Duration::from_millis(50);

/// The payload of a release: this, the barrier's name, zero padded, and the round.
const MAGIC: &[u8; 8] = b"$barrier";

/// Who may be released.
#[derive(Clone, Debug)]
struct Waiting {
    parties: u32,
    round: u64,
    arrived: BTreeSet<MemberId>,
    /// The proposal that this member has accepted or made.
    pending: Option<ProposalId>,
    next: Duration,
}

/// The barriers of a group, as one member sees them.
#[derive(Clone, Debug)]
pub struct Barriers {
    own: MemberId,
    waiting: BTreeMap<Name, Waiting>,
    /// Who waits where this member does not, or not yet: it may arrive later than all others.
    others: BTreeMap<(Name, u64), BTreeSet<MemberId>>,
    rounds: BTreeMap<Name, u64>,
}

/// Uses of barriers by others that are remembered.
const MOST_OTHERS: usize = 256;

impl Barriers {
    /// Those of a member that has just joined.
    #[must_use]
    pub fn new(own: MemberId) -> Self {
        Self { own, waiting: BTreeMap::new(), others: BTreeMap::new(), rounds: BTreeMap::new() }
    }

    /// Waits at a barrier until `parties` members have arrived, this one included. False if it waits
    /// there already, or if nobody can be released.
    pub fn arrive(&mut self, barrier: Name, parties: u32, now: Duration) -> bool {
        if parties == 0 || self.waiting.contains_key(&barrier) {
            return false;
        }
        let round = self.rounds.get(&barrier).copied().unwrap_or(0);
        let mut arrived = self.others.remove(&(barrier, round)).unwrap_or_default();
        arrived.insert(self.own);
        let waiting = Waiting { parties, round, arrived, pending: None, next: now };
        self.waiting.insert(barrier, waiting);
        true
    }

    /// Does not wait any more. False while a release that was accepted is under way: then its end has
    /// to be awaited, because others count on this member.
    pub fn give_up(&mut self, barrier: Name) -> bool {
        let is_under_way =
            self.waiting.get(&barrier).is_some_and(|waiting| waiting.pending.is_some());
        if !is_under_way {
            self.waiting.remove(&barrier);
        }
        !is_under_way
    }

    /// Another member waits.
    pub fn arrived(&mut self, from: MemberId, barrier: Name, round: u64, now: Duration) {
        // Who joined later, or restarted, counts on from where the others are.
        let known = self.rounds.entry(barrier).or_insert(0);
        if !self.waiting.contains_key(&barrier) {
            *known = round.max(*known);
        }
        match self.waiting.get_mut(&barrier) {
            Some(waiting) if waiting.round < round && waiting.pending.is_none() => {
                waiting.round = round;
                waiting.arrived = [self.own, from].into();
                waiting.next = now;
                self.rounds.insert(barrier, round);
            }
            Some(waiting) if waiting.round == round => {
                if waiting.arrived.insert(from) {
                    waiting.next = waiting.next.min(now + Duration::from_millis(1));
                }
            }
            _ => {
                if self.others.len() < MOST_OTHERS {
                    self.others.entry((barrier, round)).or_default().insert(from);
                }
            }
        }
    }

    /// A member has left or lapsed: it waits no longer.
    pub fn left(&mut self, member: MemberId) {
        self.waiting.values_mut().for_each(|waiting| {
            waiting.arrived.remove(&member);
        });
        self.others.values_mut().for_each(|arrived| {
            arrived.remove(&member);
        });
    }

    /// What to say, and whom this member proposes to release.
    pub fn on_timer(&mut self, now: Duration) -> (Vec<Message>, Vec<Release>) {
        let (mut messages, mut releases) = (Vec::new(), Vec::new());
        for (barrier, waiting) in &mut self.waiting {
            if now < waiting.next {
                continue;
            }
            waiting.next = now + REPEAT;
            let (barrier, round, parties) = (*barrier, waiting.round, waiting.parties);
            messages.push(Message::Arrive { barrier, round, parties });
            let enough = usize::try_from(parties).unwrap_or(usize::MAX);
            let is_first = waiting.arrived.first() == Some(&self.own);
            if waiting.arrived.len() >= enough && is_first && waiting.pending.is_none() {
                let participants = waiting.arrived.iter().take(enough).copied().collect();
                let payload = payload(barrier, round);
                releases.push(Release { barrier, participants, payload });
            }
        }
        (messages, releases)
    }

    /// A release was proposed.
    pub fn proposed(&mut self, barrier: Name, id: ProposalId) {
        if let Some(waiting) = self.waiting.get_mut(&barrier) {
            waiting.pending = Some(id);
        }
    }

    /// Whether this member accepts a release; `None` if it is a proposal of the application.
    pub fn asked(&mut self, proposal: &Proposal) -> Option<bool> {
        let (barrier, round) = barrier_of(&proposal.payload)?;
        let Some(waiting) = self.waiting.get_mut(&barrier) else { return Some(false) };
        let parties = usize::try_from(waiting.parties).unwrap_or(usize::MAX);
        let is_meant = waiting.round == round && proposal.participants.len() == parties;
        let free = waiting.pending.is_none() && is_meant;
        if free {
            waiting.pending = Some(proposal.id);
        }
        Some(free)
    }

    /// A release is over: the member is released, or waits for the next one. Returns the barrier.
    pub fn ended(&mut self, id: ProposalId, fired: bool, now: Duration) -> Option<Name> {
        let (barrier, waiting) =
            self.waiting.iter_mut().find(|(_, waiting)| waiting.pending == Some(id))?;
        let barrier = *barrier;
        waiting.pending = None;
        if !fired {
            // Somebody may have gone: only those count who say once more that they wait.
            waiting.arrived = [self.own].into();
            waiting.next = now + REPEAT;
        }
        if fired {
            let round = waiting.round.saturating_add(1);
            self.waiting.remove(&barrier);
            self.rounds.insert(barrier, round);
            self.others.retain(|(name, used), _| *name != barrier || *used >= round);
        }
        Some(barrier)
    }

    /// When [`Self::on_timer`] has something to do.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        self.waiting.values().map(|waiting| waiting.next).min()
    }
}

/// A release to propose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// Of which barrier.
    pub barrier: Name,
    /// Who is released.
    pub participants: Vec<MemberId>,
    /// For [`barrier_of`].
    pub payload: Vec<u8>,
}

/// Which barrier, and which use of it, a proposal releases.
#[must_use]
pub fn barrier_of(payload: &[u8]) -> Option<(Name, u64)> {
    let rest = payload.strip_prefix(MAGIC)?;
    let (name, round) = rest.split_at_checked(32)?;
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(32);
    let name = std::str::from_utf8(&name[..length]).ok()?.parse().ok()?;
    Some((name, u64::from_le_bytes(round.try_into().ok()?)))
}

fn payload(barrier: Name, round: u64) -> Vec<u8> {
    [&MAGIC[..], &barrier.to_bytes(), &round.to_le_bytes()].concat()
}
