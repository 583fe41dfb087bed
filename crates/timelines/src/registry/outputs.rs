//! What the daemon derives from the registry: demand on references, entries of pages, the list of
//! timelines.

use timevisor_protocols::channel::{Achieved, Epoch, Limits, Place, Problem, TimelineRow};
use timevisor_protocols::control::TimelineReport;

use super::group::Group;
use super::{CLOCK, Registry};
use crate::name::TimelineName;
use crate::quality::Demand;
use crate::setup::ClockId;
use crate::tenant::{Owner, Tenant};
use crate::timeline::{Source, Timeline, TimelineId};

/// One entry that an owner's pages must show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place.
    pub place: Place,
    /// Its timeline.
    pub timeline: TimelineId,
    /// Its name.
    pub name: TimelineName,
    /// Its epoch.
    pub epoch: Epoch,
    /// Where its time comes from.
    pub source: Source,
    /// The tightest worst case that any member requires, on whichever page it reads.
    pub required_half_width_ns: Option<u64>,
}

impl Registry {
    /// The tightest need of all members of all timelines with these references; `None` without a
    /// need. O(log n).
    #[must_use]
    pub fn demand(&self, clock: ClockId) -> Option<Demand> {
        self.tallies.get(&clock)?.demand()
    }

    /// The entries that an owner's pages must show, entry 0 of page 0 first; empty for an owner
    /// that is not served.
    pub fn entries<'a>(&'a self, owner: &Owner) -> impl Iterator<Item = Entry> + use<'a> {
        let pages = self.owner_keys.get(owner).and_then(|key| self.owners.get(key));
        pages.into_iter().flat_map(|pages| {
            let clock = std::iter::once((pages.clock, CLOCK));
            let placed = pages.placed.iter();
            clock
                .chain(placed.map(|(id, placed)| (*id, pages.slots.place(placed.slot))))
                .filter_map(|(id, place)| self.entry(id, place))
        })
    }

    fn entry(&self, id: TimelineId, place: Place) -> Option<Entry> {
        let group = self.groups.get(&id)?;
        let Timeline { name, epoch, source, .. } = group.timeline;
        let required_half_width_ns = group.tally.half_width_ns();
        Some(Entry { place, timeline: id, name, epoch, source, required_half_width_ns })
    }

    /// Grows with every change of [`Registry::entries`]; `None` for owners that are not served.
    #[must_use]
    pub fn changes(&self, owner: &Owner) -> Option<u64> {
        Some(self.owners.get(self.owner_keys.get(owner)?)?.changes)
    }

    /// The timelines that a session may bind to, by name: its tenant's own and those that the
    /// operator lets it use.
    ///
    /// # Errors
    /// When there is no such session.
    pub fn rows(
        &self,
        session: u64,
        achieved: impl Fn(&Timeline, &Owner) -> Achieved,
    ) -> Result<Vec<TimelineRow>, Problem> {
        let session = self.session(session)?;
        let Some(pages) = self.owners.get(&session.owner) else { return Ok(Vec::new()) };
        let own = self.temporary.range((session.tenant.clone(), TimelineName::FIRST)..);
        let own = own.take_while(|((tenant, _), _)| *tenant == session.tenant);
        let mut ids: Vec<(TimelineName, TimelineId)> = own
            .map(|((_, name), id)| (*name, *id))
            .chain(self.configured.iter().map(|(name, id)| (*name, *id)))
            .collect();
        ids.sort_unstable();
        let groups = ids.iter().filter_map(|(_, id)| self.groups.get(id));
        let rows = groups.filter(|group| group.timeline.visible_to(&session.tenant)).map(|group| {
            TimelineRow {
                name: group.timeline.name.to_string(),
                epoch: group.timeline.epoch,
                members: u32::try_from(group.members.len()).unwrap_or(u32::MAX),
                required: group.tightest(),
                achieved: group.achieved(&pages.owner, &achieved),
                temporary: group.timeline.temporary(),
            }
        });
        Ok(rows.collect())
    }

    /// The limits of a tenant.
    #[must_use]
    pub const fn limits(&self, tenant: &Tenant) -> Limits {
        self.parameters.limits(tenant)
    }

    /// All timelines with their requirements, for the operator: those of all tenants, by number.
    ///
    /// The quality is that on the host's page; of a timeline that a VM has created, on that VM's.
    #[must_use]
    pub fn report(&self, achieved: impl Fn(&Timeline, &Owner) -> Achieved) -> Vec<TimelineReport> {
        let report = |group: &Group| {
            let tenant = group.timeline.creator();
            let owner = match tenant {
                Some(Tenant::Vm(name)) => Owner::Vm(name.clone()),
                Some(Tenant::User(_)) | None => Owner::Host,
            };
            TimelineReport {
                name: group.timeline.name.to_string(),
                tenant: tenant.map(ToString::to_string),
                epoch: group.timeline.epoch,
                members: group.members.len() as u64,
                unmet: group.members.values().filter(|member| !member.met).count() as u64,
                required: group.tightest(),
                achieved: group.achieved(&owner, &achieved),
            }
        };
        self.groups.values().map(report).collect()
    }

    /// All timelines, with the number of bindings of each, for the operator.
    pub fn timelines(&self) -> impl Iterator<Item = (&Timeline, usize)> {
        self.groups.values().map(|group| (&group.timeline, group.members.len()))
    }
}
