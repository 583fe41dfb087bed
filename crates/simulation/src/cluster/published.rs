//! The cold start as it was published, on the same links: Dutra and others, "A highly effective system
//! clock" (RVEC and HPGC), sections 4, 5.4 and 5.5. It is here to be compared with, and used by nothing.
//!
//! A node exchanges messages with its server until half round trips differ by less than 500 ns, and takes
//! the server's time at the shortest one, plus half of that round trip. A server attends to one node at a
//! time. From then on nothing is asked any more.
//!
//! How many half round trips are compared is not said. Three are, because an interaction had three
//! messages. One that is lost is repeated after a millisecond; the paper has no losses.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use timevisor_time::{Duration, RateError};

use super::Link;
use crate::random::Random;

/// Section 5.4: half round trips may differ by this, ns.
const SPREAD_NS: f64 = 500.0;
/// Section 5.4, code 5: the pause between interactions, ns.
const PAUSE_NS: f64 = 1_000.0;
/// Half round trips that are compared.
const COMPARED: usize = 3;
/// A message that is lost is repeated after this, ns.
const REPEATED_NS: f64 = 1e6;
/// Messages of one node, at most: on links with much queueing the spread is never reached.
const MOST_MESSAGES: u32 = 10_000;

/// Who serves others once it is done: the three lines of figure 5.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serving {
    /// The first node alone.
    Root,
    /// The nodes that the first one has served, too (equation 3).
    TwoLevels,
    /// Everybody (equation 4).
    Everybody,
}

impl Serving {
    fn serves(self, level: u32) -> bool {
        match self {
            Self::Root => level == 0,
            Self::TwoLevels => level <= 1,
            Self::Everybody => true,
        }
    }

    /// Nodes that are done after so many ms, as the paper computes it at 1 ms a node; the first node
    /// counts.
    #[must_use]
    pub fn as_published(self, ms: u32) -> f64 {
        let n = f64::from(ms);
        match self {
            Self::Root => 1.0 + n,
            Self::TwoLevels => 1.0 + n * (n + 1.0) / 2.0,
            Self::Everybody => libm::exp2(n),
        }
    }
}

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Published {
    /// When each node was done, ascending, ns.
    pub done_ns: Vec<f64>,
    /// Messages of each node, ascending.
    pub messages: Vec<f64>,
    /// By the number of servers to the first node: errors, without their sign, ascending, ns.
    pub levels: BTreeMap<u32, Errors>,
    /// Nodes that never reached the spread, and took what they had.
    pub unsettled: u64,
}

/// Of the nodes of one level.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Errors {
    /// When they were done.
    pub done: Vec<f64>,
    /// At the end.
    pub at_end: Vec<f64>,
}

/// A node's clock: its error when it was done, and how much faster than the first node's it is.
#[derive(Clone, Copy)]
struct Clock {
    done_ns: f64,
    error_ns: f64,
    rate: f64,
}

impl Clock {
    fn error_at(&self, ns: f64) -> f64 {
        self.error_ns + self.rate * (ns - self.done_ns)
    }
}

struct Exchanges {
    took_ns: f64,
    messages: u32,
    error_ns: f64,
    settled: bool,
}

/// Starts `nodes` nodes at once, and looks at them until `until`. Counters are off by up to `rate`, and a
/// server works on a message for `service_ns`.
#[must_use]
pub fn start(
    nodes: u32,
    link: Link,
    serving: Serving,
    service_ns: u32,
    rate: RateError,
    until: Duration,
    seed: u64,
) -> Published {
    let mut random = Random::stream(seed, "published");
    let until = until.as_secs_f64() * 1e9;
    let mut clocks = vec![Clock { done_ns: 0.0, error_ns: 0.0, rate: 0.0 }];
    // Servers by the time at which they are free (ns, rounded up), then by their number.
    let mut free = BinaryHeap::from([Reverse((0_u64, 0_u32, 0_usize))]);
    let mut found = Published {
        done_ns: Vec::new(),
        messages: Vec::new(),
        levels: BTreeMap::new(),
        unsettled: 0,
    };
    for _ in 1..nodes {
        let Some(Reverse((from, level, server))) = free.pop() else { break };
        let begun = from as f64;
        let own = exchange(&mut random, link, f64::from(service_ns));
        let done_ns = begun + own.took_ns;
        let error_ns = clocks[server].error_at(done_ns) + own.error_ns;
        let rate = rate.ppb() * 1e-9 * (2.0 * random.uniform() - 1.0);
        let clock = Clock { done_ns, error_ns, rate };
        found.done_ns.push(done_ns);
        found.messages.push(f64::from(own.messages));
        found.unsettled += u64::from(!own.settled);
        let errors = found.levels.entry(level + 1).or_default();
        errors.done.push(error_ns.abs());
        errors.at_end.push(clock.error_at(until.max(done_ns)).abs());
        let at = Duration::from_secs_f64(done_ns * 1e-9).ceil_nanos();
        let at = u64::try_from(at).unwrap_or(u64::MAX);
        if serving.serves(level + 1) {
            free.push(Reverse((at, level + 1, clocks.len())));
        }
        clocks.push(clock);
        free.push(Reverse((at, level, server)));
    }
    let all = [&mut found.done_ns, &mut found.messages];
    let of_levels = found.levels.values_mut().flat_map(|e| [&mut e.done, &mut e.at_end]);
    all.into_iter().chain(of_levels).for_each(|values| values.sort_by(f64::total_cmp));
    found
}

