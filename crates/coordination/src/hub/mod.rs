//! The hub: groups, their members and messages, as the bus of one host keeps them.
//!
//! Programs send frames ([`timevisor_protocols::bus`]) on connections. The hub returns the frames to
//! write and the connections to end. It carries a message to every member, or to those who subscribed
//! to its topic, and knows nothing of what members agree on.
//!
//! What one program can do to others is limited: names are unique, messages carry their sender's
//! name, groups with a key ask for a proof, and there are so many members, groups, topics and kept
//! bytes at most.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | connections and what they ask for |
//! | `group.rs` | one group: members, leases, changes, topics |
//! | `history.rs` | the messages of a topic that were kept |
//! | `peers.rs` | the buses of other hosts |
//!
//! A group with a key is one group on all hosts whose buses know the key and can reach each other. Who
//! joins on a host where nobody was before gets no messages from before.
//!
//! What it does not do: open sockets.

mod group;
mod history;
mod peers;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use timevisor_protocols::bus::{FromBus, Gone, MAX_MESSAGE, Refusal, ToBus, VERSION, Who};
use timevisor_protocols::nts::shared::Secret;
use timevisor_time::Duration;

use crate::Name;
use crate::message::{Envelope, MemberId};
use group::{Group, Joining, Place};
use history::Kept;
use peers::{Past, Peers};

/// Separates proofs for groups from other uses of a key.
pub const PURPOSE: &[u8] = b"timevisor bus: join a group";

/// A connection, numbered by the caller.
pub type Connection = u64;

/// Limits of a hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The most groups with a key, and without one of each user.
    pub groups: usize,
    /// The most members of a group.
    pub members: usize,
    /// The most members on one connection.
    pub members_per_connection: usize,
    /// The most topics of a group that messages are kept of.
    pub topics: usize,
    /// The most messages of a topic that are kept.
    pub history: usize,
    /// The most bytes of a topic that are kept.
    pub history_bytes: usize,
    /// The most bytes that all groups of one user keep, or those with a key.
    pub kept_bytes: usize,
    /// The longest and the shortest lease.
    pub longest_lease: Duration,
    /// See above.
    pub shortest_lease: Duration,
    /// How long changes of the membership are gathered before all are told.
    pub gather: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            groups: 64,
            members: timevisor_protocols::bus::MAX_MEMBERS,
            members_per_connection: 1024,
            topics: 64,
            history: 1000,
            history_bytes: 8 << 20,
            kept_bytes: 128 << 20,
            longest_lease: Duration::from_secs(60),
            shortest_lease: Duration::from_millis(200),
            gather: Duration::from_millis(10),
        }
    }
}

/// Which groups without a key a connection may join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// A program of this user on this host. Groups without a key are each user's own: two users'
    /// groups of one name are two groups.
    Local(u32),
    /// Over the network: none.
    Remote,
}

/// A group: of a user, or with a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GroupId {
    /// Whose it is; `None` for groups with a key.
    pub user: Option<u32>,
    /// Its name.
    pub name: Name,
}

/// What the caller does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// Write this frame's content.
    Frame(Connection, Vec<u8>),
    /// End the connection after what was written.
    Close(Connection),
    /// Carry this to the buses of other hosts that have this group, if they can be reached.
    Peers(Name, Vec<u8>),
}

/// A member that has to prove that it knows the key.
struct Challenged {
    joining: Joining,
    nonce: [u8; 16],
}

struct Client {
    trust: Trust,
    welcome: bool,
    /// The group of each member.
    members: BTreeMap<u32, (GroupId, Name)>,
    challenged: BTreeMap<u32, Challenged>,
}

/// All groups of one host.
pub struct Hub {
    settings: Settings,
    incarnation: u64,
    keys: BTreeMap<Name, Secret>,
    clients: BTreeMap<Connection, Client>,
    groups: BTreeMap<GroupId, Group>,
    /// Of groups with a key that have no members here now.
    past: BTreeMap<Name, Past>,
    /// What is kept for whose groups.
    kept: BTreeMap<Option<u32>, Kept>,
}

