//! A cluster: nodes of `timevisor-cluster` on simulated links, with counters of their own, judged
//! against true time.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | what is simulated |
//! | `world.rs` | the event queue, links, servers that take time for each question |
//! | `report.rs` | figures: time, questions, widths by level, the truth |
//! | `published.rs` | the cold start as HPGC was published, to compare with |
//!
//! The root's clock is the timeline: it has no error, as that of a timeline whose master is a member.

pub mod published;
mod report;
mod world;

use timevisor_cluster::{settle, succession};
use timevisor_time::{Duration, Period, RateError};

use timevisor_estimate::RateLimits;

pub use report::{Level, Naming, Report, quantile};
pub use world::World;

/// One direction of all links.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// The shortest delay, ns.
    pub minimum_ns: u32,
    /// Mean exponential queueing beyond it, ns.
    pub queueing_ns: u32,
    /// The share of messages that are lost.
    pub loss: f64,
}

impl Link {
    /// 5 us and 2 us of queueing.
    pub const DATA_CENTRE: Self = Self { minimum_ns: 5_000, queueing_ns: 2_000, loss: 0.0 };
    /// 30 us and 20 us of queueing.
    pub const LAN: Self = Self { minimum_ns: 30_000, queueing_ns: 20_000, loss: 0.0 };
    /// 98 us and 2 us of queueing: a round trip of 200 us.
    pub const RACK: Self = Self { minimum_ns: 98_000, queueing_ns: 2_000, loss: 0.0 };
    /// 1 ms and 0.3 ms of queueing.
    pub const WAN: Self = Self { minimum_ns: 1_000_000, queueing_ns: 300_000, loss: 0.0 };
}

/// How a liar's clock is off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Always, by the same.
    Constant,
    /// By the same after this moment, and right before.
    Since(Duration),
    /// By that much more each second.
    Ramp,
    /// Ahead for every second node that asks, and behind for the others.
    TwoFaced,
    /// By the same, of an origin that is said to be later than all others.
    Origin,
}

/// A cluster to simulate.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Nodes, the root included.
    pub nodes: u32,
    /// Addresses that every node knows at first: the root, and the nodes after it.
    pub seeds: u32,
    /// The first of these addresses; 1 where the root is not among them, and seeds alone know it.
    pub first_seed: u32,
    /// All links.
    pub link: Link,
    /// How long a server works on one question, ns.
    pub service_ns: u32,
    /// Answers of one burst.
    pub burst: settle::Limits,
    /// Between an answer and the next question.
    pub spacing: Duration,
    /// Children of one server.
    pub children: usize,
    /// Peers that are asked afterwards, and how often.
    pub peers: usize,
    /// See `peers`.
    pub poll: Duration,
    /// So many servers may lie.
    pub liars: usize,
    /// One of the nodes whose clock is off by this, ns, and which vouches for it.
    pub liar: Option<(u32, i64)>,
    /// How it is off.
    pub lie: Lie,
    /// Nodes from the first on that know the time by themselves, where no node is master.
    pub roots: u32,
    /// The first of these is believed alone.
    pub trusted: bool,
    /// The cluster has a timeline of its own: no node is its root at first, and this decides who leads.
    /// Without it, node 0 is the root, for good.
    pub succession: Option<succession::Settings>,
    /// Nodes that die, when, and when they come back, if they do.
    pub deaths: Vec<(u32, Duration, Option<Duration>)>,
    /// From the first moment to the second, nodes below this one do not reach the others.
    pub cut: Option<(Duration, Duration, u32)>,
    /// The share of nodes that start anew once, at a random moment of the first second.
    pub restarts: f64,
    /// One of the nodes whose counter is fast by this, ppb, whatever `rate` says.
    pub fast: Option<(u32, i64)>,
    /// Counters are off by up to this.
    pub rate: RateError,
    /// Nodes that are no seeds start at random moments up to this one; seeds start at 0.
    pub start: Duration,
    /// The end.
    pub until: Duration,
}

impl Plan {
    /// A cold start of `nodes` nodes: at most 8 answers each, 1,000 children a server, 2 us for a
    /// question, nobody is asked afterwards.
    #[must_use]
    pub fn cold(nodes: u32, link: Link) -> Self {
        Self {
            nodes,
            seeds: 1,
            first_seed: 0,
            link,
            service_ns: 2_000,
            burst: settle::Limits { wanted: None, most: 8 },
            spacing: Duration::from_nanos(0),
            children: 1_000,
            peers: 0,
            poll: Duration::from_secs(1),
            liars: 0,
            liar: None,
            lie: Lie::Constant,
            fast: None,
            roots: 1,
            trusted: true,
            succession: None,
            deaths: Vec::new(),
            cut: None,
            restarts: 0.0,
            rate: RateError::from_ppm(15),
            start: Duration::ZERO,
            until: Duration::from_secs(10),
        }
    }

    /// Nodes that ask nobody.
    fn masters(&self) -> u32 {
        if self.succession.is_some() { 0 } else { self.roots }
    }

    /// Against a timeline that is another counter's, both may be off.
    fn limits(&self) -> RateLimits {
        let rate = if self.succession.is_some() { self.rate.against(self.rate) } else { self.rate };
        RateLimits::around(nominal(), rate)
    }
}

/// Counters tick once a nanosecond, nominally.
fn nominal() -> Period {
    Period::from_bits(Period::from_hz(1_000_000_000).map_or(1, Period::to_bits))
}

/// Rounded up: a timer never comes too early.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.ceil_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

#[cfg(test)]
mod disagreement_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod succession_tests;
#[cfg(test)]
mod width_tests;
