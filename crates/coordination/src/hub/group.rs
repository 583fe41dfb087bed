//! One group: its members with their leases, what has changed, its topics.

use std::collections::{BTreeMap, BTreeSet};

use timevisor_protocols::bus::{FromBus, Gone, Info, Refusal, Sides, Who};
use timevisor_time::Duration;

use super::history::History;
use super::{Connection, GroupId, Out, Settings, tell};
use crate::Name;
use crate::message::MemberId;

/// Where a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub connection: Connection,
    pub handle: u32,
}

/// Who wants to join.
#[derive(Clone, Debug)]
pub struct Joining {
    pub place: Place,
    pub group: GroupId,
    pub id: MemberId,
    pub timeline: Name,
    pub requirement: Option<Sides>,
    pub lease: Duration,
}

#[derive(Debug)]
struct Member {
    place: Place,
    info: Info,
    id: MemberId,
    lease: Duration,
    heard: Duration,
    topics: BTreeSet<Name>,
}

#[derive(Debug)]
pub struct Group {
    timeline: Name,
    members: BTreeMap<Name, Member>,
    topics: BTreeMap<Name, History>,
    /// What the members are not told yet.
    changed: BTreeSet<Name>,
    gone: Vec<(Who, Gone)>,
    told_at: Option<Duration>,
}

fn who(id: MemberId) -> Who {
    Who { name: id.name.as_str().to_owned(), incarnation: id.incarnation }
}

