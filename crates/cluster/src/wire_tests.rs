//! Questions, answered by the server that hosts run.

use std::net::SocketAddr;

use proptest::prelude::*;
use timevisor_protocols::ntp::LeapIndicator;
use timevisor_protocols::ntp::precise::{Asker, Bounds};
use timevisor_protocols::ntp::server::{
    Action, Cluster, Config, PreciseTime, ServedClock, ServedTime, Server, Unsynchronized,
};
use timevisor_protocols::nts::server::Protector;
use timevisor_protocols::nts::shared::{Secret, session};

use super::*;
use crate::children::Children;

const MEMBER: Member = Member { asker: Asker::New, port: 4123 };

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn now() -> Instant<Utc> {
    Instant::from_unix_nanos(1_800_000_000_000_000_000)
}

/// 1 us below, 3 us above.
fn clock() -> ServedClock {
    let (below, above) = (Duration::from_micros(1), Duration::from_micros(3));
    let errors = Errors { below, above };
    let bounds = Bounds { receive: errors, transmit: errors };
    ServedClock::Known(ServedTime {
        transmit: now() + Duration::from_micros(10),
        error: bounds.largest(),
        leap: LeapIndicator::NoWarning,
        stratum: 3,
        reference_id: [192, 0, 2, 1],
        reference: now(),
        precision: -24,
        precise: Some(PreciseTime {
            bounds,
            status: Status::Synchronized,
            epoch: 77,
            generation: 5,
            timeline: None,
        }),
    })
}

/// A server of the cluster "lab" with room for two children.
fn server() -> Server {
    let config = Config { rate_interval: Duration::ZERO, ..Config::default() };
    let mut server = Server::new(config, 1).unwrap();
    let referrer = Box::new(Children::<SocketAddr>::new(2, Duration::from_secs(60)));
    server.serve_cluster(Cluster { name: name("lab"), is_timeline: false, secret: None, referrer });
    server
}

