//! What several peers prove together, and who of them lies.
//!
//! Each peer has facts of its own, so a peer that turns out to be wrong leaves with everything that
//! it said. Together they are the hull of the points that all but `liars` of them cover: with none,
//! their intersection, as narrow as the best forward and the best backward message of any of them.
//! Liars cost width: among three of which one may lie, an end is as good as the second best.
//!
//! A peer that was named as trusted (the root, by its key or its address) is believed alone: it is
//! what the timeline is. Among others, as many as lie and one more have to agree, or what they say is
//! passed on as hearsay only ([`Standing::Told`]). As long as no more than that many lie, nobody
//! honest ever vouches for bounds without the truth: whoever does has heard as many who vouch.
//!
//! Where more peers than may lie contradict what they said before, it is this node's counter that does not keep
//! its limits, or all is possible: nobody is named then, and nothing is vouched for.
//!
//! It is hosts that lie, so hosts are counted, not addresses with ports: what one host says at several ports is one
//! vote, that of their intersection ([`crate::address`]). With no liars, everything that anybody says counts. Who was
//! named has no vote at any port, and is one fewer that may lie among the others.
//!
//! A peer outside of what the others agree on is named when that was so for [`PATIENCE`] of its own
//! answers in a row, and not asked again.

use timevisor_estimate::RateLimits;
use timevisor_estimate::selection::agree;
use timevisor_time::{Interval, Tai};

use crate::address::Address;
use crate::facts::{Facts, Statement};

/// Answers outside of what the others agree on until a peer is named.
pub const PATIENCE: u32 = 2;

/// Answers of anybody that agree with those before, until a peer's contradiction is forgotten.
const FORGIVEN_AFTER: u32 = 64;

/// What bounds are worth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Standing {
    /// Too few were heard: they hold if nobody of those lies.
    Told,
    /// They hold if no more lie than may.
    Vouched,
}

/// One peer; `A` is an address.
#[derive(Clone, Copy, Debug)]
struct Peer<A> {
    at: A,
    /// Who has its vote; `None` if it has none.
    voter: Option<A>,
    facts: Facts,
    /// Servers between it and the master.
    level: u8,
    trusted: bool,
    /// Its answers in a row that were outside.
    outside: u32,
    /// It has contradicted itself; so many answers of anybody without a contradiction end that, for it may have
    /// been named or have gone.
    doubted: u32,
    named: bool,
}

/// What a peer has said, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View<A> {
    /// Its address.
    pub at: A,
    /// Servers between it and the master.
    pub level: u8,
    /// Whether it lies.
    pub named: bool,
    /// What its answers alone give.
    pub interval: Option<Interval<Tai>>,
}

/// What an answer did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// It counts.
    Taken,
    /// It excludes what this peer said before, or what the others agree on.
    Outside,
    /// The peer lies, and was named now.
    Named,
    /// A peer that was named already.
    Ignored,
}

/// The peers of one node.
#[derive(Clone, Debug)]
pub struct Mesh<A> {
    peers: Vec<Peer<A>>,
    /// So many peers may be wrong.
    liars: usize,
    /// Who is believed alone.
    trusted: Option<A>,
}

impl<A: Address> Mesh<A> {
    /// Nobody was heard. `liars` hosts may be wrong, and `trusted` is not.
    #[must_use]
    pub fn new(liars: usize, trusted: Option<A>) -> Self {
        Self { peers: Vec::new(), liars, trusted }
    }

    /// Whose vote this address has: the same for all ports of a host; `None` if it has none.
    #[must_use]
    pub fn voter(&self, at: A) -> Option<A> {
        if self.liars == 0 || self.trusted == Some(at) {
            return Some(at);
        }
        // Somebody who is not root there may listen at another port of it.
        let is_beside = self.trusted.is_some_and(|trusted| trusted.host() == at.host());
        (!is_beside).then_some(at.host())
    }

    /// Hosts that were named at any port.
    fn named_hosts(&self) -> Vec<A> {
        distinct(self.peers.iter().filter(|peer| peer.named).filter_map(|peer| peer.voter))
    }

    /// So many of those who still have votes may lie.
    fn liars_left(&self) -> usize {
        self.liars.saturating_sub(self.named_hosts().len())
    }

