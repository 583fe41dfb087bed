//! Who begins a cluster's own timeline, and who continues it when its master is gone.
//!
//! Every answer says how long ago the master was heard, by whatever path: its own say zero, and each
//! server adds what has passed since. So everybody knows of a master that anybody still hears, and
//! nobody else needs to be asked. Once that is longer than [`Settings::after`], whoever is nearest to
//! the master continues: first by level, then by width (in steps of four), then by address, each a [`Settings::step`]
//! after the one before. Nobody votes: two that were cut off from each other both continue, under
//! origins with different names, and the greater one ([`crate::node::Origin`]) stays when they meet.
//!
//! The successor begins at the end of its own bounds, and further by twice the widest bounds that it
//! has heard of: a host's estimate before was ahead of the timeline by no more than these, and its first
//! one after is behind by no more than these, so it does not go back. Of hosts that the successor has not heard of
//! this is not so (13 of 31,054 that went over in random worlds): they are told of a disruption like all others.
//!
//! Before that it asks everybody whom it knows whether they know better (`node`), so that two rarely
//! continue at once.
//!
//! What it does not do: protect a timeline from a host that lies about its origin. Whoever may answer
//! may be master.

use std::collections::BTreeMap;

use timevisor_time::Duration;

/// Servers that are remembered.
const MOST_OTHERS: usize = 64;
/// A server that has not answered for so many times [`Settings::after`] is nobody's predecessor.
const FRESH: i64 = 2;
/// So many times [`Settings::after`] later nobody is left who knows the timeline.
const LONG: i64 = 3;

/// When a node takes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The master is gone when nobody has heard it for so long.
    pub after: Duration,
    /// Between one candidate and the next.
    pub step: Duration,
    /// Whether this node may be master: others have to be able to ask it.
    pub leads: bool,
}

/// How near a node is to the master.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank<A> {
    /// Servers between it and the master.
    pub level: u8,
    /// Of its bounds, from earliest to latest.
    pub width: Duration,
    /// Its address.
    pub at: A,
}

impl<A> Rank<A> {
    /// By which candidates take turns: widths in steps of four, because two that measure each other
    /// at different moments must come to the same order.
    fn class(self) -> (u8, u32, A) {
        let ns = u64::try_from(self.width.ceil_nanos()).unwrap_or(u64::MAX);
        (self.level, (u64::BITS - ns.leading_zeros()) / 2, self.at)
    }
}

/// What another server last said.
#[derive(Clone, Copy, Debug)]
struct Other {
    level: u8,
    width: Duration,
    heard: Duration,
}

/// What one node knows of the master and of other candidates; `A` is an address.
#[derive(Clone, Debug)]
pub struct Succession<A> {
    settings: Settings,
    /// When this began, or the timeline's origin changed.
    since: Duration,
    /// When anybody last heard the master.
    master: Option<Duration>,
    others: BTreeMap<A, Other>,
    /// Those that said that they have no timeline.
    without: Vec<A>,
    /// Added to a turn that others may have, too.
    jitter: Duration,
}

impl<A: Copy + Ord> Succession<A> {
    /// Nobody was heard. `random` keeps two that see themselves at the same place from acting at once.
    #[must_use]
    pub fn new(settings: Settings, random: u64, now: Duration) -> Self {
        let (others, without) = (BTreeMap::new(), Vec::new());
        let part = i64::try_from(random % 1024).unwrap_or(0);
        let jitter = Duration::from_nanos(settings.step.floor_nanos() / 2048 * part);
        Self { settings, since: now, master: None, others, without, jitter }
    }

    /// A server of this rank answered, which heard the master so long ago, by whatever path.
    pub fn hear(&mut self, rank: Rank<A>, silence: Option<Duration>, now: Duration) {
        let Rank { level, width, at } = rank;
        self.without.retain(|other| *other != at);
        if let Some(silence) = silence {
            // What is said to be of the future is of now at best.
            let heard = now - silence.max(Duration::ZERO);
            self.master = Some(self.master.map_or(heard, |before| before.max(heard)));
        }
        if self.others.len() >= MOST_OTHERS && !self.others.contains_key(&at) {
            let oldest = self.others.iter().min_by_key(|(_, other)| other.heard);
            if let Some(oldest) = oldest.map(|(at, _)| *at) {
                self.others.remove(&oldest);
            }
        }
        self.others.insert(at, Other { level, width, heard: now });
    }

    /// A server answered that it has no timeline.
    pub fn hear_none(&mut self, at: A) {
        if !self.without.contains(&at) && self.without.len() < MOST_OTHERS {
            self.without.push(at);
        }
    }

    /// The timeline has another origin, whose master was there just now.
    pub fn begin_anew(&mut self, now: Duration) {
        (self.since, self.master) = (now, None);
        self.others.clear();
        self.without.clear();
    }

    /// How long nobody has heard the master; `None` if nobody ever has.
    #[must_use]
    pub fn silence(&self, now: Duration) -> Option<Duration> {
        self.master.map(|heard| (now - heard).max(Duration::ZERO))
    }

    /// When anybody last heard the master.
    #[must_use]
    pub fn master_heard(&self) -> Option<Duration> {
        self.master
    }

    /// Whether the master is gone, as far as this node knows.
    #[must_use]
    pub fn is_gone(&self, now: Duration) -> bool {
        now - self.master.unwrap_or(self.since) > self.settings.after
    }

    /// When a node of this rank continues the timeline, unless the master is heard before.
    #[must_use]
    pub fn continues_at(&self, own: Rank<A>) -> Duration {
        let last = self.master.unwrap_or(self.since);
        self.turn(last + self.settings.after + self.jitter, self.nearer(own, last))
    }

