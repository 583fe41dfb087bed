//! Precise bounds: our client and our server against each other, and against servers that do not
//! know the field, drop it, or lie in it.

use proptest::prelude::*;
use timevisor_protocols::ntp::extension::Tail;
use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::precise::{
    self, Bounds, Errors, Name, RateLimits, Referrals, Reply, Status,
};
use timevisor_protocols::ntp::server::{
    Action, Config as ServerConfig, PreciseTime, ServedClock, ServedTime, Server, Tally,
};
use timevisor_protocols::ntp::{
    Client, Config, Datagram, Outcome, Packet, RejectReason, Request, Response,
};
use timevisor_time::{Duration, Instant, Utc};

use crate::server::{answer, stamps};
use crate::serving::{client as address, known, utc};

const REQUEST_LEN: usize = HEADER_LEN + precise::MIN_LEN;

fn us(micros: i64) -> Duration {
    Duration::from_micros(micros)
}

fn client(interleaved: bool) -> Client<u64> {
    let config = Config { precise: true, interleaved, ..Config::default() };
    Client::new(config, Duration::ZERO).expect("a valid configuration")
}

fn server() -> Server {
    let config = ServerConfig { rate_interval: Duration::ZERO, ..ServerConfig::default() };
    Server::new(config, 3).expect("a valid configuration")
}

/// A clock that knows 30 us below and 50 us above at the arrival, 31 and 51 us at the departure.
fn served() -> ServedTime {
    let bounds = Bounds {
        receive: Errors { below: us(30), above: us(50) },
        transmit: Errors { below: us(31), above: us(51) },
    };
    let precise = PreciseTime {
        bounds,
        status: Status::Synchronized,
        epoch: 9,
        generation: 4,
        timeline: None,
    };
    ServedTime { precise: Some(precise), ..known(500_000_000, us(51)) }
}

