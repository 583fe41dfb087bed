//! The buses of other hosts, as one group with a key knows them.
//!
//! Each bus says from time to time who its members are, and which buses it has heard. A bus is
//! believed by those whom it names: they have started before it said so, and what was recorded before
//! that names others. Counts tell repetitions from news.

use std::collections::BTreeMap;

use timevisor_protocols::bus::between::{Between, MAX_BUSES, Opened, PURPOSE};
use timevisor_protocols::bus::{Info, Who};
use timevisor_protocols::nts::aead::Key;
use timevisor_protocols::nts::shared::Secret;
use timevisor_time::Duration;

use crate::Name;

/// How often a bus says who its members are, and for how long it is believed after that.
const PERIOD: Duration = Duration::from_millis(500);
const LEASE_MS: u32 = 2_000;

/// How soon it says so to a bus that it has not heard before.
const SOON: Duration = Duration::from_millis(2);

#[derive(Debug)]
struct Other {
    count: u64,
    ends: Duration,
    knows_us: bool,
    members: BTreeMap<Name, Info>,
}

/// Counts of messages between buses about one group, for the hub's life.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// How many this bus has sent.
    sent: u64,
    /// The last one of each bus that is not heard any more.
    heard: BTreeMap<u64, u64>,
}

/// One group's other buses.
pub struct Peers {
    key: Key,
    own: u64,
    past: Past,
    others: BTreeMap<u64, Other>,
    next: Duration,
}

/// What another bus has said.
pub enum News {
    /// Its members are these now, and were those.
    Members { before: BTreeMap<Name, Info>, now: BTreeMap<Name, Info>, bus: u64 },
    /// A member's message.
    Message { to: Option<Who>, topic: Option<String>, message: Vec<u8>, bus: u64 },
    /// It has this group on another timeline.
    Timeline(String),
}

impl Peers {
    /// `past` is what was known of this group when it last had members here: counts go on, so that
    /// nothing is sealed twice under one count, and nothing old is taken for new.
    pub fn new(secret: &Secret, own: u64, past: Past, now: Duration) -> Self {
        let key = secret.message_key(PURPOSE);
        Self { key, own, past, others: BTreeMap::new(), next: now }
    }

    /// What is kept while the group has no members here.
    pub fn into_past(mut self) -> Past {
        for (bus, other) in self.others {
            self.past.heard.insert(bus, other.count);
        }
        self.past
    }

    /// Whether it is time to say who the members are.
    pub fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    pub fn next(&self) -> Duration {
        let ends = self.others.values().map(|other| other.ends);
        ends.chain([self.next]).min().unwrap_or(self.next)
    }

    /// Says who the members are.
    pub fn roster(
        &mut self,
        group: Name,
        timeline: Name,
        members: Vec<Info>,
        now: Duration,
    ) -> Vec<u8> {
        self.next = now + PERIOD;
        let knows = self.others.keys().copied().collect();
        let timeline = timeline.as_str().to_owned();
        self.seal(group, &Between::Roster { timeline, lease_ms: LEASE_MS, knows, members })
    }

    pub fn seal(&mut self, group: Name, said: &Between) -> Vec<u8> {
        self.past.sent += 1;
        said.seal(&self.key, group.as_str(), self.own, self.past.sent)
    }

    /// All members of other buses that are believed.
    pub fn members(&self) -> impl Iterator<Item = &Info> {
        self.others.values().flat_map(|other| other.members.values())
    }

    /// One of them.
    pub fn member(&self, name: Name) -> Option<&Info> {
        self.others.values().find_map(|other| other.members.get(&name))
    }

    /// Whether a member of that bus is meant.
    pub fn is_of(&self, bus: u64, who: &Who) -> bool {
        let found =
            who.name.parse().ok().and_then(|name: Name| self.others.get(&bus)?.members.get(&name));
        found.is_some_and(|info| info.who == *who)
    }

    /// Bytes of another bus. Nothing if they are not for this group, or a repetition.
    pub fn heard(
        &mut self,
        group: Name,
        timeline: Name,
        bytes: &[u8],
        now: Duration,
    ) -> Option<News> {
        let Opened { bus, count, said } = Between::open(bytes, &self.key, group.as_str()).ok()?;
        if bus == self.own {
            return None;
        }
        if !self.others.contains_key(&bus) {
            let last = self.past.heard.get(&bus).copied().unwrap_or(0);
            if self.others.len() >= MAX_BUSES || count <= last {
                return None;
            }
            let ends = now + lease(LEASE_MS);
            let other = Other { count: last, ends, knows_us: false, members: BTreeMap::new() };
            self.others.insert(bus, other);
            self.next = self.next.min(now + SOON);
        }
        let other = self.others.get_mut(&bus)?;
        if count <= other.count {
            return None;
        }
        other.count = count;
        match said {
            Between::Message { to, topic, message } => {
                other.knows_us.then_some(News::Message { to, topic, message, bus })
            }
            Between::Roster { timeline: theirs, lease_ms, knows, members } => {
                // What this bus does not know cannot be a repetition of what it has heard.
                other.knows_us = knows.contains(&self.own);
                if !other.knows_us {
                    // It has restarted its knowledge, or does not know us yet: it is told soon.
                    self.next = self.next.min(now + SOON);
                    return None;
                }
                other.ends = now + lease(lease_ms);
                if theirs != timeline.as_str() {
                    return Some(News::Timeline(theirs));
                }
                let named = |info: Info| Some((info.who.name.parse::<Name>().ok()?, info));
                let members: BTreeMap<_, _> = members.into_iter().filter_map(named).collect();
                let before = std::mem::replace(&mut other.members, members.clone());
                Some(News::Members { before, now: members, bus })
            }
        }
    }

    /// A member of that bus is not one: its name is taken.
    pub fn forget(&mut self, bus: u64, name: Name) {
        if let Some(other) = self.others.get_mut(&bus) {
            other.members.remove(&name);
        }
    }

    /// Whether another bus than this one has a member of this name.
    pub fn is_elsewhere(&self, bus: u64, name: Name) -> bool {
        let others = self.others.iter().filter(|(other, _)| **other != bus);
        others.into_iter().any(|(_, other)| other.members.contains_key(&name))
    }

    /// Buses that are not heard any more. Returns who was there.
    pub fn sweep(&mut self, now: Duration) -> Vec<Info> {
        let mut gone = Vec::new();
        let heard = &mut self.past.heard;
        self.others.retain(|bus, other| {
            let stays = now < other.ends;
            if !stays {
                heard.insert(*bus, other.count);
                gone.extend(std::mem::take(&mut other.members).into_values());
            }
            stays
        });
        gone
    }
}

fn lease(ms: u32) -> Duration {
    Duration::from_millis(i64::from(ms.min(60_000)))
}