impl Group {
    pub fn new(timeline: Name) -> Self {
        Self {
            timeline,
            members: BTreeMap::new(),
            topics: BTreeMap::new(),
            changed: BTreeSet::new(),
            gone: Vec::new(),
            told_at: None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn count(&self) -> usize {
        self.members.len()
    }

    pub fn id(&self, name: Name) -> Option<MemberId> {
        self.members.get(&name).map(|member| member.id)
    }

    pub fn join(
        &mut self,
        joining: Joining,
        now: Duration,
        settings: &Settings,
        out: &mut Vec<Out>,
    ) -> Result<(), (Refusal, String)> {
        let Joining { place, group, id, timeline, requirement, lease } = joining;
        let group = group.name;
        if timeline != self.timeline {
            let text = format!("group {group} is on timeline {}, not {timeline}", self.timeline);
            return Err((Refusal::Timeline, text));
        }
        if self.members.contains_key(&id.name) {
            let text = format!(
                "a member called {} is in group {group}; choose another name, or wait until its lease \
                 ends",
                id.name
            );
            return Err((Refusal::NameTaken, text));
        }
        if self.members.len() >= settings.members {
            let text =
                format!("group {group} has {} members, which is the limit", settings.members);
            return Err((Refusal::Full, text));
        }
        let info = Info { who: who(id), requirement, achieved: None, met: false };
        let member = Member { place, info, id, lease, heard: now, topics: BTreeSet::new() };
        self.members.insert(id.name, member);
        self.changed.insert(id.name);
        let members = self.members.values().map(|member| member.info.clone()).collect();
        let lease_ms = u32::try_from(lease.floor_nanos() / 1_000_000).unwrap_or(u32::MAX);
        let Place { connection, handle } = place;
        tell(connection, &FromBus::Joined { handle, lease_ms, members }, out);
        self.tell_if_due(now, settings, out);
        Ok(())
    }

    pub fn remove(&mut self, name: Name, why: Gone, now: Duration) {
        if let Some(member) = self.members.remove(&name) {
            self.changed.remove(&name);
            self.gone.push((who(member.id), why));
            self.told_at.get_or_insert(now);
        }
    }

    pub fn alive(&mut self, name: Name, achieved: Option<Sides>, met: bool, now: Duration) {
        let Some(member) = self.members.get_mut(&name) else { return };
        member.heard = now;
        // How good a clock is changes all the time; that it suffices, or does not, is told at once.
        let is_news =
            member.info.met != met || member.info.achieved.is_none() && achieved.is_some();
        (member.info.achieved, member.info.met) = (achieved, met);
        if is_news {
            self.changed.insert(name);
        }
    }

    pub fn subscribe(
        &mut self,
        name: Name,
        topic: Name,
        history: u32,
        now: Duration,
        settings: &Settings,
        out: &mut Vec<Out>,
    ) {
        let Some(member) = self.members.get_mut(&name) else { return };
        member.heard = now;
        let Place { connection, handle } = member.place;
        if member.topics.len() >= settings.topics && !member.topics.contains(&topic) {
            let text = format!("{} topics of one member, which is the limit", settings.topics);
            return super::refuse(connection, handle, Refusal::Full, &text, out);
        }
        member.topics.insert(topic);
        let (mut sent, mut dropped) = (0, 0);
        if let Some(kept) = self.topics.get(&topic).filter(|_| history > 0) {
            let (messages, before) = kept.last(history);
            dropped = before;
            for message in messages {
                let (handles, message) = (vec![handle], message.clone());
                tell(connection, &FromBus::Deliver { handles, is_old: true, message }, out);
                sent += 1;
            }
        }
        let topic = topic.as_str().to_owned();
        tell(connection, &FromBus::History { handle, topic, sent, dropped }, out);
    }

    pub fn unsubscribe(&mut self, name: Name, topic: Name, now: Duration) {
        if let Some(member) = self.members.get_mut(&name) {
            member.heard = now;
            member.topics.remove(&topic);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a message and where it goes")]
    pub fn send(
        &mut self,
        from: Name,
        to: Option<Who>,
        topic: Option<Name>,
        message: Vec<u8>,
        now: Duration,
        settings: &Settings,
        out: &mut Vec<Out>,
    ) {
        if let Some(member) = self.members.get_mut(&from) {
            member.heard = now;
        }
        // Who is sent to by name is one incarnation: its successor was promised nothing.
        let is_reached = |name: &Name, member: &Member| match (&to, topic) {
            (Some(to), _) => *to == member.info.who,
            (None, Some(topic)) => member.topics.contains(&topic),
            (None, None) => *name != from,
        };
        let mut places = BTreeMap::<Connection, Vec<u32>>::new();
        for (_, member) in self.members.iter().filter(|(name, member)| is_reached(name, member)) {
            places.entry(member.place.connection).or_default().push(member.place.handle);
        }
        if let (Some(topic), None) = (topic, &to) {
            let has_room = self.topics.len() < settings.topics || self.topics.contains_key(&topic);
            if has_room {
                self.topics.entry(topic).or_default().keep(message.clone(), settings);
            }
        }
        let mut frame = FromBus::Deliver { handles: Vec::new(), is_old: false, message };
        for (connection, found) in places {
            if let FromBus::Deliver { handles, .. } = &mut frame {
                *handles = found;
            }
            tell(connection, &frame, out);
        }
    }

    /// Leases end. Returns whose.
    pub fn on_timer(
        &mut self,
        now: Duration,
        settings: &Settings,
        out: &mut Vec<Out>,
    ) -> Vec<Place> {
        let ended = |member: &&Member| now >= member.heard + member.lease;
        let silent: Vec<_> =
            self.members.values().filter(ended).map(|it| (it.id.name, it.place)).collect();
        for (name, _) in &silent {
            self.remove(*name, Gone::Silent, now);
        }
        self.tell_if_due(now, settings, out);
        silent.into_iter().map(|(_, place)| place).collect()
    }

    /// Tells all members what has changed, unless they were told a moment ago.
    pub fn tell_if_due(&mut self, now: Duration, settings: &Settings, out: &mut Vec<Out>) {
        if self.changed.is_empty() && self.gone.is_empty() {
            return;
        }
        if self.told_at.is_some_and(|told| now < told + settings.gather) {
            return;
        }
        self.told_at = Some(now);
        let changed = std::mem::take(&mut self.changed);
        let present: Vec<Info> = changed
            .iter()
            .filter_map(|name| self.members.get(name))
            .map(|member| member.info.clone())
            .collect();
        let gone = std::mem::take(&mut self.gone);
        let mut places = BTreeMap::<Connection, Vec<u32>>::new();
        for member in self.members.values() {
            places.entry(member.place.connection).or_default().push(member.place.handle);
        }
        for (connection, handles) in places {
            let (present, gone) = (present.clone(), gone.clone());
            tell(connection, &FromBus::Members { handles, present, gone }, out);
        }
    }

    pub fn next(&self, gather: Duration) -> Option<Duration> {
        let leases = self.members.values().map(|member| member.heard + member.lease).min();
        let waits = !self.changed.is_empty() || !self.gone.is_empty();
        let told = self.told_at.filter(|_| waits).map(|told| told + gather);
        leases.into_iter().chain(told).min()
    }
}
