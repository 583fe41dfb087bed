//! NTP with NTS between our client and our server: what each has to say about the other's packets.

use std::net::SocketAddr;

use proptest::prelude::*;
use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::precise::{Bounds, Errors, Status as PreciseStatus};
use timevisor_protocols::ntp::server::{
    Action, Config as ServerConfig, PreciseTime, ServedClock, ServedTime, Server, Tally,
    Unsynchronized,
};
use timevisor_protocols::ntp::{Client, Config, LeapIndicator, Outcome};
use timevisor_protocols::nts::field::{self, COOKIE, COOKIE_PLACEHOLDER, UNIQUE_IDENTIFIER};
use timevisor_protocols::nts::negotiation::Answer;
use timevisor_protocols::nts::server::{
    CookieCiphers, CookieKeys, Protector, Rotation, SessionKeys,
};
use timevisor_protocols::nts::{Association, Config as NtsConfig, Established, Refusal, Status};
use timevisor_time::{Duration, Instant, Utc};

use crate::server::{header, key, random};

fn utc() -> Instant<Utc> {
    Instant::from_unix_nanos(1_800_000_000_000_000_000)
}

fn address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 123))
}

fn served() -> ServedTime {
    let errors = Errors::symmetric(Duration::from_micros(20));
    let bounds = Bounds { receive: errors, transmit: errors };
    let status = PreciseStatus::Synchronized;
    ServedTime {
        transmit: utc(),
        error: bounds.largest(),
        leap: LeapIndicator::NoWarning,
        stratum: 1,
        reference_id: *b"TEST",
        reference: utc(),
        precision: -24,
        precise: Some(PreciseTime { bounds, status, epoch: 1, generation: 0, timeline: None }),
    }
}

fn cookie_keys() -> CookieKeys {
    CookieKeys::new(Rotation::default(), Duration::ZERO, 7, [3; 32].into())
}

/// Every nonce is another one.
fn protector(keys: &CookieKeys) -> Protector {
    let mut count = 0u8;
    Protector::new(
        keys,
        Box::new(move |bytes| {
            for (index, nonce) in bytes.chunks_mut(16).enumerate() {
                nonce.fill(u8::try_from(index % 256).unwrap());
                nonce[0] = count;
            }
            count += 1;
            true
        }),
    )
}

/// A server with NTS, and a client that has established keys.
struct Bench {
    server: Server,
    keys: CookieKeys,
    association: Association,
    now: Duration,
    asked: u8,
}

impl Bench {
    fn new() -> Self {
        Self::with(ServerConfig { rate_interval: Duration::ZERO, ..ServerConfig::default() })
    }

    fn with(config: ServerConfig) -> Self {
        let keys = cookie_keys();
        let mut server = Server::new(config, 1).unwrap();
        server.serve_nts(protector(&keys));
        let mut ciphers = CookieCiphers::new(&keys);
        let session = SessionKeys::new(&[1; 32], &[2; 32]);
        let cookies =
            (0..8).map(|n| ciphers.make(&session, &[200 + n; 16]).unwrap().to_vec()).collect();
        let mut association = Association::new(NtsConfig::default()).unwrap();
        association.established(
            Duration::ZERO,
            Established {
                client_to_server: key(1),
                server_to_client: key(2),
                answer: Answer { cookies, ntp_server: None, ntp_port: None },
            },
        );
        Self { server, keys, association, now: Duration::ZERO, asked: 0 }
    }

    fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        self.asked += 1;
        self.association.seal(plain, &random(self.asked)).expect("there are cookies")
    }

    fn respond_at(&mut self, request: &[u8], clock: &ServedClock) -> Action {
        let received = utc() - Duration::from_micros(1);
        self.server.respond(self.now, request, received, clock, address())
    }

    fn respond(&mut self, request: &[u8]) -> Action {
        self.respond_at(request, &ServedClock::Known(served()))
    }

    /// The reply to a request with NTS, after what holds for each.
    fn reply(&mut self, request: &[u8]) -> (Tally, Vec<u8>) {
        match self.respond(request) {
            Action::Protected { outcome, .. } => {
                let bytes = self.server.protected().to_vec();
                assert!(bytes.len() <= request.len(), "amplification");
                (outcome, bytes)
            }
            other => panic!("{other:?}"),
        }
    }

    fn count(&self, tally: Tally) -> u64 {
        self.server.counters().of(tally)
    }
}

