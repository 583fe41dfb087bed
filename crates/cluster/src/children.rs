//! Who asks us, and whom new ones are referred to.
//!
//! A server that is asked by everybody becomes slow, so it has room for a number of children; whoever
//! comes after that is answered, once, with the addresses of children that serve. A level of the tree
//! then fills in the time that one server needs for its own children, and a million nodes are two
//! levels deep.
//!
//! Membership is by lease: who has not asked for a while is no child any more. A question names the port where
//! its sender serves others, and anybody can name any number of them, so one address has few places only.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use timevisor_protocols::ntp::precise::{self, Referrals};
use timevisor_protocols::ntp::server::Referrer;
use timevisor_time::Duration;

use crate::address::Address;

pub use timevisor_protocols::ntp::precise::Asker;

/// The most addresses in one answer.
pub const MOST_REFERRALS: usize = precise::MAX_REFERRALS;

/// A child.
#[derive(Clone, Copy, Debug)]
struct Child {
    until: Duration,
    serves: bool,
    /// How often others were referred to it.
    referred: u32,
}

impl Child {
    /// Its place among those whom others are referred to: first those that serve, of these first
    /// those that were named least often. Those that do not serve yet will soon.
    fn rank<A>(&self, at: A) -> (bool, u32, A) {
        (!self.serves, self.referred, at)
    }
}

/// The children of one server; `A` is an address.
#[derive(Clone, Debug)]
pub struct Children<A> {
    all: BTreeMap<A, Child>,
    /// The rank of each.
    ranks: BTreeSet<(bool, u32, A)>,
    /// How many of them are at each host, and in each network that may be one host's.
    at_host: BTreeMap<A, usize>,
    in_network: BTreeMap<A, usize>,
    /// Until when those stay whom nobody can ask, so that nobody is told of them.
    silent: BTreeMap<A, Duration>,
    most: usize,
    /// So many of one address's ports have places.
    most_per_address: usize,
    lease: Duration,
    /// No lease ends before.
    earliest_end: Duration,
}

impl<A: Address> Children<A> {
    /// Room for `most` children, each for as long as it asks again within `lease`.
    #[must_use]
    pub fn new(most: usize, lease: Duration) -> Self {
        Self {
            all: BTreeMap::new(),
            ranks: BTreeSet::new(),
            at_host: BTreeMap::new(),
            in_network: BTreeMap::new(),
            silent: BTreeMap::new(),
            most,
            most_per_address: usize::MAX,
            lease,
            earliest_end: Duration::MAX,
        }
    }

    /// At most so many of the places are for servers at one address, and half of all for those of one IPv6 /64, which
    /// one host may have for itself: who comes after that counts as one that answers nobody.
    #[must_use]
    pub fn with_most_per_address(self, most_per_address: usize) -> Self {
        Self { most_per_address, ..self }
    }

    /// Somebody asks. Returns other servers: whom a new one should ask instead if there is no room for
    /// it, and whom one that has settled may ask too.
    pub fn asked(&mut self, by: A, asker: Asker, now: Duration) -> Vec<A> {
        let until = now + self.lease;
        let serves = asker == Asker::Serving;
        self.sweep(now);
        let referred = match self.all.get(&by) {
            Some(child) => child.referred,
            None if self.all.len() < self.most => {
                // Who serves others is worth more than who does not, and takes its place.
                if !self.has_room() {
                    self.silent.pop_first();
                }
                0
            }
            None => return self.others(None),
        };
        self.put(by, Child { until, serves, referred });
        if asker == Asker::New { Vec::new() } else { self.others(Some(by)) }
    }

    /// The same of somebody who answers nobody, and is never named.
    pub fn asked_by_silent(&mut self, by: A, asker: Asker, now: Duration) -> Vec<A> {
        self.sweep(now);
        if !self.silent.contains_key(&by) && !self.has_room() {
            return self.others(None);
        }
        let until = now + self.lease;
        self.silent.insert(by, until);
        self.earliest_end = self.earliest_end.min(until);
        if asker == Asker::New { Vec::new() } else { self.others(None) }
    }

