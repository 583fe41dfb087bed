//! The server's end against careless, confused and hostile clients.

use std::collections::BTreeSet;

use proptest::prelude::*;
use timevisor_protocols::channel::server::{MAX_GARBAGE, MAX_UNANSWERED};
use timevisor_protocols::channel::{
    Binding, Direction, Event, FrameReader, MAX_UNSENT, Over, Problem, ProblemCode, Request,
    Response, ServerAction, ServerSession,
};

use crate::common::{
    answers, bind, events, hello, limits, ms, numbers, open_server, request, server,
};

fn feed(server: &mut ServerSession, at_ms: i64, bytes: &[u8]) -> Vec<ServerAction> {
    server.on_bytes(ms(at_ms), bytes, &mut numbers())
}

/// The only answer: to whom, and which problem.
fn problem(server: &mut ServerSession) -> (u64, u64, ProblemCode) {
    match &answers(server)[..] {
        [(session, id, Response::Problem(Problem { code, .. }))] => (*session, *id, *code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_from_hello_to_answer() {
    let mut server = server(limits(10, None));
    let mut numbers = numbers();
    let actions = server.on_bytes(ms(0), &request(0, 5, &hello()), &mut numbers);
    assert_eq!(actions, [ServerAction::Began { session: 1000, client: "test".into() }]);
    let answered = answers(&mut server);
    let [(1000, 5, Response::Welcome(welcome))] = &answered[..] else { panic!("{answered:?}") };
    assert_eq!(
        (welcome.session, &*welcome.tenant, welcome.limits),
        (1000, "uid:1000", limits(10, None))
    );

    let actions = server.on_bytes(ms(1), &request(1000, 6, &bind("tai")), &mut numbers);
    assert_eq!(actions, [ServerAction::Request { session: 1000, id: 6, request: bind("tai") }]);
    let unbound = Response::Unbound(Binding { binding: 3 });
    server.respond(1000, 6, &unbound).unwrap();
    server.respond(1000, 6, &unbound).unwrap();
    server.respond(1000, 7, &unbound).unwrap();
    assert_eq!(answers(&mut server), [(1000, 6, unbound)], "once, and only what was asked");

    let actions = server.on_bytes(ms(2), &request(1000, 7, &Request::KeepAlive), &mut numbers);
    assert_eq!((actions, answers(&mut server)), (vec![], vec![(1000, 7, Response::Alive)]));
    assert_eq!(server.poll_at(), None, "no lease, no timer");
}

#[test]
fn a_second_hello_ends_the_first_session() {
    let mut server = server(limits(10, None));
    let mut numbers = numbers();
    server.on_bytes(ms(0), &request(0, 1, &hello()), &mut numbers);
    server.on_bytes(ms(0), &request(1000, 2, &Request::Timelines), &mut numbers);
    // The guest was reset: its ids begin again, and its bytes begin anywhere.
    let mut stream = request(1000, 3, &bind("tai"))[..50].to_vec();
    stream.extend(request(0, 1, &hello()));
    let actions = server.on_bytes(ms(0), &stream, &mut numbers);
    let began = ServerAction::Began { session: 1001, client: "test".into() };
    assert_eq!(actions, [ServerAction::Ended { session: 1000 }, began]);
    answers(&mut server);
    server.respond(1000, 2, &Response::Alive).unwrap();
    server.send_event(1000, &Event::Disrupted { binding: 1 }).unwrap();
    assert_eq!(server.output(), [0u8; 0], "nothing for the ended session");
    server.on_bytes(ms(0), &request(1000, 4, &Request::Timelines), &mut numbers);
    assert_eq!(problem(&mut server), (1000, 4, ProblemCode::Session));
}

#[test]
fn who_has_no_session_gets_none() {
    let mut server = server(limits(100, None));
    for (session, id, message, code) in [
        (0, 1, bind("tai"), ProblemCode::Session),
        (7, 1, bind("tai"), ProblemCode::Session),
        (7, 1, hello(), ProblemCode::Session),
        (0, 0, hello(), ProblemCode::Session),
    ] {
        assert_eq!(feed(&mut server, 0, &request(session, id, &message)), []);
        assert_eq!(problem(&mut server), (session, id, code), "{message:?}");
    }
    let mut server = open_server(limits(100, None));
    for (session, id, message) in
        [(1001, 9, bind("tai")), (1000, 1, bind("tai")), (1000, 0, bind("tai")), (1000, 2, hello())]
    {
        assert_eq!(feed(&mut server, 0, &request(session, id, &message)), []);
        assert_eq!(problem(&mut server), (session, id, ProblemCode::Session), "{message:?}");
    }
}

#[test]
fn what_is_no_request_is_a_bad_request() {
    let mut server = open_server(limits(100, None));
    let long = format!("{{\"hello\":{{\"client\":\"{}\"}}}}", "x".repeat(65));
    let nested = "[".repeat(4000);
    let payloads = [
        "",
        "null",
        "{",
        "\"Timelines\"",
        "{\"unbind\":{\"binding\":-1}}",
        "{\"unbind\":{\"binding\":1,\"a\":1}}",
        "{\"bind\":{\"timeline\":\"a b\"}}",
        "{\"bind\":{\"timeline\":\"tai\",\"requirement\":{\"below_ns\":0,\"above_ns\":1}}}",
        "\"timelines\" x",
        &long,
        &nested,
    ];
    for (id, payload) in (2..).zip(payloads) {
        use timevisor_protocols::channel::{Frame, Kind};
        let frame = Frame::new(Kind::Request, 1000, id, payload.into()).unwrap();
        assert_eq!(feed(&mut server, 0, &frame.encode()), [], "{payload}");
        assert_eq!(problem(&mut server), (1000, id, ProblemCode::BadRequest), "{payload}");
    }
    assert_eq!(server.counters().malformed, payloads.len() as u64);
}

#[test]
fn another_version_is_answered() {
    let mut reader = FrameReader::new(Direction::ToClient);
    let mut server = server(limits(100, None));
    // Version 2 of a hello; the checksum is zlib's.
    let mut bytes = b"TVCH\x02\x01\x01\x00\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&CHECKSUM_OF_VERSION_2.to_le_bytes());
    bytes.push(b'x');
    assert_eq!(feed(&mut server, 0, &bytes), []);
    assert_eq!(reader.feed(server.output()).len(), 1);
    assert_eq!(problem(&mut server), (0, 7, ProblemCode::Version));
}

const CHECKSUM_OF_VERSION_2: u32 = 0x741E_2455;

/// A flood costs the host one answer for every time that the client was within its rate.
#[test]
fn a_flood_is_told_once() {
    let mut server = open_server(limits(10, None));
    let flood = |from: u64| -> Vec<u8> {
        (from..from + 1000).flat_map(|id| request(1000, id, &Request::KeepAlive)).collect()
    };
    assert_eq!(feed(&mut server, 0, &flood(2)), []);
    let answered = answers(&mut server);
    assert_eq!(answered.len(), 19 + 1, "the hello was the burst's first");
    let (_, 21, Response::Problem(Problem { code: ProblemCode::RateLimited, .. })) = &answered[19]
    else {
        panic!("{answered:?}")
    };
    assert_eq!(feed(&mut server, 99, &flood(1002)), []);
    assert_eq!(server.output(), [0u8; 0]);
    assert_eq!(feed(&mut server, 101, &flood(2002)), []);
    assert_eq!(answers(&mut server).len(), 1 + 1);
    assert_eq!(server.counters().rate_limited, 3000 - 20);
}

#[test]
fn garbage_costs_the_connection_at_last() {
    let mut server = open_server(limits(10, Some(1000)));
    let garbage = vec![b'T'; 1 << 16];
    let mut fed = 0;
    let actions = loop {
        let actions = feed(&mut server, 0, &garbage);
        fed += garbage.len() as u64;
        if !actions.is_empty() {
            break actions;
        }
    };
    assert_eq!(fed, MAX_GARBAGE + garbage.len() as u64);
    assert_eq!(actions, [ServerAction::Close(Over::Garbage)]);
    assert_eq!((server.session(), server.over()), (None, Some(Over::Garbage)));
    assert_eq!(feed(&mut server, 0, &request(0, 1, &hello())), [], "over is over");
    assert_eq!((server.poll_at(), server.on_timer(ms(99_999))), (None, None));

    let mut server = open_server(limits(10, None));
    for id in 2..40 {
        assert_eq!(feed(&mut server, 0, &garbage), []);
        assert_eq!(
            feed(&mut server, 0, &request(1000, id, &Request::KeepAlive)),
            [],
            "a frame among it"
        );
    }
}

#[test]
fn who_does_not_read_is_closed() {
    let mut server = open_server(limits(10, None));
    let event = Event::Disrupted { binding: 1 };
    let sent = (0..1_000_000).take_while(|_| server.send_event(1000, &event).is_ok()).count();
    let unsent = server.output().len();
    assert!(unsent <= MAX_UNSENT && MAX_UNSENT - unsent <= unsent / sent);
    assert_eq!(server.over(), Some(Over::Unread));
    assert_eq!(server.session(), None);
    assert_eq!(server.respond(1000, 1, &Response::Alive), Err(Over::Unread));
    // By requests alone: an answer to each, and none is read.
    let mut server = open_server(limits(u32::MAX / 2, None));
    let flood: Vec<u8> = (2..9000).flat_map(|id| request(1000, id, &Request::KeepAlive)).collect();
    assert_eq!(feed(&mut server, 0, &flood), [ServerAction::Close(Over::Unread)]);
}

#[test]
fn an_answer_that_no_frame_holds_is_a_problem() {
    let mut server = open_server(limits(10, None));
    feed(&mut server, 0, &request(1000, 2, &Request::Timelines));
    let next_step = "x".repeat(70_000);
    let code = ProblemCode::Quota;
    let long = Problem { code, message: String::new(), next_step, achievable: None };
    server.respond(1000, 2, &Response::Problem(long)).unwrap();
    assert_eq!(problem(&mut server), (1000, 2, ProblemCode::Unavailable));
}

#[test]
fn too_many_unanswered() {
    let mut server = open_server(limits(1000, None));
    let many: Vec<u8> = (2..=66).flat_map(|id| request(1000, id, &Request::Timelines)).collect();
    assert_eq!(feed(&mut server, 0, &many).len(), MAX_UNANSWERED);
    assert_eq!(problem(&mut server), (1000, 66, ProblemCode::RateLimited));
    server.respond(1000, 2, &Response::Timelines(vec![])).unwrap();
    assert_eq!(feed(&mut server, 0, &request(1000, 67, &Request::Timelines)).len(), 1);
}

#[test]
fn a_lease_ends_with_silence() {
    let mut server = open_server(limits(10, Some(3000)));
    assert_eq!(server.poll_at(), Some(ms(3000)));
    feed(&mut server, 2000, &request(1000, 2, &Request::KeepAlive));
    // Neither of these is this session's.
    feed(&mut server, 2500, &request(1000, 2, &Request::KeepAlive));
    feed(&mut server, 2500, &request(999, 3, &Request::KeepAlive));
    answers(&mut server);
    assert_eq!(server.poll_at(), Some(ms(5000)));
    assert_eq!(server.on_timer(ms(4999)), None);
    assert_eq!(server.on_timer(ms(5000)), Some(ServerAction::Expired { session: 1000 }));
    assert!(matches!(events(&mut server)[..], [Event::Closing { .. }]));
    assert_eq!((server.poll_at(), server.on_timer(ms(9000))), (None, None));
    feed(&mut server, 9000, &request(1000, 3, &Request::Timelines));
    assert_eq!(problem(&mut server), (1000, 3, ProblemCode::Session));
    assert_eq!(feed(&mut server, 9000, &request(0, 4, &hello())).len(), 1);
}

/// Frames of every standing: those with a session number that may be right, replays, hellos,
/// damage.
fn traffic() -> impl Strategy<Value = Vec<(i64, Vec<u8>)>> {
    let message = prop_oneof![
        4 => Just(bind("tai")), 2 => Just(Request::KeepAlive), 1 => Just(hello()), 2 => Just(Request::Timelines),
    ];
    let frame = (999u64..1003, 0u64..40, message).prop_map(|(session, id, message)| {
        let session = if matches!(message, Request::Hello(_)) { 0 } else { session };
        request(session, id, &message)
    });
    let bytes = prop_oneof![6 => frame, 1 => prop::collection::vec(any::<u8>(), 0..50)];
    prop::collection::vec((0i64..100, bytes), 0..150)
}

proptest! {
    #[test]
    fn no_request_twice_no_more_than_the_rate_and_sessions_in_order(
        traffic in traffic(), rate in 1u32..20, copies in 1usize..3, lease in prop::option::of(1u64..500),
    ) {
        let mut server = server(limits(rate, lease));
        let mut numbers = numbers();
        let (mut now, mut seen, mut open, mut answered) = (0, BTreeSet::new(), None, 0);
        for (step, bytes) in traffic {
            now += step;
            let mut actions: Vec<_> = server.on_timer(ms(now)).into_iter().collect();
            actions.extend(server.on_bytes(ms(now), &bytes.repeat(copies), &mut numbers));
            for action in actions {
                match action {
                    ServerAction::Began { session, .. } => prop_assert_eq!(open.replace(session), None),
                    ServerAction::Ended { session } | ServerAction::Expired { session } => {
                        prop_assert_eq!(open.take(), Some(session));
                    }
                    ServerAction::Request { session, id, .. } => {
                        prop_assert_eq!(open, Some(session));
                        prop_assert!(seen.insert((session, id)), "twice");
                    }
                    ServerAction::Close(over) => prop_assert!(false, "{}", over),
                }
            }
            prop_assert_eq!(server.session(), open);
            prop_assert!(server.poll_at().is_none_or(|at| at > ms(now) || lease.is_some()));
            let frames = FrameReader::new(Direction::ToClient).feed(server.output());
            answered += frames.len() as i64;
            server.sent(usize::MAX);
            let budget = i64::from(rate) * now / 1000 + 2 * i64::from(rate);
            prop_assert!(seen.len() as i64 <= budget);
            // Answers, one "too fast" for each, and the events of leases that ended.
            prop_assert!(answered <= 3 * budget + 1, "{answered} {budget}");
        }
    }

    #[test]
    fn arbitrary_bytes_ask_for_nothing(stream in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut server = server(limits(10, None));
        prop_assert_eq!(feed(&mut server, 0, &stream), []);
        prop_assert_eq!(server.output(), [0u8; 0]);
    }
}
