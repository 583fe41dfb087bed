//! A client and the server that hosts run, with the datagrams in between.

use timevisor_estimate::RateLimits;
use timevisor_protocols::ntp::LeapIndicator;
use timevisor_protocols::ntp::precise::{Asker, Bounds, Errors, Status};
use timevisor_protocols::ntp::server::{
    Action, Cluster, Config, PreciseTime, ServedClock, ServedTime, Server,
};
use timevisor_protocols::nts::server::Protector;
use timevisor_protocols::nts::shared::Secret;
use timevisor_time::{Period, RateError};

use super::*;
use crate::children::Children;
use crate::node::Settings;
use crate::settle;

const EPOCH_NS: i128 = 1_800_000_000_000_000_000;
const LEAP: Duration = Duration::from_secs(37);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn utc(ns: i64) -> Instant<Utc> {
    Instant::from_unix_nanos(EPOCH_NS + i128::from(ns))
}

fn server(name: &str) -> Server {
    server_with(name, Children::new(10, Duration::from_secs(60)))
}

fn server_with(name: &str, children: Children<SocketAddr>) -> Server {
    server_that(Config { rate_interval: Duration::ZERO, ..Config::default() }, name, children)
}

fn server_that(config: Config, name: &str, children: Children<SocketAddr>) -> Server {
    let mut server = Server::new(config, 1).unwrap();
    let referrer = Box::new(children);
    server.serve_cluster(Cluster {
        name: Name::new(name).unwrap(),
        is_timeline: false,
        secret: None,
        referrer,
    });
    server
}

fn client(seeds: &[&str]) -> Client {
    client_with_peers(seeds, 0)
}

fn settings(peers: usize) -> Settings<SocketAddr> {
    let nominal = Period::from_hz(1_000_000_000).unwrap();
    Settings {
        burst: settle::Limits { wanted: None, most: 8 },
        spacing: Duration::ZERO,
        children: 10,
        lease: Duration::from_secs(60),
        peers,
        poll: Duration::from_millis(100),
        liars: 0,
        trusted: None,
        succession: None,
        rate: RateLimits::around(nominal, RateError::from_ppm(15)),
        nominal,
    }
}

fn client_with_peers(seeds: &[&str], peers: usize) -> Client {
    let seeds = seeds.iter().map(|seed| at(seed)).collect();
    let node = Node::new(at("127.0.0.1:123"), settings(peers), seeds, 1, Duration::ZERO);
    Client::new(node, Name::new("lab").unwrap(), 123)
}

/// A server's clock that is known to 1 us, at this time.
fn clock(ns: i64) -> ServedClock {
    let errors = Errors::symmetric(Duration::from_micros(1));
    let bounds = Bounds { receive: errors, transmit: errors };
    ServedClock::Known(ServedTime {
        transmit: utc(ns),
        error: bounds.largest(),
        leap: LeapIndicator::NoWarning,
        stratum: 1,
        reference_id: *b"GPS\0",
        reference: utc(ns),
        precision: -24,
        precise: Some(PreciseTime {
            bounds,
            status: Status::Synchronized,
            epoch: 0,
            generation: 0,
            timeline: None,
        }),
    })
}

/// Runs the client for the first second of true time. Returns what happened.
fn run(client: &mut Client, servers: &mut [(&str, Server)]) -> Vec<Event<SocketAddr>> {
    run_from(client, servers, 0)
}

/// Runs the client for a second, whose counter is true time in ns. Questions take 30 us to their
/// server, and answers as long. Returns what happened.
fn run_from(
    client: &mut Client,
    servers: &mut [(&str, Server)],
    from: i64,
) -> Vec<Event<SocketAddr>> {
    run_hearing(client, servers, from, true)
}