impl Hub {
    /// A hub with these keys of groups. `incarnation` is random: programs see by it that the bus has
    /// restarted.
    #[must_use]
    pub fn new(settings: Settings, keys: BTreeMap<Name, Secret>, incarnation: u64) -> Self {
        Self {
            settings,
            incarnation,
            keys,
            clients: BTreeMap::new(),
            groups: BTreeMap::new(),
            past: BTreeMap::new(),
            kept: BTreeMap::new(),
        }
    }

    /// A program has connected.
    pub fn connected(&mut self, connection: Connection, trust: Trust) {
        let client =
            Client { trust, welcome: false, members: BTreeMap::new(), challenged: BTreeMap::new() };
        self.clients.insert(connection, client);
    }

    /// A connection has ended: its members are gone.
    pub fn disconnected(&mut self, connection: Connection, now: Duration, out: &mut Vec<Out>) {
        let Some(client) = self.clients.remove(&connection) else { return };
        for (group, name) in client.members.into_values() {
            self.remove(group, name, Gone::Disconnected, now, out);
        }
    }

    /// A frame's content. `random` is for a challenge, and is used once.
    pub fn frame(
        &mut self,
        connection: Connection,
        content: &[u8],
        random: [u8; 16],
        now: Duration,
        out: &mut Vec<Out>,
    ) {
        let frame = match ToBus::decode(content) {
            Ok(frame) => frame,
            Err(error) => {
                let text = format!("a frame cannot be read: {error}");
                refuse(connection, 0, Refusal::Version, &text, out);
                out.push(Out::Close(connection));
                return;
            }
        };
        let Some(client) = self.clients.get_mut(&connection) else { return };
        if let ToBus::Hello { version, .. } = frame {
            if client.welcome {
                refuse(connection, 0, Refusal::Version, "a hello comes first, and once", out);
                out.push(Out::Close(connection));
            } else if version == VERSION {
                client.welcome = true;
                let incarnation = self.incarnation;
                tell(connection, &FromBus::Welcome { version, incarnation }, out);
            } else {
                let text = format!("version {version} is not spoken here; this bus has {VERSION}");
                refuse(connection, 0, Refusal::Version, &text, out);
                out.push(Out::Close(connection));
            }
            return;
        }
        if !client.welcome {
            refuse(connection, 0, Refusal::Version, "a hello comes first", out);
            out.push(Out::Close(connection));
            return;
        }
        self.asked(connection, frame, random, now, out);
    }

    /// What the bus of another host says about a group.
    pub fn heard(&mut self, group: Name, bytes: &[u8], now: Duration, out: &mut Vec<Out>) {
        let Some(found) = self.groups.get_mut(&GroupId { user: None, name: group }) else { return };
        for place in found.heard(bytes, now, &self.settings, out) {
            let text = "another host has a member of this name; choose another one";
            self.displace(place, text, out);
        }
    }

    /// A member is there no more, and its program did not ask for it.
    fn displace(&mut self, place: Place, text: &str, out: &mut Vec<Out>) {
        refuse(place.connection, place.handle, Refusal::Removed, text, out);
        if let Some(client) = self.clients.get_mut(&place.connection) {
            client.members.remove(&place.handle);
        }
    }

    /// Leases end, changes are told.
    pub fn on_timer(&mut self, now: Duration, out: &mut Vec<Out>) {
        let mut silent = Vec::new();
        for group in self.groups.values_mut() {
            silent.extend(group.on_timer(now, &self.settings, out));
        }
        for place in silent {
            let text = "the member was silent for longer than its lease; join again";
            self.displace(place, text, out);
        }
        let empty: Vec<_> =
            self.groups.iter().filter(|(_, group)| group.is_empty()).map(|(id, _)| *id).collect();
        for id in empty {
            if let Some(mut group) = self.groups.remove(&id) {
                group.say_who_is_here(now, out);
                self.past.extend(group.into_past());
            }
        }
        let groups = &self.groups;
        self.kept.retain(|user, _| groups.keys().any(|group| group.user == *user));
    }

