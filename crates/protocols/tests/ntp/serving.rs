//! The server through its public interface: golden bytes for each form of reply, and what it never
//! does.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use timevisor_protocols::ntp::precise::Errors;
use timevisor_protocols::ntp::server::{
    Action, Config, Prefix, ServedClock, ServedTime, Server, Tally, Unsynchronized,
};
use timevisor_protocols::ntp::{
    Client, LeapIndicator, NtpTimestamp, Outcome, Packet, RejectReason,
};
use timevisor_time::{Duration, Instant, Utc};

use crate::server::stamps;

/// A client's request as chronyd sends it: version 4, poll 6, a random cookie.
const REQUEST: &str = "2300062000000000000000000000000000000000000000000000000000000000\
                       00000000000000006a4cddaa25d1d282";
/// 0xeeaac51b seconds of NTP's era 0.
const SECOND: i128 = 1_795_180_187;

pub(crate) fn utc(nanos: i128) -> Instant<Utc> {
    Instant::from_unix_nanos(SECOND * 1_000_000_000 + nanos)
}

pub(crate) fn known(transmit_ns: i128, error: Duration) -> ServedTime {
    ServedTime {
        transmit: utc(transmit_ns),
        error,
        leap: LeapIndicator::NoWarning,
        stratum: 3,
        reference_id: [192, 0, 2, 1],
        reference: utc(-10_000_000_000),
        precision: -24,
        precise: None,
    }
}

fn clock() -> ServedClock {
    ServedClock::Known(known(500_000_000, Duration::from_millis(1)))
}

pub(crate) fn client() -> SocketAddr {
    SocketAddr::from(([10, 1, 2, 3], 40000))
}

fn hex(text: &str) -> Vec<u8> {
    let byte = |i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hexadecimal");
    (0..text.len() / 2).map(byte).collect()
}

fn server(config: Config) -> Server {
    Server::new(config, 1).expect("a valid configuration")
}

fn ask(server: &mut Server, request: &[u8], clock: &ServedClock) -> Action {
    server.respond(Duration::ZERO, request, utc(250_000_000), clock, client())
}

fn reply(action: Action) -> Vec<u8> {
    match action {
        Action::Reply { bytes, .. } => bytes.to_vec(),
        Action::Kiss { bytes } => bytes.to_vec(),
        Action::Protected { .. } => panic!("nobody asked with NTS"),
        Action::Drop(reason) => panic!("dropped: {reason:?}"),
    }
}

#[test]
fn a_basic_reply() {
    let mut server = server(Config::default());
    // 1 ms is 65.5 units of 2^-16 s; the receive stamp is rounded up and odd, the transmit stamp
    // even.
    let expected = "240306e80000000000000042c0000201eeaac511000000006a4cddaa25d1d282\
                    eeaac51b40000001eeaac51b80000000";
    let action = ask(&mut server, &hex(REQUEST), &clock());
    assert!(matches!(action, Action::Reply { departure: None, .. }));
    assert_eq!(reply(action), hex(expected));
}

#[test]
fn an_interleaved_reply_tells_when_the_one_before_left() {
    let mut server = server(Config::default());
    let first = reply(ask(&mut server, &hex(REQUEST), &clock()));
    let mut request = Packet::parse(&hex(REQUEST)).unwrap().0;
    request.origin = Packet::parse(&first).unwrap().0.receive;
    request.receive = NtpTimestamp::from_bits(0x1111_1111_1111_1111);
    // Nobody measured the first departure: basic, but the next one is wanted.
    let second = ask(&mut server, &request.to_bytes(), &clock());
    let Action::Reply { bytes, departure: Some(departure) } = second else { panic!("{second:?}") };
    let (basic, _) = Packet::parse(&bytes).unwrap();
    assert_eq!(basic.origin, request.transmit);
    server.departed(departure, utc(500_000_100), Errors::symmetric(Duration::from_millis(2)));
    request.origin = basic.receive;
    request.transmit = NtpTimestamp::from_bits(0x2222_2222_2222_2222);
    let third = ask(&mut server, &request.to_bytes(), &clock());
    // 100 ns are 429 units of 2^-32 s, made even. The error is the one of that moment, 2 ms. The
    // receive stamp is moved on because it names the exchange, and the one before arrived at the
    // same moment.
    let expected = "240306e80000000000000084c0000201eeaac511000000001111111111111111\
                    eeaac51b40000003eeaac51b800001ac";
    assert_eq!(reply(third), hex(expected));
    assert_eq!(server.counters().of(Tally::Interleaved), 1);
    // A replay of the request gets no second interleaved reply.
    let again = Packet::parse(&reply(ask(&mut server, &request.to_bytes(), &clock()))).unwrap().0;
    assert_eq!(again.origin, request.transmit);
}