/// The same; kisses of death get lost unless `kisses`.
fn run_hearing(
    client: &mut Client,
    servers: &mut [(&str, Server)],
    from: i64,
    kisses: bool,
) -> Vec<Event<SocketAddr>> {
    let mut now = from;
    let mut events = Vec::new();
    for turn in 1.. {
        let due = client.poll_at();
        if due >= Duration::from_nanos(from) + Duration::from_secs(1) {
            break;
        }
        now = now.max(due.ceil_nanos());
        let span = |ns: i64| Duration::from_nanos(ns);
        let question = client.on_timer(span(now), &Random::of(turn));
        events.extend(client.take_events());
        let Some((server, question)) = question else { continue };
        client.sent(u64::try_from(now).unwrap());
        let Some((_, found)) = servers.iter_mut().find(|(name, _)| at(name) == server) else {
            continue;
        };
        let arrived = now + 30_000;
        let action =
            found.respond(span(now), &question, utc(arrived), &clock(arrived), at("127.0.0.1:9"));
        let bytes = match action {
            Action::Reply { bytes, .. } => bytes.to_vec(),
            Action::Kiss { bytes } if kisses => bytes.to_vec(),
            _ => continue,
        };
        now += 60_000;
        let counter = u64::try_from(now).unwrap();
        let tai = |utc: Instant<Utc>| Some((utc + LEAP).relabel());
        let mut take = |from: SocketAddr, bytes: &[u8]| {
            let said = client.waits_for(from).map(|query| query.read(bytes, utc(0)));
            said.map_or(Vec::new(), |said| client.heard(from, said, counter, tai, span(now)))
        };
        // Forged ones first: from elsewhere, and without the question's number.
        assert!(take(at("127.0.0.66:123"), &bytes).is_empty());
        assert!(take(server, &[0x24; 48]).is_empty());
        events.extend(take(server, &bytes));
        // Replayed.
        assert!(take(server, &bytes).is_empty());
    }
    events
}

#[test]
fn eight_questions_give_bounds_that_hold_the_truth() {
    let mut client = client(&["127.0.0.1:1001"]);
    let events = run(&mut client, &mut [("127.0.0.1:1001", server("lab"))]);
    assert_eq!(events, [Event::Vouches]);
    assert!((2..=8).contains(&client.questions()), "{}", client.questions());
    let (interval, _) = client.node().at(2_000_000).unwrap();
    assert!(interval.contains((utc(2_000_000) + LEAP).relabel()));
    // 31 us each way, and 15 ppm of 2 ms.
    assert!(interval.width() < Duration::from_micros(63), "{}", interval.width());
    assert_eq!(client.node().level(), Some(2));
}

#[test]
fn a_server_of_another_cluster_is_named_and_the_next_one_is_asked() {
    let seeds = ["127.0.0.1:1001", "127.0.0.1:1002", "127.0.0.1:1003"];
    let mut client = client(&seeds);
    let mut servers =
        [(seeds[0], server("other")), (seeds[1], server("lab")), (seeds[2], server("other"))];
    assert_eq!(run(&mut client, &mut servers), [Event::Vouches]);
    for (from, why) in client.refusals() {
        assert!(from != at(seeds[1]) && why == Refused::NoSuchCluster);
    }
}

/// Somebody who saw the question may send a NAK: the right answer counts all the same.
#[test]
fn a_forged_nak_ends_no_question() {
    let name = Name::new("lab").unwrap();
    let keys = Secret::new([3; 32].into()).cookie_keys(name);
    let mut protector = Protector::without_keys(Box::new(|_| true));
    protector.share(name, &keys);
    let (mut server, mut stranger) = (server("lab"), server("lab"));
    server.serve_nts(protector);
    stranger.serve_nts(Protector::without_keys(Box::new(|_| true)));
    let seed = at("127.0.0.1:1001");
    let sealer = Sealer::new(keys, &[[1; 32], [2; 32]].into());
    let mut client = client(&["127.0.0.1:1001"]).with_sealer(Some(sealer));
    let (_, question) = client.on_timer(Duration::ZERO, &Random::of(1)).unwrap();
    client.sent(0);
    let tai = |utc: Instant<Utc>| Some((utc + LEAP).relabel());
    let mut events = Vec::new();
    for answering in [&mut stranger, &mut server] {
        let from = at("127.0.0.1:9");
        let action =
            answering.respond(Duration::ZERO, &question, utc(30_000), &clock(30_000), from);
        assert!(matches!(action, Action::Protected { .. }), "{action:?}");
        let said = client.waits_for(seed).unwrap().read(answering.protected(), utc(0));
        let soon = Duration::from_micros(60);
        events.extend(client.heard(seed, said, 60_000, tai, soon));
        let refused: Vec<_> = client.refusals().collect();
        if client.waits_for(seed).is_some() {
            assert_eq!(refused, [(seed, Refused::WrongKey)]);
        } else {
            assert_eq!(refused, []);
        }
    }
    assert!(client.waits_for(seed).is_none() && client.node().at(60_000).is_some(), "{events:?}");
}