    /// When [`Self::on_timer`] has something to do.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        self.groups.values().filter_map(|group| group.next(self.settings.gather)).min()
    }

    /// How many members a connection has. Who had to prove that it knows a key has done so.
    #[must_use]
    pub fn members_on(&self, connection: Connection) -> usize {
        self.clients.get(&connection).map_or(0, |client| client.members.len())
    }

    /// Groups and how many members each has.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, usize)> + '_ {
        self.groups.iter().map(|(id, group)| (*id, group.count()))
    }

    fn asked(
        &mut self,
        connection: Connection,
        frame: ToBus,
        random: [u8; 16],
        now: Duration,
        out: &mut Vec<Out>,
    ) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        match frame {
            ToBus::Hello { .. } => {}
            ToBus::Join { handle, group, who, timeline, requirement, lease_ms } => {
                let is_used =
                    client.members.contains_key(&handle) || client.challenged.contains_key(&handle);
                if is_used {
                    let text = "this handle is in use on this connection";
                    return refuse(connection, handle, Refusal::Handle, text, out);
                }
                let most = self.settings.members_per_connection;
                if client.members.len() + client.challenged.len() >= most {
                    let text = format!("{most} members on one connection; open another one");
                    return refuse(connection, handle, Refusal::Full, &text, out);
                }
                let names = group.parse::<Name>().and_then(|group| {
                    Ok((group, who.name.parse::<Name>()?, timeline.parse::<Name>()?))
                });
                let (group_name, name, timeline) = match names {
                    Ok(names) => names,
                    Err(error) => {
                        return refuse(connection, handle, Refusal::Name, &error.to_string(), out);
                    }
                };
                let place = Place { connection, handle };
                let id = MemberId { name, incarnation: who.incarnation };
                let lease = Duration::from_millis(i64::from(lease_ms))
                    .max(self.settings.shortest_lease)
                    .min(self.settings.longest_lease);
                let is_sealed = self.keys.contains_key(&group_name);
                let user = match client.trust {
                    Trust::Local(user) if !is_sealed => Some(user),
                    _ => None,
                };
                let group = GroupId { user, name: group_name };
                let joining = Joining { place, group, id, timeline, requirement, lease };
                if is_sealed {
                    let nonce = random;
                    client.challenged.insert(handle, Challenged { joining, nonce });
                    tell(connection, &FromBus::Challenge { handle, nonce }, out);
                } else if client.trust == Trust::Remote {
                    let text = format!(
                        "group {group_name} has no key; over the network only groups with a key can be \
                         joined: add one on the bus"
                    );
                    refuse(connection, handle, Refusal::Key, &text, out);
                } else {
                    self.join(joining, now, out);
                }
            }
            ToBus::Prove { handle, proof } => {
                let Some(challenged) = client.challenged.remove(&handle) else {
                    return refuse(connection, handle, Refusal::Key, "nothing was asked", out);
                };
                let Challenged { joining, nonce } = challenged;
                let expected = self.keys.get(&joining.group.name).map(|key| {
                    key.proof(PURPOSE, &about(joining.group.name, joining.id.name), &nonce)
                });
                if expected.is_some_and(|expected| is_same(&expected, &proof)) {
                    self.join(joining, now, out);
                } else {
                    let text = format!("the key of group {} does not match", joining.group.name);
                    refuse(connection, handle, Refusal::Key, &text, out);
                }
            }
            ToBus::Alive { handle, achieved, met } => {
                if let Some((group, name)) = self.member(connection, handle, out) {
                    self.groups.entry(group).and_modify(|group| {
                        group.alive(name, achieved, met, now);
                    });
                }
            }
            ToBus::Leave { handle } => {
                if client.challenged.remove(&handle).is_some() {
                    return;
                }
                if let Some((group, name)) = self.member(connection, handle, out) {
                    if let Some(client) = self.clients.get_mut(&connection) {
                        client.members.remove(&handle);
                    }
                    self.remove(group, name, Gone::Left, now, out);
                }
            }
            ToBus::Subscribe { handle, topic, history } => {
                if let Some((group, name, topic)) = self.topic(connection, handle, &topic, out)
                    && let Some(group) = self.groups.get_mut(&group)
                {
                    group.subscribe(name, topic, history, now, &self.settings, out);
                }
            }
            ToBus::Unsubscribe { handle, topic } => {
                if let Some((group, name, topic)) = self.topic(connection, handle, &topic, out)
                    && let Some(group) = self.groups.get_mut(&group)
                {
                    group.unsubscribe(name, topic, now);
                }
            }
            ToBus::Send { handle, to, topic, message } => {
                self.send(connection, handle, (to, topic), message, now, out);
            }
        }
    }

    fn join(&mut self, joining: Joining, now: Duration, out: &mut Vec<Out>) {
        let Place { connection, handle } = joining.place;
        let (name, most) = (joining.group, self.settings.groups);
        let of_user = self.groups.keys().filter(|group| group.user == name.user).count();
        if !self.groups.contains_key(&name) && of_user >= most {
            let text = format!("there are {most} groups already");
            return refuse(connection, handle, Refusal::Full, &text, out);
        }
        let member = joining.id.name;
        let timeline = joining.timeline;
        let own = self.incarnation;
        let peers = self.keys.get(&name.name).filter(|_| name.user.is_none());
        let past = &mut self.past;
        let kept = self.kept.entry(name.user).or_default().clone();
        let group = self.groups.entry(name).or_insert_with(|| {
            let peers = peers.map(|secret| {
                let past = past.remove(&name.name).unwrap_or_default();
                Peers::new(secret, own, past, now)
            });
            Group::new(name.name, timeline, peers, kept)
        });
        match group.join(&joining, now, &self.settings, out) {
            Ok(()) => {
                if let Some(client) = self.clients.get_mut(&connection) {
                    client.members.insert(handle, (name, member));
                }
            }
            Err((refusal, text)) => refuse(connection, handle, refusal, &text, out),
        }
    }

    fn send(
        &mut self,
        connection: Connection,
        handle: u32,
        (to, topic): (Option<Who>, Option<String>),
        message: Vec<u8>,
        now: Duration,
        out: &mut Vec<Out>,
    ) {
        let Some((group, name)) = self.member(connection, handle, out) else { return };
        let topic = match topic.map(|topic| topic.parse::<Name>()).transpose() {
            Ok(topic) => topic,
            Err(error) => {
                return refuse(connection, handle, Refusal::Name, &error.to_string(), out);
            }
        };
        let Some(group) = self.groups.get_mut(&group) else { return };
        let own = group.id(name);
        let is_own = Envelope::sender(&message).is_ok_and(|sender| Some(sender) == own);
        if !is_own || message.len() > MAX_MESSAGE {
            let text = "a message has to name the member that sends it";
            return refuse(connection, handle, Refusal::Message, text, out);
        }
        group.send(name, to.as_ref(), topic, message, now, &self.settings, out);
    }

    /// The group and the name of a member of this connection.
    fn member(
        &mut self,
        connection: Connection,
        handle: u32,
        out: &mut Vec<Out>,
    ) -> Option<(GroupId, Name)> {
        let found = self.clients.get(&connection)?.members.get(&handle).copied();
        if found.is_none() {
            let text = "no member of this connection has this handle";
            refuse(connection, handle, Refusal::Handle, text, out);
        }
        found
    }

    fn topic(
        &mut self,
        connection: Connection,
        handle: u32,
        topic: &str,
        out: &mut Vec<Out>,
    ) -> Option<(GroupId, Name, Name)> {
        let (group, name) = self.member(connection, handle, out)?;
        match topic.parse() {
            Ok(topic) => Some((group, name, topic)),
            Err(error) => {
                let text = format!("topic {topic:?}: {error}");
                refuse(connection, handle, Refusal::Name, &text, out);
                None
            }
        }
    }

    fn remove(&mut self, group: GroupId, name: Name, why: Gone, now: Duration, out: &mut Vec<Out>) {
        let Some(found) = self.groups.get_mut(&group) else { return };
        found.remove(name, why, now);
        found.tell_if_due(now, &self.settings, out);
        if found.is_empty() {
            found.say_who_is_here(now, out);
            let past = self.groups.remove(&group).and_then(Group::into_past);
            self.past.extend(past);
        }
    }
}

/// What a proof is about.
#[must_use]
pub fn about(group: Name, member: Name) -> Vec<u8> {
    [group.to_bytes(), member.to_bytes()].concat()
}

/// In a time that does not tell where they differ.
fn is_same(a: &[u8; 16], b: &[u8; 16]) -> bool {
    a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn tell(connection: Connection, frame: &FromBus, out: &mut Vec<Out>) {
    out.push(Out::Frame(connection, frame.encode()));
}

fn refuse(connection: Connection, handle: u32, refusal: Refusal, text: &str, out: &mut Vec<Out>) {
    let text = text.to_owned();
    tell(connection, &FromBus::Refused { handle, refusal, text }, out);
}
