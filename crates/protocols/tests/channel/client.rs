//! The client's end: sessions, answers, time-outs, keep-alives, and what servers may do to it.

use proptest::prelude::*;
use timevisor_protocols::channel::{
    Binding, ClientAction, ClientSession, Direction, Event, Frame, Kind, Limits, Problem,
    ProblemCode, Request, RequestError, Response, Welcome,
};

use crate::common::{
    bind, bound, client, event, frames, hello, limits, ms, numbers, response, server,
};

fn welcome(session: u64, limits: Limits) -> Response {
    Response::Welcome(Welcome { session, tenant: "vm:a".into(), page: None, limits })
}

/// What the client has to send: session, id, request.
fn asked(client: &mut ClientSession) -> Vec<(u64, u64, Request)> {
    let taken = frames(Direction::ToServer, client.output());
    client.sent(usize::MAX);
    let request =
        |f: Frame| (f.header.session, f.header.id, serde_json::from_slice(&f.payload).unwrap());
    taken.into_iter().map(request).collect()
}

/// With session 9 open since 0.
fn open(limits: Limits) -> ClientSession {
    let mut client = client();
    client.begin(ms(0));
    assert_eq!(asked(&mut client), [(0, 101, hello())]);
    let actions = client.on_bytes(ms(0), &response(9, 101, &welcome(9, limits)));
    assert!(matches!(actions[..], [ClientAction::Began(_)]));
    client
}

fn problem(code: ProblemCode) -> Problem {
    Problem { code, message: "m".into(), next_step: "n".into(), achievable: None }
}

#[test]
fn requests_and_answers() {
    let mut client = open(limits(100, None));
    let id = client.request(ms(1), &bind("tai")).unwrap();
    let second = client.request(ms(1), &Request::Timelines).unwrap();
    assert_eq!(asked(&mut client), [(9, id, bind("tai")), (9, second, Request::Timelines)]);
    let answer = Response::Bound(bound(4, "tai"));
    // Another session's, one that was not asked for, an event of another session.
    for bytes in [
        response(8, id, &answer),
        response(9, second + 1, &answer),
        event(8, &Event::Disrupted { binding: 4 }),
    ] {
        assert_eq!(client.on_bytes(ms(2), &bytes), []);
    }
    let mut stream = response(9, id, &answer);
    stream.extend_from_slice(b"TVCH garbage");
    stream.extend(response(9, id, &answer));
    stream.extend(event(9, &Event::Disrupted { binding: 4 }));
    let expected = [
        ClientAction::Response { id, response: answer },
        ClientAction::Event(Event::Disrupted { binding: 4 }),
    ];
    assert_eq!(client.on_bytes(ms(2), &stream), expected);
}

#[test]
fn no_answer_in_time() {
    let mut client = open(limits(100, None));
    let first = client.request(ms(10), &Request::Timelines).unwrap();
    let second = client.request(ms(20), &Request::Timelines).unwrap();
    assert_eq!(client.poll_at(), Some(ms(5010)));
    assert_eq!(client.on_timer(ms(5009)), []);
    assert_eq!(client.on_timer(ms(5010)), [ClientAction::TimedOut { id: first }]);
    let late = response(9, first, &Response::Timelines(vec![]));
    assert_eq!(client.on_bytes(ms(5011), &late), []);
    assert_eq!(client.on_timer(ms(9999)), [ClientAction::TimedOut { id: second }]);
    assert_eq!(client.poll_at(), None);
}