    /// One interval for each host that has a vote; who contradicts himself has none.
    fn votes(&self, counter: u64, rate: &RateLimits, but: Option<usize>) -> Vec<Interval<Tai>> {
        let but = but.and_then(|index| self.peers[index].voter);
        let named = self.named_hosts();
        let mut votes: Vec<(A, Option<Interval<Tai>>)> = Vec::new();
        for peer in &self.peers {
            let interval = peer.facts.at(counter, rate);
            let Some((voter, interval)) = peer.voter.zip(interval) else { continue };
            if but == Some(voter) || named.contains(&voter) {
                continue;
            }
            match votes.iter_mut().find(|(other, _)| *other == voter) {
                Some((_, vote)) => *vote = vote.and_then(|vote| vote.intersect(&interval)),
                None => votes.push((voter, Some(interval))),
            }
        }
        votes.into_iter().filter_map(|(_, vote)| vote).collect()
    }

    /// Takes an answer of a peer in, which has this level.
    pub fn hear(&mut self, from: A, said: &Statement, level: u8, rate: &RateLimits) -> Heard {
        let trusted = self.trusted == Some(from);
        let index = match self.peers.iter().position(|peer| peer.at == from) {
            Some(index) => index,
            None => {
                let (facts, voter) = (Facts::default(), self.voter(from));
                self.peers.push(Peer {
                    at: from,
                    voter,
                    facts,
                    level,
                    trusted,
                    outside: 0,
                    doubted: 0,
                    named: false,
                });
                self.peers.len() - 1
            }
        };
        if self.peers[index].named {
            return Heard::Ignored;
        }
        let consistent = self.peers[index].facts.take(said, rate).is_ok();
        self.peers[index].level = level;
        if !consistent {
            // Its clock changed: what it said before is as doubtful as what it says now.
            self.peers[index].facts = Facts::default();
        }
        if consistent {
            self.peers.iter_mut().for_each(|peer| peer.doubted = peer.doubted.saturating_sub(1));
        } else {
            self.peers[index].doubted = FORGIVEN_AFTER;
        }
        if self.counter_is_doubted() {
            self.peers.iter_mut().for_each(|peer| peer.outside = 0);
            return Heard::Outside;
        }
        if !consistent && self.contradicting(|peer| Some(peer.at)) > self.liars.max(1) {
            // All of them may be ports of one host that lies, or this node's counter is wrong.
            return Heard::Outside;
        }
        let outside = !consistent || self.is_outside(index, said.received, rate);
        let peer = &mut self.peers[index];
        if !outside {
            // Where some may lie, who contradicts himself now and then is one of them.
            if self.liars == 0 || peer.doubted == 0 {
                peer.outside = 0;
            }
            return Heard::Taken;
        }
        peer.outside += 1;
        if peer.outside < PATIENCE {
            return Heard::Outside;
        }
        peer.named = true;
        peer.facts = Facts::default();
        Heard::Named
    }

    /// Whether more hosts have contradicted themselves than may lie: the counter by which their answers were
    /// aged is what they have in common. Who is trusted does not lie, and others do not make it doubted.
    #[must_use]
    pub fn counter_is_doubted(&self) -> bool {
        if let Some(trusted) = self.peers.iter().find(|peer| peer.trusted) {
            return trusted.doubted > 0;
        }
        self.contradicting(|peer| peer.voter) > self.liars.max(1)
    }

    /// How many have contradicted themselves lately: addresses, or hosts.
    fn contradicting(&self, who: impl Fn(&Peer<A>) -> Option<A>) -> usize {
        distinct(self.peers.iter().filter(|peer| peer.doubted > 0).filter_map(who)).len()
    }

    /// Whether the others agree on something that this peer excludes.
    fn is_outside(&self, index: usize, counter: u64, rate: &RateLimits) -> bool {
        if self.peers[index].trusted {
            return false;
        }
        let own = self.peers[index].facts.at(counter, rate);
        let others = self.votes(counter, rate, Some(index));
        // Against one other nobody knows who is right, unless that one is trusted.
        let agreed = self.trusted_at(counter, rate).or_else(|| {
            // However few they are: one of two may lie.
            let agreed = agree(&others, self.liars_left()).filter(|_| others.len() >= 2);
            agreed.map(|agreement| agreement.interval)
        });
        own.zip(agreed).is_some_and(|(own, agreed)| own.intersect(&agreed).is_none())
    }

