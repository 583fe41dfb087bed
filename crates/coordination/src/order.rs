//! Messages in the order of time: delivered when every member has passed them.
//!
//! Each message has an interval. Every member says with each message and tick how far its earliest
//! has come, and never stamps anything before that again. So once all members are past the latest
//! of a message, everything that is still to come was surely sent after it. Messages whose intervals
//! overlap have no order; they are delivered by their latest, then by sender and sequence.
//!
//! A member that is silent holds everybody up, so a message waits for [`Settings::hold`] at most.
//! Then it is delivered with the names of those who were not heard. A message that comes after one
//! that it surely precedes is delivered at once, and says by how much it is late.
//!
//! What it does not do: detect losses ([`crate::member`] does, by sequence numbers).

use std::collections::BTreeMap;

use timevisor_time::{Duration, Instant, Interval, Local};

use crate::message::MemberId;

/// Parameters of one subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How long a message waits for members that are silent.
    pub hold: Duration,
    /// How many messages wait at most; the first is delivered early where there are more.
    pub most: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { hold: Duration::from_millis(500), most: 65_536 }
    }
}

/// One message with its place in the order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery<M> {
    /// The message.
    pub message: M,
    /// Who sent it.
    pub from: MemberId,
    /// When it was sent.
    pub interval: Interval<Local>,
    /// How much later one that was delivered before it surely was sent; zero if the order is right.
    pub late: Duration,
    /// Members that may still send something older.
    pub unheard: Vec<MemberId>,
}

#[derive(Clone, Debug)]
struct Held<M> {
    message: M,
    interval: Interval<Local>,
    since: Duration,
}

/// The place in the order.
type Key = (i128, MemberId, u64);

/// One subscription.
#[derive(Clone, Debug)]
pub struct TimeOrder<M> {
    settings: Settings,
    /// How far each member's earliest has come; `None` before it was heard.
    members: BTreeMap<MemberId, Option<Instant<Local>>>,
    held: BTreeMap<Key, Held<M>>,
    /// The greatest earliest that was delivered.
    delivered: Instant<Local>,
}

impl<M> TimeOrder<M> {
    /// A subscription in a group with these members.
    #[must_use]
    pub fn new(settings: Settings, members: impl IntoIterator<Item = MemberId>) -> Self {
        let members = members.into_iter().map(|member| (member, None)).collect();
        Self { settings, members, held: BTreeMap::new(), delivered: Instant::MIN }
    }

    /// A member joined.
    pub fn joined(&mut self, member: MemberId) {
        self.members.entry(member).or_insert(None);
    }

    /// A member left or its lease ended: nobody waits for it any more.
    pub fn left(&mut self, member: MemberId) {
        self.members.remove(&member);
    }

    /// The timeline has another origin: what was held comes first, in the old order.
    pub fn restarted(&mut self) -> Vec<Delivery<M>> {
        let mut out = Vec::new();
        while let Some(((_, from, _), held)) = self.held.pop_first() {
            let Held { message, interval, .. } = held;
            let unheard = self.behind(interval.latest());
            out.push(Delivery { message, from, interval, late: Duration::ZERO, unheard });
        }
        self.members.values_mut().for_each(|earliest| *earliest = None);
        self.delivered = Instant::MIN;
        out
    }

    /// A member's clock has come so far, on the way on which its messages come.
    pub fn passed(&mut self, member: MemberId, earliest: Instant<Local>) {
        let before = self.members.entry(member).or_insert(None);
        *before = Some(before.map_or(earliest, |before| before.max(earliest)));
    }

    /// A message arrives. Its sender has passed its earliest.
    pub fn arrived(
        &mut self,
        from: MemberId,
        sequence: u64,
        interval: Interval<Local>,
        message: M,
        now: Duration,
    ) {
        self.passed(from, interval.earliest());
        let key = (interval.latest().to_bits(), from, sequence);
        self.held.insert(key, Held { message, interval, since: now });
    }

    /// What can be delivered now, in order.
    pub fn deliver(&mut self, now: Duration) -> Vec<Delivery<M>> {
        let mut out = Vec::new();
        while let Some(entry) = self.held.first_entry() {
            let (_, from, _) = *entry.key();
            let interval = entry.get().interval;
            let waited = now - entry.get().since;
            let is_full = self.held.len() > self.settings.most;
            let unheard = self.behind(interval.latest());
            let late = (self.delivered - interval.latest()).max(Duration::ZERO);
            let waits = late == Duration::ZERO && waited < self.settings.hold && !is_full;
            if !unheard.is_empty() && waits {
                break;
            }
            let Some((_, Held { message, interval, .. })) = self.held.pop_first() else { break };
            self.delivered = self.delivered.max(interval.earliest());
            out.push(Delivery { message, from, interval, late, unheard });
        }
        out
    }

    /// When the first message is delivered even if nothing more is heard.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        self.held.first_key_value().map(|(_, held)| held.since + self.settings.hold)
    }

    /// Members that may still send something that is not surely after this.
    fn behind(&self, latest: Instant<Local>) -> Vec<MemberId> {
        let passed = |earliest: &Option<Instant<Local>>| {
            earliest.is_some_and(|earliest| earliest.to_bits() > latest.to_bits())
        };
        let all = self.members.iter();
        all.filter(|(_, earliest)| !passed(earliest)).map(|(member, _)| *member).collect()
    }
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
