//! A QMP session against lines captured from QEMU 7.2.22, and against everything that is not QMP.

use proptest::prelude::*;
use serde_json::{Value, json};
use timevisor_protocols::qmp::session::MAX_LINE_LEN;
use timevisor_protocols::qmp::{
    MigrationStatus, QemuVersion, QmpError, QmpFault, QmpItem, QueryStatus, RunState, Session,
    VmEvent,
};

const GREETING: &str = "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 22, \"minor\": 2, \"major\": 7}, \"package\": \
     \"Debian 1:7.2+dfsg-7+deb12u18+b3\"}, \"capabilities\": [\"oob\"]}}\r\n";
const NEGOTIATED: &str = "{\"return\": {}, \"id\": 0}\r\n";

/// What QEMU sent when asked, one after the other: query-status, migrate-set-capabilities, cont,
/// nosuch, stop, system_reset, migrate.
const CAPTURED: &str = r#"
{"return": {"status": "prelaunch", "singlestep": false, "running": false}, "id": 1}
{"return": {}, "id": 2}
{"timestamp": {"seconds": 1795180194, "microseconds": 611821}, "event": "RESUME"}
{"return": {}, "id": 3}
{"id": 4, "error": {"class": "CommandNotFound", "desc": "The command nosuch has not been found"}}
{"timestamp": {"seconds": 1795180195, "microseconds": 412644}, "event": "STOP"}
{"return": {}, "id": 5}
{"timestamp": {"seconds": 1795180195, "microseconds": 813874}, "event": "RESET", "data": {"guest": false, "reason": "host-qmp-system-reset"}}
{"return": {}, "id": 6}
{"timestamp": {"seconds": 1795180196, "microseconds": 213499}, "event": "MIGRATION", "data": {"status": "setup"}}
{"return": {}, "id": 7}
{"timestamp": {"seconds": 1795180196, "microseconds": 216272}, "event": "MIGRATION_PASS", "data": {"pass": 1}}
{"timestamp": {"seconds": 1795180196, "microseconds": 216351}, "event": "MIGRATION", "data": {"status": "active"}}
{"timestamp": {"seconds": 1795180196, "microseconds": 232421}, "event": "MIGRATION", "data": {"status": "completed"}}
"#;

fn ready() -> Session {
    let mut session = Session::with_first_id(0);
    session.on_bytes(GREETING.as_bytes());
    session.on_bytes(NEGOTIATED.as_bytes());
    assert!(session.is_ready());
    session
}