    fn trusted_at(&self, counter: u64, rate: &RateLimits) -> Option<Interval<Tai>> {
        let trusted = self.peers.iter().find(|peer| peer.trusted);
        trusted.and_then(|peer| peer.facts.at(counter, rate))
    }

    /// The interval that holds the timeline's time at `counter`, and what it is worth; `None` if nobody
    /// was heard, or they disagree.
    #[must_use]
    pub fn at(&self, counter: u64, rate: &RateLimits) -> Option<(Interval<Tai>, Standing)> {
        let all = self.votes(counter, rate, None);
        let vouched = if self.counter_is_doubted() { Standing::Told } else { Standing::Vouched };
        if let Some(trusted) = self.trusted_at(counter, rate) {
            // However few they are: a lie that could be true must not narrow what is certain.
            let agreed = agree(&all, self.liars_left()).map(|agreement| agreement.interval);
            let narrower = agreed.and_then(|agreed| agreed.intersect(&trusted));
            return Some((narrower.unwrap_or(trusted), vouched));
        }
        let left = self.liars_left();
        let liars = left.min(all.len().saturating_sub(1) / 2);
        let agreed = agree(&all, liars).map(|agreement| agreement.interval);
        let enough = all.len() > 2 * left;
        let standing = if enough { vouched } else { Standing::Told };
        agreed.map(|agreed| (agreed, standing))
    }

    /// Peers that count.
    pub fn heard(&self) -> impl Iterator<Item = A> + '_ {
        self.peers.iter().filter(|peer| !peer.named).map(|peer| peer.at)
    }

    /// Peers that lie.
    pub fn named(&self) -> impl Iterator<Item = A> + '_ {
        self.peers.iter().filter(|peer| peer.named).map(|peer| peer.at)
    }

    /// Whether this address's host was named, at whatever port.
    #[must_use]
    pub fn is_named(&self, at: A) -> bool {
        let voter = self.voter(at);
        let is_it = |peer: &Peer<A>| peer.at == at || (voter.is_some() && peer.voter == voter);
        self.peers.iter().any(|peer| peer.named && is_it(peer))
    }

    /// What every peer has said, those that lie included.
    pub fn views(&self, counter: u64, rate: &RateLimits) -> impl Iterator<Item = View<A>> + '_ {
        let rate = *rate;
        self.peers.iter().map(move |peer| View {
            at: peer.at,
            level: peer.level,
            named: peer.named,
            interval: peer.facts.at(counter, &rate),
        })
    }

    /// The level of the peer that is nearest to the master; where some may lie, of the trusted one, or of the nearest
    /// that cannot be one of them.
    #[must_use]
    pub fn level(&self) -> Option<u8> {
        let heard = self.peers.iter().filter(|peer| !peer.named);
        if self.liars == 0 {
            return heard.map(|peer| peer.level).min();
        }
        if let Some(trusted) = self.peers.iter().find(|peer| peer.trusted) {
            return Some(trusted.level);
        }
        let mut levels: Vec<u8> = heard.map(|peer| peer.level).collect();
        levels.sort_unstable();
        levels.get(self.liars_left()).or(levels.last()).copied()
    }
}

