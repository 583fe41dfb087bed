//! Applications and guests in front of the server's end, in two ways: any stream, cut in any way;
//! and frames of every standing between garbage, as time goes by. No request twice, none beyond the
//! rate, sessions one after the other, answers once and to the session that asked.
#![no_main]

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::{decode, edited, log_scaled, pieces, some_bytes};
use timevisor_protocols::channel::frame::{HEADER_LEN, MAX_REQUEST_LEN};
use timevisor_protocols::channel::{
    Direction, Event, Frame, FrameReader, Kind, Limits, MAX_UNSENT, Received, Response,
    ServerAction, ServerConfig, ServerSession,
};
use timevisor_time::Duration;

const PAYLOADS: [&str; 7] = [
    r#"{"hello":{"client":"fuzz"}}"#,
    r#"{"bind":{"timeline":"tai","requirement":{"below_ns":1,"above_ns":2}}}"#,
    r#"{"update":{"binding":1}}"#,
    r#"{"unbind":{"binding":1}}"#,
    r#""timelines""#,
    r#""keep_alive""#,
    "{",
];

fuzz_target!(|data: &[u8]| {
    if let [first, second, stream @ ..] = data {
        reader(stream, *first, *second);
    }
    decode(data, run);
});

/// How a stream is cut does not matter, little is kept, and what is found is in the stream.
fn reader(stream: &[u8], first: u8, second: u8) {
    let mut whole = FrameReader::new(Direction::ToServer);
    let found = whole.feed(stream);
    let mut cut = FrameReader::new(Direction::ToServer);
    let mut found_cut = Vec::new();
    for piece in pieces(stream, first, second) {
        found_cut.extend(cut.feed(piece));
        assert!(cut.pending() <= HEADER_LEN + MAX_REQUEST_LEN);
    }
    assert_eq!(found, found_cut);
    assert_eq!(whole.pending(), cut.pending());
    let mut framed = 0;
    for received in &found {
        match received {
            Received::Frame(frame) => {
                let bytes = frame.encode();
                assert!(stream.windows(bytes.len()).any(|window| window == bytes));
                framed += bytes.len();
            }
            Received::OtherVersion(header) => framed += HEADER_LEN + usize::from(header.len),
        }
    }
    assert_eq!(whole.skipped() + (framed + whole.pending()) as u64, stream.len() as u64);
}

fn run(u: &mut Unstructured) -> Result<()> {
    let requests_per_second = u.int_in_range(1..=50)?;
    let lease_ms = u.arbitrary::<Option<u16>>()?.map(u64::from);
    let limits = Limits { bindings: 4, timelines: 4, requests_per_second, lease_ms };
    let mut world = World {
        server: ServerSession::new(ServerConfig { tenant: "vm:fuzz".into(), page: None, limits }),
        rate: i64::from(requests_per_second),
        now_ms: 0,
        numbered: 0,
        open: None,
        seen: BTreeSet::new(),
        unanswered: Vec::new(),
    };
    while !u.is_empty() && world.server.over().is_none() {
        world.step(u)?;
        world.check();
    }
    Ok(())
}

struct World {
    server: ServerSession,
    rate: i64,
    now_ms: i64,
    numbered: u64,
    open: Option<u64>,
    seen: BTreeSet<(u64, u64)>,
    unanswered: Vec<(u64, u64)>,
}

impl World {
    fn step(&mut self, u: &mut Unstructured) -> Result<()> {
        match u.int_in_range(0..=9)? {
            0 => {
                self.now_ms += log_scaled(u)?;
                let action = self.server.on_timer(self.now());
                self.take(action.into_iter().collect());
                assert!(self.server.poll_at().is_none_or(|at| at > self.now()));
            }
            1..=4 => {
                let frame = self.frame(u)?;
                self.deliver(&frame);
                if u.arbitrary()? {
                    self.deliver(&frame);
                }
            }
            5 => {
                let frame = self.frame(u)?;
                let damaged = edited(u, &frame)?;
                self.deliver(&damaged);
            }
            6 => self.deliver(some_bytes(u)?),
            7 => {
                // Perhaps one that is gone, or was answered.
                let at = usize::from(u.arbitrary::<u8>()?);
                if let Some(&(session, id)) = self.unanswered.get(at % 8) {
                    let before = self.server.output().len();
                    let _over = self.server.respond(session, id, &Response::Timelines(vec![]));
                    let after = self.server.output().len();
                    assert_eq!(
                        after > before,
                        self.open == Some(session),
                        "an answer to whom it is due"
                    );
                    let _over = self.server.respond(session, id, &Response::Alive);
                    assert_eq!(self.server.output().len(), after, "an answer once");
                    self.unanswered.remove(at % 8);
                }
            }
            8 => self.server.sent(usize::from(u.arbitrary::<u16>()?)),
            _ => {
                let session = self.open.unwrap_or(1);
                let _over = self.server.send_event(session, &Event::Disrupted { binding: 1 });
                if u.arbitrary()? {
                    assert_eq!(self.server.end_session("fuzz"), self.open.take());
                }
            }
        }
        Ok(())
    }

    fn frame(&mut self, u: &mut Unstructured) -> Result<Vec<u8>> {
        let payload = u.choose(&PAYLOADS)?;
        let hello = payload.contains("hello");
        let session =
            if hello != u.ratio(1, 16)? { 0 } else { self.numbered + u64::from(u.ratio(1, 8)?) };
        let id = u64::from(u.arbitrary::<u16>()?);
        let frame = Frame::new(Kind::Request, session, id, payload.as_bytes().to_vec());
        Ok(frame.expect("short").encode())
    }

    fn deliver(&mut self, bytes: &[u8]) {
        let numbered = &mut self.numbered;
        let mut new_session = || {
            *numbered += 1;
            NonZeroU64::new(*numbered).expect("counted from 1")
        };
        let actions =
            self.server.on_bytes(Duration::from_millis(self.now_ms), bytes, &mut new_session);
        self.take(actions);
    }

    fn take(&mut self, actions: Vec<ServerAction>) {
        let last = actions.len().saturating_sub(1);
        for (at, action) in actions.into_iter().enumerate() {
            match action {
                ServerAction::Began { session, .. } => assert_eq!(self.open.replace(session), None),
                ServerAction::Ended { session } | ServerAction::Expired { session } => {
                    assert_eq!(self.open.take(), Some(session));
                }
                ServerAction::Request { session, id, request } => {
                    assert_eq!(self.open, Some(session));
                    assert!(self.seen.insert((session, id)), "a request twice");
                    assert_eq!(request.check(), Ok(()));
                    self.unanswered.push((session, id));
                }
                ServerAction::Close(_) => {
                    assert_eq!(at, last);
                    assert!(self.server.over().is_some());
                }
            }
        }
    }

    fn check(&mut self) {
        if self.server.over().is_some() {
            self.open = None;
        }
        assert_eq!(self.server.session(), self.open);
        assert!(self.server.output().len() <= MAX_UNSENT);
        let budget = self.rate * self.now_ms / 1000 + 2 * self.rate;
        assert!(self.seen.len() as i64 + self.numbered as i64 <= budget, "beyond the rate");
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms)
    }
}
