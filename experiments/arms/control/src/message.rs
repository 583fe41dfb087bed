//! What planner and controllers say to each other, as JSON on two topics of the group.

use serde::{Deserialize, Serialize};

use crate::plan::Waypoint;

/// The planner's topic.
pub const COMMANDS: &str = "commands";
/// The controllers' topic.
pub const STATUS: &str = "status";

/// Where the arms shall be: waypoints from number `first` on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Commands {
    /// The start that these belong to; that of the next one, before it is proposed.
    pub run: u64,
    /// The number of the first waypoint.
    pub first: i64,
    /// When it is due, ns on the group's timeline; `None` before the start is agreed.
    pub at_ns: Option<i64>,
    /// From one waypoint to the next, ns.
    pub interval_ns: i64,
    /// Of arm a and arm b.
    pub arms: [Vec<Waypoint>; 2],
}

/// What an arm does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// It stands, and would follow.
    Stands,
    /// It follows the plan.
    Moves,
    /// It holds, or does not know where it is.
    Holds,
    /// The protective stop has come.
    Stopped,
}

/// What a controller says ten times a second, and at once when it holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// 0 is arm a, 1 is arm b.
    pub arm: usize,
    /// What it does.
    pub doing: Doing,
    /// The last start that it has followed.
    pub run: u64,
    /// The plan time that it is at, ns.
    pub plan_ns: i64,
    /// Both arms grip the part.
    pub grips: bool,
    /// Its clock meets its requirement.
    pub met: bool,
    /// Why it holds.
    pub why: String,
}
