//! The registry: one value that holds all bindings and derives their consequences.
//!
//! | module | owns |
//! | --- | --- |
//! | this one | construction, owners of pages, sessions |
//! | `group` | a timeline with its members and their minima |
//! | `binding` | bind, update, unbind: everything is checked first, so a refusal changes nothing |
//! | `membership` | the changes that follow |
//! | `outputs` | demand of references, entries of pages, rows for clients |
//! | `events` | events for clients |
//!
//! Binding and unbinding cost O(log n); if they change the tightest requirement of a timeline, an
//! additional O(owners), for the change counters of the pages that show it.

mod binding;
mod events;
mod group;
mod membership;
mod outputs;

use std::collections::{BTreeMap, BTreeSet};

use timevisor_protocols::channel::{Limits, Problem};
use timevisor_time::Duration;

use crate::name::TimelineName;
use crate::pages::{CLOCK, Scale, Slot, Slots};
use crate::parameters::Parameters;
use crate::problem;
use crate::setup::{ClockId, InvalidSetup, Origin, Setup, Visibility};
use crate::tenant::{Owner, Tenant};
use crate::timeline::{LifeId, Reach, Source, Timeline, TimelineId};
use group::{Group, MemberKey, OwnerKey, Tally};

pub use outputs::Entry;

/// Sessions, bindings, timelines and their places. `now` is monotonic everywhere.
#[derive(Clone, PartialEq, Debug)]
pub struct Registry {
    parameters: Parameters,
    default_clock: ClockId,
    groups: BTreeMap<TimelineId, Group>,
    /// Built in and configured.
    configured: BTreeMap<TimelineName, TimelineId>,
    /// Created by clients; each tenant has its own names.
    temporary: BTreeMap<(Tenant, TimelineName), TimelineId>,
    /// What each set of references must deliver, if there is a need.
    tallies: BTreeMap<ClockId, Tally>,
    owners: BTreeMap<OwnerKey, Pages>,
    owner_keys: BTreeMap<Owner, OwnerKey>,
    sessions: BTreeMap<u64, Session>,
    usage: BTreeMap<Tenant, Usage>,
    /// Members whose timeline stepped and that have not been notified yet.
    disrupted: BTreeSet<(TimelineId, MemberKey)>,
    next_timeline: u64,
    next_life: u64,
    next_owner: u64,
}

/// An owner's pages.
#[derive(Clone, PartialEq, Debug)]
struct Pages {
    owner: Owner,
    /// The timeline of entry 0.
    clock: TimelineId,
    slots: Slots,
    placed: BTreeMap<TimelineId, Placed>,
    changes: u64,
}

/// A timeline on an owner's pages.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Placed {
    slot: Slot,
    /// The number of bindings that read it there.
    readers: u32,
}

/// A client.
#[derive(Clone, PartialEq, Debug)]
struct Session {
    tenant: Tenant,
    owner: OwnerKey,
    bindings: BTreeMap<u64, TimelineId>,
    next_binding: u64,
}

/// The use of a tenant's quotas, over all its sessions.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Usage {
    sessions: u32,
    bindings: u32,
    timelines: u32,
}

impl Pages {
    /// Whether a change of this timeline changes these pages.
    fn shows(&self, timeline: TimelineId) -> bool {
        self.clock == timeline || self.placed.contains_key(&timeline)
    }
}

impl Registry {
    /// A registry with `tai`, `utc`, `elapsed` and the configured timelines, and without sessions.
    ///
    /// # Errors
    /// A setup that contradicts itself.
    pub fn new(setup: Setup, now: Duration) -> Result<Self, InvalidSetup> {
        setup.validate()?;
        let Setup { default_clock, timelines, parameters } = setup;
        let mut registry = Self {
            parameters,
            default_clock,
            groups: BTreeMap::new(),
            configured: BTreeMap::new(),
            temporary: BTreeMap::new(),
            tallies: BTreeMap::new(),
            owners: BTreeMap::new(),
            owner_keys: BTreeMap::new(),
            sessions: BTreeMap::new(),
            usage: BTreeMap::new(),
            disrupted: BTreeSet::new(),
            next_timeline: TimelineId::TAI.0,
            next_life: 1,
            next_owner: 1,
        };
        registry.configure(
            TimelineName::TAI,
            Origin::Tai(default_clock),
            Visibility::Everyone,
            now,
        );
        registry.configure(
            TimelineName::UTC,
            Origin::Utc(default_clock),
            Visibility::Everyone,
            now,
        );
        registry.configure(TimelineName::ELAPSED, Origin::Elapsed, Visibility::Everyone, now);
        for timeline in timelines {
            registry.configure(timeline.name, timeline.origin, timeline.visibility, now);
        }
        Ok(registry)
    }

