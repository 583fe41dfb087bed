//! A host, or whatever answers in its place, in front of the client's end: only what was asked is
//! answered, once, in its own session; what is sent are frames of the session, at the server's
//! pace.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::{decode, edited, log_scaled, pieces, some_bytes};
use timevisor_protocols::channel::frame::{HEADER_LEN, MAX_ANSWER_LEN};
use timevisor_protocols::channel::{
    Binding, ClientAction, ClientConfig, ClientSession, Direction, Frame, FrameReader, Kind,
    Received, Request,
};
use timevisor_time::Duration;

const PAYLOADS: [&str; 8] = [
    r#"{"bound":{"binding":1,"timeline":"tai","epoch":"tai","place":{"page":0,"entry":1,"generation":1},"achieved":{},"met":true}}"#,
    r#"{"unbound":{"binding":1}}"#,
    r#"{"timelines":[]}"#,
    r#""alive""#,
    r#"{"problem":{"code":"session","message":"","next_step":""}}"#,
    r#"{"problem":{"code":"quota","message":"","next_step":""}}"#,
    r#"{"disrupted":{"binding":1}}"#,
    r#"{"closing":{"reason":"fuzz"}}"#,
];

fuzz_target!(|data: &[u8]| {
    if let [first, second, stream @ ..] = data {
        let mut whole = FrameReader::new(Direction::ToClient);
        let mut cut = FrameReader::new(Direction::ToClient);
        let mut found = Vec::new();
        for piece in pieces(stream, *first, *second) {
            found.extend(cut.feed(piece));
            assert!(cut.pending() <= HEADER_LEN + MAX_ANSWER_LEN);
        }
        assert_eq!(whole.feed(stream), found);
    }
    decode(data, run);
});

fn run(u: &mut Unstructured) -> Result<()> {
    let config = ClientConfig {
        client: "fuzz".into(),
        first_id: u.arbitrary()?,
        timeout: Duration::from_secs(5),
    };
    let mut world = World {
        client: ClientSession::new(config),
        server: FrameReader::new(Direction::ToServer),
        now: Duration::ZERO,
        open: None,
        unanswered: BTreeSet::new(),
        last_id: 0,
        last_session: 0,
        hello: 0,
    };
    world.client.begin(world.now);
    while !u.is_empty() {
        world.step(u)?;
        world.check();
    }
    Ok(())
}

struct World {
    client: ClientSession,
    server: FrameReader,
    now: Duration,
    open: Option<u64>,
    unanswered: BTreeSet<u64>,
    last_id: u64,
    last_session: u64,
    hello: u64,
}

impl World {
    fn step(&mut self, u: &mut Unstructured) -> Result<()> {
        match u.int_in_range(0..=9)? {
            0 => self.timer(self.now + Duration::from_millis(log_scaled(u)?)),
            1 => self.timer(self.client.poll_at().unwrap_or(self.now).max(self.now)),
            2 | 3 => {
                let request = if u.arbitrary()? {
                    Request::Timelines
                } else {
                    Request::Unbind(Binding { binding: u.arbitrary()? })
                };
                let ready = self.client.ready_at().is_some_and(|at| at <= self.now);
                let sent = self.client.request(self.now, &request);
                assert_eq!(sent.is_ok(), ready);
                if let Ok(id) = sent {
                    assert!(self.open.is_some() && self.unanswered.insert(id));
                }
            }
            4 => {
                let reason = "fuzz";
                let actions = self.client.restart(self.now, reason);
                self.take(actions);
            }
            5 => self.deliver(some_bytes(u)?),
            6 => {
                let frame = self.answer(u)?;
                let damaged = edited(u, &frame)?;
                self.deliver(&damaged);
            }
            _ => {
                let frame = self.answer(u)?;
                self.deliver(&frame);
            }
        }
        Ok(())
    }

    fn timer(&mut self, now: Duration) {
        self.now = now;
        let actions = self.client.on_timer(now);
        self.take(actions);
        assert!(self.client.poll_at().is_none_or(|at| at > now), "a timer that is never done");
    }

    fn answer(&mut self, u: &mut Unstructured) -> Result<Vec<u8>> {
        let id = match self.unanswered.iter().nth(usize::from(u.arbitrary::<u8>()? % 4)) {
            Some(id) if u.arbitrary()? => *id,
            _ => self.last_id,
        };
        let session = if u.ratio(1, 8)? { 7 } else { self.last_session };
        let frame = if u.ratio(1, 3)? {
            self.last_session += 1;
            let session = self.last_session;
            let rate = u.int_in_range(0..=100u32)?;
            let lease = u.arbitrary::<Option<u64>>()?.map_or("null".into(), |ms| ms.to_string());
            let welcome = format!(
                r#"{{"welcome":{{"session":{session},"tenant":"t","limits":{{"bindings":1,"timelines":1,"requests_per_second":{rate},"lease_ms":{lease}}}}}}}"#
            );
            Frame::new(Kind::Response, session, self.hello, welcome.into())
        } else {
            let payload = u.choose(&PAYLOADS)?.as_bytes().to_vec();
            let kind = if u.ratio(1, 4)? { Kind::Event } else { Kind::Response };
            Frame::new(kind, session, id, payload)
        };
        Ok(frame.expect("short").encode())
    }

    fn deliver(&mut self, bytes: &[u8]) {
        let actions = self.client.on_bytes(self.now, bytes);
        self.take(actions);
    }

    fn take(&mut self, actions: Vec<ClientAction>) {
        for action in actions {
            match action {
                ClientAction::Began(welcome) => {
                    assert!(welcome.session != 0);
                    assert_eq!(self.open.replace(welcome.session), None);
                }
                ClientAction::Refused(_) | ClientAction::Unanswered => assert_eq!(self.open, None),
                ClientAction::Response { id, .. } | ClientAction::TimedOut { id } => {
                    assert!(self.unanswered.remove(&id), "an answer to nothing");
                }
                ClientAction::Event(_) => assert!(self.open.is_some()),
                ClientAction::Lost { .. } => {
                    assert!(self.open.take().is_some());
                    self.unanswered.clear();
                }
            }
        }
    }

    /// What goes out are whole frames of this session, or hellos, with growing ids.
    fn check(&mut self) {
        assert_eq!(self.client.session(), self.open);
        let output = self.client.output().to_vec();
        self.client.sent(output.len());
        for received in self.server.feed(&output) {
            let Received::Frame(frame) = received else { panic!("of this version") };
            assert!(frame.header.id > self.last_id);
            self.last_id = frame.header.id;
            let request = serde_json::from_slice::<Request>(&frame.payload).expect("a request");
            if let Request::Hello(_) = request {
                assert_eq!(frame.header.session, 0);
                self.hello = self.last_id;
            } else {
                assert_eq!(Some(frame.header.session), self.open);
            }
        }
        assert_eq!((self.server.skipped(), self.server.pending()), (0, 0));
    }
}
