//! What members tell each other.

use timevisor_time::{Duration, Instant, Interval, Local};

use crate::Name;
use crate::clock::Stamp;

/// A member. A program that restarts under its old name is another incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemberId {
    /// Unique in its group at each time.
    pub name: Name,
    /// Drawn at random when it joined.
    pub incarnation: u64,
}

/// A message with its sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The sender.
    pub from: MemberId,
    /// Counts the sender's messages to everybody on this topic, or without one; receivers find gaps
    /// by it. 0 for messages to one member, which are repeated until they are answered.
    pub sequence: u64,
    /// When it was sent; `None` while the sender's clock was unknown.
    pub stamp: Option<Stamp>,
    /// What it says.
    pub message: Message,
}

/// One proposal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProposalId {
    /// Who proposes.
    pub proposer: MemberId,
    /// Which of its proposals.
    pub number: u64,
}

/// What to do, when, and with whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// Which one.
    pub id: ProposalId,
    /// When everybody fires, on the timeline of this origin.
    pub at: Instant<Local>,
    /// Which clock `at` is a time of.
    pub origin: u64,
    /// The proposer commits surely before this, or never.
    pub decide_by: Instant<Local>,
    /// A member whose wake-up is surely later than this after `at` does not fire.
    pub late_at_most: Duration,
    /// Who fires, the proposer included; in ascending order.
    pub participants: Vec<MemberId>,
    /// For the application.
    pub payload: Vec<u8>,
}

/// Why a member did not fire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It voted against it, so nobody has fired.
    Rejected,
    /// It knows that the proposer gave up, so nobody has fired.
    Aborted,
    /// It voted for it and did not learn the decision in time. Others may have fired.
    Undecided,
    /// It woke up too late.
    Late,
    /// Its clock did not meet its requirement, or had another origin.
    Clock,
}

impl Why {
    /// Whether this proves that nobody fires.
    #[must_use]
    pub fn excludes_all(self) -> bool {
        matches!(self, Self::Rejected | Self::Aborted)
    }
}

/// What a member did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// It fired when its page said this.
    Fired(Interval<Local>),
    /// It did not fire, and never will.
    Quiet(Why),
}

/// What a member says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// A message of the application.
    Publication {
        /// Its topic.
        topic: Name,
        /// For the application.
        payload: Vec<u8>,
    },
    /// The sender is alive, and sends nothing older than this message's stamp any more.
    Tick,
    /// Asks all members for a [`Self::Tick`] so often.
    WantTicks {
        /// How often.
        every: Duration,
    },
    /// Asks for a vote.
    Propose(Box<Proposal>),
    /// Answers a [`Self::Propose`], to the proposer. Repeated until a decision is known.
    Vote {
        /// On which proposal.
        id: ProposalId,
        /// For it or against it.
        accepts: bool,
        /// How often it was sent before.
        attempt: u32,
    },
    /// The decision.
    Decide {
        /// On which proposal.
        id: ProposalId,
        /// Everybody fires, or nobody.
        commits: bool,
    },
    /// What the sender did.
    Report {
        /// About which proposal.
        id: ProposalId,
        /// What.
        report: Report,
    },
    /// Asks for a [`Self::Report`].
    Ask {
        /// About which proposal.
        id: ProposalId,
    },
    /// The sender waits at a barrier. Repeated until it is released or gives up.
    Arrive {
        /// The barrier's name.
        barrier: Name,
        /// Which use of it, counted by each member from 0.
        round: u64,
        /// How many members have to arrive.
        parties: u32,
    },
    /// The sender wants to lead until then.
    Claim {
        /// The name of the office.
        office: Name,
        /// On the timeline of the message's origin.
        until: Instant<Local>,
    },
    /// Answers a [`Self::Claim`].
    Grant {
        /// The name of the office.
        office: Name,
        /// The claim's.
        until: Instant<Local>,
        /// Until when the office is promised to somebody else; `None` if the claim is granted.
        taken_until: Option<Instant<Local>>,
    },
    /// The sender, who may have led, leads no longer.
    Release {
        /// The name of the office.
        office: Name,
        /// The latest end of a lease that it has asked for.
        until: Instant<Local>,
    },
}
