//! What must hold in every schedule.

use std::collections::{BTreeMap, BTreeSet};

use timevisor_coordination::propose::Outcome;
use timevisor_coordination::{MemberId, Proposal, ProposalId};
use timevisor_time::{Duration, Instant, Interval, Local};

/// What was judged, and what was wrong.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Schedules.
    pub schedules: u64,
    /// Proposals that were made.
    pub proposals: u64,
    /// Proposals that everybody fired.
    pub fired: u64,
    /// Proposals that nobody fired.
    pub quiet: u64,
    /// Proposals that some fired and others did not: all of these know, or will know.
    pub split: u64,
    /// Fires.
    pub fires: u64,
    /// Outcomes that were told, and of these those with unknown members.
    pub outcomes: u64,
    /// See above.
    pub unknown: u64,
    /// Leases of leaders, renewals included.
    pub leases: u64,
    /// Releases from barriers.
    pub releases: u64,
    /// Messages that were sent.
    pub messages: u64,
    /// Sentences about what must not happen.
    pub wrong: Vec<String>,
}

impl Judged {
    /// Both.
    pub fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.proposals += other.proposals;
        self.fired += other.fired;
        self.quiet += other.quiet;
        self.split += other.split;
        self.fires += other.fires;
        self.outcomes += other.outcomes;
        self.unknown += other.unknown;
        self.leases += other.leases;
        self.releases += other.releases;
        self.messages += other.messages;
        self.wrong.extend(other.wrong);
    }
}

/// A proposal with everything that became of it.
#[derive(Clone, Debug)]
struct Known {
    at: Instant<Local>,
    decide_by: Instant<Local>,
    late_at_most: Duration,
    participants: Vec<MemberId>,
    accepted: BTreeSet<MemberId>,
    fired: BTreeSet<MemberId>,
    aborted: bool,
    /// All that were told, corrected ones included.
    outcomes: Vec<(MemberId, Outcome)>,
}

/// Judges one schedule.
#[derive(Clone, Debug, Default)]
pub struct Judge {
    known: BTreeMap<ProposalId, Known>,
    pub judged: Judged,
}

impl Judge {
    pub fn wrong(&mut self, text: String) {
        self.judged.wrong.push(text);
    }

    /// A proposal was made. Its proposer has accepted it.
    pub fn proposed(&mut self, proposal: &Proposal) {
        let id = proposal.id;
        let known = Known {
            at: proposal.at,
            decide_by: proposal.decide_by,
            late_at_most: proposal.late_at_most,
            participants: proposal.participants.clone(),
            accepted: [id.proposer].into(),
            fired: BTreeSet::new(),
            aborted: false,
            outcomes: Vec::new(),
        };
        // The question may be repeated.
        self.known.entry(id).or_insert_with(|| {
            self.judged.proposals += 1;
            known
        });
    }

    pub fn accepted(&mut self, id: ProposalId, member: MemberId) {
        if let Some(known) = self.known.get_mut(&id) {
            known.accepted.insert(member);
        }
    }

    /// A member fires while the timeline's time is `truth`.
    pub fn fires(
        &mut self,
        id: ProposalId,
        member: MemberId,
        interval: Interval<Local>,
        late: Duration,
        truth: Instant<Local>,
    ) {
        self.judged.fires += 1;
        let mut wrong = Vec::new();
        match self.known.get_mut(&id) {
            None => wrong.push("fires what nobody has proposed"),
            Some(known) => {
                if known.participants.iter().any(|one| !known.accepted.contains(one)) {
                    wrong.push("fires what not everybody has accepted");
                }
                if !known.fired.insert(member) {
                    wrong.push("fires twice");
                }
                let off = truth - known.at;
                let width = interval.width();
                if off > late + width || off < Duration::ZERO - width {
                    wrong.push("fires off its time by more than its bound and its lateness");
                }
                if late > known.late_at_most {
                    wrong.push("fires too late");
                }
            }
        }
        for text in wrong {
            self.wrong(format!("{member:?} {text}: {id:?}"));
        }
    }

    /// A member knows the decision while the timeline's time is `truth`.
    pub fn decided(
        &mut self,
        id: ProposalId,
        commits: bool,
        member: MemberId,
        truth: Instant<Local>,
    ) {
        let Some(known) = self.known.get_mut(&id) else { return };
        known.aborted |= !commits;
        if commits && member == id.proposer && truth.to_bits() >= known.decide_by.to_bits() {
            self.wrong(format!("{id:?} is committed after the time to decide"));
        }
    }

    pub fn outcome(&mut self, member: MemberId, outcome: Outcome) {
        self.judged.outcomes += 1;
        self.judged.unknown += u64::from(!outcome.unknown.is_empty());
        if let Some(known) = self.known.get_mut(&outcome.id) {
            known.outcomes.push((member, outcome));
        }
    }

    /// The end of a schedule: what was said is compared with what was done. `alive` are those who
    /// could have learned the outcome.
    pub fn end(mut self, is_calm: bool) -> Judged {
        let known = std::mem::take(&mut self.known);
        for (id, known) in known {
            let all = known.participants.len();
            match known.fired.len() {
                0 => self.judged.quiet += 1,
                fired if fired == all => self.judged.fired += 1,
                _ => self.judged.split += 1,
            }
            if known.aborted && !known.fired.is_empty() {
                self.wrong(format!("somebody heard that nobody fires {id:?}, and somebody did"));
            }
            for (member, outcome) in &known.outcomes {
                let lies = outcome.fired.iter().any(|(at, _)| !known.fired.contains(at));
                let denies = outcome.quiet.iter().any(|(at, _)| known.fired.contains(at));
                if lies || denies {
                    self.wrong(format!("{member:?} has a wrong outcome: {outcome:?}"));
                }
            }
            if is_calm {
                let last: BTreeMap<_, _> = known.outcomes.iter().map(|(at, it)| (at, it)).collect();
                let agreed = last.values().filter(|it| it.agreed().is_some()).count();
                let asked = last.len();
                if agreed != asked || (!known.fired.is_empty() && known.fired.len() < all) {
                    self.wrong(format!("{id:?} is not agreed on though nothing failed"));
                }
                if known.accepted.len() == all && known.fired.len() < all && !known.aborted {
                    self.wrong(format!("{id:?} was accepted by all and not fired"));
                }
            }
        }
        self.judged
    }
}