    fn has_room(&self) -> bool {
        self.all.len() + self.silent.len() < self.most
    }

    fn put(&mut self, at: A, child: Child) {
        self.earliest_end = self.earliest_end.min(child.until);
        if let Some(before) = self.all.insert(at, child) {
            if before.rank(at) == child.rank(at) {
                return;
            }
            self.ranks.remove(&before.rank(at));
        } else {
            *self.at_host.entry(at.host()).or_default() += 1;
            if let Some(network) = at.network() {
                *self.in_network.entry(network).or_default() += 1;
            }
        }
        self.ranks.insert(child.rank(at));
    }

    /// Leases that have ended make room.
    fn sweep(&mut self, now: Duration) {
        if now < self.earliest_end {
            return;
        }
        let (ranks, at_host, in_network) =
            (&mut self.ranks, &mut self.at_host, &mut self.in_network);
        self.all.retain(|at, child| {
            let stays = child.until > now;
            if !stays {
                ranks.remove(&child.rank(*at));
                one_less(at_host, at.host());
                if let Some(network) = at.network() {
                    one_less(in_network, network);
                }
            }
            stays
        });
        self.silent.retain(|_, until| *until > now);
        let ends = self.all.values().map(|child| child.until).chain(self.silent.values().copied());
        self.earliest_end = ends.min().unwrap_or(Duration::MAX);
    }

    /// The first of the children, which have been named once more then.
    fn others(&mut self, but: Option<A>) -> Vec<A> {
        let others = self.ranks.iter().map(|(_, _, at)| *at).filter(|at| Some(*at) != but);
        let found: Vec<A> = others.take(MOST_REFERRALS).collect();
        for at in &found {
            if let Some(child) = self.all.get(at).copied() {
                self.put(*at, Child { referred: child.referred.saturating_add(1), ..child });
            }
        }
        found
    }

    /// Children whose lease has not ended.
    #[must_use]
    pub fn count(&self, now: Duration) -> usize {
        let ends = self.all.values().map(|child| child.until).chain(self.silent.values().copied());
        ends.filter(|until| *until > now).count()
    }
}

fn one_less<A: Address>(counts: &mut BTreeMap<A, usize>, at: A) {
    if let Some(count) = counts.get_mut(&at) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&at);
        }
    }
}

impl Children<SocketAddr> {
    /// Its address has as many places as it may have, and this is none of them.
    fn is_crowded(&self, by: SocketAddr) -> bool {
        if self.all.contains_key(&by) {
            return false;
        }
        let at_host = self.at_host.get(&by.host()).copied().unwrap_or(0);
        let network = by.network().and_then(|network| self.in_network.get(&network)).copied();
        at_host >= self.most_per_address
            || network.is_some_and(|count| count >= (self.most / 2).max(1))
    }
}

impl Referrer for Children<SocketAddr> {
    fn asked(&mut self, by: SocketAddr, asker: Asker, now: Duration) -> Referrals {
        self.sweep(now);
        // Port 0: it serves nobody.
        let silent = by.port() == 0 || self.is_crowded(by);
        Referrals::new(if silent {
            self.asked_by_silent(SocketAddr::new(by.ip(), 0), asker, now)
        } else {
            Self::asked(self, by, asker, now)
        })
    }

