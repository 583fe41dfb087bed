//! What a timeline is, apart from who is bound to it.

use timevisor_protocols::channel::Epoch;
use timevisor_time::Duration;

use crate::name::TimelineName;
use crate::setup::Visibility;
use crate::tenant::Tenant;

/// Names a set of references; the daemon chooses the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClockId(pub usize);

/// Names a timeline for as long as the registry lives; never used again, never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimelineId(pub u64);

/// Names one life of a local timeline; never used again. Another life means another zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LifeId(pub u64);

/// Where a timeline's time comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// From references, in the timeline's epoch (TAI or UTC).
    Clock(ClockId),
    /// The host's counter since a moment.
    Local {
        /// Which life: the caller notes the counter's value when it sees a new one.
        life: LifeId,
        /// The moment at which it reads 0, monotonic.
        zero: Duration,
    },
    /// How long the owner of the page that it is read from has been running.
    Elapsed,
    /// Local, but its master is not bound: nothing is known.
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
    /// Built in or configured: as the operator says.
    Configured(Visibility),
    /// Made by a client: its own tenant, which pays for it.
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

    /// Whether it ends with its last binding.
    #[must_use]
    pub const fn temporary(&self) -> bool {
        matches!(self.reach, Reach::Private(_))
    }

    /// Whether a tenant may bind to it.
    #[must_use]
    pub fn visible_to(&self, tenant: &Tenant) -> bool {
        match &self.reach {
            Reach::Configured(visibility) => visibility.includes(tenant),
            Reach::Private(maker) => maker == tenant,
        }
    }
}
