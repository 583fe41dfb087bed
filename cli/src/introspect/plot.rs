//! What each real-time task of a guest did and when, as a picture: a row for each thread, a mark
//! for each event.

use std::collections::BTreeMap;

use serde_json::Value;

use super::thread;
use crate::plot::{self, Line, Marks};

/// Kinds of events, how they are called, and their colour (Tol's bright scheme).
const KINDS: [(&str, &str, &str); 6] = [
    ("set_scheduler", "policy asked for", "#4477aa"),
    ("yield", "yield: end of a job", "#228833"),
    ("sleep", "sleep", "#ccbb44"),
    ("exit", "exit", "#ee6677"),
    ("abort", "abort: a job is given up", "#aa3377"),
    ("choose_scheduler", "scheduler chosen", "#66ccee"),
];
/// Rows are this thin.
const GRAY: &str = "#bbbbbb";

/// `None` without an event whose time is known.
pub fn svg(vm: &str, events: &[Value]) -> Option<String> {
    let timed: Vec<(i64, &Value)> =
        events.iter().filter_map(|event| Some((event["estimate_ns"].as_i64()?, event))).collect();
    let start = timed.iter().map(|(at, _)| *at).min()?;
    let seconds = |at: i64| (at - start) as f64 / 1e9;
    let mut rows: BTreeMap<(u64, u64), (String, f64, f64)> = BTreeMap::new();
    let of = |event: &Value| {
        let id = |name: &str| event["thread"][name].as_u64().unwrap_or(0);
        (id("pid"), id("tid"))
    };
    for (at, event) in &timed {
        // The last name that it had.
        let row = rows.entry(of(event)).or_insert((String::new(), seconds(*at), seconds(*at)));
        row.0 = thread(&event["thread"]);
        (row.1, row.2) = (row.1.min(seconds(*at)), row.2.max(seconds(*at)));
    }
    let place = |event: &Value| {
        rows.keys().position(|key| *key == of(event)).map_or(0.0, |row| (row + 1) as f64)
    };
    let lines = rows.values().enumerate().map(|(row, (name, first, last))| Line {
        points: vec![(*first, (row + 1) as f64), (*last, (row + 1) as f64)],
        color: GRAY,
        width: 1.0,
        dashed: false,
        name: format!("{}: {name}", row + 1),
    });
    let marks = KINDS.iter().map(|(kind, name, color)| Marks {
        points: timed
            .iter()
            .filter(|(_, event)| event["kind"] == **kind)
            .map(|(at, event)| (seconds(*at), place(event)))
            .collect(),
        color,
        name: (*name).to_owned(),
    });
    let title = format!("Real-time tasks of {vm}");
    let marks = marks.filter(|marks| !marks.points.is_empty()).collect();
    Some(plot::svg_with_marks(&title, "time, s", "task", lines.collect(), marks))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_for_each_thread_and_a_mark_for_each_event() {
        let event = |tid: u64, kind: &str, at: Option<i64>| {
            let thread = json!({"tid": tid, "pid": 7, "comm": "rt<&", "policy": "deadline"});
            json!({"thread": thread, "kind": kind, "estimate_ns": at})
        };
        assert_eq!(svg("web", &[]), None);
        assert_eq!(svg("web", &[event(7, "yield", None)]), None, "no time is known");
        let events = [
            event(7, "set_scheduler", Some(5)),
            event(8, "yield", Some(1_000_000_005)),
            event(7, "exit", Some(2_000_000_005)),
        ];
        let svg = svg("web", &events).unwrap();
        for text in ["1: 7 rt&lt;&amp; deadline", "2: 8 rt", "policy asked for", "exit"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("sleep"), "a kind that did not happen");
    }
}