fn fault(session: &mut Session, bytes: &[u8]) -> QmpFault {
    let mut items = session.on_bytes(bytes);
    assert!(!session.is_ready());
    match (items.pop(), items.len()) {
        (Some(QmpItem::Fault(fault)), 0) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn greeting_then_negotiation_then_ready() {
    let mut session = Session::with_first_id(0);
    let items = session.on_bytes(GREETING.as_bytes());
    let [QmpItem::Send(bytes)] = &items[..] else { panic!("{items:?}") };
    assert_eq!(bytes, b"{\"execute\":\"qmp_capabilities\",\"id\":0}\n");
    assert!(!session.is_ready());
    let items = session.on_bytes(NEGOTIATED.as_bytes());
    let [QmpItem::Ready { version }] = items[..] else { panic!("{items:?}") };
    assert_eq!(version, QemuVersion { major: 7, minor: 2, micro: 22 });
    assert_eq!(version.to_string(), "7.2.22");
    assert!(version < QemuVersion { major: 10, minor: 0, micro: 0 });
}

#[test]
fn a_command_is_one_line_of_json() {
    let mut session = ready();
    assert_eq!(session.command("cont", None), (1, b"{\"execute\":\"cont\",\"id\":1}\n".to_vec()));
    let (id, bytes) = session.command("migrate", Some(json!({"uri": "unix:/a\nb"})));
    assert_eq!(id, 2);
    assert_eq!(bytes.iter().filter(|b| **b == b'\n').count(), 1);
    let sent: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(sent, json!({"execute": "migrate", "id": 2, "arguments": {"uri": "unix:/a\nb"}}));
}

#[test]
fn the_captured_session_is_understood() {
    let mut session = ready();
    for name in [
        "query-status",
        "migrate-set-capabilities",
        "cont",
        "nosuch",
        "stop",
        "system_reset",
        "migrate",
    ] {
        let _ = session.command(name, None);
    }
    assert_eq!(session.unanswered().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    let (mut replies, mut events) = (vec![], vec![]);
    for item in session.on_bytes(CAPTURED.as_bytes()) {
        match item {
            QmpItem::Reply { id, result } => replies.push((id, result)),
            QmpItem::Event(event) => events.push(event),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(replies.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(session.unanswered().count(), 0);
    let status = QueryStatus::from_reply(replies[0].1.as_ref().unwrap()).unwrap();
    assert_eq!(status, QueryStatus { running: false, state: RunState::Prelaunch });
    let refused = QmpError {
        class: "CommandNotFound".into(),
        desc: "The command nosuch has not been found".into(),
    };
    assert_eq!(replies[3].1, Err(refused));
    assert_eq!((events[0].seconds, events[0].microseconds), (1_795_180_194, 611_821));
    assert_eq!(
        events.iter().map(VmEvent::from).collect::<Vec<_>>(),
        [
            VmEvent::Resume,
            VmEvent::Stop,
            VmEvent::Reset { guest: false },
            VmEvent::Migration(MigrationStatus::Setup),
            VmEvent::Other("MIGRATION_PASS".to_owned()),
            VmEvent::Migration(MigrationStatus::Active),
            VmEvent::Migration(MigrationStatus::Completed),
        ]
    );
}

#[test]
fn what_is_not_qmp_is_named_and_ends_the_session() {
    let mut human = Session::with_first_id(0);
    let text = fault(&mut human, b"QEMU 7.2.22 monitor - type 'help' for more information\r\n")
        .to_string();
    assert!(
        text.contains("\"QEMU 7.2.22 monitor")
            && text.contains("check that the socket is a QMP monitor"),
        "{text}"
    );
    assert!(human.on_bytes(GREETING.as_bytes()).is_empty(), "nothing is interpreted after a fault");

    let event = CAPTURED.lines().find(|line| line.contains("event")).unwrap().to_owned() + "\n";
    let mut early = Session::with_first_id(0);
    assert!(matches!(fault(&mut early, event.as_bytes()), QmpFault::Greeting), "{event}");
    assert!(matches!(fault(&mut ready(), GREETING.as_bytes()), QmpFault::Greeting));
    for shapeless in [
        "[]",
        "7",
        "{}",
        "{\"event\": \"STOP\"}",
        "{\"QMP\": {}}",
        "{\"return\": 1, \"error\": {\"class\": \"a\", \"desc\": \"b\"}}",
    ] {
        let fault = fault(&mut ready(), format!("{shapeless}\n").as_bytes());
        assert!(matches!(fault, QmpFault::Shape { .. }), "{shapeless}: {fault:?}");
    }
}

/// Seen of QEMU 7.2 when a client disconnects before it has read the answer to its
/// `qmp_capabilities`.
#[test]
fn answers_to_whoever_was_connected_before_are_not_ours() {
    let mut session = Session::with_first_id(8);
    let others = [
        "{\"return\": {}, \"id\": 0}\n",
        "{\"return\": {}}\n",
        "{\"return\": {}, \"id\": \"libvirt-7\"}\n",
        "{\"error\": {\"class\": \"a\", \"desc\": \"b\"}, \"id\": 1}\n",
    ];
    let ignored = |session: &mut Session| {
        for line in others {
            assert!(session.on_bytes(line.as_bytes()).is_empty(), "{line}");
        }
    };
    ignored(&mut session);
    session.on_bytes(GREETING.as_bytes());
    ignored(&mut session);
    assert!(!session.is_ready());
    session.on_bytes(b"{\"return\": {}, \"id\": 8}\n");
    assert!(session.is_ready());
    assert_eq!(session.command("cont", None).0, 9);
    ignored(&mut session);
    assert_eq!(session.unanswered().collect::<Vec<_>>(), [9]);
}

#[test]
fn refusals_without_an_id_and_refused_negotiation_are_faults() {
    let unread = b"{\"error\": {\"class\": \"GenericError\", \"desc\": \"JSON parse error\"}}\n";
    assert!(matches!(fault(&mut ready(), unread), QmpFault::Unread(QmpError { .. })));
    let mut session = Session::with_first_id(0);
    session.on_bytes(GREETING.as_bytes());
    let refused = b"{\"id\": 0, \"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}}\n";
    assert!(matches!(fault(&mut session, refused), QmpFault::Negotiation(_)));
}

#[test]
fn a_null_return_is_a_reply() {
    let mut session = ready();
    let (id, _) = session.command("x", None);
    let items = session.on_bytes(b"{\"return\": null, \"id\": 1}\n\r\n");
    assert!(
        matches!(&items[..], [QmpItem::Reply { id: got, result: Ok(Value::Null) }] if *got == id),
        "{items:?}"
    );
}

#[test]
fn a_mebibyte_is_the_limit() {
    let padded = |len: usize| {
        let start = "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"";
        format!("{start}{}\"}}\n", "E".repeat(len - start.len() - 2))
    };
    assert!(matches!(ready().on_bytes(padded(MAX_LINE_LEN).as_bytes())[..], [QmpItem::Event(_)]));
    let fault = fault(&mut ready(), padded(MAX_LINE_LEN + 1).as_bytes());
    assert!(fault.to_string().contains("exceeds 1048576 bytes"), "{fault}");
}

proptest! {
    #[test]
    fn how_the_stream_is_cut_does_not_matter(cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
        let stream = format!("{GREETING}{NEGOTIATED}{CAPTURED}");
        let run = |pieces: &[&[u8]]| {
            let mut session = Session::with_first_id(0);
            for _ in 0..7 {
                let _ = session.command("x", None);
            }
            pieces.iter().flat_map(|p| session.on_bytes(p)).map(|i| format!("{i:?}")).collect::<Vec<_>>()
        };
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(stream.len())).chain([0, stream.len()]).collect();
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|w| &stream.as_bytes()[w[0]..w[1]]).collect();
        let whole = run(&[stream.as_bytes()]);
        prop_assert_eq!(whole.len(), 16);
        prop_assert_eq!(run(&pieces), whole);
    }

    #[test]
    fn nothing_panics_and_a_fault_is_final(
        pieces in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            prop::sample::select(CAPTURED.lines().chain([GREETING, NEGOTIATED]).map(|l| format!("{l}\n").into_bytes()).collect::<Vec<_>>()),
        ], 0..20),
    ) {
        let mut session = Session::with_first_id(0);
        let items: Vec<_> = pieces.iter().flat_map(|p| session.on_bytes(p)).collect();
        let faults = items.iter().filter(|i| matches!(i, QmpItem::Fault(_))).count();
        prop_assert!(faults <= 1);
        prop_assert!(faults == 0 || matches!(items.last(), Some(QmpItem::Fault(_))));
    }

    #[test]
    fn deep_or_cut_off_json_is_a_fault(depth in 1usize..5000, open in prop::sample::select(vec!["[", "{\"a\":"])) {
        let line = format!("{}\n", open.repeat(depth));
        let items = Session::with_first_id(0).on_bytes(line.as_bytes());
        let refused = matches!(items[..], [QmpItem::Fault(QmpFault::Json { .. })]);
        prop_assert!(refused, "{:?}", items);
    }
}
