//! Samples as the dashboard shows them: a few topics, each a line of JSON, which browsers get when it
//! changes.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the topics, and which of them are new |
//! | `topics.rs` | what is in each |

mod topics;

use std::sync::Arc;

use crate::sample::Sample;

/// The topics, as events are named. The clock comes first, because it is always new.
pub const TOPICS: [&str; 8] = [
    "clock",
    "daemon",
    "references",
    "vms",
    "timelines",
    "reservations",
    "introspections",
    "clusters",
];

/// All topics at one moment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct View([Arc<str>; TOPICS.len()]);

impl View {
    pub fn of(sample: &Sample) -> Self {
        Self(topics::all(sample).map(|topic| topic.to_string().into()))
    }

    /// The topics that differ from those of `before`: names and JSON.
    pub fn news<'a>(
        &'a self,
        before: Option<&'a Self>,
    ) -> impl Iterator<Item = (&'static str, Arc<str>)> + 'a {
        let topics = TOPICS.into_iter().zip(&self.0).enumerate();
        let is_new = move |place: usize, topic: &Arc<str>| {
            before.is_none_or(|before| before.0[place] != *topic)
        };
        topics
            .filter(move |(place, (_, topic))| is_new(*place, topic))
            .map(|(_, (name, topic))| (name, Arc::clone(topic)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::collections::BTreeSet;

    #[test]
    fn a_browser_gets_what_changes() {
        let mut sample = testing::sample(2);
        let first = View::of(&sample);
        assert_eq!(first.news(None).count(), TOPICS.len());
        // Publications are written each second, and say nothing new.
        sample.answers.vms.as_mut().unwrap().vms[0].pages_published += 1;
        sample.taken_ms += 1000;
        let second = View::of(&sample);
        let news: BTreeSet<_> = second.news(Some(&first)).map(|(name, _)| name).collect();
        assert_eq!(news, BTreeSet::from(["clock"]));
        sample.answers.vms.as_mut().unwrap().vms[1].status = "freerunning".to_owned();
        let third = View::of(&sample);
        let news: BTreeSet<_> = third.news(Some(&second)).map(|(name, _)| name).collect();
        assert_eq!(news, BTreeSet::from(["vms"]));
    }

    #[test]
    fn topics_are_one_line_each_and_survive_strange_names() {
        let mut sample = testing::sample(1);
        sample.answers.vms.as_mut().unwrap().vms[0].name = "</script>\n\r\u{2028}".to_owned();
        for (_, topic) in View::of(&sample).news(None) {
            assert!(!topic.contains(['\n', '\r']));
            let _: serde_json::Value = serde_json::from_str(&topic).unwrap();
        }
    }
}