fn ask(server: &mut Server, query: &Query, member: Member, from: &str) -> Vec<u8> {
    let clock = clock();
    let datagram = query.datagram(Some(member));
    match server.respond(Duration::ZERO, &datagram, now(), &clock, at(from)) {
        Action::Reply { bytes, .. } => {
            assert!(bytes.len() <= datagram.len(), "amplification");
            bytes.to_vec()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_member_gets_the_servers_interval_in_nanoseconds() {
    let query = Query::new(name("lab"), 42);
    let said = query.read(&ask(&mut server(), &query, MEMBER, "127.0.0.1:999"), now()).unwrap();
    let [arrived, left] = said.intervals.unwrap();
    assert!(arrived.contains(now()) && left.contains(now() + Duration::from_micros(10)));
    // 4 us, and the stamps' rounding.
    assert!(arrived.width() < Duration::from_nanos(4_010), "{}", arrived.width());
    assert_eq!((said.level, said.origin), (3, Origin { generation: 0, epoch: 0 }));
    assert_eq!(said.others, [None; MAX_REFERRALS]);
}

#[test]
fn who_comes_late_is_referred_to_who_serves_at_its_own_port() {
    let mut server = server();
    let query = Query::new(name("lab"), 42);
    let serving = Member { asker: Asker::Serving, port: 4123 };
    ask(&mut server, &query, serving, "127.0.0.1:1001");
    // It cannot be asked, so nobody is sent to it, and the next one takes its place.
    ask(&mut server, &query, Member { asker: Asker::Serving, port: 0 }, "127.0.0.2:1002");
    ask(&mut server, &query, MEMBER, "127.0.0.3:1003");
    let said = query.read(&ask(&mut server, &query, MEMBER, "127.0.0.4:1004"), now()).unwrap();
    assert_eq!(said.others[0], Some(at("127.0.0.1:4123")), "{said:?}");
    assert_eq!(said.others[1], Some(at("127.0.0.3:4123")), "{said:?}");
    assert!(said.others[2..].iter().all(Option::is_none), "{said:?}");
}

/// Each is answered, and names another port: only some of them get a place, so there is one for somebody else.
#[test]
fn a_hundred_thousand_questions_of_one_address_take_a_few_places() {
    let config = Config { rate_interval: Duration::ZERO, ..Config::default() };
    let mut server = Server::new(config, 1).unwrap();
    let children = Children::<SocketAddr>::new(10, Duration::from_secs(60));
    let referrer = Box::new(children.with_most_per_address(4));
    server.serve_cluster(Cluster { name: name("lab"), is_timeline: false, secret: None, referrer });
    for number in 0..100_000_u32 {
        let query = Query::new(name("lab"), u64::from(number));
        let port = u16::try_from(number % 65_535).unwrap() + 1;
        let answer =
            ask(&mut server, &query, Member { asker: Asker::Serving, port }, "127.0.0.1:1001");
        let said = query.read(&answer, now()).unwrap();
        assert!(said.intervals.is_some() && said.others.iter().flatten().count() <= 4);
    }
    let query = Query::new(name("lab"), 42);
    let serving = Member { asker: Asker::Serving, port: 4123 };
    ask(&mut server, &query, serving, "127.0.0.2:1002");
    let settled = Member { asker: Asker::Settled, port: 4123 };
    let said = query.read(&ask(&mut server, &query, settled, "127.0.0.3:1003"), now()).unwrap();
    let others: Vec<SocketAddr> = said.others.into_iter().flatten().collect();
    assert!(others.contains(&at("127.0.0.2:4123")), "{others:?}");
    assert!(others.iter().filter(|other| other.ip() == at("127.0.0.1:1").ip()).count() <= 4);
}

#[test]
fn a_replay_answers_nothing() {
    let mut server = server();
    let first = Query::new(name("lab"), 42);
    let answer = ask(&mut server, &first, MEMBER, "127.0.0.1:999");
    assert!(first.read(&answer, now()).is_ok());
    assert_eq!(Query::new(name("lab"), 43).read(&answer, now()), Err(Refused::Stray));
}

#[test]
fn another_clusters_name_is_said() {
    let query = Query::new(name("other"), 42);
    let answer = ask(&mut server(), &query, MEMBER, "127.0.0.1:999");
    assert_eq!(query.read(&answer, now()), Err(Refused::NoSuchCluster));
}

#[test]
fn a_server_without_our_field_is_foreign() {
    let query = Query::new(name("lab"), 42);
    let mut answer = ask(&mut server(), &query, MEMBER, "127.0.0.1:999");
    answer.truncate(48);
    assert_eq!(query.read(&answer, now()), Err(Refused::Foreign));
}

/// Its places are given away all the same: who comes late is told whom to ask.
#[test]
fn a_server_that_does_not_know_the_time_yet_is_waited_for() {
    let mut server = server();
    let query = Query::new(name("lab"), 42);
    let unknown = ServedClock::Unknown(Unsynchronized::Starting);
    let datagram = query.datagram(Some(MEMBER));
    let mut said = |from: &str| {
        let action = server.respond(Duration::ZERO, &datagram, now(), &unknown, at(from));
        let Action::Reply { bytes, .. } = action else { panic!("no reply") };
        assert!(bytes.len() <= datagram.len(), "amplification");
        query.read(&bytes, now()).unwrap()
    };
    for (from, others) in [("127.0.0.1:999", 0), ("127.0.0.2:999", 0), ("127.0.0.3:999", 2)] {
        let said = said(from);
        assert_eq!(said.intervals, None);
        assert_eq!(said.others.iter().flatten().count(), others, "{from}");
    }
}

/// Its clock has a generation and an epoch, which no two hosts have in common.
#[test]
fn a_hosts_own_clock_is_utc() {
    let query = Query::new(Name::HOST, 42);
    let said = query.read(&ask(&mut server(), &query, MEMBER, "127.0.0.1:999"), now()).unwrap();
    assert!(said.intervals.is_some());
    assert_eq!(said.origin, Origin::UTC);
}

#[test]
fn a_server_that_limits_us_is_left_alone() {
    let config = Config { rate_burst: 1, ..Config::default() };
    let mut server = Server::new(config, 1).unwrap();
    let query = Query::new(name("lab"), 42);
    let mut kissed = None;
    for _ in 0..64 {
        let datagram = query.datagram(Some(MEMBER));
        let from = at("127.0.0.1:999");
        match server.respond(Duration::ZERO, &datagram, now(), &clock(), from) {
            Action::Kiss { bytes } => kissed = Some(query.read(&bytes, now())),
            _ => continue,
        }
    }
    assert_eq!(kissed, Some(Err(Refused::Kiss(KissCode::Rate))));
}

fn secret(byte: u8) -> Secret {
    let mut bytes = [byte; 32];
    bytes[0] = 1;
    Secret::new(bytes.into())
}

/// A server of the cluster "lab" that answers only who has this secret.
fn server_with(secret: &Secret) -> Server {
    let config = Config { rate_interval: Duration::ZERO, ..Config::default() };
    let mut server = Server::new(config, 1).unwrap();
    let mut protector = Protector::without_keys(Box::new(|bytes| {
        bytes.fill(9);
        true
    }));
    protector.share(name("lab"), &secret.cookie_keys(name("lab")));
    server.serve_nts(protector);
    let referrer = Box::new(Children::<SocketAddr>::new(2, Duration::from_secs(60)));
    let secret = Some(name("lab"));
    server.serve_cluster(Cluster { name: name("lab"), is_timeline: false, secret, referrer });
    server
}

fn sealer(secret: &Secret, cluster: &str) -> Sealer {
    let session = session(|bytes| {
        bytes.fill(5);
        true
    });
    Sealer::new(secret.cookie_keys(name(cluster)), &session.unwrap())
}

/// A question of a member, sealed if there is something to seal it with.
fn made(sealer: Option<&Sealer>, number: u64) -> (Query, Vec<u8>) {
    Query::made(name("lab"), Some(MEMBER), sealer, &Random::of(number)).unwrap()
}

/// The server's answer, if it gives one.
fn answer(server: &mut Server, question: &[u8]) -> Option<Vec<u8>> {
    match server.respond(Duration::ZERO, question, now(), &clock(), at("127.0.0.1:999")) {
        Action::Reply { bytes, .. } => Some(bytes.to_vec()),
        Action::Protected { .. } => Some(server.protected().to_vec()),
        Action::Kiss { .. } | Action::Drop(_) => None,
    }
    .inspect(|answer| assert!(answer.len() <= question.len(), "amplification"))
}

#[test]
fn hosts_with_the_same_key_understand_each_other() {
    let (mut server, sealer) = (server_with(&secret(7)), sealer(&secret(7), "lab"));
    for number in 1..4 {
        let (query, question) = made(Some(&sealer), number);
        let said = query.read(&answer(&mut server, &question).unwrap(), now()).unwrap();
        assert!(said.intervals.unwrap()[0].contains(now()));
    }
}

#[test]
fn who_has_no_key_or_another_one_is_told() {
    let mut server = server_with(&secret(7));
    let (plain, question) = made(None, 1);
    let answered = answer(&mut server, &question).unwrap();
    assert_eq!(plain.read(&answered, now()), Err(Refused::KeyRequired));
    for other in [sealer(&secret(8), "lab"), sealer(&secret(7), "other")] {
        let (query, question) = made(Some(&other), 2);
        let answered = answer(&mut server, &question).unwrap();
        assert_eq!(query.read(&answered, now()), Err(Refused::WrongKey));
    }
    // A server without NTS says nothing that could be authenticated.
    let (_, question) = made(Some(&sealer(&secret(7), "lab")), 3);
    assert_eq!(answer(&mut self::server(), &question), None);
}

#[test]
fn strangers_are_told_no_time_of_a_clusters_own_timeline() {
    let config = Config { rate_interval: Duration::from_secs(1), ..Config::default() };
    let mut server = Server::new(config, 1).unwrap();
    let mut protector = Protector::without_keys(Box::new(|_| true));
    protector.share(name("lab"), &secret(7).cookie_keys(name("lab")));
    server.serve_nts(protector);
    let referrer = Box::new(Children::<SocketAddr>::new(2, Duration::from_secs(60)));
    let secret = Some(name("lab"));
    server.serve_cluster(Cluster { name: name("lab"), is_timeline: true, secret, referrer });
    let (mut told, mut dropped) = (0, 0);
    for number in 0..40 {
        let (query, question) = made(None, number);
        assert_eq!(server.asks_for(&question), Some(name("lab")));
        let Some(answered) = answer(&mut server, &question) else {
            dropped += 1;
            continue;
        };
        told += 1;
        assert_eq!(query.read(&answered, now()), Err(Refused::KeyRequired));
        let (packet, _) = Packet::parse(&answered).unwrap();
        let stamps = [packet.reference, packet.receive, packet.transmit];
        assert_eq!(stamps, [NtpTimestamp::ZERO; 3], "question {number}");
    }
    assert!(told > 0 && dropped > 0, "{told} were told, {dropped} dropped for their rate");
}

#[test]
fn a_sealed_question_is_answered_by_nobody_without_the_key() {
    let sealer = sealer(&secret(7), "lab");
    let (query, question) = made(Some(&sealer), 1);
    let (_, plain) = made(None, 1);
    let stray = |bytes: &[u8]| query.read(bytes, now()) == Err(Refused::Stray);
    let unsealed = answer(&mut server(), &plain).unwrap();
    assert!(stray(&unsealed), "the right transmit stamp is not enough");
    let mut server = server_with(&secret(7));
    let whole = answer(&mut server, &question).unwrap();
    let (_, earlier) = made(Some(&sealer), 2);
    assert!(stray(&answer(&mut server, &earlier).unwrap()), "the answer to another question");
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        assert!(query.read(&damaged, now()).is_err(), "byte {at}");
    }
    for len in 0..whole.len() {
        assert!(query.read(&whole[..len], now()).is_err(), "the first {len} bytes");
    }
    assert!(query.read(&whole, now()).is_ok());
}

proptest! {
    /// Damage is refused, or changes what damage can change without a key; it never panics, and an
    /// answer that was cut is none.
    #[test]
    fn damaged_answers(at in 0usize..300, with in any::<u8>(), cut in 0usize..300) {
        let query = Query::new(name("lab"), 42);
        let whole = ask(&mut server(), &query, MEMBER, "127.0.0.1:999");
        let mut damaged = whole.clone();
        let at = at % damaged.len();
        damaged[at] = with;
        let _ = query.read(&damaged, now());
        let cut = &whole[..cut % whole.len()];
        prop_assert!(query.read(cut, now()).is_err());
    }
}
