//! A timeline with its members, and their requirements in order, so that the tightest is at hand.

use std::collections::{BTreeMap, BTreeSet};

use timevisor_protocols::channel::{Achieved, Requirement};

use crate::quality::{Demand, Needs};
use crate::tenant::{Owner, Tenant};
use crate::timeline::{Source, Timeline};

/// The number of an owner while it has pages; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct OwnerKey(pub(super) u64);

/// The key of a member. Members that read the same owner's pages are adjacent, so that their
/// quality is looked up once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct MemberKey {
    pub(super) owner: OwnerKey,
    pub(super) session: u64,
    pub(super) binding: u64,
}

/// One binding.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Member {
    pub(super) required: Option<Required>,
    /// The state that the client was told last.
    pub(super) met: bool,
}

/// A requirement, as requested and in the form that is compared.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Required {
    pub(super) requirement: Requirement,
    pub(super) needs: Needs,
}

/// The tenant that must be bound for a local timeline to be defined.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Master {
    pub(super) tenant: Tenant,
    pub(super) bindings: u32,
    /// Whether it was ever bound; the next binding then starts another life.
    pub(super) lived: bool,
}

/// A timeline and its members.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Group {
    pub(super) timeline: Timeline,
    pub(super) master: Option<Master>,
    pub(super) members: BTreeMap<MemberKey, Member>,
    pub(super) tally: Tally,
}

/// The members' needs, in order, so that each minimum is at hand.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Tally {
    half_widths: BTreeSet<(u64, MemberKey)>,
    sigmas: BTreeSet<(u64, MemberKey)>,
}

impl Tally {
    pub(super) fn replace(&mut self, key: MemberKey, old: Option<Needs>, new: Option<Needs>) {
        if let Some(old) = old {
            old.half_width_ns().map(|ns| self.half_widths.remove(&(ns, key)));
            old.sigma_ns().map(|ns| self.sigmas.remove(&(ns, key)));
        }
        if let Some(new) = new {
            self.half_widths.extend(new.half_width_ns().map(|ns| (ns, key)));
            self.sigmas.extend(new.sigma_ns().map(|ns| (ns, key)));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.half_widths.is_empty() && self.sigmas.is_empty()
    }

    pub(super) fn half_width_ns(&self) -> Option<u64> {
        self.half_widths.first().map(|(ns, _)| *ns)
    }

    pub(super) fn demand(&self) -> Option<Demand> {
        let sigma_ns = self.sigmas.first().map(|(ns, _)| *ns);
        let demand = Demand { half_width_ns: self.half_width_ns(), sigma_ns };
        (!self.is_empty()).then_some(demand)
    }

    /// The member with the tightest requirement: a worst case if there is one, else a probability.
    fn tightest(&self) -> Option<MemberKey> {
        self.half_widths.first().or(self.sigmas.first()).map(|(_, key)| *key)
    }
}

impl Group {
    pub(super) fn new(timeline: Timeline, master: Option<Tenant>) -> Self {
        let master = master.map(|tenant| Master { tenant, bindings: 0, lived: false });
        Self { timeline, master, members: BTreeMap::new(), tally: Tally::default() }
    }

    /// The tightest requirement of any member, as requested.
    pub(super) fn tightest(&self) -> Option<Requirement> {
        let member = self.members.get(&self.tally.tightest()?)?;
        member.required.map(|required| required.requirement)
    }

    /// The quality on an owner's pages; none while the timeline is undefined.
    pub(super) fn achieved(
        &self,
        owner: &Owner,
        achieved: impl Fn(&Timeline, &Owner) -> Achieved,
    ) -> Achieved {
        match self.timeline.source {
            Source::Undefined => Achieved::default(),
            Source::Clock(_) | Source::Local { .. } | Source::Elapsed => {
                achieved(&self.timeline, owner)
            }
        }
    }
}
