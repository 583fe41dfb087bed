//! Anything in place of QEMU's gdb stub: events in sequence, of points that were asked for; nothing
//! after the connection was given up; how the stream is cut does not matter.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::pieces;
use timevisor_introspection::backend::gdb::Gdb;
use timevisor_introspection::backend::gdb::codec::packet;
use timevisor_introspection::backend::{Action, Backend, Input};
use timevisor_introspection::point::{Point, Read, Register, SLOT};
use timevisor_time::Duration;

const DESCRIPTION: &str = r#"l<reg name="rdx" bitsize="64"/><reg name="rsi" bitsize="64"/><reg name="rdi" bitsize="64"/>
<reg name="rsp" bitsize="64"/><reg name="rip" bitsize="64"/><reg name="gs_base" bitsize="64"/><reg name="cr3" bitsize="64"/>"#;

fuzz_target!(|data: &[u8]| {
    let [how, first, second, stream @ ..] = data else { return };
    let stream = if how & 2 == 0 { stream.to_vec() } else { packets(stream) };
    let attached = how & 1 != 0;
    let whole = run(attached, [&stream[..]].into_iter());
    let cut = run(attached, pieces(&stream, *first, *second));
    assert_eq!(whole, cut);
});

/// Lines as bodies of packets: otherwise checksums keep nearly everything out.
fn packets(lines: &[u8]) -> Vec<u8> {
    let lines = lines.split(|byte| *byte == b'\n');
    lines.filter_map(|line| core::str::from_utf8(line).ok()).flat_map(packet).collect()
}

fn run<'a>(attached: bool, stream: impl Iterator<Item = &'a [u8]>) -> Vec<Action> {
    let now = Duration::ZERO;
    let mut gdb = Gdb::default();
    let mut all = gdb.handle(Input::Connected, now);
    let point = |id| Point {
        id,
        symbol: String::new(),
        address: u64::from(id) << 12,
        expected: SLOT,
        reads: vec![
            Read::at(Register::GsBase, 0, 8),
            Read::from(0, 4, 4),
            Read::value(Register::Rdi),
        ],
        filter: None,
    };
    all.extend(gdb.attach(&[point(1), point(2)], now).expect("within the limits"));
    if attached {
        for answer in ["qXfer:features:read+;vContSupported+", DESCRIPTION, "OK", "OK"] {
            all.extend(gdb.handle(Input::Bytes(&packet(answer)), now));
        }
        assert!(all.contains(&Action::Attached(2)));
    }
    for piece in stream {
        all.extend(gdb.handle(Input::Bytes(piece), now));
    }
    let events = all.iter().filter_map(|action| match action {
        Action::Event(event) => Some(event),
        _ => None,
    });
    for (sequence, event) in (0..).zip(events) {
        assert!(
            matches!(event.point, 1 | 2) && event.data.len() == 20 && event.sequence == sequence
        );
    }
    let closed = all.iter().position(|action| matches!(action, Action::Close(_)));
    assert!(closed.is_none_or(|at| at + 1 == all.len()), "something after the end");
    all
}
