//! The interleaved mode (RFC 9769): our client and our server against each other, and the client's
//! golden request.

use std::collections::BTreeMap;

use proptest::prelude::*;
use timevisor_protocols::ntp::precise::Errors;
use timevisor_protocols::ntp::server::{Action, Config as ServerConfig, ServedClock, Server};
use timevisor_protocols::ntp::{
    Client, Config, Exchange, Outcome, Packet, RejectReason, Request, Response,
};
use timevisor_time::{Duration, Instant, Utc};

use crate::server::{answer, stamps};
use crate::serving::{client as address, known, utc};

const RESIDENCE: Duration = Duration::from_micros(20);
const ERROR: Duration = Duration::from_micros(50);
/// What a server cannot know when it writes its reply: the way through the kernel.
const LATENCY: Duration = Duration::from_micros(35);
/// The roundings of two stamps.
const ROUNDING: Duration = Duration::from_bits(1 << 34);

pub fn interleaving() -> Client<u64> {
    let config =
        Config { interleaved: true, poll_min: Duration::from_secs(4), ..Config::default() };
    Client::new(config, Duration::ZERO).expect("a valid configuration")
}

pub struct World {
    pub client: Client<u64>,
    server: Server,
    pub now: Duration,
    random: u64,
    /// The truth about each request that the server answered: arrival and departure.
    truth: BTreeMap<u64, (Instant<Utc>, Instant<Utc>)>,
    pub seen: Vec<Response>,
}

impl World {
    pub fn new() -> Self {
        let config = ServerConfig { rate_interval: Duration::ZERO, ..ServerConfig::default() };
        Self {
            client: interleaving(),
            server: Server::new(config, 3).expect("a valid configuration"),
            now: Duration::ZERO,
            random: 1,
            truth: BTreeMap::new(),
            seen: vec![],
        }
    }

    pub fn ask(&mut self) -> Request {
        let request = self.ask_without_stamp();
        self.client.sent(request.id);
        request
    }

    /// A request whose stamp nobody reports.
    pub fn ask_without_stamp(&mut self) -> Request {
        for _ in 0..3 {
            self.now = self.now.max(self.client.poll_at());
            self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
            if let Some(request) = self.client.on_timer(self.now, self.random) {
                return request;
            }
        }
        panic!("no request");
    }

    /// The server's reply; its departure is measured or not.
    pub fn serve(&mut self, request: &Request, measured: bool) -> Vec<u8> {
        let received = utc(0) + self.now + Duration::from_micros(100);
        let mut time = known(0, ERROR);
        time.transmit = received + RESIDENCE;
        let clock = ServedClock::Known(time);
        let action = self.server.respond(self.now, &request.bytes, received, &clock, address());
        let Action::Reply { bytes, departure } = action else { panic!("{action:?}") };
        let left = time.transmit + LATENCY;
        self.truth.insert(request.id, (received, left));
        if let Some(departure) = departure.filter(|_| measured) {
            self.server.departed(departure, left, Errors::symmetric(ERROR));
        }
        bytes.to_vec()
    }

    pub fn deliver(&mut self, bytes: &[u8]) -> Outcome {
        let now = self.now + Duration::from_micros(300);
        let outcome = self.client.on_datagram(now, bytes, utc(0), stamps);
        if let Outcome::Exchange(exchange) = outcome {
            self.check(&exchange);
            self.seen.push(exchange.response);
        }
        outcome
    }

    /// The stamps must be those of the exchange that they are said to belong to.
    fn check(&self, exchange: &Exchange) {
        let response = &exchange.response;
        assert_eq!((exchange.ta, exchange.tf), stamps(response.request_id), "{exchange:?}");
        let (arrival, departure) = self.truth[&response.request_id];
        assert!(response.tb >= arrival && response.tb <= arrival + ROUNDING, "{response:?}");
        let expected = if response.is_interleaved() { departure } else { departure - LATENCY };
        assert!(response.te <= expected && response.te + ROUNDING >= expected, "{response:?}");
        if let Some(last) = self.seen.last() {
            assert!(response.request_id > last.request_id, "twice or out of order: {response:?}");
        }
    }
}

#[test]
fn the_request_names_the_last_exchange_and_hides_everything_else() {
    let mut client = interleaving();
    let first = client.on_timer(Duration::ZERO, 0x6a4c_ddaa_25d1_d282).unwrap();
    client.sent(first.id);
    let reply = answer(&first, Duration::ZERO);
    assert!(matches!(
        client.on_datagram(Duration::EPSILON, &reply.to_bytes(), utc(0), stamps),
        Outcome::Exchange(_)
    ));
    let second = client.on_timer(Duration::from_secs(2), 0x1122_3344_5566_7788).unwrap();
    let (packet, _) = Packet::parse(&second.bytes).unwrap();
    assert_eq!(packet.origin, reply.receive);
    // Version 4, client, poll 2^2 s, precision 32; the receive field is splitmix64's mix of the
    // transmit field.
    let golden: Vec<u8> = [
        &[0x23, 0, 2, 0x20][..],
        &[0; 20],
        &reply.receive.to_bits().to_be_bytes(),
        &0x7709_291b_83f6_32e2_u64.to_be_bytes(),
        &0x1122_3344_5566_7788_u64.to_be_bytes(),
    ]
    .concat();
    assert_eq!(second.bytes[..], golden[..]);
}