#[test]
fn a_server_that_refuses_for_a_while_is_asked_again() {
    let seed = "127.0.0.1:1001";
    let mut client = client_with_peers(&[seed], 3);
    let second = 1_000_000_000;
    assert_eq!(run_from(&mut client, &mut [(seed, server("lab"))], 0), [Event::Vouches]);
    run_from(&mut client, &mut [(seed, server("other"))], second);
    assert_eq!(client.refusals().count(), 1);
    let asked = client.questions();
    run_from(&mut client, &mut [(seed, server("lab"))], 2 * second);
    assert!(client.questions() >= asked + 5, "{asked}");
    assert_eq!(client.refusals().count(), 0);
}

/// A host that others name and nobody hears takes no peer's place.
#[test]
fn who_does_not_answer_keeps_no_seed_from_being_asked() {
    let seeds = ["127.0.0.1:1001", "127.0.0.1:1002"];
    let mut servers = seeds.map(|seed| {
        let mut children = Children::new(10, Duration::from_secs(600));
        children.asked(at("127.0.0.1:7777"), Asker::Serving, Duration::ZERO);
        (seed, server_with("lab", children))
    });
    let mut client = client_with_peers(&seeds, 2);
    for second in 0..4 {
        run_from(&mut client, &mut servers, second * 1_000_000_000);
    }
    let heard: Vec<SocketAddr> = client.node().heard().collect();
    assert!(seeds.iter().all(|seed| heard.contains(&at(seed))), "{heard:?}");
}

#[test]
fn a_server_that_falls_silent_in_the_middle_has_said_enough() {
    // It answers once; then it says that this is too often, or nothing at all.
    for kisses in [true, false] {
        let mut client = client(&["127.0.0.1:1001"]);
        let sparing = server_that(
            Config { rate_interval: Duration::from_secs(60), rate_burst: 1, ..Config::default() },
            "lab",
            Children::new(10, Duration::from_secs(60)),
        );
        let mut servers = [("127.0.0.1:1001", sparing)];
        let events = run_hearing(&mut client, &mut servers, 0, kisses);
        assert_eq!(events, [Event::Vouches], "kisses: {kisses}");
        let (interval, _) = client.node().at(1_000_000_000).unwrap();
        assert!(interval.width() < Duration::from_millis(1), "{}", interval.width());
    }
}

#[test]
fn where_nobody_listens_no_time_is_lost() {
    let seeds = ["127.0.0.1:1001", "127.0.0.1:1002"];
    let mut client = client(&seeds);
    let mut asked = Vec::new();
    for turn in 1..=4 {
        let (server, _) = client.on_timer(Duration::ZERO, &Random::of(turn)).unwrap();
        // What concerns another server is none of this question's business.
        client.unreachable(at("127.0.0.1:7"), Duration::ZERO);
        assert!(client.poll_at() > Duration::ZERO);
        client.unreachable(server, Duration::ZERO);
        asked.push(server);
    }
    assert!(
        asked[..3].iter().all(|server| *server == asked[0]) && asked[3] != asked[0],
        "{asked:?}"
    );
}

