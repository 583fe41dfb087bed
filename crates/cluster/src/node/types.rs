//! What a node is told, and what it says.

use std::fmt;

use timevisor_estimate::RateLimits;
use timevisor_time::{Duration, Instant, Period, Tai};

use crate::facts::Statement;
use crate::mesh::Standing;
use crate::{settle, succession};

/// What the operator sets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings<A> {
    /// The burst to a server.
    pub burst: settle::Limits,
    /// Between an answer and the next question of a burst.
    pub spacing: Duration,
    /// How many children a server has room for.
    pub children: usize,
    /// A child that does not ask for so long is none.
    pub lease: Duration,
    /// How many servers are asked now and then, once there are bounds. 0: none, offline from then on.
    pub peers: usize,
    /// How often each of them is asked.
    pub poll: Duration,
    /// So many hosts may lie; all ports of an address are one. With any, nobody but the seeds is asked (see
    /// [`crate::address`]).
    pub liars: usize,
    /// The root, where it is known by its key or its address: it is believed alone.
    pub trusted: Option<A>,
    /// Who continues when the master is gone; `None` where it is given, as that of UTC is.
    pub succession: Option<succession::Settings>,
    /// Limits of this node's counter against the timeline, and its nominal period.
    pub rate: RateLimits,
    /// See `rate`.
    pub nominal: Period,
}

/// Which clock a timeline is: stamps of different origins are not comparable. Of two that meet, the
/// greater one stays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Origin {
    /// Grows when the timeline's origin is set again.
    pub generation: u32,
    /// Of the timeline's master.
    pub epoch: u64,
}

impl Origin {
    /// Of UTC.
    pub const UTC: Self = Self { generation: 0, epoch: 0 };
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.generation, self.epoch)
    }
}

/// What a server answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer<A> {
    /// Its clock, with our counter around it; `None` while it has no bounds.
    pub said: Option<Statement>,
    /// What its bounds are worth.
    pub standing: Standing,
    /// Servers between it and the master.
    pub level: u8,
    /// Its timeline.
    pub origin: Origin,
    /// How long ago anybody heard the timeline's master, by whatever path; `None` where nobody says.
    pub silence: Option<Duration>,
    /// Other servers.
    pub others: Vec<A>,
}

/// A question to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question<A> {
    /// Whom to ask.
    pub server: A,
    /// The answer is lost when it has not come by then.
    pub until: Duration,
}

/// What became of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<A> {
    /// There are bounds that this node vouches for.
    Vouches,
    /// The timeline began anew: what was known of it is void.
    BeganAnew,
    /// This server lies, and is not asked any more.
    Named(A),
    /// This server has another timeline of this name.
    Stranger(A),
}

/// The timeline of a master: exactly what its counter says at the nominal rate, by definition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lead {
    /// The counter value at which it began.
    pub counter: u64,
    /// What it said then.
    pub time: Instant<Tai>,
}