    /// When a node that has lost the timeline begins it again: after everybody who may know it.
    #[must_use]
    pub fn begins_again_at(&self, own: Rank<A>) -> Duration {
        let wait = self.settings.after.floor_nanos().saturating_mul(LONG);
        self.continues_at(own) + Duration::from_nanos(wait)
    }

    /// When a node begins a timeline that nobody has. `seeds` are all that it knows of. Where each of
    /// them has said that it has none, nobody needs to be waited for.
    #[must_use]
    pub fn begins_at(&self, own: A, seeds: &[A]) -> Duration {
        let others: Vec<&A> = seeds.iter().filter(|seed| **seed != own).collect();
        let all_without =
            !others.is_empty() && others.iter().all(|seed| self.without.contains(seed));
        let wait = if all_without { Duration::ZERO } else { self.settings.after };
        // Seeds first, in the order of their addresses: all of them know the same list.
        if seeds.contains(&own) {
            let before = others.iter().filter(|seed| ***seed < own).count();
            return self.turn(self.since + wait, before);
        }
        self.turn(self.since + wait + self.jitter, others.len())
    }

    /// The widest bounds that others may have by now, which `growth` widens by what a clock may have
    /// drifted within a span.
    #[must_use]
    pub fn widest(&self, now: Duration, growth: impl Fn(Duration) -> Duration) -> Duration {
        let width = |other: &Other| other.width + growth(now - other.heard);
        self.others.values().map(width).max().unwrap_or(Duration::ZERO)
    }

    fn turn(&self, first: Duration, before: usize) -> Duration {
        if !self.settings.leads {
            return Duration::MAX;
        }
        let step = self.settings.step.floor_nanos();
        let before = i64::try_from(before).unwrap_or(i64::MAX);
        first + Duration::from_nanos(step.saturating_mul(before))
    }

    /// How many others that answered lately are nearer to the master, which itself is at level 0.
    fn nearer(&self, own: Rank<A>, last: Duration) -> usize {
        let fresh = Duration::from_nanos(self.settings.after.floor_nanos().saturating_mul(FRESH));
        let candidates = self.others.iter().filter(|(at, other)| {
            let rank = Rank { level: other.level, width: other.width, at: **at };
            other.level > 0 && last - other.heard < fresh && rank.class() < own.class()
        });
        candidates.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings =
        Settings { after: Duration::from_secs(12), step: Duration::from_secs(4), leads: true };

    fn s(seconds: i64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn rank(at: char, level: u8, width_us: i64) -> Rank<char> {
        Rank { level, width: Duration::from_micros(width_us), at }
    }

    #[test]
    fn a_master_that_anybody_hears_is_there() {
        let mut node = Succession::new(SETTINGS, 0, s(0));
        node.hear(rank('b', 1, 10), Some(s(2)), s(100));
        assert_eq!(node.silence(s(101)), Some(s(3)));
        // What is older teaches nothing.
        node.hear(rank('c', 2, 10), Some(s(9)), s(101));
        assert_eq!(node.silence(s(101)), Some(s(3)));
        assert!(!node.is_gone(s(110)) && node.is_gone(s(111)));
        // Nobody is of the future.
        node.hear(rank('b', 1, 10), Some(s(-5)), s(102));
        assert_eq!(node.silence(s(102)), Some(s(0)));
    }

    #[test]
    fn the_nearest_continues_first() {
        let mut node = Succession::new(SETTINGS, 0, s(0));
        node.hear(rank('m', 0, 0), Some(s(0)), s(100));
        assert_eq!(node.continues_at(rank('a', 1, 50)), s(112), "nobody is nearer");
        node.hear(rank('b', 1, 10), None, s(100));
        assert_eq!(node.continues_at(rank('a', 1, 50)), s(116), "b has narrower bounds");
        assert_eq!(node.continues_at(rank('a', 1, 5)), s(112));
        node.hear(rank('c', 2, 1), None, s(100));
        assert_eq!(node.continues_at(rank('a', 1, 50)), s(116), "c is further away");
        assert_eq!(node.continues_at(rank('d', 2, 50)), s(120));
    }

    #[test]
    fn who_cannot_be_asked_never_leads() {
        let node = Succession::new(Settings { leads: false, ..SETTINGS }, 0, s(0));
        assert_eq!(node.continues_at(rank('a', 1, 1)), Duration::MAX);
        assert_eq!(node.begins_at('a', &['a', 'b']), Duration::MAX);
    }

    #[test]
    fn the_first_seed_begins_and_waits_for_nobody_who_has_said_that_he_has_none() {
        let mut node = Succession::new(SETTINGS, 0, s(0));
        let seeds = ['a', 'b', 'c'];
        assert_eq!(node.begins_at('a', &seeds), s(12));
        assert_eq!(node.begins_at('c', &seeds), s(20));
        assert_eq!(node.begins_at('x', &seeds), s(24), "after all seeds");
        node.hear_none('b');
        assert_eq!(node.begins_at('a', &seeds), s(12), "c may know one");
        node.hear_none('c');
        assert_eq!(node.begins_at('a', &seeds), s(0));
        // One alone waits, too: others may be on their way.
        assert_eq!(node.begins_at('a', &['a']), s(12));
    }

    #[test]
    fn the_widest_bounds_grow_since_they_were_heard() {
        let mut node = Succession::new(SETTINGS, 0, s(0));
        node.hear(rank('b', 1, 10), None, s(100));
        node.hear(rank('c', 2, 30), None, s(110));
        let growth = |span: Duration| Duration::from_micros(span.floor_nanos() / 1_000_000_000);
        assert_eq!(node.widest(s(120), growth).ceil_nanos(), 40_000);
        node.begin_anew(s(121));
        assert_eq!(node.widest(s(130), growth), Duration::ZERO);
        assert_eq!(node.silence(s(130)), None);
    }
}