#[test]
fn hellos_are_repeated_but_do_not_pile_up() {
    let mut client = client();
    assert_eq!(client.on_timer(ms(0)), []);
    client.begin(ms(0));
    let one = client.output().len();
    assert_eq!(client.on_timer(ms(4999)), []);
    assert_eq!(client.on_timer(ms(5000)), [ClientAction::Unanswered]);
    assert_eq!(client.output().len(), one);
    assert_eq!(asked(&mut client), [(0, 102, hello())]);
    // The answer to the first hello: a session that the second has ended.
    assert_eq!(client.on_bytes(ms(5001), &response(8, 101, &welcome(8, limits(10, None)))), []);
    let refusal = problem(ProblemCode::Unavailable);
    let refused = client.on_bytes(ms(5002), &response(0, 102, &Response::Problem(refusal.clone())));
    assert_eq!(refused, [ClientAction::Refused(refusal)]);
    assert_eq!(client.poll_at(), Some(ms(10_002)));
    client.on_timer(ms(10_002));
    assert_eq!(asked(&mut client), [(0, 103, hello())]);
    // A welcome whose two numbers differ, or that is none.
    for (session, said) in [(7, 8), (0, 0)] {
        let bytes = response(session, 103, &welcome(said, limits(10, None)));
        assert_eq!(client.on_bytes(ms(10_003), &bytes), []);
    }
    client.end();
    assert_eq!((client.poll_at(), client.output().len()), (None, 0));
}

#[test]
fn keeps_alive_at_a_third_of_the_lease() {
    let mut client = open(limits(100, Some(9000)));
    assert_eq!(client.poll_at(), Some(ms(3000)));
    client.request(ms(1000), &Request::Timelines).unwrap();
    client.on_bytes(ms(1000), &response(9, 102, &Response::Timelines(vec![])));
    asked(&mut client);
    assert_eq!(client.poll_at(), Some(ms(4000)));
    assert_eq!(client.on_timer(ms(3999)), []);
    assert_eq!(asked(&mut client), []);
    assert_eq!(client.on_timer(ms(4000)), []);
    assert_eq!(asked(&mut client), [(9, 103, Request::KeepAlive)]);
    assert_eq!(client.on_bytes(ms(4001), &response(9, 103, &Response::Alive)), []);
    // Silence: two more, then the lease has ended at the server, too.
    let mut sent = 0;
    let reason = loop {
        let now = client.poll_at().unwrap();
        let actions = client.on_timer(now);
        if let [ClientAction::Lost { reason }] = &actions[..] {
            assert_eq!(now, ms(4001 + 9000));
            break reason.clone();
        }
        assert_eq!(actions, [], "nobody waits for a keep-alive");
        sent += asked(&mut client).len();
    };
    assert!(sent == 3 && reason.contains('9'), "{sent} {reason}");
    assert_eq!(asked(&mut client), [(0, 107, hello())]);
}

#[test]
fn a_lost_session_is_begun_again_but_not_too_often() {
    let mut client = open(limits(100, None));
    let id = client.request(ms(100), &Request::Timelines).unwrap();
    let gone = response(9, id, &Response::Problem(problem(ProblemCode::Session)));
    assert_eq!(client.on_bytes(ms(100), &gone), [ClientAction::Lost { reason: "m".into() }]);
    assert!(matches!(client.request(ms(100), &Request::Timelines), Err(RequestError::NotOpen)));
    assert_eq!(client.output(), [0u8; 0], "what was not sent is not sent any more");
    assert_eq!(client.poll_at(), Some(ms(1000)));
    client.on_timer(ms(1000));
    assert_eq!(asked(&mut client), [(0, 103, hello())]);

    let mut client = open(limits(100, None));
    let closing = event(9, &Event::Closing { reason: "restart".into() });
    let lost = [ClientAction::Lost { reason: "restart".into() }];
    assert_eq!(client.on_bytes(ms(50_000), &closing), lost);
    assert_eq!(asked(&mut client), [(0, 102, hello())], "at once, the last one was long ago");

    let mut client = open(limits(1, None));
    client.request(ms(1500), &Request::Timelines).unwrap();
    client.on_bytes(ms(1500), &closing);
    assert!(client.poll_at().unwrap() > ms(2500), "the hello keeps to the rate, too");
}

