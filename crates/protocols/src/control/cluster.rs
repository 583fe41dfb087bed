//! What the daemon says of the clusters that its host belongs to.

use serde::{Deserialize, Serialize};

/// Answers `clusters`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Clusters {
    /// Its clocks, in the order of the configuration: UTC of each cluster that a reference follows or
    /// that this host is the root of, and the cluster's own timeline.
    pub clusters: Vec<ClusterClock>,
}

/// A cluster's clock as this host has it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterClock {
    /// The cluster's name.
    pub cluster: String,
    /// `utc`, or the name of its own timeline.
    pub timeline: String,
    /// `root` (its clock comes from other references), `master`, `member`, or `asking` (no bounds yet).
    pub role: String,
    /// Servers between this host and the master; of UTC, the stratum of the nearest server.
    pub level: Option<u8>,
    /// The generation and the epoch of the timeline's origin; absent for UTC.
    pub origin: Option<String>,
    /// True time is at most this far before the estimate.
    pub below_ns: Option<u64>,
    /// True time is at most this far after the estimate.
    pub above_ns: Option<u64>,
    /// Seconds since anybody heard the timeline's master; absent for UTC, and while nobody has.
    pub master_heard_s: Option<f64>,
    /// Where this host can be asked; empty if it does not serve others.
    pub serves: Vec<String>,
    /// Whom it asks at first.
    pub seeds: Vec<String>,
    /// Questions that it has asked.
    pub questions: u64,
    /// The hosts that it has heard.
    pub hosts: Vec<ClusterHost>,
}

/// Another host of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterHost {
    /// Its address.
    pub address: String,
    /// `heard`, `liar` or `refused`.
    pub status: String,
    /// Servers between it and the master.
    pub level: Option<u8>,
    /// How wide the bounds are that its answers alone give now.
    pub width_ns: Option<u64>,
    /// Why it was of no use.
    pub reason: Option<String>,
}
