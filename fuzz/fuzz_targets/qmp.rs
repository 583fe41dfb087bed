//! A byte stream in place of QEMU's: replies only to commands that were sent, `Ready` once, nothing
//! after a fault, and how the stream is cut does not matter.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::pieces;
use timevisor_protocols::qmp::{Message, QmpItem, QueryStatus, Session, VmEvent, cpu_threads};

const NEGOTIATION: &[u8] =
    b"{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 22, \"minor\": 2, \"major\": 7}, \
    \"package\": \"Debian\"}, \"capabilities\": [\"oob\"]}}\r\n{\"return\": {}, \"id\": 0}\r\n";
/// Commands sent after the negotiation: ids 1 to 3.
const COMMANDS: u64 = 3;

fuzz_target!(|data: &[u8]| {
    let [how, first, second, stream @ ..] = data else { return };
    let negotiated = how & 1 != 0;
    let whole = run(negotiated, [stream].into_iter());
    let cut = run(negotiated, pieces(stream, *first, *second));
    assert_eq!(whole, cut);
    for line in stream.split(|byte| *byte == b'\n') {
        if let Err(fault) = Message::parse(line) {
            assert!(!fault.to_string().is_empty());
        }
    }
});

/// All items, shown.
fn run<'a>(negotiated: bool, stream: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut session = Session::with_first_id(0);
    let mut ready = 0;
    let mut awaited = BTreeSet::new();
    if negotiated {
        let items = session.on_bytes(NEGOTIATION);
        assert!(matches!(items[..], [QmpItem::Send(_), QmpItem::Ready { .. }]));
        ready = 1;
        for _ in 0..COMMANDS {
            awaited.insert(session.command("query-status", None).0);
        }
    }
    let mut seen = Vec::new();
    let mut over = false;
    for piece in stream {
        for item in session.on_bytes(piece) {
            assert!(!over, "something after a fault");
            match &item {
                QmpItem::Ready { .. } => ready += 1,
                QmpItem::Reply { id, result } => {
                    assert!(awaited.remove(id), "a reply to nothing");
                    let _status = result.as_ref().map(QueryStatus::from_reply);
                    let _cpus = result.as_ref().map(cpu_threads);
                }
                QmpItem::Event(event) => drop(VmEvent::from(event)),
                QmpItem::Fault(fault) => {
                    assert!(!fault.to_string().is_empty());
                    over = true;
                }
                QmpItem::Send(_) => {}
            }
            seen.push(format!("{item:?}"));
        }
    }
    assert!(ready <= 1);
    assert_eq!(session.is_ready(), ready == 1 && !over);
    assert!(session.unanswered().eq(awaited));
    seen
}
