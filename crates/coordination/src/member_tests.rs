use super::*;
use crate::testing::{Net, at, id, name, now_at};

fn envelope(sequence: u64, ms: i64, origin: u64) -> Envelope {
    let interval = now_at(ms).reading.unwrap().interval;
    let message = Message::Publication { topic: name("t"), payload: b"x".to_vec() };
    Envelope { from: id(1), sequence, stamp: Some(Stamp { interval, origin }), message }
}

fn kinds(member: &mut Member) -> Vec<&'static str> {
    let kind = |event: &Event| match event {
        Event::Received { .. } => "received",
        Event::Lost { .. } => "lost",
        Event::FromTheFuture { .. } => "future",
        Event::AnotherOrigin { .. } => "origin",
        _ => "other",
    };
    let events = member.events();
    events.iter().filter(|it| !matches!(it, Event::Passed { .. })).map(kind).collect()
}

#[test]
fn losses_repetitions_and_contradictions_are_said() {
    let mut member = Member::new(id(0), Settings::default(), 0);
    let now = now_at(10);
    member.heard(envelope(4, 9, 7), &now);
    member.heard(envelope(5, 9, 7), &now);
    assert_eq!(kinds(&mut member), ["received", "received"]);
    member.heard(envelope(5, 9, 7), &now);
    assert!(kinds(&mut member).is_empty(), "a repetition");
    member.heard(envelope(8, 9, 7), &now);
    assert_eq!(kinds(&mut member), ["lost", "received"]);
    member.heard(envelope(9, 11, 7), &now);
    assert_eq!(kinds(&mut member), ["future", "received"], "said, and not dropped");
    member.heard(envelope(10, 9, 8), &now);
    assert_eq!(kinds(&mut member), ["origin", "received"]);
}

#[test]
fn nothing_is_agreed_with_a_clock_from_the_future() {
    let mut member = Member::new(id(0), Settings::default(), 0);
    let claim = Message::Claim { office: name("lead"), until: at(5_200) };
    member.heard(Envelope { message: claim, ..envelope(1, 5_100, 7) }, &now_at(5_000));
    assert!(member.outbox().is_empty());
    assert_eq!(kinds(&mut member), ["future"]);
}

#[test]
fn stamps_never_go_back() {
    let mut member = Member::new(id(0), Settings::default(), 0);
    let wide = |ms: i64, half: i64| {
        let mut now = now_at(ms);
        let reading = now.reading.as_mut().unwrap();
        reading.interval = Interval::around(reading.estimate, Duration::from_millis(half));
        now
    };
    let stamp = |member: &mut Member, now: &Now| {
        member.tick(now);
        member.outbox()[0].1.stamp.unwrap().interval
    };
    let first = stamp(&mut member, &wide(100, 1));
    let second = stamp(&mut member, &wide(101, 50));
    assert!(second.earliest().to_bits() >= first.earliest().to_bits());
    assert!(second.contains(at(101)));
}

#[test]
fn a_barrier_releases_all_at_one_time() {
    let mut net = Net::new(3);
    for index in [2, 0] {
        let now = net.now;
        assert!(net.members[index].arrive(name("gate"), 3, &now));
        net.run_to(net.ms + 100);
    }
    assert!(!net.told.iter().any(|(_, event)| matches!(event, Event::Released { .. })));
    let now = net.now;
    assert!(net.members[1].arrive(name("gate"), 3, &now));
    assert!(!net.members[1].arrive(name("gate"), 3, &now), "it waits there already");
    net.run_to(net.ms + 200);
    let mut released: Vec<_> = net
        .told
        .iter()
        .filter_map(|(by, event)| match event {
            Event::Released { interval, .. } => Some((*by, interval.earliest())),
            _ => None,
        })
        .collect();
    released.sort_unstable();
    assert_eq!(released.iter().map(|(by, _)| *by).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(released.iter().all(|(_, when)| *when == released[0].1));
    // And once more.
    for index in 0..3 {
        let now = net.now;
        assert!(net.members[index].arrive(name("gate"), 3, &now));
    }
    net.run_to(net.ms + 300);
    let count =
        net.told.iter().filter(|(_, event)| matches!(event, Event::Released { .. })).count();
    assert_eq!(count, 6);
}
