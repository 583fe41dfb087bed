//! The timelines of a host, for its operator.

use serde::{Deserialize, Serialize};

use crate::channel::{Achieved, Epoch, Requirement};

/// Answers `timelines`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Timelines {
    /// All timelines: those that are configured, and those that clients have created.
    pub timelines: Vec<TimelineReport>,
}

/// A timeline.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TimelineReport {
    /// Its name; each tenant's own timelines may have the same.
    pub name: String,
    /// Who created it: `uid:1000` or `vm:web`; absent for a configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its epoch.
    pub epoch: Epoch,
    /// Number of bindings.
    pub members: u64,
    /// Bindings whose requirement is not met now.
    pub unmet: u64,
    /// The tightest requirement, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<Requirement>,
    /// Its quality now, on the host's page; of a VM's own timeline, on that VM's page.
    pub achieved: Achieved,
}
