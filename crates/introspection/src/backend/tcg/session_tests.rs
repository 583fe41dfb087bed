use super::*;
use crate::backend::RawEvent;
use crate::point::SLOT;

const NOW: Duration = Duration::ZERO;

fn ms(ms: i64) -> Duration {
    Duration::from_millis(ms)
}

fn hello(version: u16, next: u64, dropped: u64) -> Message {
    Message::Hello { version, vcpus: 1, registers: 0, next, dropped, epoch: 1 }
}

fn event(sequence: u64, point: u16, dropped: u64) -> Message {
    let (counter, data) = (None, Vec::new());
    let event = RawEvent { sequence, counter, counter_error: 0, point, vcpu: 0, failed: 0, data };
    Message::Event { event, dropped }
}

fn point(id: u16) -> Point {
    let (reads, filter) = (Vec::new(), None);
    Point { id, symbol: "f".into(), address: 1 << 63, expected: SLOT, reads, filter }
}

/// After the hello, with one point requested as generation 1.
fn attaching() -> Tcg {
    let mut tcg = Tcg::default();
    assert!(tcg.handle(Input::Connected, NOW).is_empty());
    assert!(tcg.message(hello(codec::VERSION, 5, 2), NOW).is_empty());
    assert_eq!(tcg.state(), State::Detached);
    let actions = tcg.attach(&[point(1)], NOW).unwrap();
    assert!(matches!(actions[..], [Action::Send(_)]));
    assert_eq!(tcg.state(), State::Changing);
    tcg
}

fn attached() -> Tcg {
    let mut tcg = attaching();
    let installed = Message::Installed { generation: 1, count: 1 };
    assert_eq!(tcg.message(installed, NOW), [Action::Attached(1)]);
    assert_eq!(tcg.state(), State::Attached);
    tcg
}

fn closes(actions: &[Action], why: &str) -> bool {
    matches!(actions, [Action::Close(text)] if text.contains(why))
}

#[test]
fn attach_and_detach() {
    let mut tcg = attached();
    let Message::Event { event: raw, .. } = event(5, 1, 2) else { return };
    assert_eq!(tcg.message(event(5, 1, 2), NOW), [Action::Event(raw)]);
    assert!(matches!(tcg.detach(NOW)[..], [Action::Send(_)]));
    assert!(tcg.message(event(6, 1, 2), NOW).is_empty(), "under way");
    assert_eq!(tcg.message(Message::Installed { generation: 1, count: 1 }, NOW), [], "stale");
    assert_eq!(
        tcg.message(Message::Installed { generation: 2, count: 0 }, NOW),
        [Action::Detached]
    );
    assert_eq!((tcg.state(), tcg.sequence()), (State::Detached, 7));
}

#[test]
fn points_wait_for_a_connection_and_survive_it() {
    let mut tcg = Tcg::default();
    assert!(tcg.attach(&[point(1)], NOW).unwrap().is_empty());
    assert_eq!(tcg.state(), State::Away);
    for _ in 0..2 {
        tcg.handle(Input::Connected, NOW);
        assert!(matches!(tcg.message(hello(codec::VERSION, 0, 0), NOW)[..], [Action::Send(_)]));
        assert_eq!(
            tcg.message(Message::Installed { generation: 1, count: 1 }, NOW),
            [Action::Attached(1)]
        );
        tcg.handle(Input::Closed, NOW);
        assert_eq!(tcg.state(), State::Away);
    }
}

#[test]
fn a_busy_guest_is_paused_again_and_again() {
    let mut tcg = attaching();
    assert_eq!(tcg.poll_at(NOW), Some(PATIENCE));
    assert!(tcg.handle(Input::Timer, ms(299)).is_empty());
    assert_eq!(tcg.handle(Input::Timer, ms(300)), [Action::Pause]);
    assert_eq!(tcg.handle(Input::Timer, ms(301)), []);
    assert_eq!(tcg.handle(Input::Timer, ms(600)), [Action::Pause]);
    tcg.message(Message::Installed { generation: 1, count: 1 }, ms(601));
    assert_eq!(tcg.poll_at(ms(601)), None);
}

#[test]
fn drops_are_told() {
    let mut tcg = attached();
    assert_eq!(tcg.message(Message::Status { next: 5, dropped: 2 }, NOW), []);
    assert_eq!(tcg.message(Message::Status { next: 5, dropped: 9 }, NOW), [Action::Dropped(7)]);
    assert!(matches!(
        tcg.message(event(5, 1, 10), NOW)[..],
        [Action::Dropped(8), Action::Event(_)]
    ));
}

#[test]
fn who_sends_too_much_is_not_read() {
    let mut tcg = Tcg::new(100, 3);
    tcg.handle(Input::Connected, NOW);
    tcg.message(hello(codec::VERSION, 0, 0), NOW);
    for n in 0..4 {
        assert!(tcg.may_read(NOW) == (n < 3));
        tcg.message(event(n, 1, 0), NOW);
    }
    assert_eq!(tcg.poll_at(NOW), Some(tcg.limit.ready_at()));
    assert!(tcg.may_read(ms(21)));
}

#[test]
fn a_plugin_that_lies_is_closed() {
    let mut tcg = Tcg::default();
    tcg.handle(Input::Connected, NOW);
    assert!(closes(&tcg.message(event(0, 1, 0), NOW), "does not greet"));
    let mut tcg = Tcg::default();
    tcg.handle(Input::Connected, NOW);
    assert!(closes(&tcg.message(hello(1, 0, 0), NOW), "version 1"));
    assert!(closes(&attached().message(hello(codec::VERSION, 0, 0), NOW), "twice"));
    assert!(closes(&attached().message(event(6, 1, 2), NOW), "lost an event"));
    assert!(closes(
        &attaching().message(Message::Installed { generation: 1, count: 0 }, NOW),
        "lost a point"
    ));
    assert!(closes(
        &attaching().message(Message::Refused { generation: 1, code: 1 }, NOW),
        "refuses"
    ));
    let mut tcg = attached();
    assert!(closes(&tcg.handle(Input::Bytes(&[0xff; 8]), NOW), "bytes"));
    assert!(tcg.handle(Input::Bytes(&[0; 64]), NOW).is_empty(), "nothing after that");
}

#[test]
fn a_changed_instruction_is_told() {
    let changed = Message::Mismatch { generation: 1, point: 1, found: vec![0xe8] };
    assert_eq!(attached().message(changed, NOW), [Action::Changed { point: 1, found: vec![0xe8] }]);
}