#[test]
fn requests_are_not_sent_beyond_the_limits() {
    let mut client = open(limits(10, None));
    let sent = (0..20).filter(|_| client.request(ms(0), &Request::Timelines).is_ok()).count();
    assert_eq!(sent, 10);
    assert!(matches!(client.request(ms(0), &Request::Timelines), Err(RequestError::Unanswered)));
    for (_, id, _) in asked(&mut client) {
        client.on_bytes(ms(0), &response(9, id, &Response::Timelines(vec![])));
    }
    assert!(matches!(client.request(ms(0), &Request::Timelines), Err(RequestError::TooFast)));
    let at = client.ready_at().unwrap();
    assert!(at > ms(100) && at < ms(120), "an eighth slower than the server takes them: {at}");
    client.request(at, &Request::Timelines).unwrap();
    let mut client = open(limits(1000, None));
    let sent = (0..100).filter(|_| client.request(ms(0), &Request::Timelines).is_ok()).count();
    assert_eq!((sent, client.ready_at()), (64, None));
    assert!(matches!(client.request(ms(0), &hello()), Err(RequestError::Own)));
    assert!(matches!(client.request(ms(0), &bind("a b")), Err(RequestError::Invalid(_))));
}

/// The server counts over all sessions of a connection, so the client does.
#[test]
fn a_new_session_is_no_new_rate() {
    let (mut client, mut server, mut numbers) = (client(), server(limits(2, None)), numbers());
    client.begin(ms(0));
    for now in 0..200 {
        let now = ms(now * 50);
        client.on_timer(now);
        let _refused = client.request(now, &Request::Timelines);
        server.on_bytes(now, client.output(), &mut numbers);
        client.sent(usize::MAX);
        client.on_bytes(now, server.output());
        server.sent(usize::MAX);
        server.end_session("again");
    }
    assert_eq!(server.counters().rate_limited, 0);
}

#[test]
fn what_is_not_understood_is_a_problem_or_ignored() {
    let mut client = open(limits(10, None));
    let id = client.request(ms(0), &Request::Timelines).unwrap();
    let odd = |kind, id| Frame::new(kind, 9, id, b"{\"new\":1}".to_vec()).unwrap().encode();
    assert_eq!(client.on_bytes(ms(1), &odd(Kind::Event, 0)), []);
    let actions = client.on_bytes(ms(1), &odd(Kind::Response, id));
    let [ClientAction::Response { response: Response::Problem(problem), .. }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(problem.code, ProblemCode::Unavailable);
}

proptest! {
    /// Whatever this client sends, at whatever pace the caller asks, and if it is up to 1.5 s on
    /// its way, the server of the same limits answers.
    #[test]
    fn a_client_is_never_too_fast_for_its_server(
        rate in 1u32..50,
        steps in prop::collection::vec((0i64..400, 0usize..30, any::<bool>()), 1..60),
    ) {
        let (mut client, mut server, mut numbers) = (client(), server(limits(rate, Some(2000))), numbers());
        client.begin(ms(0));
        let mut now = 0;
        let (mut late, mut late_ms) = (Vec::new(), 0);
        for (step, requests, delivered) in steps {
            now += step;
            client.on_timer(ms(now));
            for _ in 0..requests {
                let _limited = client.request(ms(now), &Request::Unbind(Binding { binding: 1 }));
            }
            late.extend_from_slice(client.output());
            client.sent(usize::MAX);
            late_ms += step;
            if !delivered && late_ms < 1100 {
                continue;
            }
            late_ms = 0;
            for action in server.on_bytes(ms(now), &std::mem::take(&mut late), &mut numbers) {
                if let timevisor_protocols::channel::ServerAction::Request { session, id, .. } = action {
                    server.respond(session, id, &Response::Unbound(Binding { binding: 1 })).unwrap();
                }
            }
            let output = server.output().to_vec();
            server.sent(usize::MAX);
            client.on_bytes(ms(now), &output);
        }
        prop_assert_eq!(server.counters(), Default::default());
    }

    #[test]
    fn arbitrary_bytes_are_no_answers(stream in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut client = open(limits(10, None));
        client.request(ms(0), &Request::Timelines).unwrap();
        prop_assert_eq!(client.on_bytes(ms(0), &stream), []);
    }
}
