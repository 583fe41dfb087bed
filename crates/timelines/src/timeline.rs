//! A timeline, without its members.

use timevisor_protocols::channel::Epoch;
use timevisor_time::Duration;

use crate::name::TimelineName;
use crate::setup::{ClockId, Visibility};
use crate::tenant::Tenant;

/// The number of a timeline. Never 0; never reused while the registry lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimelineId(pub u64);

/// The number of one life of a local timeline; never reused. Each life has its own zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LifeId(pub u64);

/// Where a timeline's time comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// From references, in the timeline's epoch (TAI or UTC), or from the hosts of a cluster.
    Clock(ClockId),
    /// The host's counter since a moment.
    Local {
        /// The life. The caller records the counter's value when it sees a new one.
        life: LifeId,
        /// The moment at which it reads 0, monotonic.
        zero: Duration,
    },
    /// How long the page's owner has been running.
    Elapsed,
    /// Local, but undefined, because its master is not bound.
    Undefined,
}

/// A timeline.
#[derive(Clone, PartialEq, Debug)]
pub struct Timeline {
    pub(crate) id: TimelineId,
    pub(crate) name: TimelineName,
    pub(crate) epoch: Epoch,
    pub(crate) source: Source,
    pub(crate) reach: Reach,
}

/// Who may bind.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reach {
    /// Built in or configured: those whom the operator allows.
    Configured(Visibility),
    /// Created by a client: only that client's tenant, whose quota it uses.
    Private(Tenant),
}

impl TimelineId {
    /// `tai`.
    pub const TAI: Self = Self(1);
    /// `utc`.
    pub const UTC: Self = Self(2);
}

impl Timeline {
    /// Its number.
    #[must_use]
    pub const fn id(&self) -> TimelineId {
        self.id
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> TimelineName {
        self.name
    }

    /// Its epoch.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Where its time comes from now.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// The references, if it has any.
    #[must_use]
    pub const fn clock(&self) -> Option<ClockId> {
        match self.source {
            Source::Clock(clock) => Some(clock),
            Source::Local { .. } | Source::Elapsed | Source::Undefined => None,
        }
    }

    /// True if it ends with its last binding.
    #[must_use]
    pub const fn temporary(&self) -> bool {
        matches!(self.reach, Reach::Private(_))
    }

    /// The tenant that created it; `None` for a built-in or configured one.
    #[must_use]
    pub const fn creator(&self) -> Option<&Tenant> {
        match &self.reach {
            Reach::Configured(_) => None,
            Reach::Private(tenant) => Some(tenant),
        }
    }

    /// True if the tenant may bind to it.
    #[must_use]
    pub fn visible_to(&self, tenant: &Tenant) -> bool {
        match &self.reach {
            Reach::Configured(visibility) => visibility.includes(tenant),
            Reach::Private(maker) => maker == tenant,
        }
    }
}