fn cookies(association: &Association) -> usize {
    match association.status(Duration::ZERO) {
        Status::Authenticated { cookies, .. } => cookies,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_asks_for_ever_and_no_cookie_is_used_twice() {
    let mut bench = Bench::new();
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..60 {
        let request = bench.seal(&header());
        let fields = field::split_all(&request[HEADER_LEN..]).unwrap();
        let cookie = fields.iter().find(|f| f.kind == COOKIE).unwrap().body.to_vec();
        assert!(seen.insert(cookie), "a cookie was used twice");
        if n % 7 < 3 {
            // Lost on the way; the next request has placeholders.
            continue;
        }
        let (outcome, reply) = bench.reply(&request);
        assert_eq!(outcome, Tally::Answered);
        let opened = bench.association.open(&reply).unwrap();
        assert_eq!(opened, reply[..HEADER_LEN]);
        assert_eq!(cookies(&bench.association), 8, "all lost ones are made up for");
    }
    let answered = bench.count(Tally::Answered);
    assert_eq!((answered, bench.count(Tally::Nts)), (bench.count(Tally::Received), answered));
}

#[test]
fn replies_are_as_long_as_requests() {
    let mut bench = Bench::new();
    for lost in 0..8 {
        let request = bench.seal(&header());
        if lost < 7 {
            continue;
        }
        let holders = field::split_all(&request[HEADER_LEN..]).unwrap();
        assert_eq!(holders.iter().filter(|f| f.kind == COOKIE_PLACEHOLDER).count(), 7);
        let (_, reply) = bench.reply(&request);
        assert_eq!(reply.len(), request.len());
        bench.association.open(&reply).unwrap();
        assert_eq!(cookies(&bench.association), 8);
    }
}

#[test]
fn precise_bounds_and_the_interleaved_mode_work_as_without_nts() {
    let mut bench = Bench::new();
    let config = Config { precise: true, interleaved: true, ..Config::default() };
    let mut client = Client::new(config, Duration::ZERO).unwrap();
    let mut interleaved = 0;
    for n in 1..=12u64 {
        bench.now = bench.now.max(client.poll_at());
        let request = client.on_timer(bench.now, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
        client.sent(request.id);
        let sealed = bench.seal(&request.bytes);
        let mut time = served();
        time.transmit = utc() + bench.now;
        let received = time.transmit - Duration::from_micros(1);
        let clock = ServedClock::Known(time);
        let action = bench.server.respond(bench.now, &sealed, received, &clock, address());
        let Action::Protected { outcome: Tally::Answered, departure } = action else {
            panic!("{action:?}")
        };
        let reply = bench.server.protected().to_vec();
        assert!(reply.len() <= sealed.len());
        if let Some(departure) = departure {
            let left = time.transmit + Duration::from_micros(1);
            bench.server.departed(departure, left, Errors::symmetric(Duration::from_micros(20)));
        }
        let plain = bench.association.open(&reply).unwrap();
        let outcome = client.on_datagram(bench.now, &plain, utc(), |id| (id, id + 1));
        let Outcome::Exchange(exchange) = outcome else { continue };
        let bounds = exchange.response.precise.expect("the field came with the answer");
        assert!((20_000..20_010).contains(&bounds.largest().ceil_nanos()), "{bounds:?}");
        interleaved += u32::from(exchange.response.is_interleaved());
    }
    assert!(interleaved >= 5, "{interleaved}");
    assert_eq!(bench.count(Tally::Precise), 12);
    assert_eq!(bench.count(Tally::Nts), 12);
}

#[test]
fn a_client_with_an_old_cookie_is_told_and_establishes_new_keys() {
    let mut bench = Bench::new();
    let request = bench.seal(&header());
    for day in 1..=7 {
        bench.keys.rotate(Duration::from_secs(day * 86_400), [9; 32].into());
    }
    let keys = bench.keys.clone();
    bench.server.nts().unwrap().set_keys(&keys);
    let (_, reply) = bench.reply(&request);
    bench.association.open(&reply).unwrap();
    // The eighth day: the other seven cookies are of the key that is now forgotten.
    bench.keys.rotate(Duration::from_secs(8 * 86_400), [9; 32].into());
    let keys = bench.keys.clone();
    bench.server.nts().unwrap().set_keys(&keys);
    let request = bench.seal(&header());
    let (outcome, nak) = bench.reply(&request);
    assert_eq!((outcome, nak.len()), (Tally::NtsNak, HEADER_LEN + 36));
    assert_eq!(bench.association.open(&nak), Err(Refusal::Nak));
    assert!(bench.association.needs_keys());
    assert_eq!((bench.count(Tally::NtsNak), bench.count(Tally::Nts)), (1, 1));
}

/// The bytes of a request of ours, and of the answer, with nonces and keys that are known.
#[test]
fn golden_bytes() {
    let mut bench = Bench::new();
    let request = bench.seal(&header());
    let (_, reply) = bench.reply(&request);
    let mut expected = reply[..HEADER_LEN].to_vec();
    assert_eq!(expected[24..32], request[40..48], "the origin is the request's cookie");
    field::write(&mut expected, UNIQUE_IDENTIFIER, &[1; 32]);
    // Nonces are taken from the end of the stock: 255, 254, each with the number of its stock.
    let nonce = |n: u8| {
        let mut nonce = [n; 16];
        nonce[0] = 0;
        nonce
    };
    let session = SessionKeys::new(&[1; 32], &[2; 32]);
    let cookie = CookieCiphers::new(&bench.keys).make(&session, &nonce(254)).unwrap();
    let mut inner = Vec::new();
    field::write(&mut inner, COOKIE, &cookie);
    field::write_authenticator(&mut expected, &key(2), &nonce(255), &inner).unwrap();
    assert_eq!(reply, expected);
}

#[test]
fn every_changed_byte_of_a_request_is_noticed() {
    let mut bench = Bench::new();
    let plain = {
        let mut client =
            Client::<u64>::new(Config { precise: true, ..Config::default() }, Duration::ZERO)
                .unwrap();
        client.on_timer(Duration::ZERO, 77).unwrap().bytes.to_vec()
    };
    assert!(plain.len() > HEADER_LEN, "with the field of precise bounds");
    let _lost = bench.seal(&plain);
    let request = bench.seal(&plain);
    for at in 0..request.len() {
        for change in [1, 0x80] {
            let mut damaged = request.clone();
            damaged[at] ^= change;
            match bench.respond(&damaged) {
                Action::Protected { outcome, .. } => {
                    assert_eq!(outcome, Tally::NtsNak, "byte {at} was not noticed");
                    let nak = bench.server.protected();
                    assert!(nak.len() <= damaged.len());
                    assert_eq!((nak[1], &nak[12..16]), (0, &b"NTSN"[..]));
                    // It has no cookie and no time.
                    let fields = field::split_all(&nak[HEADER_LEN..]).unwrap();
                    assert!(fields.iter().all(|field| field.kind == UNIQUE_IDENTIFIER));
                    assert!(nak[16..24].iter().chain(&nak[32..48]).all(|byte| *byte == 0));
                }
                Action::Drop(_) => {}
                // Without its authenticator it is a plain request.
                Action::Reply { bytes, .. } => {
                    let fields = field::split_all(&damaged[HEADER_LEN..]).unwrap();
                    assert!(fields.iter().all(|field| field.kind != field::AUTHENTICATOR));
                    assert!(bytes.len() <= HEADER_LEN + 88);
                }
                Action::Kiss { .. } => panic!("there is no limit"),
            }
        }
    }
    assert_eq!(bench.count(Tally::Nts), 0);
    assert_eq!(bench.reply(&request).0, Tally::Answered, "undamaged");
}

#[test]
fn another_clients_cookie_opens_nothing() {
    let mut bench = Bench::new();
    let other = SessionKeys::new(&[5; 32], &[6; 32]);
    let cookie = CookieCiphers::new(&bench.keys).make(&other, &[1; 16]).unwrap();
    let mut request = header().to_vec();
    field::write(&mut request, UNIQUE_IDENTIFIER, &[1; 32]);
    field::write(&mut request, COOKIE, &cookie);
    field::write_authenticator(&mut request, &key(1), &[7; 16], &[]).unwrap();
    assert_eq!(bench.reply(&request).0, Tally::NtsNak);
}

#[test]
fn other_clients_encrypt_fields_and_have_nonces_of_other_lengths() {
    let mut bench = Bench::new();
    let session = SessionKeys::new(&[1; 32], &[2; 32]);
    let cookie = CookieCiphers::new(&bench.keys).make(&session, &[1; 16]).unwrap();
    let mut inner = Vec::new();
    field::write(&mut inner, 0x2005, &[1; 24]);
    for (nonce, fits) in [(vec![7; 12], false), (vec![7; 32], true)] {
        for inner in [&inner[..], &[]] {
            let mut request = header().to_vec();
            field::write(&mut request, UNIQUE_IDENTIFIER, &[1; 40]);
            field::write(&mut request, COOKIE, &cookie);
            let sealed = key(1).seal(&nonce, &request, inner).unwrap();
            let mut body = Vec::new();
            for part in [&nonce, &sealed] {
                body.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
            }
            body.extend([&nonce[..], &sealed].concat());
            field::write(&mut request, field::AUTHENTICATOR, &body);
            let (outcome, reply) = bench.reply(&request);
            assert_eq!(outcome, Tally::Answered);
            // A new cookie only where there is room for it: against amplification.
            let has_cookie = reply.len() > HEADER_LEN + 44 + 40;
            assert_eq!(has_cookie, fits || !inner.is_empty(), "{} bytes", request.len());
        }
    }
}

#[test]
fn who_asks_too_often_and_who_comes_too_early_is_told_so_by_us() {
    let config = ServerConfig { rate_burst: 1, ..ServerConfig::default() };
    let mut bench = Bench::with(config);
    let unknown = ServedClock::Unknown(Unsynchronized::Starting);
    let first = bench.seal(&header());
    let action = bench.respond_at(&first, &unknown);
    assert!(matches!(action, Action::Protected { outcome: Tally::Answered, .. }), "{action:?}");
    let reply = bench.server.protected().to_vec();
    let opened = bench.association.open(&reply).unwrap();
    assert_eq!((opened[0] >> 6, &opened[12..16]), (3, &b"INIT"[..]));
    let second = bench.seal(&header());
    let (outcome, kiss) = bench.reply(&second);
    assert_eq!(outcome, Tally::Kissed);
    assert_eq!(&bench.association.open(&kiss).unwrap()[12..16], b"RATE");
    assert_eq!(cookies(&bench.association), 8);
    let third = bench.seal(&header());
    assert_eq!(bench.respond(&third), Action::Drop(Tally::Limited));
    bench.now += Duration::from_secs(1);
    let mute = bench.respond_at(&third, &ServedClock::Mute);
    assert_eq!(mute, Action::Drop(Tally::Stepped));
}

#[test]
fn a_server_without_nts_or_without_random_numbers_says_nothing() {
    let mut bench = Bench::new();
    let request = bench.seal(&header());
    bench.server.serve_nts(Protector::new(&bench.keys, Box::new(|_| false)));
    assert!(matches!(bench.respond(&request), Action::Drop(_)));
    let mut plain = Server::new(ServerConfig::default(), 1).unwrap();
    let clock = ServedClock::Known(served());
    let action = plain.respond(Duration::ZERO, &request, utc(), &clock, address());
    assert_eq!(action, Action::Drop(Tally::Authenticated));
    assert!(plain.protected().is_empty());
}

#[test]
fn plain_clients_are_served_beside() {
    let mut bench = Bench::new();
    let action = bench.respond(&header());
    let Action::Reply { bytes, .. } = action else { panic!("{action:?}") };
    assert_eq!(bytes.len(), HEADER_LEN);
    assert_eq!(bench.count(Tally::Nts), 0);
}

/// Fields of NTS in any order, with any length, and with the right cookie now and then.
fn any_fields() -> impl Strategy<Value = Vec<(u16, Vec<u8>)>> {
    let kind = prop::sample::select(vec![0x0104u16, 0x0204, 0x0304, 0x0404, 0xf7b1, 0x2005]);
    let session = SessionKeys::new(&[1; 32], &[2; 32]);
    let cookie = CookieCiphers::new(&cookie_keys()).make(&session, &[1; 16]).unwrap().to_vec();
    let body = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..120),
        Just(cookie),
        Just([&[0, 16, 0, 16][..], &[1; 32]].concat()),
    ];
    prop::collection::vec((kind, body), 0..8)
}

proptest! {
    #[test]
    fn no_request_breaks_the_server_or_gets_more_than_it_sent(
        fields in any_fields(), tail in prop::collection::vec(any::<u8>(), 0..30), sealed in any::<bool>(),
    ) {
        let mut bench = Bench::new();
        let mut request = header().to_vec();
        for (kind, body) in &fields {
            field::write(&mut request, *kind, body);
        }
        if sealed {
            field::write_authenticator(&mut request, &key(1), &[7; 16], &[]).unwrap();
        } else {
            request.extend(tail);
        }
        match bench.respond(&request) {
            Action::Protected { .. } => prop_assert!(bench.server.protected().len() <= request.len()),
            Action::Reply { bytes, .. } => prop_assert!(bytes.len() <= request.len()),
            Action::Kiss { .. } => prop_assert!(false, "there is no limit"),
            Action::Drop(_) => {}
        }
        let ends = [Tally::Answered, Tally::NtsNak, Tally::Malformed, Tally::Authenticated];
        prop_assert_eq!(ends.iter().map(|t| bench.count(*t)).sum::<u64>(), 1);
    }
}
