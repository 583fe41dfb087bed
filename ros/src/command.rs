//! A command as groups have it, JSON with times on the group's timeline, and as ROS has it,
//! `trajectory_msgs/JointTrajectory` with a stamp in UTC.

use ros2_client::builtin_interfaces::{Duration, Time};
use serde::{Deserialize, Serialize};

use crate::messages::{Header, JointTrajectory, JointTrajectoryPoint};

/// More points are no command.
const MOST_POINTS: usize = 100_000;

/// Where joints shall be at which times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The points' times count from here, ns of TAI since 1970.
    pub at_ns: i64,
    /// In which coordinates; of ROS, may be empty.
    #[serde(default)]
    pub frame: String,
    /// The joints' names, in the order of the points' numbers.
    pub joints: Vec<String>,
    /// In the order of time.
    pub points: Vec<Point>,
}

/// Where the joints shall be at one time. Lists are as long as there are joints, or empty.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// After the command's time.
    pub after_ns: i64,
    #[serde(default)]
    pub positions: Vec<f64>,
    #[serde(default)]
    pub velocities: Vec<f64>,
    #[serde(default)]
    pub accelerations: Vec<f64>,
    #[serde(default)]
    pub effort: Vec<f64>,
}

/// Why something is no command.
#[derive(Clone, PartialEq, Debug)]
pub struct NoCommand(pub String);

impl std::fmt::Display for NoCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no command: {}", self.0)
    }
}

impl std::error::Error for NoCommand {}

impl Command {
    /// From a message of a group.
    pub fn from_json(bytes: &[u8]) -> Result<Self, NoCommand> {
        let command: Self =
            serde_json::from_slice(bytes).map_err(|error| NoCommand(error.to_string()))?;
        command.checked()
    }

    /// As a message of a group.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From ROS. `offset_ns`: by how much TAI is ahead of UTC. `now_ns`: TAI, for a stamp of zero, which means
    /// as soon as it comes.
    pub fn from_ros(
        given: &JointTrajectory,
        offset_ns: i64,
        now_ns: i64,
    ) -> Result<Self, NoCommand> {
        let stamp = given.header.stamp.to_nanos();
        let at_ns = if stamp == 0 {
            now_ns
        } else {
            stamp
                .checked_add(offset_ns)
                .ok_or_else(|| NoCommand("its stamp is out of range".to_owned()))?
        };
        let point = |point: &JointTrajectoryPoint| Point {
            after_ns: point.time_from_start.to_nanos(),
            positions: point.positions.clone(),
            velocities: point.velocities.clone(),
            accelerations: point.accelerations.clone(),
            effort: point.effort.clone(),
        };
        let points = given.points.iter().map(point).collect();
        let (frame, joints) = (given.header.frame_id.clone(), given.joint_names.clone());
        Self { at_ns, frame, joints, points }.checked()
    }

    /// For ROS, whose times have 32 bits for seconds.
    pub fn to_ros(&self, offset_ns: i64) -> Result<JointTrajectory, NoCommand> {
        let out = |what: &str| NoCommand(format!("{what} is out of ROS's range"));
        let stamp = self.at_ns.checked_sub(offset_ns).filter(|stamp| fits(*stamp));
        let stamp = stamp.ok_or_else(|| out("its time"))?;
        if self.points.iter().any(|point| !fits(point.after_ns)) {
            return Err(out("a point's time"));
        }
        let point = |point: &Point| JointTrajectoryPoint {
            positions: point.positions.clone(),
            velocities: point.velocities.clone(),
            accelerations: point.accelerations.clone(),
            effort: point.effort.clone(),
            time_from_start: Duration::from_nanos(point.after_ns),
        };
        Ok(JointTrajectory {
            header: Header { stamp: Time::from_nanos(stamp), frame_id: self.frame.clone() },
            joint_names: self.joints.clone(),
            points: self.points.iter().map(point).collect(),
        })
    }

    fn checked(self) -> Result<Self, NoCommand> {
        if self.points.len() > MOST_POINTS {
            return Err(NoCommand(format!(
                "{} points, more than {MOST_POINTS}",
                self.points.len()
            )));
        }
        for (number, point) in self.points.iter().enumerate() {
            for list in [&point.positions, &point.velocities, &point.accelerations, &point.effort] {
                if !list.is_empty() && list.len() != self.joints.len() {
                    let (got, joints) = (list.len(), self.joints.len());
                    return Err(NoCommand(format!(
                        "point {number} has {got} numbers for {joints} joints"
                    )));
                }
                if list.iter().any(|value| !value.is_finite()) {
                    return Err(NoCommand(format!(
                        "point {number} has something that is no number"
                    )));
                }
            }
            let before =
                number.checked_sub(1).map_or(i64::MIN, |before| self.points[before].after_ns);
            if point.after_ns < before {
                return Err(NoCommand(format!("point {number} is before the one before it")));
            }
        }
        Ok(self)
    }
}

fn fits(ns: i64) -> bool {
    i32::try_from(ns.div_euclid(1_000_000_000)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSET: i64 = 37_000_000_000;

    fn command() -> Command {
        let point = |after_ns, positions: &[f64]| Point {
            after_ns,
            positions: positions.to_vec(),
            velocities: Vec::new(),
            accelerations: Vec::new(),
            effort: Vec::new(),
        };
        Command {
            at_ns: 1_800_000_000_123_456_789,
            frame: "base".into(),
            joints: vec!["a".into(), "b".into()],
            points: vec![point(0, &[1.0, 2.0]), point(8_000_000, &[1.5, 2.5])],
        }
    }

    #[test]
    fn commands_survive_both_ways_to_the_nanosecond() {
        let given = command();
        let ros = given.to_ros(OFFSET).unwrap();
        assert_eq!(ros.header.stamp.to_nanos(), given.at_ns - OFFSET);
        assert_eq!(Command::from_ros(&ros, OFFSET, 0).unwrap(), given);
        assert_eq!(Command::from_json(&given.to_json()).unwrap(), given);
        let mut soon = ros;
        soon.header.stamp = Time::ZERO;
        assert_eq!(Command::from_ros(&soon, OFFSET, 77).unwrap().at_ns, 77);
    }

    #[test]
    fn what_is_no_command_says_why() {
        let why = |change: &dyn Fn(&mut Command)| {
            let mut it = command();
            change(&mut it);
            Command::from_json(&it.to_json()).and_then(|it| it.to_ros(OFFSET)).unwrap_err().0
        };
        assert_eq!(
            why(&|it| it.points[1].positions.truncate(1)),
            "point 1 has 1 numbers for 2 joints"
        );
        assert_eq!(why(&|it| it.points[1].after_ns = -1), "point 1 is before the one before it");
        assert_eq!(why(&|it| it.at_ns = i64::MAX), "its time is out of ROS's range");
        assert_eq!(
            why(&|it| it.points[1].after_ns = i64::MAX),
            "a point's time is out of ROS's range"
        );
        let mut infinite = command();
        infinite.points[0].positions[0] = f64::INFINITY;
        assert!(infinite.checked().unwrap_err().0.contains("no number"));
        for bytes in [
            &b""[..],
            b"null",
            b"{\"at_ns\": 1}",
            b"{\"at_ns\":1,\"joints\":[],\"points\":[],\"x\":1}",
        ] {
            assert!(Command::from_json(bytes).is_err());
        }
    }
}
