//! Topics of a group and of ROS, each way.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use ros2_client::qos::{History, WhenFull};
use ros2_client::{Gid, MessageTypeName, Name, Node, Publisher, QosProfile, Subscription};
use timevisor::Timeline;
use timevisor::group::{Group, Inbox, Message, Order};
use tracing::{info, warn};

use crate::clock::offset_ns;
use crate::command::Command;
use crate::events;
use crate::messages::JointTrajectory;

/// How often a thread looks whether the program ends.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

static ENDS: AtomicBool = AtomicBool::new(false);

/// From which topic to which.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    pub from: String,
    pub to: String,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((from, to)) if !from.is_empty() && !to.is_empty() => {
                Ok(Self { from: from.to_owned(), to: to.to_owned() })
            }
            _ => {
                Err("two topics with = between them, such as commands=/arm/joint_trajectory"
                    .to_owned())
            }
        }
    }
}

/// Carries in threads of their own until [`leave`].
pub fn start(
    node: &mut Node,
    group: &Arc<Group>,
    timeline: &Timeline,
    to_ros: &[Pair],
    from_ros: &[Pair],
) -> Result<()> {
    let watch = group.watch();
    Builder::new().name("events".to_owned()).spawn(move || events::log(&watch, &ENDS))?;
    let mut own = Vec::new();
    for Pair { from, to } in to_ros {
        let publisher: Publisher<JointTrajectory> = {
            let topic = topic(node, to)?;
            node.create_publisher(&topic, None).map_err(|error| anyhow!("topic {to}: {error}"))?
        };
        own.push(publisher.gid());
        let inbox = group.subscribe(from, Order::Arrival, 0)?;
        let (timeline, member) = (timeline.clone(), group.id());
        info!("carries {from} of the group to {to} of ROS");
        let from = from.clone();
        let carry = move || carry_to_ros(&from, &inbox, &publisher, &timeline, &member);
        Builder::new().name("to-ros".to_owned()).spawn(carry)?;
    }
    for Pair { from, to } in from_ros {
        let subscription: Subscription<JointTrajectory> = {
            let topic = topic(node, from)?;
            node.create_subscription(&topic, None)
                .map_err(|error| anyhow!("topic {from}: {error}"))?
        };
        let (group, timeline, to) = (Arc::clone(group), timeline.clone(), to.clone());
        let own = own.clone();
        info!("carries {from} of ROS to {to} of the group");
        let carry = move || carry_from_ros(&subscription, &group, &to, &timeline, &own);
        Builder::new().name("from-ros".to_owned()).spawn(carry)?;
    }
    Ok(())
}

/// Leaves the group as soon as the threads have done with it.
pub fn leave(group: Arc<Group>) {
    ENDS.store(true, Ordering::Relaxed);
    for _ in 0..20 {
        if Arc::strong_count(&group) == 1 {
            break;
        }
        std::thread::sleep(LOOK_EVERY / 4);
    }
    if let Some(group) = Arc::into_inner(group) {
        group.leave();
    }
}

fn topic(node: &mut Node, name: &str) -> Result<ros2_client::dds::rustdds::Topic> {
    let qos = QosProfile::publisher_default()
        .reliability_reliable(WhenFull::DEFAULT)
        .history(History::KeepLast { depth: 100 });
    let parsed =
        Name::parse(name).map_err(|error| anyhow!("{name:?} is no topic of ROS: {error}"))?;
    let kind = MessageTypeName::new("trajectory_msgs", "JointTrajectory");
    node.create_topic(&parsed, kind, &qos).map_err(|error| anyhow!("topic {name}: {error}"))
}

fn carry_to_ros(
    topic: &str,
    inbox: &Inbox<Message>,
    publisher: &Publisher<JointTrajectory>,
    timeline: &Timeline,
    own: &timevisor::group::Id,
) {
    let mut told = 0;
    while !ENDS.load(Ordering::Relaxed) && !inbox.is_over() {
        events::tell_dropped(inbox.dropped(), &mut told, topic);
        let Some(message) = inbox.next_within(LOOK_EVERY) else { continue };
        if message.from == *own {
            continue;
        }
        let carried = utc_offset(timeline).and_then(|(offset_ns, _)| {
            let command = Command::from_json(&message.payload)?.to_ros(offset_ns)?;
            publisher.publish(command).map_err(|error| anyhow!("{error}"))
        });
        if let Err(error) = carried {
            warn!("a message of {} is not carried to ROS: {error:#}", message.from.name);
        }
    }
}

fn carry_from_ros(
    subscription: &Subscription<JointTrajectory>,
    group: &Group,
    topic: &str,
    timeline: &Timeline,
    own: &[Gid],
) {
    while !ENDS.load(Ordering::Relaxed) {
        let (given, info) = match subscription.take() {
            Ok(Some(taken)) => taken,
            Ok(None) => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(error) => {
                warn!("a message of ROS is not understood: {error}");
                continue;
            }
        };
        if own.contains(&info.publisher_gid()) {
            continue;
        }
        let carried = utc_offset(timeline).and_then(|(offset_ns, now_ns)| {
            let command = Command::from_ros(&given, offset_ns, now_ns)?;
            group.publish(topic, &command.to_json()).map_err(|error| anyhow!("{error}"))
        });
        if let Err(error) = carried {
            warn!("a trajectory of ROS is not carried to {topic}: {error:#}");
        }
    }
}

/// TAI less UTC, and TAI now, ns.
fn utc_offset(timeline: &Timeline) -> Result<(i64, i64)> {
    let reading = timeline.now()?;
    let offset = offset_ns(&reading).context("UTC is not known; see /diagnostics")?;
    Ok((offset, reading.estimate_ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_two_topics() {
        let pair = Pair { from: "a".into(), to: "/b/c".into() };
        assert_eq!("a=/b/c".parse(), Ok(pair));
        for wrong in ["", "a", "=b", "a="] {
            assert!(wrong.parse::<Pair>().unwrap_err().contains("such as"));
        }
    }
}
