//! What the group reports, in the log: what is lost on the way is said.

use std::sync::atomic::{AtomicBool, Ordering};

use timevisor::group::{Inbox, Reported};
use tracing::{info, warn};

use crate::bridge::LOOK_EVERY;

/// Logs until the program ends.
pub fn log(watch: &Inbox<Reported>, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) && !watch.is_over() {
        let Some(reported) = watch.next_within(LOOK_EVERY) else { continue };
        match &reported {
            Reported::Disconnected | Reported::Refused(_) | Reported::Lost { .. } => {
                warn!("{}", text(&reported));
            }
            Reported::Connected => info!("{}", text(&reported)),
            Reported::FromTheFuture { .. } | Reported::AnotherOrigin(_) => {
                warn!("{}", text(&reported));
            }
            _ => {}
        }
    }
}

fn text(reported: &Reported) -> String {
    match reported {
        Reported::Disconnected => {
            "the connection to the bus is lost; trajectories are not carried until it is back"
                .into()
        }
        Reported::Connected => "the bus is there again".into(),
        Reported::Refused(why) => format!("the bus does not let this node join again yet: {why}"),
        Reported::Lost { from, topic, count } => {
            let of = from.as_ref().map_or_else(String::new, |from| format!(" of {}", from.name));
            let on = topic.as_ref().map_or_else(String::new, |topic| format!(" on {topic}"));
            format!("{count} messages{of}{on} were lost on the way")
        }
        Reported::FromTheFuture { from, by_ns } => {
            format!("{} is {by_ns} ns in our future: its clock or ours is wrong", from.name)
        }
        Reported::AnotherOrigin(from) => {
            format!("{} counts its timeline from another origin", from.name)
        }
        other => format!("{other:?}"),
    }
}

/// Says how many messages a queue has dropped since `told`, because they came faster than ROS took them.
pub fn tell_dropped(dropped: u64, told: &mut u64, topic: &str) {
    if dropped > *told {
        let lost = dropped - *told;
        warn!("{lost} messages of {topic} came faster than ROS took them, and are lost");
        *told = dropped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_said_with_its_number() {
        let lost = |topic: Option<&str>| Reported::Lost {
            from: None,
            topic: topic.map(|topic| topic.parse().unwrap()),
            count: 7,
        };
        assert_eq!(text(&lost(None)), "7 messages were lost on the way");
        assert_eq!(text(&lost(Some("commands"))), "7 messages on commands were lost on the way");
        assert!(text(&Reported::Refused("no key".into())).ends_with("no key"));
    }
}
