//! Any bytes behind the lines of an audit log, as a crash or a stranger may leave them: the journal goes on after
//! them, the log then verifies, and what it had before is all there. A line that was changed is found.
#![no_main]

use std::convert::Infallible;

use libfuzzer_sys::fuzz_target;
use timevisor_audit::verify::Verifier;
use timevisor_audit::{Action, Event, Found, Journal, Keep, Line, Settings, Stamp};

fuzz_target!(|data: &[u8]| {
    let _ = Line::parse(data);
    let _ = Verifier::default().file("data", data, drop);
    let mut log = Vec::new();
    append(&mut log, 1);
    let whole = log.len();
    log.extend_from_slice(data);
    append(&mut log, 2);
    assert_eq!(counts(&log).expect("the torn bytes are named"), [1, 2]);
    if let [first, second, flip, ..] = data {
        let at = usize::from(*first) << 8 | usize::from(*second);
        let at = at % whole;
        log[at] ^= flip;
        assert_eq!(counts(&log).is_some(), *flip == 0, "byte {at}");
    }
});

/// Goes on with a log, in one file.
fn append(log: &mut Vec<u8>, count: u64) {
    let mut journal = Journal::new(Settings { rotate: u64::MAX, keep: Keep::Files(2) });
    let there = Found { number: 1, modified_ns: 0, length: log.len() as u64 };
    let files = if log.is_empty() { Vec::new() } else { vec![there] };
    journal.find(files, |_| Ok::<_, Infallible>(log.clone())).expect("cannot fail");
    journal.push(Stamp::unvouched(5), Event::Contradiction { count });
    while let Some(action) = journal.next_action() {
        match action {
            Action::Append { bytes, .. } | Action::Create { bytes, .. } => log.extend(bytes),
            Action::Remove { .. } => unreachable!("one file"),
        }
        journal.done(Ok(()));
    }
}

fn counts(log: &[u8]) -> Option<Vec<u64>> {
    let (mut verifier, mut counts) = (Verifier::default(), Vec::new());
    let each = |line: Line| match line.event {
        Event::Contradiction { count } => counts.push(count),
        _ => {}
    };
    verifier.file("log", log, each).ok()?;
    verifier.end().ok()?;
    Some(counts)
}