#[test]
fn a_request_whose_stamps_are_equal_is_a_basic_one() {
    // The answer's origin would be the same in both modes: the client could not tell.
    let mut server = server(Config::default());
    let mut request = Packet::parse(&hex(REQUEST)).unwrap().0;
    request.origin = NtpTimestamp::from_bits(0xeeaa_c51b_4000_0001);
    request.receive = request.transmit;
    let action = ask(&mut server, &request.to_bytes(), &clock());
    assert!(matches!(action, Action::Reply { departure: None, .. }), "{action:?}");
}

#[test]
fn the_interleaved_mode_can_be_off() {
    let mut server = server(Config { interleaved: false, ..Config::default() });
    let mut request = Packet::parse(&hex(REQUEST)).unwrap().0;
    request.origin = NtpTimestamp::from_bits(0xeeaa_c51b_4000_0001);
    request.receive = NtpTimestamp::from_bits(1);
    let action = ask(&mut server, &request.to_bytes(), &clock());
    assert!(matches!(action, Action::Reply { departure: None, .. }));
}

#[test]
fn a_clock_that_is_not_known_is_not_served() {
    let mut server = server(Config::default());
    for (clock, code) in [
        (ServedClock::Unknown(Unsynchronized::Starting), "494e4954"),
        (ServedClock::Unknown(Unsynchronized::Contradicted), "53544550"),
        (ServedClock::Known(known(500_000_000, Duration::from_secs(17))), "494e4954"),
    ] {
        let expected = format!(
            "e40006000000000000000000{code}00000000000000006a4cddaa25d1d282\
             00000000000000000000000000000000"
        );
        assert_eq!(reply(ask(&mut server, &hex(REQUEST), &clock)), hex(&expected));
    }
    assert_eq!(server.counters().of(Tally::Unsynchronized), 3);
    assert_eq!(ask(&mut server, &hex(REQUEST), &ServedClock::Mute), Action::Drop(Tally::Stepped));
}

#[test]
fn too_many_requests_get_one_kiss_and_then_nothing() {
    let config =
        Config { rate_interval: Duration::from_secs(2), rate_burst: 2, ..Config::default() };
    let mut server = server(config);
    let actions: Vec<_> = (0..5).map(|_| ask(&mut server, &hex(REQUEST), &clock())).collect();
    assert!(actions[..2].iter().all(|a| matches!(a, Action::Reply { .. })));
    // Stratum 0, leap indicator 3, RATE, and the two stamps without which clients would not look at
    // it.
    let expected = "e4000600000000000000000052415445\
                    00000000000000006a4cddaa25d1d282eeaac51b40000001eeaac51b80000000";
    assert!(matches!(actions[2], Action::Kiss { .. }));
    assert_eq!(reply(actions[2]), hex(expected));
    assert_eq!(actions[3..], [Action::Drop(Tally::Limited); 2]);
    // The poll field of a client that asks faster than the limit is raised to it: 2 s.
    let mut fast = hex(REQUEST);
    fast[2] = 0xfa;
    let other = "10.9.9.9:123".parse().unwrap();
    let action = server.respond(Duration::ZERO, &fast, utc(250_000_000), &clock(), other);
    assert_eq!(reply(action)[2], 1);
    // Our own client takes the kiss for what it is.
    let mut client = Client::new(Default::default(), Duration::ZERO).unwrap();
    let request = client.on_timer(Duration::ZERO, 7).unwrap();
    let mut kissing = actions[2];
    while !matches!(kissing, Action::Kiss { .. }) || reply(kissing)[24..32] != request.bytes[40..] {
        let now = server.counters().of(Tally::Received);
        let now = Duration::from_millis(i64::try_from(now).unwrap() * 50);
        kissing = server.respond(now, &request.bytes, utc(0), &clock(), other);
        assert!(server.counters().of(Tally::Received) < 1000, "no kiss came");
    }
    let outcome = client.on_datagram(Duration::EPSILON, &reply(kissing), utc(0), stamps);
    assert!(matches!(outcome, Outcome::KissOfDeath(_)), "{outcome:?}");
}

