//! Events for clients: a requirement is met or no longer met, a timeline stepped, a timeline moved
//! to another place.
//!
//! What it does not do: remember events. Each is returned once, and must then be sent.

use timevisor_protocols::channel::{Achieved, Event};

use super::{MemberKey, Registry};
use crate::setup::ClockId;
use crate::tenant::Owner;
use crate::timeline::{Timeline, TimelineId};

impl Registry {
    /// Compares the timelines' quality with what members were told last, and returns an event for
    /// each change, starting from the state in `Bound::met`. Disruptions that bindings of masters
    /// have caused since the last call come first. `achieved` is asked once per timeline and owner,
    /// the comparison costs a few nanoseconds per member; to be called after each publication, and
    /// after requests where [`Registry::has_disrupted`] says so.
    pub fn quality(
        &mut self,
        achieved: impl Fn(&Timeline, &Owner) -> Achieved,
    ) -> Vec<(u64, Event)> {
        let mut events = self.take_disrupted();
        for group in self.groups.values_mut().filter(|group| !group.tally.is_empty()) {
            // Looked up once per owner, because its members are adjacent.
            let mut current: Option<(super::OwnerKey, Achieved)> = None;
            // Taken out, so that the group can be queried while its members change.
            let mut members = std::mem::take(&mut group.members);
            for (key, member) in &mut members {
                let Some(required) = &member.required else { continue };
                if current.as_ref().is_none_or(|(owner, _)| *owner != key.owner) {
                    let Some(pages) = self.owners.get(&key.owner) else { continue };
                    current = Some((key.owner, group.achieved(&pages.owner, &achieved)));
                }
                let Some((_, achieved)) = &current else { continue };
                let met = required.needs.met_by(achieved);
                if met != member.met {
                    member.met = met;
                    let (binding, achieved) = (key.binding, achieved.clone());
                    events.push((key.session, Event::Quality { binding, met, achieved }));
                }
            }
            group.members = members;
        }
        events
    }

    /// Whether [`Registry::quality`] has a disruption to report that no publication caused.
    #[must_use]
    pub fn has_disrupted(&self) -> bool {
        !self.disrupted.is_empty()
    }

    fn take_disrupted(&mut self) -> Vec<(u64, Event)> {
        let disrupted = std::mem::take(&mut self.disrupted);
        let still_there = |(id, key): &(TimelineId, MemberKey)| {
            self.groups.get(id).is_some_and(|group| group.members.contains_key(key))
        };
        disrupted.into_iter().filter(still_there).map(|(_, key)| disruption(&key)).collect()
    }

    /// References stepped: returns an event for every member of every timeline that follows them.
    #[must_use]
    pub fn clock_disrupted(&self, clock: ClockId) -> Vec<(u64, Event)> {
        let groups = self.groups.values().filter(|group| group.timeline.clock() == Some(clock));
        groups.flat_map(|group| group.members.keys().map(disruption)).collect()
    }

    /// A timeline stepped: returns an event for each of its members.
    #[must_use]
    pub fn timeline_disrupted(&self, timeline: TimelineId) -> Vec<(u64, Event)> {
        let group = self.groups.get(&timeline).into_iter();
        group.flat_map(|group| group.members.keys().map(disruption)).collect()
    }

    /// A writer took over an owner's pages (their epoch changed): every entry gets another
    /// generation, and every binding that reads there is told its place.
    pub fn move_owner(&mut self, owner: &Owner) -> Vec<(u64, Event)> {
        let Some(key) = self.owner_keys.get(owner).copied() else { return Vec::new() };
        if let Some(pages) = self.owners.get_mut(&key) {
            for placed in pages.placed.values() {
                pages.slots.renew(placed.slot);
            }
            pages.changes += 1;
        }
        let sessions = self.sessions.iter().filter(|(_, session)| session.owner == key);
        let moved = sessions.flat_map(|(number, session)| {
            session.bindings.iter().map(|(binding, id)| {
                let member = MemberKey { owner: key, session: *number, binding: *binding };
                (*number, Event::Moved { binding: *binding, place: self.place(member, *id) })
            })
        });
        moved.collect()
    }
}

fn disruption(key: &MemberKey) -> (u64, Event) {
    (key.session, Event::Disrupted { binding: key.binding })
}