#[test]
fn the_third_answer_is_the_first_interleaved_one() {
    let mut world = World::new();
    let mut outcomes = vec![];
    for _ in 0..6 {
        let request = world.ask();
        let bytes = world.serve(&request, true);
        outcomes.push(world.deliver(&bytes));
    }
    let pairs: Vec<_> = world.seen.iter().map(|r| (r.request_id, r.answered)).collect();
    assert_eq!(pairs, [(1, 1), (2, 2), (3, 4), (4, 5), (5, 6)]);
    assert_eq!(outcomes[2], Outcome::Kept { answered: 3 });
    assert_eq!(world.client.counters().accepted, 6);
    assert_eq!(world.client.reach().to_string(), "77");
}

#[test]
fn a_server_without_the_mode_is_asked_in_vain_and_answers_count() {
    let mut client = interleaving();
    let mut now = Duration::ZERO;
    for id in 1..=5 {
        now = now.max(client.poll_at());
        let request = client.on_timer(now, id * 77).unwrap();
        client.sent(id);
        let outcome = client.on_datagram(now, &answer(&request, now).to_bytes(), utc(0), stamps);
        let Outcome::Exchange(exchange) = outcome else { panic!("{outcome:?}") };
        assert_eq!((exchange.response.request_id, exchange.response.answered), (id, id));
        assert_eq!((exchange.ta, exchange.tf), stamps(id));
    }
}

#[test]
fn after_four_lost_requests_the_next_is_basic() {
    let mut world = World::new();
    for _ in 0..3 {
        let request = world.ask();
        let bytes = world.serve(&request, true);
        world.deliver(&bytes);
    }
    let origins: Vec<_> = (0..6)
        .map(|_| Packet::parse(&world.ask().bytes).unwrap().0)
        .map(|packet| (!packet.origin.is_zero(), !packet.receive.is_zero()))
        .collect();
    let (yes, no) = ((true, true), (false, false));
    assert_eq!(origins, [yes, yes, yes, yes, no, no]);
}

#[test]
fn a_restart_forgets_the_exchange() {
    let mut world = World::new();
    let request = world.ask();
    let bytes = world.serve(&request, true);
    world.deliver(&bytes);
    world.client.restart(world.now);
    assert!(Packet::parse(&world.ask().bytes).unwrap().0.origin.is_zero());
}

#[test]
fn a_departure_that_cannot_be_is_refused() {
    let mut world = World::new();
    for _ in 0..3 {
        let request = world.ask();
        let bytes = world.serve(&request, true);
        world.deliver(&bytes);
    }
    let request = world.ask();
    let bytes = world.serve(&request, true);
    let (mut reply, _) = Packet::parse(&bytes).unwrap();
    // The answer before cannot have left after the next request came.
    reply.transmit = reply.receive;
    let bits = reply.transmit.to_bits() + (1 << 32);
    reply.transmit = timevisor_protocols::ntp::NtpTimestamp::from_bits(bits);
    let outcome = world.deliver(&reply.to_bytes());
    assert_eq!(outcome, Outcome::Rejected(RejectReason::TimeReversed));
    assert!(Packet::parse(&world.ask().bytes).unwrap().0.origin.is_zero(), "trust is gone");
}

#[test]
fn either_cookie_alone_is_enough_and_both_are_remembered() {
    let mut world = World::new();
    for _ in 0..3 {
        let request = world.ask();
        let bytes = world.serve(&request, true);
        world.deliver(&bytes);
    }
    let request = world.ask();
    let bytes = world.serve(&request, true);
    assert!(matches!(world.deliver(&bytes), Outcome::Exchange(_)));
    assert_eq!(world.deliver(&bytes), Outcome::Rejected(RejectReason::Duplicate));
    let basic = answer(&request, world.now).to_bytes();
    assert_eq!(world.deliver(&basic), Outcome::Rejected(RejectReason::Duplicate));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Lost requests, lost answers, departures that nobody measured, duplicates, and a server that
    /// forgets everything: every exchange that comes out has the stamps of one exchange, and none
    /// comes out twice.
    #[test]
    fn stamps_are_never_paired_wrongly(events in prop::collection::vec((0u8..6, any::<bool>()), 1..60)) {
        let mut world = World::new();
        let mut old: Option<Vec<u8>> = None;
        for (event, measured) in events {
            let request = world.ask();
            match event {
                0 => {}
                1 => drop(world.serve(&request, measured)),
                2 => world.server = World::new().server,
                _ => {
                    let bytes = world.serve(&request, measured);
                    let outcome = world.deliver(&bytes);
                    prop_assert!(matches!(outcome, Outcome::Exchange(_) | Outcome::Kept { .. }), "{:?}", outcome);
                    if let Some(old) = old.replace(bytes) {
                        prop_assert!(matches!(world.deliver(&old), Outcome::Rejected(_)));
                    }
                }
            }
        }
    }
}