    fn configure(
        &mut self,
        name: TimelineName,
        origin: Origin,
        visibility: Visibility,
        now: Duration,
    ) {
        let epoch = origin.epoch();
        let (source, master) = match origin {
            Origin::Tai(clock) | Origin::Utc(clock) | Origin::Cluster(clock) => {
                (Source::Clock(clock), None)
            }
            Origin::Local { master: None } => (self.next_life(now), None),
            Origin::Local { master } => (Source::Undefined, master),
            Origin::Elapsed => (Source::Elapsed, None),
        };
        let id = TimelineId(self.next_timeline);
        let reach = Reach::Configured(visibility);
        let timeline = Timeline { id, name, epoch, source, reach };
        self.commit(&timeline);
        self.configured.insert(name, id);
        self.groups.insert(id, Group::new(timeline, master));
    }

    /// The number of the next life; only [`Registry::commit`] counts it.
    fn next_life(&self, now: Duration) -> Source {
        Source::Local { life: LifeId(self.next_life), zero: now }
    }

    /// Takes the numbers of a new timeline.
    fn commit(&mut self, timeline: &Timeline) {
        self.next_timeline = self.next_timeline.max(timeline.id.0 + 1);
        if let Source::Local { life, .. } = timeline.source {
            self.next_life = self.next_life.max(life.0 + 1);
        }
    }

    /// Its parameters.
    #[must_use]
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Starts serving an owner's pages: those of the host's file, or the one of a VM. `generation`
    /// is the highest that an earlier writer may have used on them, 0 for fresh ones. Does nothing
    /// for an owner that is already served.
    pub fn add_owner(&mut self, owner: &Owner, scale: Scale, generation: u16) {
        if self.owner_keys.contains_key(owner) {
            return;
        }
        let pages = match owner {
            Owner::Host => self.parameters.host_pages,
            Owner::Vm(_) => 1,
        };
        let key = OwnerKey(self.next_owner);
        self.next_owner += 1;
        self.owner_keys.insert(owner.clone(), key);
        let pages = Pages {
            owner: owner.clone(),
            clock: scale.timeline(),
            slots: Slots::new(pages, generation),
            placed: BTreeMap::new(),
            changes: 0,
        };
        self.owners.insert(key, pages);
    }

    /// Handles the loss of an owner's pages when the VM ended. Ends the sessions that read there
    /// and returns their numbers.
    pub fn remove_owner(&mut self, owner: &Owner, now: Duration) -> Vec<u64> {
        let Some(key) = self.owner_keys.get(owner).copied() else { return Vec::new() };
        let reads_there =
            |(number, session): (&u64, &Session)| (session.owner == key).then_some(*number);
        let ended: Vec<u64> = self.sessions.iter().filter_map(reads_there).collect();
        for session in &ended {
            self.close(*session, now);
        }
        self.owner_keys.remove(owner);
        self.owners.remove(&key);
        ended
    }

    /// Starts a session of a tenant that reads an owner's pages, and returns the tenant's limits.
    ///
    /// # Errors
    /// When the number is in use, or the owner has no pages.
    pub fn open(&mut self, session: u64, tenant: Tenant, owner: &Owner) -> Result<Limits, Problem> {
        if self.sessions.contains_key(&session) {
            return Err(problem::session_taken(session));
        }
        let owner = *self.owner_keys.get(owner).ok_or_else(|| problem::no_pages(owner))?;
        let limits = self.parameters.limits(&tenant);
        self.usage.entry(tenant.clone()).or_default().sessions += 1;
        let begun = Session { tenant, owner, bindings: BTreeMap::new(), next_binding: 1 };
        self.sessions.insert(session, begun);
        Ok(limits)
    }

    /// Ends a session and all its leases; returns whether there was one.
    pub fn close(&mut self, session: u64, now: Duration) -> bool {
        let Some(mut ended) = self.sessions.remove(&session) else { return false };
        for (binding, timeline) in std::mem::take(&mut ended.bindings) {
            let key = MemberKey { owner: ended.owner, session, binding };
            self.release(key, timeline, &ended.tenant, now);
        }
        if let Some(usage) = self.usage.get_mut(&ended.tenant) {
            usage.sessions -= 1;
            if usage.sessions == 0 {
                self.usage.remove(&ended.tenant);
            }
        }
        true
    }

    /// Marks the pages that show a timeline as out of date.
    fn touch(&mut self, timeline: TimelineId) {
        for pages in self.owners.values_mut().filter(|pages| pages.shows(timeline)) {
            pages.changes += 1;
        }
    }
}

#[cfg(test)]
mod tests;
