//! The changes behind a binding, after all checks: members join and leave, requirements are
//! replaced, masters start and end lives. Nothing here refuses.

use timevisor_time::Duration;

use super::group::{Group, Member, MemberKey, Required};
use super::{Placed, Registry};
use crate::tenant::Tenant;
use crate::timeline::{Source, Timeline, TimelineId};

impl Registry {
    /// Creates a client's timeline.
    pub(super) fn make(&mut self, timeline: Timeline, tenant: &Tenant) {
        self.commit(&timeline);
        self.temporary.insert((tenant.clone(), timeline.name), timeline.id);
        self.usage.entry(tenant.clone()).or_default().timelines += 1;
        self.groups.insert(timeline.id, Group::new(timeline, None));
    }

    /// Adds a member that has no requirement yet.
    pub(super) fn join(&mut self, key: MemberKey, id: TimelineId, tenant: &Tenant, now: Duration) {
        if let Some(session) = self.sessions.get_mut(&key.session) {
            session.bindings.insert(key.binding, id);
            session.next_binding = key.binding + 1;
        }
        self.usage.entry(tenant.clone()).or_default().bindings += 1;
        if let Some(pages) = self.owners.get_mut(&key.owner)
            && pages.clock != id
        {
            if let Some(placed) = pages.placed.get_mut(&id) {
                placed.readers += 1;
            } else if let Some(slot) = pages.slots.take() {
                pages.placed.insert(id, Placed { slot, readers: 1 });
                pages.changes += 1;
            }
        }
        self.master_joins(id, tenant, now);
        if let Some(group) = self.groups.get_mut(&id) {
            group.members.insert(key, Member { required: None, met: true });
        }
    }

    /// The first binding of a master starts a life. Members that knew an earlier one are notified.
    fn master_joins(&mut self, id: TimelineId, tenant: &Tenant, now: Duration) {
        let life = self.next_life(now);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(master) = group.master.as_mut().filter(|master| master.tenant == *tenant) else {
            return;
        };
        master.bindings += 1;
        if master.bindings > 1 {
            return;
        }
        if std::mem::replace(&mut master.lived, true) {
            self.disrupted.extend(group.members.keys().map(|key| (id, *key)));
        }
        group.timeline.source = life;
        let timeline = group.timeline.clone();
        self.commit(&timeline);
        self.touch(id);
    }

    /// Replaces a member's requirement in every minimum that it counts for.
    pub(super) fn replace_required(
        &mut self,
        key: MemberKey,
        id: TimelineId,
        required: Option<Required>,
    ) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(member) = group.members.get_mut(&key) else { return };
        let before = group.tally.half_width_ns();
        let old = std::mem::replace(&mut member.required, required);
        let (old, new) = (old.map(|old| old.needs), required.map(|new| new.needs));
        group.tally.replace(key, old, new);
        if let Some(clock) = group.timeline.clock() {
            let tally = self.tallies.entry(clock).or_default();
            tally.replace(key, old, new);
            if tally.is_empty() {
                self.tallies.remove(&clock);
            }
        }
        if group.tally.half_width_ns() != before {
            self.touch(id);
        }
    }

    /// Undoes what [`Registry::bind`] did, except in the session's own list.
    pub(super) fn release(
        &mut self,
        key: MemberKey,
        id: TimelineId,
        tenant: &Tenant,
        now: Duration,
    ) {
        self.replace_required(key, id, None);
        self.master_leaves(id, tenant);
        if let Some(pages) = self.owners.get_mut(&key.owner)
            && let Some(placed) = pages.placed.get_mut(&id)
        {
            placed.readers -= 1;
            let Placed { slot, readers } = *placed;
            if readers == 0 {
                pages.placed.remove(&id);
                pages.slots.free(slot, now);
                pages.changes += 1;
            }
        }
        if let Some(usage) = self.usage.get_mut(tenant) {
            usage.bindings -= 1;
        }
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.members.remove(&key);
        if group.members.is_empty() && group.timeline.temporary() {
            self.temporary.remove(&(tenant.clone(), group.timeline.name));
            self.groups.remove(&id);
            if let Some(usage) = self.usage.get_mut(tenant) {
                usage.timelines -= 1;
            }
        }
    }

    /// The end of a master's last binding ends the life.
    fn master_leaves(&mut self, id: TimelineId, tenant: &Tenant) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(master) = group.master.as_mut().filter(|master| master.tenant == *tenant) else {
            return;
        };
        master.bindings -= 1;
        if master.bindings == 0 {
            group.timeline.source = Source::Undefined;
            self.touch(id);
        }
    }
}
