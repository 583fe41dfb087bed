//! One group: its members with their leases, what has changed, its topics.

use std::collections::{BTreeMap, BTreeSet};

use timevisor_protocols::bus::between::Between;
use timevisor_protocols::bus::{FromBus, Gone, Info, Refusal, Sides, Who};
use timevisor_time::Duration;

use super::history::{History, Kept};
use super::peers::{News, Past, Peers};
use super::{Connection, GroupId, Out, Settings, tell};
use crate::Name;
use crate::message::{Envelope, MemberId};

/// Where a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub connection: Connection,
    pub handle: u32,
}

/// Who wants to join.
#[derive(Clone, Copy, Debug)]
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

pub struct Group {
    name: Name,
    timeline: Name,
    /// Buses of other hosts, for groups with a key.
    peers: Option<Peers>,
    members: BTreeMap<Name, Member>,
    topics: BTreeMap<Name, History>,
    kept: Kept,
    /// What the members are not told yet.
    changed: BTreeSet<Name>,
    gone: Vec<(Who, Gone)>,
    told_at: Option<Duration>,
    has_told_of_timeline: bool,
}

fn who(id: MemberId) -> Who {
    Who { name: id.name.as_str().to_owned(), incarnation: id.incarnation }
}

impl Group {
    pub fn new(name: Name, timeline: Name, peers: Option<Peers>, kept: Kept) -> Self {
        Self {
            name,
            timeline,
            peers,
            kept,
            members: BTreeMap::new(),
            topics: BTreeMap::new(),
            changed: BTreeSet::new(),
            gone: Vec::new(),
            told_at: None,
            has_told_of_timeline: false,
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
        joining: &Joining,
        now: Duration,
        settings: &Settings,
        out: &mut Vec<Out>,
    ) -> Result<(), (Refusal, String)> {
        let &Joining { place, group, id, timeline, requirement, lease } = joining;
        let group = group.name;
        if timeline != self.timeline {
            let text = format!("group {group} is on timeline {}, not {timeline}", self.timeline);
            return Err((Refusal::Timeline, text));
        }
        if self.info(id.name).is_some() {
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
        let elsewhere = self.peers.iter().flat_map(Peers::members);
        let members = self.members.values().map(|member| &member.info);
        let members = members.chain(elsewhere).cloned().collect();
        let lease_ms = u32::try_from(lease.floor_nanos() / 1_000_000).unwrap_or(u32::MAX);
        let Place { connection, handle } = place;
        tell(connection, &FromBus::Joined { handle, lease_ms, members }, out);
        self.tell_if_due(now, settings, out);
        Ok(())
    }

    /// A member here or elsewhere.
    fn info(&self, name: Name) -> Option<&Info> {
        let here = self.members.get(&name).map(|member| &member.info);
        here.or_else(|| self.peers.as_ref()?.member(name))
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
            super::refuse(connection, handle, Refusal::Full, &text, out);
            // Each subscription is answered.
            let topic = topic.as_str().to_owned();
            return tell(connection, &FromBus::History { handle, topic, sent: 0, dropped: 0 }, out);
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
        to: Option<&Who>,
        topic: Option<Name>,
        message: Vec<u8>,
        now: Duration,
        settings: &Settings,
        out: &mut Vec<Out>,
    ) {
        if let Some(member) = self.members.get_mut(&from) {
            member.heard = now;
        }
        if let Some(peers) = &mut self.peers {
            let topic = topic.map(|topic| topic.as_str().to_owned());
            let said = Between::Message { to: to.cloned(), topic, message: message.clone() };
            out.push(Out::Peers(self.name, peers.seal(self.name, &said)));
        }
        self.deliver(Some(from), to, topic, message, settings, out);
    }

    /// Gives a message to the members of this host that it is for, and keeps it.
    fn deliver(
        &mut self,
        from: Option<Name>,
        to: Option<&Who>,
        topic: Option<Name>,
        message: Vec<u8>,
        settings: &Settings,
        out: &mut Vec<Out>,
    ) {
        // Who is sent to by name is one incarnation: its successor was promised nothing.
        let is_reached = |name: &Name, member: &Member| match (to, topic) {
            (Some(to), _) => *to == member.info.who,
            (None, Some(topic)) => member.topics.contains(&topic),
            (None, None) => Some(*name) != from,
        };
        let mut places = BTreeMap::<Connection, Vec<u32>>::new();
        for (_, member) in self.members.iter().filter(|(name, member)| is_reached(name, member)) {
            places.entry(member.place.connection).or_default().push(member.place.handle);
        }
        if let (Some(topic), None) = (topic, to) {
            let has_room = self.topics.len() < settings.topics || self.topics.contains_key(&topic);
            if has_room {
                let kept = &self.kept;
                let history = self.topics.entry(topic).or_insert_with(|| History::new(kept));
                history.keep(message.clone(), settings);
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

    /// What a bus of another host says. Returns members of this host whose names it has, too, and keeps.
    pub fn heard(
        &mut self,
        bytes: &[u8],
        now: Duration,
        settings: &Settings,
        out: &mut Vec<Out>,
    ) -> Vec<Place> {
        let Some(peers) = &mut self.peers else { return Vec::new() };
        let mut displaced = Vec::new();
        match peers.heard(self.name, self.timeline, bytes, now) {
            None => {}
            Some(News::Timeline(theirs)) => {
                let text = format!(
                    "another host has group {} on timeline {theirs}; its members are not seen here",
                    self.name
                );
                // Once is enough; it goes on as long as that host says so.
                if !std::mem::replace(&mut self.has_told_of_timeline, true) {
                    for member in self.members.values() {
                        let Place { connection, handle } = member.place;
                        super::refuse(connection, handle, Refusal::Timeline, &text, out);
                    }
                }
            }
            Some(News::Message { to, topic, message, bus }) => {
                let sender = Envelope::sender(&message).map(who);
                let topic = topic.map(|topic| topic.parse());
                if let (Ok(sender), Ok(topic)) = (sender, topic.transpose())
                    && peers.is_of(bus, &sender)
                {
                    self.deliver(None, to.as_ref(), topic, message, settings, out);
                }
            }
            Some(News::Members { before, now: members, bus }) => {
                displaced = self.changed_elsewhere(bus, &before, &members, now);
            }
        }
        self.tell_if_due(now, settings, out);
        displaced
    }

    fn changed_elsewhere(
        &mut self,
        bus: u64,
        before: &BTreeMap<Name, Info>,
        members: &BTreeMap<Name, Info>,
        now: Duration,
    ) -> Vec<Place> {
        let mut displaced = Vec::new();
        for (name, info) in members {
            // Of two members of one name the lower incarnation stays, on all hosts.
            if let Some(member) = self.members.get(name) {
                if member.id.incarnation <= info.who.incarnation {
                    self.forget(bus, *name);
                    continue;
                }
                displaced.push(member.place);
                self.remove(*name, Gone::Twice, now);
            } else if self.peers.as_ref().is_some_and(|peers| peers.is_elsewhere(bus, *name)) {
                self.forget(bus, *name);
                continue;
            }
            // How good a clock is changes all the time.
            let is_news =
                before.get(name).is_none_or(|it| it.who != info.who || it.met != info.met);
            if is_news {
                self.changed.insert(*name);
            }
        }
        for (name, info) in before {
            if members.get(name).is_none_or(|it| it.who != info.who) {
                self.gone.push((info.who.clone(), Gone::Left));
            }
        }
        displaced
    }

    fn forget(&mut self, bus: u64, name: Name) {
        if let Some(peers) = &mut self.peers {
            peers.forget(bus, name);
        }
    }

    /// What is kept of other hosts while nobody is here.
    pub fn into_past(self) -> Option<(Name, Past)> {
        self.peers.map(|peers| (self.name, peers.into_past()))
    }

    /// Says to other hosts who is here.
    pub fn say_who_is_here(&mut self, now: Duration, out: &mut Vec<Out>) {
        let Some(peers) = &mut self.peers else { return };
        let members = self.members.values().map(|member| member.info.clone()).collect();
        let roster = peers.roster(self.name, self.timeline, members, now);
        out.push(Out::Peers(self.name, roster));
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
        let unheard = self.peers.as_mut().map(|peers| peers.sweep(now)).unwrap_or_default();
        self.gone.extend(unheard.into_iter().map(|info| (info.who, Gone::Unheard)));
        self.tell_if_due(now, settings, out);
        if self.peers.as_ref().is_some_and(|peers| peers.is_due(now)) {
            self.say_who_is_here(now, out);
        }
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
        let present: Vec<Info> =
            changed.iter().filter_map(|name| self.info(*name)).cloned().collect();
        // Changes here are told to other hosts, too.
        if changed.iter().any(|name| self.members.contains_key(name)) || !self.gone.is_empty() {
            self.say_who_is_here(now, out);
        }
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
        let peers = self.peers.as_ref().map(Peers::next);
        leases.into_iter().chain(told).chain(peers).min()
    }
}
