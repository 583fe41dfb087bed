//! What the channel's tests share: configurations, frames, and both ends wired together.

use std::num::NonZeroU64;

use serde::Serialize;
use timevisor_protocols::channel::{
    Achieved, Bind, Bound, ClientConfig, ClientSession, Direction, Epoch, Event, Frame,
    FrameReader, Hello, Kind, Limits, Place, Received, Request, Requirement, Response,
    ServerAction, ServerConfig, ServerSession,
};
use timevisor_time::Duration;

pub fn ms(ms: i64) -> Duration {
    Duration::from_millis(ms)
}

pub fn limits(requests_per_second: u32, lease_ms: Option<u64>) -> Limits {
    Limits { bindings: 1000, timelines: 10, requests_per_second, lease_ms }
}

pub fn server(limits: Limits) -> ServerSession {
    ServerSession::new(ServerConfig { tenant: "uid:1000".into(), page: None, limits })
}

pub fn client() -> ClientSession {
    ClientSession::new(client_config())
}

pub fn client_config() -> ClientConfig {
    ClientConfig { client: "test".into(), first_id: 400, timeout: ms(5000) }
}

/// Numbers sessions from 1000 on.
pub fn numbers() -> impl FnMut() -> NonZeroU64 {
    let mut last = 999;
    move || {
        last += 1;
        NonZeroU64::new(last).unwrap()
    }
}

pub fn hello() -> Request {
    Request::Hello(Hello { client: "test".into() })
}

pub fn bind(timeline: &str) -> Request {
    Request::Bind(bind_of(timeline))
}

pub fn bind_of(timeline: &str) -> Bind {
    let requirement = Some(Requirement::within_ns(1_000_000));
    Bind { timeline: timeline.into(), create: None, requirement, best_effort: false }
}

pub fn bound(binding: u64, timeline: &str) -> Bound {
    Bound {
        binding,
        timeline: timeline.into(),
        epoch: Epoch::Tai,
        place: Place { page: 0, entry: 1, generation: 1 },
        achieved: Achieved::default(),
        met: true,
    }
}

pub fn request(session: u64, id: u64, request: &impl Serialize) -> Vec<u8> {
    Frame::of(Kind::Request, session, id, request).unwrap().encode()
}

pub fn response(session: u64, id: u64, response: &Response) -> Vec<u8> {
    Frame::of(Kind::Response, session, id, response).unwrap().encode()
}

pub fn event(session: u64, event: &Event) -> Vec<u8> {
    Frame::of(Kind::Event, session, 0, event).unwrap().encode()
}

/// The frames of a stream that has nothing else in it.
pub fn frames(direction: Direction, bytes: &[u8]) -> Vec<Frame> {
    let mut reader = FrameReader::new(direction);
    let received = reader.feed(bytes);
    assert_eq!((reader.skipped(), reader.pending()), (0, 0));
    let frame = |received| match received {
        Received::Frame(frame) => frame,
        Received::OtherVersion(header) => panic!("{header:?}"),
    };
    received.into_iter().map(frame).collect()
}

/// Takes what a server has to send: session, id, answer.
pub fn answers(server: &mut ServerSession) -> Vec<(u64, u64, Response)> {
    let taken = frames(Direction::ToClient, server.output());
    server.sent(usize::MAX);
    let responses = taken.into_iter().filter(|frame| frame.header.kind == Kind::Response);
    responses
        .map(|f| (f.header.session, f.header.id, serde_json::from_slice(&f.payload).unwrap()))
        .collect()
}

/// Takes what a server has to send: the events.
pub fn events(server: &mut ServerSession) -> Vec<Event> {
    let taken = frames(Direction::ToClient, server.output());
    server.sent(usize::MAX);
    let events = taken.into_iter().filter(|frame| frame.header.kind == Kind::Event);
    events.map(|frame| serde_json::from_slice(&frame.payload).unwrap()).collect()
}

/// A server with session 1000 open, begun at 0 with id 1.
pub fn open_server(limits: Limits) -> ServerSession {
    let mut server = server(limits);
    let actions = server.on_bytes(ms(0), &request(0, 1, &hello()), &mut numbers());
    assert_eq!(actions, [ServerAction::Began { session: 1000, client: "test".into() }]);
    server.sent(usize::MAX);
    server
}