    fn some(&mut self) -> Referrals {
        Referrals::new(self.others(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    fn at(seconds: i64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn who_answers_nobody_has_one_place_and_is_never_named() {
        let mut children = Children::new(2, LEASE);
        for second in 0..50 {
            let others = children.asked_by_silent(1, Asker::Serving, at(second));
            assert!(others.is_empty());
        }
        assert_eq!(children.count(at(50)), 1);
        assert!(
            children.asked(2, Asker::Serving, at(50)).is_empty(),
            "the silent one is not named"
        );
        assert!(children.asked(3, Asker::New, at(50)).is_empty(), "the silent one's place");
        assert_eq!(children.asked(5, Asker::New, at(50)), [2, 3], "there is no room");
        assert_eq!(children.asked_by_silent(4, Asker::New, at(50)), [2, 3], "nor for silent ones");
        assert!(children.asked(3, Asker::New, at(50 + 60)).is_empty(), "its lease ends");
        let mut children = Children::new(1, LEASE);
        assert!(children.asked_by_silent(1, Asker::New, at(0)).is_empty());
        assert!(
            children.asked(2, Asker::Serving, at(0)).is_empty(),
            "it takes the silent one's place"
        );
        assert_eq!(
            (children.count(at(0)), children.asked_by_silent(1, Asker::New, at(1))),
            (1, vec![2])
        );
    }

    #[test]
    fn one_address_has_few_places_whatever_ports_it_names() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut children = Children::new(100, LEASE).with_most_per_address(3);
        let asked = |children: &mut Children<SocketAddr>, by: SocketAddr, asker| {
            Referrer::asked(children, by, asker, Duration::ZERO)
        };
        let honest: Vec<SocketAddr> =
            (1..=5).map(|n| SocketAddr::from(([192, 0, 2, n], 123))).collect();
        for by in &honest {
            asked(&mut children, *by, Asker::Serving);
        }
        for number in 0..100_000_u32 {
            let port = u16::try_from(number % 65_535 + 1).unwrap();
            asked(&mut children, SocketAddr::from(([192, 0, 2, 66], port)), Asker::Serving);
        }
        // Three, and one for all that answer nobody as far as is known.
        assert_eq!(children.count(Duration::ZERO), 9);
        // The honest ones are still there, and named like the others.
        for by in &honest {
            asked(&mut children, *by, Asker::Serving);
        }
        assert_eq!(children.count(Duration::ZERO), 9);
        let named = children.others(None);
        assert!(honest.iter().all(|by| named.contains(by)), "{named:?}");
        // Of IPv6, half of all for one network, which may be one host's.
        for host in 1..=80 {
            asked(&mut children, at(&format!("[2001:db8::{host}]:123")), Asker::Serving);
        }
        let named: Vec<SocketAddr> = children.all.keys().copied().collect();
        assert_eq!(named.iter().filter(|at| at.is_ipv6()).count(), 50);
        asked(&mut children, at("[2001:db8:0:1::1]:123"), Asker::Serving);
        assert!(children.all.contains_key(&at("[2001:db8:0:1::1]:123")));
    }

    #[test]
    fn those_who_come_after_it_is_full_are_referred_to_children_that_serve() {
        let mut children = Children::new(3, LEASE);
        for child in 1..=3 {
            assert!(children.asked(child, Asker::New, at(0)).is_empty());
        }
        children.asked(2, Asker::Serving, at(1));
        children.asked(3, Asker::Serving, at(1));
        let referred = children.asked(4, Asker::New, at(1));
        assert_eq!((referred.len(), referred[2]), (3, 1), "one that does not serve yet comes last");
        assert!(children.asked(1, Asker::New, at(1)).is_empty(), "it has not settled yet");
        assert!(!children.asked(2, Asker::Serving, at(1)).contains(&2), "not itself");
        assert_eq!(children.count(at(1)), 3);
    }

    #[test]
    fn referrals_take_turns() {
        let mut children = Children::new(20, LEASE);
        for child in 0..20 {
            children.asked(child, Asker::Serving, at(0));
        }
        let mut counts = std::collections::BTreeMap::<u32, u32>::new();
        for _ in 0..10 {
            let referrals = children.asked(99, Asker::New, at(1));
            assert_eq!(referrals.len(), MOST_REFERRALS);
            referrals.into_iter().for_each(|child| *counts.entry(child).or_default() += 1);
        }
        let (least, most) = (counts.values().min(), counts.values().max());
        assert!(
            counts.len() == 20 && least.zip(most).is_some_and(|(a, b)| b - a < 16),
            "{counts:?}"
        );
    }

    #[test]
    fn a_lease_that_ended_makes_room() {
        let mut children = Children::new(2, LEASE);
        children.asked(1, Asker::Serving, at(0));
        children.asked(2, Asker::Serving, at(50));
        assert!(!children.asked(3, Asker::New, at(59)).is_empty());
        assert!(children.asked(3, Asker::New, at(61)).is_empty());
        assert_eq!(children.count(at(61)), 2);
    }
}
