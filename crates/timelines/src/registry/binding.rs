//! Binding, changing a requirement, unbinding: each checks everything before it changes anything
//! (`membership`).

use timevisor_protocols::channel::{
    Achieved, Bind, Binding, Bound, Epoch, Place, Problem, Requirement, Update,
};
use timevisor_time::Duration;

use super::group::{Group, MemberKey, Required};
use super::{CLOCK, Registry, Session};
use crate::name::TimelineName;
use crate::problem;
use crate::quality::Needs;
use crate::tenant::{Owner, Tenant};
use crate::timeline::{Reach, Source, Timeline, TimelineId};

/// The target of a binding.
enum Target {
    Existing(TimelineId),
    /// A timeline that the binding will create.
    New(Timeline),
}

impl Registry {
    /// Binds a session to a timeline. `achieved` returns the quality of a timeline on an owner's
    /// pages now; `achievable` returns what it could be if its references were polled as often as
    /// allowed. The latter is also called for local timelines without a master.
    ///
    /// # Errors
    /// With the state unchanged: a malformed name or requirement, an unknown or taken name, a
    /// quota, a full page, and, unless `best_effort`, a requirement that cannot be met.
    pub fn bind(
        &mut self,
        session: u64,
        bind: &Bind,
        now: Duration,
        achieved: impl Fn(&Timeline, &Owner) -> Achieved,
        achievable: impl Fn(&Timeline, &Owner) -> Achieved,
    ) -> Result<Bound, Problem> {
        let Session { tenant, owner, next_binding, .. } = self.session(session)?;
        let key = MemberKey { owner: *owner, session, binding: *next_binding };
        let tenant = tenant.clone();
        let name = bind.timeline.parse().map_err(|error| problem::name(&bind.timeline, error))?;
        let required = required(bind.requirement)?;
        let target = self.resolve(&tenant, name, bind.create, now)?;
        self.check_quota(&tenant, &target)?;
        let timeline = match &target {
            Target::Existing(id) => &self.group(*id, name)?.timeline,
            Target::New(timeline) => timeline,
        };
        self.check_room(key, timeline, now)?;
        if !bind.best_effort {
            self.admit(key, timeline, required, achievable)?;
        }
        let id = timeline.id;
        // Nothing below this line may refuse.
        if let Target::New(timeline) = target {
            self.make(timeline, &tenant);
        }
        self.join(key, id, &tenant, now);
        self.replace_required(key, id, required);
        self.bound(key, id, name, achieved)
    }

    /// Changes what a binding requires. Unlike [`Registry::bind`], this needs no free entry and no
    /// quota.
    ///
    /// # Errors
    /// With the old requirement in force: a binding of another session, a malformed requirement,
    /// and, unless `best_effort`, one that cannot be met.
    pub fn update(
        &mut self,
        session: u64,
        update: &Update,
        achieved: impl Fn(&Timeline, &Owner) -> Achieved,
        achievable: impl Fn(&Timeline, &Owner) -> Achieved,
    ) -> Result<Bound, Problem> {
        let (key, id) = self.binding(session, update.binding)?;
        let required = required(update.requirement)?;
        let group = self.groups.get(&id).ok_or_else(|| problem::no_binding(update.binding))?;
        let name = group.timeline.name;
        if !update.best_effort {
            self.admit(key, &group.timeline, required, achievable)?;
        }
        self.replace_required(key, id, required);
        self.bound(key, id, name, achieved)
    }

    /// Ends a binding.
    ///
    /// # Errors
    /// A binding of another session.
    pub fn unbind(
        &mut self,
        session: u64,
        binding: Binding,
        now: Duration,
    ) -> Result<Binding, Problem> {
        let (key, id) = self.binding(session, binding.binding)?;
        let tenant = self.session(session)?.tenant.clone();
        if let Some(session) = self.sessions.get_mut(&session) {
            session.bindings.remove(&binding.binding);
        }
        self.release(key, id, &tenant, now);
        Ok(binding)
    }

    pub(super) fn session(&self, session: u64) -> Result<&Session, Problem> {
        self.sessions.get(&session).ok_or_else(|| problem::no_session(session))
    }

    fn binding(&self, session: u64, binding: u64) -> Result<(MemberKey, TimelineId), Problem> {
        let Session { owner, bindings, .. } = self.session(session)?;
        let id = *bindings.get(&binding).ok_or_else(|| problem::no_binding(binding))?;
        Ok((MemberKey { owner: *owner, session, binding }, id))
    }

    fn group(&self, id: TimelineId, name: TimelineName) -> Result<&Group, Problem> {
        self.groups.get(&id).ok_or_else(|| problem::no_timeline(name))
    }