/// One node and its server.
fn exchange(random: &mut Random, link: Link, service_ns: f64) -> Exchanges {
    let (mut took_ns, mut settled) = (0.0, false);
    let (mut shortest, mut error_ns) = (f64::INFINITY, 0.0);
    let mut halves = VecDeque::new();
    let mut messages = 0;
    while !settled && messages < MOST_MESSAGES {
        messages += 1;
        if random.chance(link.loss) {
            took_ns += REPEATED_NS;
            continue;
        }
        let mut way =
            || f64::from(link.minimum_ns) + random.exponential() * f64::from(link.queueing_ns);
        let (out, back) = (way(), way());
        let round_trip = out + service_ns + back;
        took_ns += round_trip + PAUSE_NS;
        if round_trip < shortest {
            // The server's time is that of its answer's departure.
            (shortest, error_ns) = (round_trip, round_trip / 2.0 - back);
        }
        halves.push_back(round_trip / 2.0);
        if halves.len() > COMPARED {
            halves.pop_front();
        }
        let most = halves.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = halves.iter().copied().fold(f64::INFINITY, f64::min);
        settled = halves.len() == COMPARED && most - least < SPREAD_NS;
    }
    Exchanges { took_ns, messages, error_ns, settled }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(nodes: u32, link: Link, serving: Serving) -> Published {
        let (rate, until) = (RateError::from_ppm(15), Duration::from_secs(10));
        start(nodes, link, serving, 2_000, rate, until, 1)
    }

    #[test]
    fn the_more_serve_the_sooner_all_are_done_and_the_farther_off_some_are() {
        let last = |found: &Published| *found.done_ns.last().unwrap();
        let root = run(500, Link::RACK, Serving::Root);
        let two = run(500, Link::RACK, Serving::TwoLevels);
        let all = run(500, Link::RACK, Serving::Everybody);
        assert!(last(&root) > 5.0 * last(&two) && last(&two) > last(&all));
        assert_eq!(root.levels.len(), 1);
        assert_eq!(two.levels.len(), 2);
        assert!(all.levels.len() >= 6, "{}", all.levels.len());
        let nodes: usize = all.levels.values().map(|errors| errors.done.len()).sum();
        assert_eq!(nodes, 499);
    }

    #[test]
    fn without_resynchronization_errors_grow() {
        let found = run(200, Link::DATA_CENTRE, Serving::Root);
        let errors = &found.levels[&1];
        let median = |values: &[f64]| values[values.len() / 2];
        assert!(median(&errors.done) < 2_000.0, "{}", median(&errors.done));
        // 15 ppm of 10 s are 150 us; half of the nodes are off by half of that.
        assert!(median(&errors.at_end) > 40_000.0, "{}", median(&errors.at_end));
    }

    #[test]
    fn the_published_lines() {
        let at_a_second = [Serving::Root, Serving::TwoLevels].map(|s| s.as_published(1000));
        assert_eq!(at_a_second, [1_001.0, 500_501.0]);
        assert_eq!(Serving::Everybody.as_published(10), 1024.0);
    }

    #[test]
    fn much_queueing_takes_many_messages() {
        let (narrow, wide) =
            (run(50, Link::RACK, Serving::Root), run(50, Link::LAN, Serving::Root));
        assert!(wide.messages[25] > 10.0 * narrow.messages[25], "{:?}", wide.messages[25]);
        assert_eq!(wide.unsettled, 0);
    }
}
