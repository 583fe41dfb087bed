//! The messages of ROS 2 that are used, as CDR has them: the fields in the order of their .msg files.

use ros2_client::Message;
use ros2_client::builtin_interfaces::{Duration, Time};
use serde::{Deserialize, Serialize};

/// `std_msgs/Header`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    pub stamp: Time,
    pub frame_id: String,
}

/// `sensor_msgs/TimeReference`: what another clock says at the header's stamp.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimeReference {
    pub header: Header,
    pub time_ref: Time,
    pub source: String,
}

impl Message for TimeReference {}

/// `std_msgs/MultiArrayDimension`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dimension {
    pub label: String,
    pub size: u32,
    pub stride: u32,
}

/// `std_msgs/MultiArrayLayout`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Layout {
    pub dim: Vec<Dimension>,
    pub data_offset: u32,
}

/// `std_msgs/Int64MultiArray`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Int64MultiArray {
    pub layout: Layout,
    pub data: Vec<i64>,
}

impl Message for Int64MultiArray {}

/// `diagnostic_msgs/KeyValue`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyValue {
    pub key: String,
    pub value: String,
}

/// `diagnostic_msgs/DiagnosticStatus`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiagnosticStatus {
    /// 0 ok, 1 a warning, 2 an error, 3 stale.
    pub level: u8,
    pub name: String,
    pub message: String,
    pub hardware_id: String,
    pub values: Vec<KeyValue>,
}

/// `diagnostic_msgs/DiagnosticArray`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiagnosticArray {
    pub header: Header,
    pub status: Vec<DiagnosticStatus>,
}

impl Message for DiagnosticArray {}

/// `trajectory_msgs/JointTrajectoryPoint`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JointTrajectoryPoint {
    pub positions: Vec<f64>,
    pub velocities: Vec<f64>,
    pub accelerations: Vec<f64>,
    pub effort: Vec<f64>,
    pub time_from_start: Duration,
}

/// `trajectory_msgs/JointTrajectory`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JointTrajectory {
    pub header: Header,
    pub joint_names: Vec<String>,
    pub points: Vec<JointTrajectoryPoint>,
}

impl Message for JointTrajectory {}