    /// The timeline that a tenant means by a name: the operator's, the tenant's own, or one to
    /// create.
    fn resolve(
        &self,
        tenant: &Tenant,
        name: TimelineName,
        create: Option<Epoch>,
        now: Duration,
    ) -> Result<Target, Problem> {
        let own = || self.temporary.get(&(tenant.clone(), name));
        let Some(id) = self.configured.get(&name).copied().or_else(|| own().copied()) else {
            let epoch = create.ok_or_else(|| problem::no_timeline(name))?;
            let source = match epoch {
                Epoch::Tai | Epoch::Utc => Source::Clock(self.default_clock),
                Epoch::Local => self.next_life(now),
            };
            let (id, reach) = (TimelineId(self.next_timeline), Reach::Private(tenant.clone()));
            return Ok(Target::New(Timeline { id, name, epoch, source, reach }));
        };
        let timeline = &self.group(id, name)?.timeline;
        match (timeline.visible_to(tenant), create) {
            (true, Some(epoch)) if epoch != timeline.epoch => Err(problem::other_epoch(name)),
            (true, _) => Ok(Target::Existing(id)),
            (false, Some(_)) => Err(problem::reserved(name)),
            (false, None) => Err(problem::no_timeline(name)),
        }
    }

    fn check_quota(&self, tenant: &Tenant, target: &Target) -> Result<(), Problem> {
        let limits = self.parameters.limits(tenant);
        let usage = self.usage.get(tenant).copied().unwrap_or_default();
        if usage.bindings >= limits.bindings {
            return Err(problem::bindings_quota(limits.bindings));
        }
        if matches!(target, Target::New(_)) && usage.timelines >= limits.timelines {
            return Err(problem::timelines_quota(limits.timelines));
        }
        Ok(())
    }

    /// Checks that the member's pages show the timeline or have a free entry for it. Some free
    /// entries are kept for the operator's timelines: as many as these may still need, but at most
    /// half of all.
    fn check_room(
        &self,
        key: MemberKey,
        timeline: &Timeline,
        now: Duration,
    ) -> Result<(), Problem> {
        let Some(pages) = self.owners.get(&key.owner) else {
            return Err(problem::no_session(key.session));
        };
        if pages.shows(timeline.id) {
            return Ok(());
        }
        let kept = if timeline.temporary() {
            let to_come = self.configured.values().filter(|id| !pages.shows(**id)).count();
            to_come.min(pages.slots.capacity() / 2)
        } else {
            0
        };
        if pages.slots.ready(now, self.parameters.quarantine) <= kept {
            return Err(problem::page_full(&pages.owner));
        }
        Ok(())
    }

    fn admit(
        &self,
        key: MemberKey,
        timeline: &Timeline,
        required: Option<Required>,
        achievable: impl Fn(&Timeline, &Owner) -> Achieved,
    ) -> Result<(), Problem> {
        let (Some(required), Some(pages)) = (required, self.owners.get(&key.owner)) else {
            return Ok(());
        };
        let achievable = achievable(timeline, &pages.owner);
        if required.needs.met_by(&achievable) {
            return Ok(());
        }
        Err(problem::cannot_be_met(timeline.name, achievable))
    }

    /// The answer to the client, which is told from now on when `met` changes.
    fn bound(
        &mut self,
        key: MemberKey,
        id: TimelineId,
        name: TimelineName,
        achieved: impl Fn(&Timeline, &Owner) -> Achieved,
    ) -> Result<Bound, Problem> {
        let place = self.place(key, id);
        let (Some(group), Some(pages)) = (self.groups.get_mut(&id), self.owners.get(&key.owner))
        else {
            return Err(problem::no_timeline(name));
        };
        let achieved = group.achieved(&pages.owner, achieved);
        let mut met = true;
        if let Some(member) = group.members.get_mut(&key) {
            met = member.required.is_none_or(|required| required.needs.met_by(&achieved));
            member.met = met;
        }
        Ok(Bound {
            binding: key.binding,
            timeline: name.to_string(),
            epoch: group.timeline.epoch,
            place,
            achieved,
            met,
        })
    }

    /// The place of a member's timeline on its pages.
    pub(super) fn place(&self, key: MemberKey, id: TimelineId) -> Place {
        let placed = self.owners.get(&key.owner).and_then(|pages| {
            let placed = pages.placed.get(&id)?;
            Some(pages.slots.place(placed.slot))
        });
        placed.unwrap_or(CLOCK)
    }
}

fn required(requirement: Option<Requirement>) -> Result<Option<Required>, Problem> {
    requirement
        .map(|requirement| {
            let needs = Needs::of(&requirement).map_err(problem::requirement)?;
            Ok(Required { requirement, needs })
        })
        .transpose()
}
