//! Anything in place of QEMU's plugin: events in sequence, of points that were asked for; nothing
//! after the connection was given up; how the stream is cut does not matter.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::pieces;
use timevisor_introspection::backend::tcg::Tcg;
use timevisor_introspection::backend::tcg::codec::VERSION;
use timevisor_introspection::backend::{Action, Backend, Input, State};
use timevisor_introspection::point::{Point, Read, Register, SLOT};
use timevisor_introspection::backend::RawEvent;
use timevisor_time::Duration;

/// The plugin's, with 0 as the next sequence.
const HELLO: [u8; 48] = {
    let mut bytes = [0; 48];
    (bytes[0], bytes[4]) = (40, 0x81);
    (bytes[8], bytes[9], bytes[10], bytes[11]) = (b'T', b'V', b'I', b'P');
    bytes[12] = VERSION.to_le_bytes()[0];
    bytes
};

fuzz_target!(|data: &[u8]| {
    let [how, first, second, stream @ ..] = data else { return };
    let greeted = how & 1 != 0;
    let whole = run(greeted, [stream].into_iter());
    let cut = run(greeted, pieces(stream, *first, *second));
    assert_eq!(whole, cut);
});

fn run<'a>(greeted: bool, stream: impl Iterator<Item = &'a [u8]>) -> Vec<Action> {
    let now = Duration::ZERO;
    let mut tcg = Tcg::default();
    let mut all = tcg.handle(Input::Connected, now);
    if greeted {
        all.extend(tcg.handle(Input::Bytes(&HELLO), now));
        assert_eq!(tcg.state(), State::Detached);
    }
    let point = |id| Point {
        id,
        symbol: String::new(),
        address: 1 << 63,
        expected: SLOT,
        reads: vec![Read::value(Register::Rdi)],
        filter: None,
    };
    all.extend(tcg.attach(&[point(1), point(2)], now).expect("within the limits"));
    for piece in stream {
        all.extend(tcg.handle(Input::Bytes(piece), now));
    }
    let events = all.iter().filter_map(|action| match action {
        Action::Event(event) => Some(event),
        _ => None,
    });
    let good = |event: &RawEvent| matches!(event.point, 1 | 2) && event.data.len() <= 256;
    assert!(events.clone().all(good));
    assert!(events.clone().is_sorted_by(|one, other| one.sequence < other.sequence));
    let closed = all.iter().position(|action| matches!(action, Action::Close(_)));
    assert!(closed.is_none_or(|at| at + 1 == all.len()), "something after the end");
    all
}
