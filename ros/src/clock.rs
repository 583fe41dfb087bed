//! What is published of the clock: `~/time_reference`, `~/interval`, and /diagnostics once a second.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use ros2_client::builtin_interfaces::Time;
use ros2_client::qos::History;
use ros2_client::{MessageTypeName, Name, Node, QosProfile};
use timevisor::{Reading, Status, Timeline};
use tracing::debug;

use crate::messages::{
    DiagnosticArray, DiagnosticStatus, Dimension, Header, Int64MultiArray, KeyValue, Layout,
    TimeReference,
};

/// How often /diagnostics is said: as ROS's diagnostic_updater does.
const DIAGNOSE_EVERY: Duration = Duration::from_secs(1);

/// The topics.
pub struct Publisher {
    timeline: Timeline,
    reference: ros2_client::Publisher<TimeReference>,
    interval: ros2_client::Publisher<Int64MultiArray>,
    diagnostics: ros2_client::Publisher<DiagnosticArray>,
    diagnosed: Option<Instant>,
}

impl Publisher {
    pub fn new(node: &mut Node, namespace: &str, timeline: Timeline) -> Result<Self> {
        Ok(Self {
            timeline,
            reference: publisher(
                node,
                namespace,
                "time_reference",
                ("sensor_msgs", "TimeReference"),
            )?,
            interval: publisher(node, namespace, "interval", ("std_msgs", "Int64MultiArray"))?,
            diagnostics: publisher(
                node,
                "/",
                "diagnostics",
                ("diagnostic_msgs", "DiagnosticArray"),
            )?,
            diagnosed: None,
        })
    }

    /// Says what the clock says now. A time that is not known is not said.
    pub fn publish(&mut self) {
        let reading = self.timeline.now();
        let system = Time::now();
        if let Ok(reading) = &reading
            && let Some(utc) = Utc::of(reading)
        {
            tell(&self.reference, reference(&utc, system));
            tell(&self.interval, interval(&utc));
        }
        if self.diagnosed.is_none_or(|at| at.elapsed() >= DIAGNOSE_EVERY) {
            self.diagnosed = Some(Instant::now());
            let status = match &reading {
                Ok(reading) => status(reading),
                Err(error) => unreadable(&error.to_string()),
            };
            let header = Header { stamp: system, frame_id: String::new() };
            tell(&self.diagnostics, DiagnosticArray { header, status: vec![status] });
        }
    }
}

fn publisher<M: serde::Serialize>(
    node: &mut Node,
    namespace: &str,
    topic: &str,
    (package, kind): (&str, &str),
) -> Result<ros2_client::Publisher<M>> {
    let qos = QosProfile::publisher_default().history(History::KeepLast { depth: 10 });
    let failed = |why: String| anyhow!("topic {topic}: {why}");
    let name = Name::new(namespace, topic).map_err(|error| failed(error.to_string()))?;
    let topic = node.create_topic(&name, MessageTypeName::new(package, kind), &qos);
    let topic = topic.map_err(|error| failed(error.to_string()))?;
    node.create_publisher(&topic, None).map_err(|error| failed(error.to_string()))
}

fn tell<M: serde::Serialize>(publisher: &ros2_client::Publisher<M>, message: M) {
    // Who does not take it in time gets the next one.
    if let Err(error) = publisher.publish(message) {
        debug!("not published: {error}");
    }
}

/// A reading in ROS's time, ns of UTC since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Utc {
    pub earliest_ns: i64,
    pub estimate_ns: i64,
    pub latest_ns: i64,
}

impl Utc {
    /// `None` where the time or UTC's offset is not known, or must not be relied on.
    pub fn of(reading: &Reading) -> Option<Self> {
        let offset_ns = offset_ns(reading)?;
        Some(Self {
            earliest_ns: reading.earliest_ns() - offset_ns,
            estimate_ns: reading.estimate_ns() - offset_ns,
            latest_ns: reading.latest_ns() - offset_ns,
        })
    }
}

/// By how much TAI is ahead of UTC now.
pub fn offset_ns(reading: &Reading) -> Option<i64> {
    let usable = reading.is_known() && reading.is_trustworthy();
    usable.then(|| reading.tai_offset()).flatten().map(|seconds| i64::from(seconds) * 1_000_000_000)
}

fn reference(utc: &Utc, system: Time) -> TimeReference {
    TimeReference {
        header: Header { stamp: system, frame_id: String::new() },
        time_ref: Time::from_nanos(utc.estimate_ns),
        source: "timevisor".to_owned(),
    }
}

fn interval(utc: &Utc) -> Int64MultiArray {
    let dimension =
        Dimension { label: "earliest,estimate,latest: ns of UTC".to_owned(), size: 3, stride: 3 };
    Int64MultiArray {
        layout: Layout { dim: vec![dimension], data_offset: 0 },
        data: vec![utc.earliest_ns, utc.estimate_ns, utc.latest_ns],
    }
}

fn status(reading: &Reading) -> DiagnosticStatus {
    let half_width = reading.half_width_ns();
    let (level, message) = match (reading.status(), reading.met()) {
        (Status::Unreliable, _) => (2, "bounds were contradicted; the time must not be relied on"),
        _ if !reading.is_known() => (2, "the time is not known"),
        _ if reading.tai_offset().is_none() => (2, "UTC is not known: no leap seconds"),
        (_, false) => (1, "the clock does not meet the requirement"),
        (Status::FreeRunning, true) => (1, "no reference answers; bounds grow"),
        (_, true) => (0, "bounds hold"),
    };
    let mut values =
        vec![("status", reading.status().name().to_owned()), ("met", reading.met().to_string())];
    if reading.is_known() {
        values
            .push(("half_width_ns", half_width.map_or("unknown".to_owned(), |ns| ns.to_string())));
        values.push(("earliest_tai_ns", reading.earliest_ns().to_string()));
        values.push(("estimate_tai_ns", reading.estimate_ns().to_string()));
        values.push(("latest_tai_ns", reading.latest_ns().to_string()));
        values.push(("disruption", reading.disruption().to_string()));
    }
    diagnostic(level, message, values)
}

fn unreadable(why: &str) -> DiagnosticStatus {
    diagnostic(2, why, Vec::new())
}

fn diagnostic(level: u8, message: &str, values: Vec<(&str, String)>) -> DiagnosticStatus {
    let values =
        values.into_iter().map(|(key, value)| KeyValue { key: key.to_owned(), value }).collect();
    DiagnosticStatus {
        level,
        name: "timevisor: clock".to_owned(),
        message: message.to_owned(),
        hardware_id: String::new(),
        values,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor::manual::Clock;

    #[test]
    fn what_is_not_known_is_not_said_and_why_is() {
        let clock = Clock::new(100_000_000_000);
        clock.set_error(Duration::from_nanos(50));
        let now = || clock.timeline().now().unwrap();
        let utc = Utc::of(&now()).unwrap();
        assert_eq!((utc.earliest_ns, utc.latest_ns), (62_999_999_950, 63_000_000_050));
        assert_eq!(reference(&utc, Time::ZERO).time_ref.to_nanos(), 63_000_000_000);
        assert_eq!(interval(&utc).data, [62_999_999_950, 63_000_000_000, 63_000_000_050]);
        assert_eq!((status(&now()).level, status(&now()).message.as_str()), (0, "bounds hold"));
        clock.set_status(Status::Unreliable);
        assert_eq!((Utc::of(&now()), status(&now()).level), (None, 2));
        clock.forget();
        assert_eq!(Utc::of(&now()), None);
        assert_eq!(status(&now()).message, "the time is not known");
    }
}