#[test]
fn who_and_what_is_not_answered() {
    let deny: Vec<Prefix> = vec!["10.1.2.0/24".parse().unwrap()];
    let mut strict = server(Config { deny, ..Config::default() });
    assert_eq!(ask(&mut strict, &hex(REQUEST), &clock()), Action::Drop(Tally::Denied));
    let mut server = server(Config::default());
    let mut from = |address: &str| {
        let from = address.parse().unwrap();
        server.respond(Duration::ZERO, &hex(REQUEST), utc(0), &clock(), from)
    };
    for stranger in [
        "203.0.113.1:123",
        "10.1.2.3:0",
        "0.0.0.0:1",
        "255.255.255.255:1",
        "224.0.1.1:123",
        "[ff02::101]:123",
    ] {
        assert_eq!(from(stranger), Action::Drop(Tally::Denied), "{stranger}");
    }
    assert!(matches!(from("[::ffff:10.1.2.3]:123"), Action::Reply { .. }));
    assert!(matches!(from("[fe80::1%2]:123"), Action::Reply { .. }));
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = hex(REQUEST);
        change(&mut bytes);
        bytes
    };
    let field = |kind: u16| [&kind.to_be_bytes()[..], &28u16.to_be_bytes(), &[0; 24]].concat();
    let cases: Vec<(Tally, Vec<u8>)> = vec![
        (Tally::Malformed, vec![]),
        (Tally::Malformed, hex(REQUEST)[..47].to_vec()),
        (Tally::Malformed, with(&|b| b.extend([0; 7]))),
        (Tally::Unsupported, with(&|b| b[0] = 0x24)),
        (Tally::Unsupported, with(&|b| b[0] = 0x21)),
        (Tally::Unsupported, with(&|b| b[0] = 0x26)),
        (Tally::Unsupported, with(&|b| b[0] = 0x27)),
        (Tally::Unsupported, with(&|b| b[0] = 0x03)),
        (Tally::Unsupported, with(&|b| b[0] = 0x2b)),
        (Tally::Authenticated, with(&|b| b.extend([0; 20]))),
        (Tally::Authenticated, with(&|b| b.extend(field(0x0404)))),
        (
            Tally::Authenticated,
            with(&|b| {
                b[0] = 0x1b;
                b.extend([0; 12]);
            }),
        ),
    ];
    for (reason, bytes) in cases {
        assert_eq!(ask(&mut server, &bytes, &clock()), Action::Drop(reason), "{bytes:02x?}");
    }
    // Unknown extension fields do no harm (RFC 7822).
    let extended = with(&|b| b.extend(field(0x0104)));
    assert_eq!(reply(ask(&mut server, &extended, &clock())).len(), 48);
}

#[test]
fn older_clients_are_answered_in_their_own_version() {
    let mut server = server(Config::default());
    for (asked, answered) in [(0x0b, 0x0c), (0x13, 0x14), (0x1b, 0x1c), (0x23, 0x24), (0xe3, 0x24)]
    {
        let mut request = hex(REQUEST);
        request[0] = asked;
        assert_eq!(reply(ask(&mut server, &request, &clock()))[0], answered);
    }
}

#[test]
fn a_leap_second_is_announced() {
    let mut server = server(Config::default());
    for (leap, first) in [(LeapIndicator::Insert, 0x64), (LeapIndicator::Delete, 0xa4)] {
        let time = ServedTime { leap, ..known(500_000_000, Duration::from_millis(1)) };
        let action = ask(&mut server, &hex(REQUEST), &ServedClock::Known(time));
        assert_eq!(reply(action)[0], first);
    }
}

#[test]
fn a_clock_that_went_back_says_nothing() {
    let mut server = server(Config::default());
    let clock = ServedClock::Known(known(249_999_999, Duration::from_millis(1)));
    assert_eq!(ask(&mut server, &hex(REQUEST), &clock), Action::Drop(Tally::Stepped));
}

