//! A byte stream in place of QEMU's: replies only to commands that were sent, `Ready` once, nothing
//! after a fault, and how the stream is cut does not matter. The dialogue above the session tells
//! only what the daemon accepts, and nothing after a loss.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::pieces;
use timevisor_protocols::qmp::{
    Action, Command, Dialogue, Message, News, QmpItem, QueryStatus, Report, Session, VmEvent,
    cpu_threads,
};
use timevisor_time::Duration;

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
    let whole = converse(*how, [stream].into_iter());
    let cut = converse(*how, pieces(stream, *first, *second));
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

/// All news of a dialogue in which every command is pending: ids 1 to 3 or 4 are its own, and those
/// of [`COMMANDS_TOLD`] follow. One stream has less than it may send.
fn converse<'a>(how: u8, stream: impl Iterator<Item = &'a [u8]>) -> Vec<News> {
    let mut dialogue = Dialogue::new(0, how & 2 != 0, Duration::ZERO);
    let mut news = Vec::new();
    if how & 1 != 0 {
        news.extend(told(dialogue.on_bytes(NEGOTIATION, Duration::ZERO)));
    }
    for command in COMMANDS_TOLD {
        news.extend(told(dialogue.on_command(command)));
    }
    news.extend(told(dialogue.on_command(Command::Migrate("tcp:b:1".to_owned()))));
    news.extend(told(dialogue.on_command(Command::Await("tcp:0:1".to_owned()))));
    for piece in stream {
        let was_over = dialogue.is_over();
        let more = told(dialogue.on_bytes(piece, Duration::ZERO));
        assert!(!was_over || more.is_empty());
        news.extend(more);
    }
    let lost = news.iter().position(|news| matches!(news, News::Lost(_)));
    assert_eq!(lost.map(|at| at + 1), dialogue.is_over().then_some(news.len()));
    news
}

const COMMANDS_TOLD: [Command; 6] = [
    Command::AskStatus,
    Command::AskCpus,
    Command::Resume,
    Command::PauseForAMoment,
    Command::IgnoreShared,
    Command::AskWhy,
];

/// Commands are one line each; news arrive as they were sent.
fn told(actions: Vec<Action>) -> Vec<News> {
    let mut told = Vec::new();
    for action in actions {
        match action {
            Action::Send(bytes) => {
                assert_eq!(bytes.iter().position(|byte| *byte == b'\n'), Some(bytes.len() - 1));
            }
            Action::Tell(news) => {
                let report = Report::News(1, news.clone());
                assert_eq!(Report::from_bytes(&report.to_bytes()).unwrap(), report);
                told.push(news);
            }
        }
    }
    told
}
