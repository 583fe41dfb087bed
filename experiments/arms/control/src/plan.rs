//! plan.json, which plan.py writes: one cycle as waypoints of both arms. A cycle ends as it began.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::wire::{Arm, JOINTS};

const FORMAT: &str = "timevisor-arms-plan/1";

/// Where an arm shall be at one time. Between two of them each joint follows a quintic polynomial.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Waypoint {
    /// Angles, rad.
    pub q: [f64; JOINTS],
    /// Speeds, rad/s.
    pub dq: [f64; JOINTS],
    /// Accelerations, rad/s^2.
    pub ddq: [f64; JOINTS],
    /// 0 open, 1 closed, from here on.
    pub gripper: f64,
}

#[derive(Deserialize)]
struct File {
    format: String,
    cycle_ns: i64,
    waypoint_interval_ns: i64,
    arms: BTreeMap<String, FileArm>,
}

#[derive(Deserialize)]
struct FileArm {
    waypoints: Vec<Waypoint>,
}

/// A cycle, which is repeated for ever. Waypoints are counted on through all cycles.
#[derive(Clone, Debug)]
pub struct Plan {
    /// From one waypoint to the next, ns.
    pub interval_ns: i64,
    arms: [Vec<Waypoint>; 2],
}

impl Plan {
    /// Reads the file.
    ///
    /// # Errors
    /// When it is none, or of another format.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}; plan.py writes it", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}; run plan.py again", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut file: File = serde_json::from_str(text)?;
        ensure!(file.format == FORMAT, "its format is {:?}, not {FORMAT:?}", file.format);
        ensure!(file.waypoint_interval_ns > 0, "its waypoints have no distance");
        let pieces = usize::try_from(file.cycle_ns / file.waypoint_interval_ns)?;
        let mut arm = |arm: Arm| -> Result<Vec<Waypoint>> {
            let mut found = file.arms.remove(arm.name()).context("an arm is missing")?.waypoints;
            ensure!(found.len() == pieces + 1 && pieces > 0, "{} waypoints", found.len());
            // The last is the first of the next cycle.
            found.truncate(pieces);
            Ok(found)
        };
        Ok(Self { interval_ns: file.waypoint_interval_ns, arms: [arm(Arm::A)?, arm(Arm::B)?] })
    }

    /// A waypoint of any cycle.
    #[must_use]
    pub fn waypoint(&self, arm: Arm, index: i64) -> &Waypoint {
        let all = &self.arms[arm.index()];
        let count = i64::try_from(all.len()).unwrap_or(i64::MAX);
        &all[usize::try_from(index.rem_euclid(count)).unwrap_or(0)]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two arms whose first joint swings once within 4 s.
    pub(crate) fn swing() -> Plan {
        let waypoint = |index: i32| {
            let (x, w) = (f64::from(index) * 0.02, std::f64::consts::TAU / 4.0);
            let mut point = Waypoint { q: [0.0; 6], dq: [0.0; 6], ddq: [0.0; 6], gripper: 0.0 };
            point.q[0] = (w * x).cos();
            point.dq[0] = -w * (w * x).sin();
            point.ddq[0] = -w * w * (w * x).cos();
            point
        };
        let arm: Vec<Waypoint> = (0..200).map(waypoint).collect();
        Plan { interval_ns: 20_000_000, arms: [arm.clone(), arm] }
    }

    #[test]
    fn cycles_go_on_for_ever_and_another_format_is_refused() {
        let plan = swing();
        assert_eq!(plan.waypoint(Arm::A, 3), plan.waypoint(Arm::B, 403));
        assert_eq!(plan.waypoint(Arm::A, -1), plan.waypoint(Arm::A, 199));
        let other =
            "{\"format\": \"x\", \"cycle_ns\": 1, \"waypoint_interval_ns\": 1, \"arms\": {}}";
        assert!(Plan::parse(other).unwrap_err().to_string().contains("timevisor-arms-plan/1"));
    }
}
