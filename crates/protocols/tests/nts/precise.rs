//! Precise bounds inside NTS, from the client's side: the authenticator covers the field in both
//! directions. NTS is put around our NTP server by hand, so that replies can be what our own server
//! never makes; `serving.rs` has the real one.

use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::precise::{self, Bounds, Errors, Status};
use timevisor_protocols::ntp::server::{
    Action, Config as ServerConfig, PreciseTime, ServedClock, ServedTime, Server,
};
use timevisor_protocols::ntp::{Client, Config, LeapIndicator, Outcome};
use timevisor_protocols::nts::field::{self, UNIQUE_IDENTIFIER};
use timevisor_protocols::nts::{Association, Refusal};
use timevisor_time::{Duration, Instant, Utc};

use crate::server::{association, is_authentic, key, random, take_apart};

const FIELD: std::ops::Range<usize> = HEADER_LEN..HEADER_LEN + precise::MIN_LEN;

fn now() -> Instant<Utc> {
    Instant::from_unix_nanos(1_800_000_000_000_000_000)
}

/// What our server answers to the plain part of a request.
fn plain_reply(request: &[u8]) -> Vec<u8> {
    let errors = Errors::symmetric(Duration::from_micros(20));
    let bounds = Bounds { receive: errors, transmit: errors };
    let precise = PreciseTime {
        bounds,
        status: Status::Synchronized,
        epoch: 1,
        generation: 0,
        timeline: None,
    };
    let time = ServedTime {
        transmit: now(),
        error: bounds.largest(),
        leap: LeapIndicator::NoWarning,
        stratum: 1,
        reference_id: *b"TEST",
        reference: now(),
        precision: -24,
        precise: Some(precise),
    };
    let mut server = Server::new(ServerConfig::default(), 1).expect("a valid configuration");
    let from = std::net::SocketAddr::from(([10, 0, 0, 1], 123));
    let received = now() - Duration::from_micros(1);
    match server.respond(Duration::ZERO, request, received, &ServedClock::Known(time), from) {
        Action::Reply { bytes, .. } => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

struct Bench {
    client: Client<u64>,
    association: Association,
    sealed: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        let config = Config { precise: true, ..Config::default() };
        let mut client = Client::new(config, Duration::ZERO).expect("a valid configuration");
        let mut association = association(8, 100);
        let request = client.on_timer(Duration::ZERO, 77).expect("one is due");
        client.sent(request.id);
        let sealed = association.seal(&request.bytes, &random(9)).expect("there are cookies");
        assert_eq!(sealed[..FIELD.end], request.bytes[..]);
        Self { client, association, sealed }
    }

    /// The server's reply: the plain one, the identifier, and the authenticator over both with
    /// `inner` encrypted in it.
    fn reply(&self, plain: &[u8], inner: &[u8]) -> Vec<u8> {
        let asked = take_apart(&self.sealed);
        let mut packet = plain.to_vec();
        field::write(&mut packet, UNIQUE_IDENTIFIER, &asked.identifier);
        field::write_authenticator(&mut packet, &key(2), &[5; 16], inner).expect("sealed");
        packet
    }

    fn honest(&self) -> Vec<u8> {
        self.reply(&plain_reply(&self.sealed[..FIELD.end]), &[])
    }

    fn deliver(&mut self, plain: &[u8]) -> Option<Bounds> {
        let outcome = self.client.on_datagram(Duration::EPSILON, plain, now(), |id| (id, id + 1));
        let Outcome::Exchange(exchange) = outcome else { panic!("{outcome:?}") };
        exchange.response.precise
    }
}

#[test]
fn the_field_passes_both_ways() {
    let mut bench = Bench::new();
    assert_eq!(take_apart(&bench.sealed).placeholders, Vec::<usize>::new());
    let reply = bench.honest();
    assert!(reply.len() <= bench.sealed.len());
    let plain = bench.association.open(&reply).unwrap();
    assert_eq!(plain, reply[..FIELD.end]);
    let bounds = bench.deliver(&plain).unwrap();
    assert_eq!(bounds.largest().ceil_nanos(), 20_002);
}

#[test]
fn the_field_may_be_encrypted() {
    let mut bench = Bench::new();
    let plain = plain_reply(&bench.sealed[..FIELD.end]);
    let reply = bench.reply(&plain[..HEADER_LEN], &plain[FIELD]);
    let opened = bench.association.open(&reply).unwrap();
    assert_eq!(opened, plain);
    assert!(bench.deliver(&opened).is_some());
}

#[test]
fn no_bit_of_it_can_be_changed_on_the_way() {
    let bench = Bench::new();
    let reply = bench.honest();
    for at in FIELD {
        for bit in 0..8 {
            let mut request = bench.sealed.clone();
            request[at] ^= 1 << bit;
            assert!(!is_authentic(&request), "byte {at} of the request");
            let mut damaged = reply.clone();
            damaged[at] ^= 1 << bit;
            let opened = bench.association.clone().open(&damaged);
            assert!(
                matches!(
                    opened,
                    Err(Refusal::Forged | Refusal::Malformed | Refusal::Unauthenticated)
                ),
                "byte {at}: {opened:?}"
            );
        }
    }
}

#[test]
fn it_can_neither_be_added_nor_removed_on_the_way() {
    let mut bench = Bench::new();
    let plain = plain_reply(&bench.sealed[..FIELD.end]);
    let reply = bench.honest();
    let without = [&reply[..FIELD.start], &reply[FIELD.end..]].concat();
    assert_eq!(bench.association.open(&without), Err(Refusal::Forged));
    let bare = bench.reply(&plain[..HEADER_LEN], &[]);
    let before = [&bare[..HEADER_LEN], &plain[FIELD], &bare[HEADER_LEN..]].concat();
    assert_eq!(bench.association.open(&before), Err(Refusal::Forged));
    let behind = [&bare[..], &plain[FIELD]].concat();
    assert_eq!(bench.association.open(&behind), Err(Refusal::Malformed));
    assert_eq!(bench.association.open(&plain), Err(Refusal::Unauthenticated));
    // A server with NTS that does not know the field.
    let opened = bench.association.open(&bare).unwrap();
    assert_eq!(bench.deliver(&opened), None);
}

#[test]
fn somebody_elses_field_of_this_type_is_left_out() {
    let mut bench = Bench::new();
    let mut plain = plain_reply(&bench.sealed[..HEADER_LEN]);
    field::write(&mut plain, precise::KIND, &[0x5a; 12]);
    let reply = bench.reply(&plain, &[]);
    let opened = bench.association.open(&reply).unwrap();
    assert_eq!(opened, plain[..HEADER_LEN]);
    assert_eq!(bench.deliver(&opened), None);
}