fn respond(server: &mut Server, request: &[u8], time: &ServedTime) -> Vec<u8> {
    let received = time.transmit - us(20);
    let clock = ServedClock::Known(*time);
    match server.respond(Duration::ZERO, request, received, &clock, address()) {
        Action::Reply { bytes, .. } => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Sends the next request.
fn ask(client: &mut Client<u64>, random: u64) -> (Duration, Request) {
    loop {
        let now = client.poll_at();
        if let Some(request) = client.on_timer(now, random) {
            client.sent(request.id);
            return (now, request);
        }
    }
}

fn deliver(client: &mut Client<u64>, now: Duration, bytes: &[u8]) -> Outcome {
    client.on_datagram(now + Duration::EPSILON, bytes, utc(0), stamps)
}

fn accepted(outcome: Outcome) -> Response {
    match outcome {
        Outcome::Exchange(exchange) => exchange.response,
        other => panic!("{other:?}"),
    }
}

fn field(bytes: &[u8]) -> Option<Reply> {
    Reply::find(&Tail::parse(&bytes[HEADER_LEN..]).expect("fields").fields, Name::HOST)
}

#[test]
fn a_client_that_asks_learns_the_servers_own_bounds() {
    let (mut client, mut server) = (client(false), server());
    let (now, request) = ask(&mut client, 7);
    assert_eq!(request.bytes.len(), REQUEST_LEN);
    let reply = respond(&mut server, &request.bytes, &served());
    assert_eq!(reply.len(), REQUEST_LEN, "as long as the request");
    // Each side is 2 ns larger for the rounding of the stamps.
    let told = field(&reply).unwrap();
    let ns = Duration::from_nanos;
    assert_eq!(told.bounds.receive, Errors { below: ns(30_002), above: ns(50_002) });
    assert_eq!(told.bounds.transmit, Errors { below: ns(31_002), above: ns(51_002) });
    assert_eq!((told.status, told.level, told.epoch), (Status::Synchronized, 3, 9));
    assert_eq!((told.generation, told.rate), (4, RateLimits::default()));
    assert_eq!(told.referrals, Referrals::default());
    let response = accepted(deliver(&mut client, now, &reply));
    assert_eq!(response.precise, Some(told.bounds));
    assert_eq!(response.error_budget(), ns(51_002));
    // 51 us are 4 units of 2^-16 s; half a unit and one are added for what they may have lost.
    assert!(response.stated_error() - response.error_budget() > us(30), "{response:?}");
    assert_eq!(server.counters().of(Tally::Precise), 1);
}

#[test]
fn the_field_changes_nothing_for_others() {
    let mut server = server();
    let plain = Packet::request(timevisor_protocols::ntp::NtpTimestamp::from_bits(5), 4);
    let without = respond(&mut server, &plain.to_bytes(), &served());
    assert_eq!(without.len(), HEADER_LEN);
    assert_eq!(server.counters().of(Tally::Precise), 0);
    // A clock without an interval to state.
    let request = ask(&mut client(false), 5).1;
    let silent = ServedTime { precise: None, ..served() };
    assert_eq!(respond(&mut server, &request.bytes, &silent).len(), HEADER_LEN);
    // Nor is there a field where no time is served.
    let unknown = ServedTime { error: Duration::from_secs(17), ..served() };
    assert_eq!(respond(&mut server, &request.bytes, &unknown).len(), HEADER_LEN);
}

#[test]
fn another_timeline_is_not_here() {
    let plain = Packet::request(timevisor_protocols::ntp::NtpTimestamp::from_bits(5), 4);
    let mut tail = client(false);
    let mut request = ask(&mut tail, 5).1.bytes.to_vec();
    request[..HEADER_LEN].copy_from_slice(&plain.to_bytes());
    request[HEADER_LEN + 16..HEADER_LEN + 20].copy_from_slice(b"sim1");
    let reply = respond(&mut server(), &request, &served());
    let tail = Tail::parse(&reply[HEADER_LEN..]).unwrap();
    let told = Reply::find(&tail.fields, Name::new("sim1").unwrap()).unwrap();
    assert_eq!(told, Reply::no_such_timeline(Name::new("sim1").unwrap()));
    assert_eq!(field(&reply), None);
}

/// The four sides as they are on the wire.
fn nanos(bounds: &Bounds) -> [i64; 4] {
    let Bounds { receive, transmit } = bounds;
    [receive.below, receive.above, transmit.below, transmit.above].map(Duration::ceil_nanos)
}

#[test]
fn in_interleaved_mode_each_stamp_has_its_own_bounds() {
    let (mut client, mut server) = (client(true), server());
    let mut before: Option<Bounds> = None;
    for n in 1..=5i64 {
        let (now, request) = ask(&mut client, 0x1234_5678_9abc_def0 + n.cast_unsigned());
        let mut time = served();
        time.transmit = time.transmit + Duration::from_secs(n);
        let bounds = &mut time.precise.as_mut().unwrap().bounds;
        *bounds = bounds.widened(us(n));
        time.error = bounds.largest();
        let receive = bounds.receive.widened(Duration::from_nanos(2));
        let received = time.transmit - us(20);
        let clock = ServedClock::Known(time);
        let action = server.respond(now, &request.bytes, received, &clock, address());
        let Action::Reply { bytes, departure } = action else { panic!("{action:?}") };
        assert!(bytes.len() <= request.bytes.len());
        // The departure was measured with a larger error than the reply's own.
        let left = Errors { below: us(60 + n), above: us(70 + n) };
        if let Some(departure) = departure {
            server.departed(departure, time.transmit + us(10), left);
        }
        let outcome = deliver(&mut client, now, &bytes);
        if let (Outcome::Exchange(exchange), Some(before)) = (outcome, before)
            && exchange.response.is_interleaved()
        {
            let precise = exchange.response.precise.unwrap();
            assert_eq!(nanos(&precise), nanos(&before), "{n}");
            assert_eq!(exchange.response.error_budget(), precise.largest());
        }
        assert!(n < 4 || matches!(outcome, Outcome::Exchange(_)), "{n}: {outcome:?}");
        before = Some(Bounds { receive, transmit: left.widened(Duration::from_nanos(2)) });
    }
    assert_eq!(client.counters().rejected_total(), 0, "{:?}", client.counters());
    assert!(server.counters().of(Tally::Interleaved) >= 3);
}

/// The reply of an honest server with another field.
fn with_field(reply: &[u8], told: &Reply) -> Vec<u8> {
    let mut bytes = Datagram::new(&Packet::parse(reply).expect("a packet").0);
    told.write(&mut bytes, 8);
    bytes.to_vec()
}

type Change = fn(&mut Reply);

#[test]
fn a_field_that_says_something_else_than_the_header_is_refused() {
    // The header says 51 us as 4 units of 2^-16 s: 61 us, which may be up to 22.9 us too small or
    // too large for what the field says.
    let lies: [(&str, Change); 6] = [
        ("no error", |r| {
            r.bounds = Bounds { receive: Errors::default(), transmit: Errors::default() }
        }),
        ("half the error", |r| {
            r.bounds.receive = Errors::symmetric(us(25));
            r.bounds.transmit = Errors::symmetric(us(25));
        }),
        ("38 us", |r| {
            r.bounds.receive = Errors::symmetric(us(38));
            r.bounds.transmit = Errors::symmetric(us(38));
        }),
        ("more than the header allows", |r| r.bounds.transmit.below = us(90)),
        ("not known", |r| r.status = Status::Unknown),
        ("unreliable", |r| r.status = Status::Unreliable),
    ];
    for (what, lie) in lies {
        let mut client = client(false);
        let (now, request) = ask(&mut client, 7);
        let honest = respond(&mut server(), &request.bytes, &served());
        let mut told = field(&honest).unwrap();
        lie(&mut told);
        let outcome = deliver(&mut client, now, &with_field(&honest, &told));
        assert_eq!(outcome, Outcome::Rejected(RejectReason::PreciseBounds), "{what}");
    }
    // What the header's rounding permits is taken.
    for micros in [39, 51, 80] {
        let mut client = client(false);
        let (now, request) = ask(&mut client, 7);
        let honest = respond(&mut server(), &request.bytes, &served());
        let mut told = field(&honest).unwrap();
        told.bounds.receive.above = us(micros);
        told.bounds.transmit = Errors::symmetric(us(micros));
        let response = accepted(deliver(&mut client, now, &with_field(&honest, &told)));
        assert_eq!(response.error_budget(), us(micros).max(told.bounds.largest()));
    }
}

#[test]
fn a_field_that_nobody_asked_for_or_that_is_not_ours_is_ignored() {
    let mut plain = Client::new(Config::default(), Duration::ZERO).unwrap();
    let (now, request) = ask(&mut plain, 7);
    assert_eq!(request.bytes.len(), HEADER_LEN);
    let mut told = Reply::no_such_timeline(Name::HOST);
    told.status = Status::Synchronized;
    let header = answer(&request, now);
    let mut bytes = Datagram::new(&header);
    told.write(&mut bytes, 0);
    let response = accepted(deliver(&mut plain, now, &bytes));
    assert_eq!((response.precise, response.error_budget()), (None, response.stated_error()));
    // Our own request, echoed.
    let mut client = client(false);
    let (now, request) = ask(&mut client, 7);
    let echo = [&answer(&request, now).to_bytes()[..], &request.bytes[HEADER_LEN..]].concat();
    assert_eq!(accepted(deliver(&mut client, now, &echo)).precise, None);
    // The server has no timeline of this name, which says nothing about its header.
    let (now, request) = ask(&mut client, 8);
    assert_eq!(request.bytes.len(), HEADER_LEN, "it is known not to answer with the field");
    let _ = now;
}

/// How a server takes 40 polls of 16 s: the number of requests with the field, answers with it, and
/// losses.
fn polls(reply: impl Fn(&Request, Duration) -> Option<Vec<u8>>) -> [u32; 3] {
    let mut client = client(false);
    let mut counts = [0; 3];
    for n in 0..40 {
        let (now, request) = ask(&mut client, 1000 + n);
        counts[0] += u32::from(request.bytes.len() > HEADER_LEN);
        match reply(&request, now) {
            None => counts[2] += 1,
            Some(bytes) => {
                let response = accepted(deliver(&mut client, now, &bytes));
                counts[1] += u32::from(response.precise.is_some());
            }
        }
    }
    counts
}

#[test]
fn no_server_is_lost_because_of_the_field() {
    let plain = |request: &Request, now| answer(request, now).to_bytes().to_vec();
    let ours = |request: &Request, _| Some(respond(&mut server(), &request.bytes, &served()));
    assert_eq!(polls(ours), [40, 40, 0]);
    let ignores = |request: &Request, now| Some(plain(request, now));
    assert_eq!(polls(ignores), [1, 0, 0]);
    // A crypto-NAK, as the reference implementation answers to what it takes for a MAC.
    let nak = |request: &Request, now| {
        let long = request.bytes.len() > HEADER_LEN;
        Some([&plain(request, now)[..], if long { &[0; 4] } else { &[] }].concat())
    };
    assert_eq!(polls(nak), [1, 0, 0]);
    let drops =
        |request: &Request, now| (request.bytes.len() == HEADER_LEN).then(|| plain(request, now));
    assert_eq!(polls(drops), [3, 0, 3]);
}

#[test]
fn it_can_be_switched_while_running() {
    let mut client = Client::<u64>::new(Config::default(), Duration::ZERO).unwrap();
    assert_eq!(ask(&mut client, 1).1.bytes.len(), HEADER_LEN);
    client.set_precise(true);
    assert_eq!(ask(&mut client, 2).1.bytes.len(), REQUEST_LEN);
}

proptest! {
    /// True time is anywhere in what the server knows; the client's budget must hold it, whatever
    /// the roundings, and in nanoseconds.
    #[test]
    fn what_a_client_computes_holds_the_truth(
        sides in prop::array::uniform4(0i128..1i128 << 62), residence in 0i128..(1i128 << 50),
        frac in any::<u64>(), at in 0.0f64..=1.0, precision in -30i8..-10,
    ) {
        let [a, b, c, d] = sides.map(Duration::from_bits);
        let bounds = Bounds {
            receive: Errors { below: a, above: b },
            transmit: Errors { below: c, above: d },
        };
        let received = utc(0) + Duration::from_bits(i128::from(frac));
        let transmit = received + Duration::from_bits(residence);
        let precise = PreciseTime { bounds, status: Status::FreeRunning, epoch: 1, generation: 1, timeline: None };
        let error = bounds.largest();
        let time = ServedTime {
            transmit, precision, precise: Some(precise), ..known(0, error)
        };
        let mut client = client(false);
        let (now, request) = ask(&mut client, 7);
        let clock = ServedClock::Known(time);
        let action = server().respond(now, &request.bytes, received, &clock, address());
        let Action::Reply { bytes, .. } = action else { panic!("{action:?}") };
        prop_assert!(bytes.len() <= request.bytes.len());
        let response = accepted(deliver(&mut client, now, &bytes));
        prop_assert!(response.precise.is_some());
        let told = response.precise.unwrap();
        let span = |below: Duration, above: Duration| {
            Duration::from_secs_f64((below + above).as_secs_f64() * at).min(below + above) - below
        };
        let holds = |stamp: Instant<Utc>, truth: Instant<Utc>, errors: &Errors| {
            stamp - errors.below <= truth && truth <= stamp + errors.above
        };
        prop_assert!(holds(response.tb, received + span(a, b), &told.receive), "{told:?}");
        prop_assert!(holds(response.te, transmit + span(c, d), &told.transmit), "{told:?}");
        // The two facts that an exchange gives.
        let budget = response.error_budget();
        prop_assert!(received + b <= response.tb + budget);
        prop_assert!(transmit - c >= response.te - budget);
        // Rounding to nanoseconds, the stamps', and stamps moved to their middle.
        let cost = budget - error;
        prop_assert!(cost <= Duration::from_nanos(5), "{cost}");
        prop_assert!(response.stated_error() >= budget);
    }
}