fn any_clock() -> impl Strategy<Value = ServedClock> {
    let time = (any::<i128>(), any::<i128>(), 0usize..4, any::<u8>(), any::<i8>()).prop_map(
        |(transmit, error, leap, stratum, precision)| {
            let leap = [
                LeapIndicator::NoWarning,
                LeapIndicator::Insert,
                LeapIndicator::Delete,
                LeapIndicator::Unsynchronized,
            ][leap];
            ServedClock::Known(ServedTime {
                transmit: Instant::from_bits(transmit),
                error: Duration::from_bits(error),
                leap,
                stratum,
                reference_id: [1, 2, 3, 4],
                reference: Instant::from_bits(error),
                precision,
                precise: None,
            })
        },
    );
    prop_oneof![
        4 => time,
        1 => Just(ServedClock::Unknown(Unsynchronized::Starting)),
        1 => Just(ServedClock::Mute),
    ]
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let header = (
        prop::sample::select(vec![0x23u8, 0x1b, 0xe3, 0x24, 0x26, 0x2b]),
        prop::collection::vec(any::<u8>(), 47..200),
    );
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..200),
        3 => header.prop_map(|(first, rest)| [vec![first], rest].concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn a_reply_is_never_longer_than_the_request(
        requests in prop::collection::vec((any_request(), any_clock(), any::<i128>(), any::<i128>(), any::<[u8; 2]>()), 1..30),
    ) {
        let mut server = server(Config { clients: 16, ..Config::default() });
        let mut departures = vec![];
        for (request, clock, now, received, host) in requests {
            let from = SocketAddr::new(IpAddr::from([10, 0, host[0], 1]), 1 + u16::from(host[1]));
            let received = Instant::from_bits(received);
            match server.respond(Duration::from_bits(now), &request, received, &clock, from) {
                Action::Reply { bytes, departure } => {
                    prop_assert!(bytes.len() <= request.len());
                    prop_assert_eq!(request[0] & 7, 3);
                    prop_assert_eq!(bytes[0] & 7, 4);
                    departures.extend(departure);
                }
                Action::Kiss { bytes } => prop_assert!(bytes.len() <= request.len()),
                Action::Protected { .. } => panic!("NTS is not served"),
                Action::Drop(_) => {}
            }
            for departure in departures.drain(..) {
                server.departed(departure, received, Errors::symmetric(Duration::from_bits(now)));
            }
        }
        let counters = server.counters();
        let dropped: u64 = Tally::ALL[8..].iter().map(|t| counters.of(*t)).sum();
        let ended = counters.of(Tally::Answered) + counters.of(Tally::Kissed) + dropped;
        prop_assert_eq!(counters.of(Tally::Received), ended);
    }

    #[test]
    fn what_a_client_computes_holds_the_truth(
        error_bits in 0i128..(1i128 << 64), residence in 0i128..(1i128 << 50), frac in any::<u64>(),
        off in -1.0f64..=1.0, precision in -30i8..-10,
    ) {
        // True time is anywhere within the error of what is served; the client's budget must hold
        // it.
        let error = Duration::from_bits(error_bits);
        let received = utc(0) + Duration::from_bits(i128::from(frac));
        let transmit = received + Duration::from_bits(residence);
        let time = ServedTime { transmit, precision, ..known(0, error) };
        let mut client = Client::new(Default::default(), Duration::ZERO).unwrap();
        let request = client.on_timer(Duration::ZERO, 7).unwrap();
        client.sent(request.id);
        let action = server(Config::default()).respond(
            Duration::ZERO, &request.bytes, received, &ServedClock::Known(time), "10.0.0.1:123".parse().unwrap());
        let (packet, _) = Packet::parse(&reply(action)).unwrap();
        prop_assert!(packet.receive.to_bits() & 1 == 1 && packet.transmit.to_bits() & 1 == 0);
        let outcome = client.on_datagram(Duration::EPSILON, &reply(action), utc(0), stamps);
        let Outcome::Exchange(exchange) = outcome else {
            prop_assert!(error > Duration::from_millis(1400), "{:?}", outcome);
            prop_assert_eq!(outcome, Outcome::Rejected(RejectReason::Distance));
            return Ok(());
        };
        let response = exchange.response;
        let distance = response.root_delay.half() + response.root_dispersion;
        prop_assert!(distance >= error, "{distance:?} < {error:?}");
        let shift = Duration::from_secs_f64(error.as_secs_f64() * off);
        let shift = shift.max(-error).min(error);
        prop_assert!(received + shift <= response.tb + distance);
        prop_assert!(transmit + shift >= response.te - distance);
        prop_assert!(response.tb >= received && response.te <= transmit, "the safe sides");
    }
}
