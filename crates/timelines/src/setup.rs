//! What the operator configures: timelines in addition to `tai` and `utc`, and who may see them.

use std::collections::BTreeSet;

use timevisor_protocols::channel::Epoch;

use crate::name::TimelineName;
use crate::parameters::{InvalidParameter, Parameters};
use crate::tenant::Tenant;

/// Names a set of references; the daemon chooses the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClockId(pub usize);

/// The setup of a registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The references of `tai`, `utc`, and of the TAI and UTC timelines that clients create.
    pub default_clock: ClockId,
    /// The operator's timelines.
    pub timelines: Vec<Configured>,
    /// Parameters.
    pub parameters: Parameters,
}

/// A timeline that the operator configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Configured {
    /// Its name; no client can create a timeline with this name.
    pub name: TimelineName,
    /// Where its time comes from.
    pub origin: Origin,
    /// Who may bind to it.
    pub visibility: Visibility,
}

/// A timeline's epoch, with what it needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// TAI from these references.
    Tai(ClockId),
    /// UTC from these references.
    Utc(ClockId),
    /// A cluster's own timeline, on this clock.
    Cluster(ClockId),
    /// The host's counter since the registry was created; with a master, since the master bound.
    Local {
        /// The timeline is defined only while this tenant is bound.
        master: Option<Tenant>,
    },
    /// How long the reader's host or VM has been running; only built in.
    Elapsed,
}

/// Who may bind to a timeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Visibility {
    /// Everyone who can connect.
    Everyone,
    /// Only these tenants.
    Tenants(BTreeSet<Tenant>),
}

/// A setup that contradicts itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidSetup {
    /// Out of range.
    #[error(transparent)]
    Parameter(#[from] InvalidParameter),
    /// The name is built in: `tai`, `utc` or `elapsed`.
    #[error("timeline {0} always exists; choose another name for one with other references")]
    Builtin(TimelineName),
    /// Two timelines have the same name.
    #[error("timeline {0} is configured twice; remove one")]
    Twice(TimelineName),
    /// An empty list of tenants.
    #[error("timeline {0} is visible to nobody; list tenants, or leave the list out for everybody")]
    Unseen(TimelineName),
    /// Its master may not bind, so it could never be defined.
    #[error("{master}, the master of timeline {name}, may not see it; add it to the tenants")]
    BlindMaster {
        /// The timeline's name.
        name: TimelineName,
        /// The master.
        master: Tenant,
    },
}

impl Origin {
    /// As on the wire.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        match self {
            Self::Tai(_) => Epoch::Tai,
            Self::Utc(_) => Epoch::Utc,
            Self::Cluster(_) | Self::Local { .. } | Self::Elapsed => Epoch::Local,
        }
    }
}

impl Visibility {
    /// True if the tenant may bind.
    #[must_use]
    pub fn includes(&self, tenant: &Tenant) -> bool {
        match self {
            Self::Everyone => true,
            Self::Tenants(tenants) => tenants.contains(tenant),
        }
    }
}

impl Setup {
    /// `tai` and `utc` only.
    #[must_use]
    pub fn new(default_clock: ClockId) -> Self {
        Self { default_clock, timelines: Vec::new(), parameters: Parameters::default() }
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn validate(&self) -> Result<(), InvalidSetup> {
        self.parameters.validate()?;
        let mut names = BTreeSet::new();
        for Configured { name, origin, visibility } in &self.timelines {
            if TimelineName::BUILTIN.contains(name) {
                return Err(InvalidSetup::Builtin(*name));
            }
            if !names.insert(*name) {
                return Err(InvalidSetup::Twice(*name));
            }
            if matches!(visibility, Visibility::Tenants(tenants) if tenants.is_empty()) {
                return Err(InvalidSetup::Unseen(*name));
            }
            if let Origin::Local { master: Some(master) } = origin
                && !visibility.includes(master)
            {
                return Err(InvalidSetup::BlindMaster { name: *name, master: master.clone() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(name: &str, origin: Origin, tenants: Option<&[Tenant]>) -> Configured {
        let visibility = tenants.map_or(Visibility::Everyone, |tenants| {
            Visibility::Tenants(tenants.iter().cloned().collect())
        });
        Configured { name: name.parse().unwrap(), origin, visibility }
    }

    #[test]
    fn contradictions_are_refused() {
        let verdict = |timelines: &[Configured]| {
            Setup { timelines: timelines.to_vec(), ..Setup::new(ClockId(0)) }.validate()
        };
        let (web, name) = (Tenant::vm("web"), "grid".parse().unwrap());
        let mastered = || Origin::Local { master: Some(Tenant::vm("web")) };
        let good = configured("grid", mastered(), Some(std::slice::from_ref(&web)));
        assert_eq!(verdict(std::slice::from_ref(&good)), Ok(()));
        assert_eq!(verdict(&[good.clone(), good]), Err(InvalidSetup::Twice(name)));
        let builtin = configured("utc", Origin::Utc(ClockId(1)), None);
        assert_eq!(verdict(&[builtin]), Err(InvalidSetup::Builtin(TimelineName::UTC)));
        let unseen = configured("grid", Origin::Tai(ClockId(1)), Some(&[]));
        assert_eq!(verdict(&[unseen]), Err(InvalidSetup::Unseen(name)));
        let blind = configured("grid", mastered(), Some(&[Tenant::User(0)]));
        assert_eq!(verdict(&[blind]), Err(InvalidSetup::BlindMaster { name, master: web }));
    }
}