#[test]
fn a_referral_to_itself_costs_no_time() {
    let mut client = client(&["127.0.0.1:1001", "127.0.0.1:1002"]);
    let (me, _) = client.on_timer(Duration::ZERO, &Random::of(1)).unwrap();
    client.is_self(me, Duration::ZERO);
    assert_eq!(client.poll_at(), Duration::ZERO);
    let (other, _) = client.on_timer(Duration::ZERO, &Random::of(2)).unwrap();
    assert_ne!(me, other);
}

/// Runs for some seconds.
fn run_for(
    client: &mut Client,
    servers: &mut [(&str, Server)],
    seconds: i64,
) -> Vec<Event<SocketAddr>> {
    (0..seconds).flat_map(|second| run_from(client, servers, second * 1_000_000_000)).collect()
}

#[test]
fn a_dead_first_seed_keeps_nobody_from_vouching() {
    let seeds = ["127.0.0.1:1001", "127.0.0.1:1002"];
    for dead in seeds {
        let mut client = client(&seeds);
        let mut servers: Vec<_> = seeds
            .into_iter()
            .filter(|seed| *seed != dead)
            .map(|seed| (seed, server("lab")))
            .collect();
        assert_eq!(run_for(&mut client, &mut servers, 4), [Event::Vouches], "{dead}");
        let heard: Vec<_> = client.node().heard().collect();
        assert_eq!(heard, [at(servers[0].0)]);
    }
}

/// A full server refers to whom it was told of: to the asker itself, to a host of another cluster, to
/// one without any cluster, and to one that is not there.
#[test]
fn bad_referrals_cost_questions_only() {
    let [seed, other, plain] = ["127.0.0.1:1001", "127.0.0.1:1002", "127.0.0.1:1003"];
    let own = "127.0.0.1:123";
    for referred in [own, other, plain, "127.0.0.1:7777"] {
        let mut children = Children::new(1, Duration::from_secs(600));
        children.asked(at(referred), Asker::Serving, Duration::ZERO);
        let full = server_with("lab", children);
        let unclustered =
            Server::new(Config { rate_interval: Duration::ZERO, ..Config::default() }, 1).unwrap();
        let mut servers = [(seed, full), (other, server("other")), (plain, unclustered)];
        let mut client = client_with_peers(&[seed], 3);
        let events = run_for(&mut client, &mut servers, 10);
        assert_eq!(events, [Event::Vouches], "{referred}");
        assert_eq!(client.node().heard().collect::<Vec<_>>(), [at(seed)], "{referred}");
        let refused: Vec<_> = client.refusals().collect();
        match referred {
            _ if [other, plain].contains(&referred) => {
                assert_eq!(refused, [(at(referred), Refused::NoSuchCluster)]);
            }
            _ => assert_eq!(refused, []),
        }
        let (interval, _) = client.node().at(10_000_000_000).unwrap();
        assert!(interval.contains((utc(10_000_000_000) + LEAP).relabel()), "{referred}");
    }
}

/// It is no seed, and nobody's referral makes it known where one may lie.
#[test]
fn the_master_is_asked_first_and_again_after_it_refused() {
    let (master, seed) = (at("10.0.0.9:123"), at("10.0.0.1:123"));
    let settings = Settings { liars: 1, trusted: Some(master), peers: 3, ..settings(0) };
    let mut node = Node::new(at("10.0.0.7:123"), settings, vec![seed], 1, Duration::ZERO);
    let first = node.on_timer(Duration::ZERO).unwrap().server;
    assert_eq!(first, master);
    node.refused(master, Duration::ZERO);
    let mut asked = Vec::new();
    for second in 1..20 {
        let Some(question) = node.on_timer(Duration::from_secs(second)) else { continue };
        asked.push(question.server);
        node.refused(question.server, Duration::from_secs(second));
    }
    assert!(asked.contains(&master) && asked.contains(&seed), "{asked:?}");
}
