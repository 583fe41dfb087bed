use super::*;

const SECOND: i64 = 1_000_000_000;

fn stamp(second: i64, vouched: bool) -> Stamp {
    let ns = second * SECOND;
    if vouched {
        Stamp { earliest_ns: ns - 5, latest_ns: ns + 5, vouched }
    } else {
        Stamp::unvouched(ns)
    }
}

fn sample(status: &str, bound_ns: i64) -> Sample {
    let vouched = crate::report::is_vouching(status);
    Sample { status: status.into(), vouched, bound_ns: Some(bound_ns), ..Sample::default() }
}

/// The spans that are recorded: status, seconds, worst.
fn spans(looks: &[(i64, &str, i64)]) -> Vec<(String, i64, i64, Option<i64>)> {
    let mut watch = ClockWatch::default();
    let mut events = Vec::new();
    for (second, status, bound_ns) in looks {
        let sample = sample(status, *bound_ns);
        let at = stamp(*second, sample.vouched);
        events.extend(watch.sample(second * SECOND, at, sample));
    }
    events.extend(watch.end());
    let span = |(at, event): (Stamp, Event)| match event {
        Event::Bound { since, status, worst_ns, .. } => {
            let since = i64::midpoint(since.0[0], since.0[1]);
            Some((status, since / SECOND, at.middle_ns() / SECOND, worst_ns))
        }
        _ => None,
    };
    events.into_iter().filter_map(span).collect()
}

#[test]
fn each_minute_has_its_worst_bound() {
    let looks: Vec<_> = (0..=150).map(|s| (s, "synchronized", 100 + s % 7)).collect();
    let full = |from: i64, to: i64| ("synchronized".to_owned(), from, to, Some(106));
    assert_eq!(spans(&looks), [full(0, 60), full(60, 120), full(120, 150)]);
}

#[test]
fn time_between_two_looks_counts_as_the_worse() {
    let looks = [
        (0, "unknown", 0),
        (9, "unknown", 0),
        (10, "synchronized", 5),
        (20, "synchronized", 8),
        // A daemon that was stopped for 10 s.
        (30, "unreliable", 90),
        (40, "synchronized", 7),
        (50, "freerunning", 9),
    ];
    let span = |status: &str, from, to, worst| (status.to_owned(), from, to, Some(worst));
    assert_eq!(
        spans(&looks),
        [
            span("unknown", 0, 10, 0),
            span("synchronized", 10, 20, 8),
            span("unreliable", 20, 40, 90),
            span("synchronized", 40, 40, 7),
            span("freerunning", 40, 50, 9),
        ][..3]
            .iter()
            .cloned()
            .chain([span("freerunning", 40, 50, 9)])
            .collect::<Vec<_>>()
    );
}

#[test]
fn facts_that_change_are_events_and_all_others_are_not() {
    let mut facts = Facts { leap: (Some(37), "none".into()), ..Facts::default() };
    let reference = |state: &str| Reference { state: state.into(), detail: "d".into() };
    facts.references.insert("a".into(), reference("reachable"));
    facts.vms.insert(("web".into(), 7), Vm { uid: 1000, state: "here".into() });
    let reservation = Reservation {
        uid: Some(1000),
        promise: "core 1".into(),
        budget_ns: 5,
        period_ns: 10,
        deadline_ns: 10,
    };
    facts.reservations.insert(("web".into(), 0), reservation);
    assert_eq!(facts.since(None).len(), 4);
    assert!(facts.since(Some(&facts)).is_empty());
    let mut later = facts.clone();
    later.references.insert("a".into(), Reference { detail: "e".into(), ..reference("reachable") });
    assert!(later.since(Some(&facts)).is_empty(), "only its details differ");
    later.references.insert("a".into(), reference("falseticker"));
    later.vms.clear();
    later.reservations.clear();
    let kinds: Vec<_> = later.since(Some(&facts));
    assert!(
        matches!(&kinds[..], [
            Event::Reference { state: Some(state), .. },
            Event::Vm { state: None, uid: 1000, .. },
            Event::Reservation { change, uid: Some(1000), .. },
        ] if state == "falseticker" && change == "released"),
        "{kinds:?}"
    );
}