/// Each of these once; they are few.
fn distinct<A: PartialEq>(all: impl Iterator<Item = A>) -> Vec<A> {
    let mut once = Vec::new();
    for one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use timevisor_time::{Duration, Instant, Period, RateError};

    use super::*;

    fn rate() -> RateLimits {
        let nominal = Period::from_hz(1_000_000_000).unwrap();
        RateLimits::around(nominal, RateError::from_ppm(15))
    }

    /// An answer at `at_us`, of a server that is off by `off_us` and knows it to `half_us`; 30 us of
    /// path each way.
    fn said(at_us: i64, off_us: i64, half_us: i64) -> Statement {
        let counter = |us: i64| u64::try_from(us * 1000).unwrap();
        let time = |us: i64| {
            let middle = Instant::from_unix_nanos(i128::from(us + off_us) * 1000);
            Interval::around(middle, Duration::from_micros(half_us))
        };
        Statement {
            sent: counter(at_us),
            arrived: time(at_us + 30),
            left: time(at_us + 30),
            received: counter(at_us + 60),
        }
    }

    fn truth(counter: u64) -> Instant<Tai> {
        Instant::from_unix_nanos(i128::from(counter))
    }

    #[test]
    fn peers_narrow_each_other() {
        let mut mesh = Mesh::new(0, None);
        assert_eq!(mesh.hear('a', &said(1000, 0, 50), 1, &rate()), Heard::Taken);
        let alone = mesh.at(1_100_000, &rate()).unwrap().0;
        assert_eq!(mesh.hear('b', &said(1000, 40, 50), 2, &rate()), Heard::Taken);
        let (both, standing) = mesh.at(1_100_000, &rate()).unwrap();
        assert_eq!(standing, Standing::Vouched);
        assert!(both.width() < alone.width() && both.contains(truth(1_100_000)));
        assert_eq!(mesh.level(), Some(1));
    }

    #[test]
    fn a_liar_is_named_with_its_second_answer_and_costs_nothing_afterwards() {
        let mut mesh = Mesh::new(1, None);
        for honest in ['a', 'b', 'c'] {
            assert_eq!(mesh.hear(honest, &said(1000, 0, 5), 1, &rate()), Heard::Taken);
        }
        assert_eq!(mesh.hear('x', &said(1000, 500, 5), 1, &rate()), Heard::Outside);
        assert!(mesh.at(1_100_000, &rate()).unwrap().0.contains(truth(1_100_000)));
        assert_eq!(mesh.hear('x', &said(2000, 500, 5), 1, &rate()), Heard::Named);
        assert_eq!(mesh.hear('x', &said(3000, 0, 5), 1, &rate()), Heard::Ignored);
        assert_eq!(mesh.named().collect::<Vec<_>>(), ['x']);
        assert_eq!(mesh.heard().count(), 3);
    }

    #[test]
    fn what_too_few_say_is_hearsay() {
        let mut mesh = Mesh::new(1, None);
        for (peer, standing) in
            [('a', Standing::Told), ('b', Standing::Told), ('c', Standing::Vouched)]
        {
            mesh.hear(peer, &said(1000, 0, 5), 1, &rate());
            assert_eq!(mesh.at(1_100_000, &rate()).unwrap().1, standing);
        }
    }

    #[test]
    fn who_is_trusted_is_believed_alone_and_against_everybody() {
        let mut mesh = Mesh::new(1, Some('r'));
        mesh.hear('r', &said(1000, 0, 5), 0, &rate());
        assert_eq!(mesh.at(1_100_000, &rate()).unwrap().1, Standing::Vouched);
        for liar in ['x', 'y', 'z'] {
            assert_eq!(mesh.hear(liar, &said(1000, 500, 5), 1, &rate()), Heard::Outside);
        }
        let (interval, standing) = mesh.at(1_100_000, &rate()).unwrap();
        assert!(interval.contains(truth(1_100_000)) && standing == Standing::Vouched);
        assert_eq!(mesh.hear('x', &said(2000, 500, 5), 1, &rate()), Heard::Named);
    }

    /// Its lie is inside of what the trusted one leaves open, so it could be true.
    #[test]
    fn who_may_lie_does_not_narrow_what_the_trusted_one_says() {
        let mut mesh = Mesh::new(1, Some('r'));
        mesh.hear('r', &said(1000, 0, 5), 0, &rate());
        let alone = mesh.at(1_100_000, &rate()).unwrap().0;
        mesh.hear('x', &said(1000, 32, 1), 1, &rate());
        assert_eq!(mesh.at(1_100_000, &rate()), Some((alone, Standing::Vouched)));
        // A second one does: not both lie.
        mesh.hear('a', &said(1000, 0, 1), 1, &rate());
        let (interval, _) = mesh.at(1_100_000, &rate()).unwrap();
        assert!(interval.contains(truth(1_100_000)) && interval.width() < alone.width());
    }

    /// By this node's counter all clocks are 200 ppm slow: it is the counter.
    #[test]
    fn whom_everybody_contradicts_names_nobody_and_vouches_for_nothing() {
        let mut mesh = Mesh::new(0, None);
        for n in 1..10 {
            for at in ['a', 'b', 'c'] {
                let heard = mesh.hear(at, &said(n * 1_000_000, n * -200, 5), 1, &rate());
                assert_ne!(heard, Heard::Named, "{n} {at}");
            }
            let now = u64::try_from(n).unwrap() * 1_000_000_000 + 100_000;
            let standing = mesh.at(now, &rate()).map(|(_, standing)| standing);
            assert_eq!(standing == Some(Standing::Vouched), n == 1, "{n}");
        }
        assert!(mesh.counter_is_doubted());
        // It keeps its limits again.
        for n in 0..=i64::from(FORGIVEN_AFTER) {
            for at in ['a', 'b', 'c'] {
                mesh.hear(at, &said(9_000_200 + n * 1000, -1800, 5), 1, &rate());
            }
        }
        assert!(!mesh.counter_is_doubted());
        // One that steps is no reason to doubt the counter.
        assert_eq!(mesh.hear('a', &said(10_000_000, 3000, 5), 1, &rate()), Heard::Outside);
        assert_eq!(mesh.hear('a', &said(10_001_000, 9000, 5), 1, &rate()), Heard::Named);
    }

    #[test]
    fn liars_do_not_make_a_node_doubt_its_counter_beside_a_trusted_one() {
        let mut mesh = Mesh::new(1, Some('r'));
        for n in 1..10 {
            mesh.hear('r', &said(n * 1000, 0, 5), 0, &rate());
            for (liar, off) in [('x', 3000), ('y', -3000)] {
                mesh.hear(liar, &said(n * 1000 + 100, off * n, 5), 1, &rate());
            }
            let (_, standing) = mesh.at(10_000_000, &rate()).unwrap();
            assert_eq!((standing, mesh.counter_is_doubted()), (Standing::Vouched, false));
        }
        assert_eq!(mesh.named().count(), 2);
        // It contradicts itself: only the counter can be wrong.
        mesh.hear('r', &said(11_000, 9000, 5), 0, &rate());
        assert!(mesh.counter_is_doubted());
    }

    #[test]
    fn a_doubt_ends_although_those_who_raised_it_are_gone() {
        let mut mesh = Mesh::new(0, None);
        for at in ['a', 'b'] {
            mesh.hear(at, &said(1000, 0, 5), 1, &rate());
            mesh.hear(at, &said(2000, 9000, 5), 1, &rate());
        }
        assert!(mesh.counter_is_doubted());
        for n in 0..=i64::from(FORGIVEN_AFTER) {
            mesh.hear('c', &said(3000 + n * 1000, 9000, 5), 1, &rate());
        }
        assert!(!mesh.counter_is_doubted());
    }

    /// One of the two others may lie: what both leave open is no reason to name a third.
    #[test]
    fn a_liar_and_one_other_name_nobody() {
        let mut mesh = Mesh::new(1, None);
        mesh.hear('b', &said(1000, 0, 500), 1, &rate());
        mesh.hear('x', &said(1000, 200, 5), 1, &rate());
        for at in [1000, 2000, 3000] {
            assert_eq!(mesh.hear('a', &said(at, 0, 5), 1, &rate()), Heard::Taken);
        }
        // Outside of all that anybody says, it is named.
        for (at, heard) in [(1000, Heard::Outside), (2000, Heard::Named)] {
            assert_eq!(mesh.hear('y', &said(at, 9000, 5), 1, &rate()), heard);
        }
    }

    /// Two honest hosts, and one that lies at three ports.
    #[test]
    fn a_host_with_several_ports_outvotes_nobody() {
        let at = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
        let mut mesh = Mesh::new(1, None);
        for port in ["10.0.0.9:1", "10.0.0.9:2", "10.0.0.9:3"] {
            mesh.hear(at(port), &said(1000, 500, 5), 1, &rate());
            let (_, standing) = mesh.at(1_100_000, &rate()).unwrap();
            assert_eq!(standing, Standing::Told, "{port}");
        }
        for honest in ["10.0.0.1:1", "10.0.0.2:1"] {
            assert_ne!(mesh.hear(at(honest), &said(1000, 0, 5), 1, &rate()), Heard::Named);
        }
        let (interval, standing) = mesh.at(1_100_000, &rate()).unwrap();
        assert!(interval.contains(truth(1_100_000)) && standing == Standing::Vouched);
        for (at_us, heard) in [(2000, Heard::Outside), (3000, Heard::Named)] {
            mesh.hear(at("10.0.0.1:1"), &said(at_us, 0, 5), 1, &rate());
            mesh.hear(at("10.0.0.2:1"), &said(at_us, 0, 5), 1, &rate());
            assert_eq!(mesh.hear(at("10.0.0.9:1"), &said(at_us, 500, 5), 1, &rate()), heard);
        }
    }

    /// As many as it takes, of which one lies: when it was named, the other two are enough.
    #[test]
    fn naming_the_liar_leaves_enough_to_vouch() {
        let mut mesh = Mesh::new(1, None);
        for at_us in [1000, 2000] {
            for (peer, off) in [('a', 0), ('b', 10), ('x', 500)] {
                mesh.hear(peer, &said(at_us, off, 20), 1, &rate());
            }
        }
        assert_eq!(mesh.named().collect::<Vec<_>>(), ['x']);
        let (interval, standing) = mesh.at(2_100_000, &rate()).unwrap();
        assert!(interval.contains(truth(2_100_000)) && standing == Standing::Vouched);
    }

    /// What it says changes between two, both inside of what the others leave open.
    #[test]
    fn who_contradicts_himself_now_and_then_is_named() {
        let mut mesh = Mesh::new(1, None);
        mesh.hear('b', &said(1000, 0, 500), 1, &rate());
        mesh.hear('c', &said(1000, 0, 500), 1, &rate());
        let all = (0..8).map(|n| {
            let off = if n % 4 < 2 { 200 } else { -200 };
            mesh.hear('x', &said(2000 + n * 100, off, 5), 1, &rate())
        });
        assert!(all.collect::<Vec<_>>().contains(&Heard::Named));
    }

    /// Ports of one host contradict themselves, as this node's counter would have them do: no proof of either.
    #[test]
    fn ports_of_one_host_that_all_contradict_themselves_are_not_named() {
        let at = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
        let mut mesh = Mesh::new(1, None);
        for n in 1..10 {
            for port in ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"] {
                let heard = mesh.hear(at(port), &said(n * 1_000_000, n * -200, 5), 1, &rate());
                assert_ne!(heard, Heard::Named, "{n} {port}");
            }
        }
    }

    /// Somebody who is not root at the master's host listens at another port of it.
    #[test]
    fn another_port_of_the_trusted_host_has_no_vote() {
        let at = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
        let mut mesh = Mesh::new(1, Some(at("10.0.0.1:1")));
        mesh.hear(at("10.0.0.1:1"), &said(1000, 0, 50), 0, &rate());
        let alone = mesh.at(1_100_000, &rate());
        for port in ["10.0.0.1:2", "10.0.0.1:3"] {
            mesh.hear(at(port), &said(1000, 40, 5), 0, &rate());
            assert_eq!(mesh.at(1_100_000, &rate()), alone);
        }
    }

    #[test]
    fn two_that_disagree_name_nobody_and_vouch_for_nothing() {
        let mut mesh = Mesh::new(1, None);
        mesh.hear('a', &said(1000, 0, 5), 1, &rate());
        mesh.hear('b', &said(1000, 500, 5), 1, &rate());
        assert_eq!(mesh.at(1_100_000, &rate()), None);
        assert_eq!(mesh.named().count(), 0);
    }

    #[test]
    fn a_server_that_contradicts_itself_starts_over() {
        let mut mesh = Mesh::new(0, None);
        mesh.hear('a', &said(1000, 0, 5), 1, &rate());
        assert_eq!(mesh.hear('a', &said(2000, 900, 5), 1, &rate()), Heard::Outside);
        assert_eq!(mesh.at(2_100_000, &rate()), None);
        assert_eq!(mesh.hear('a', &said(3000, 900, 5), 1, &rate()), Heard::Taken);
    }
}
