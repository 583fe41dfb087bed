//! A client of a cluster's own timeline, and the server that hosts run.

use timevisor_estimate::RateLimits;
use timevisor_protocols::ntp::precise::{Bounds, Errors, RateLimits as WireRate, Status};
use timevisor_protocols::ntp::server::{
    Action, Cluster, Config, OwnTimeline, PreciseTime, ServedClock, ServedTime, Server,
};
use timevisor_protocols::ntp::{ERA_PIVOT, LeapIndicator};
use timevisor_time::{Period, RateError};

use super::*;
use crate::children::Children;
use crate::node::Settings;
use crate::wire::{stamp_of, time_of};
use crate::{settle, succession};

const SEED: &str = "127.0.0.1:1001";
const OWN: &str = "127.0.0.1:123";
const SECOND: i64 = 1_000_000_000;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn name() -> Name {
    Name::new("cell").unwrap()
}

fn span(ns: i64) -> Duration {
    Duration::from_nanos(ns)
}

/// Counts nanoseconds, like every host here.
fn client() -> Client {
    let nominal = Period::from_hz(1_000_000_000).unwrap();
    let succession = succession::Settings { after: span(SECOND), step: span(SECOND), leads: true };
    let settings = Settings {
        burst: settle::Limits { wanted: None, most: 8 },
        spacing: Duration::ZERO,
        children: 10,
        lease: Duration::from_secs(60),
        peers: 3,
        poll: span(SECOND / 5),
        liars: 0,
        trusted: None,
        succession: Some(succession),
        rate: RateLimits::around(nominal, RateError::from_ppm(30)),
        nominal,
    };
    let node = Node::new(at(OWN), settings, vec![at(OWN), at(SEED)], 0, Duration::ZERO);
    Client::new(node, name(), 123).with_most_rate(RateError::from_ppm(16))
}

/// A master's timeline at this moment, which began at moment 0 with `began`.
fn master(ns: i64, began: i64, generation: u32, ppm: u32) -> ServedClock {
    let errors = Errors::symmetric(Duration::ZERO);
    let bounds = Bounds { receive: errors, transmit: errors };
    let transmit = stamp_of(Instant::from_bits(0) + span(began + ns));
    let timeline = OwnTimeline {
        name: name(),
        level: 0,
        rate: WireRate::within(RateError::from_ppm(ppm)),
        silence: Some(Duration::ZERO),
    };
    ServedClock::Known(ServedTime {
        transmit,
        error: bounds.largest(),
        leap: LeapIndicator::NoWarning,
        stratum: 1,
        reference_id: *b"MEMB",
        reference: transmit,
        precision: -24,
        precise: Some(PreciseTime {
            bounds,
            status: Status::Synchronized,
            epoch: 5,
            generation,
            timeline: Some(timeline),
        }),
    })
}

/// Runs the client until it has nothing to do before `until`, ns; paths take 30 us. `None`: the seed
/// does not answer.
fn run(
    client: &mut Client,
    until: i64,
    mut clock: impl FnMut(i64) -> Option<ServedClock>,
) -> Vec<Event<SocketAddr>> {
    let config = Config { rate_interval: Duration::ZERO, ..Config::default() };
    let mut server = Server::new(config, 1).unwrap();
    let referrer = Box::new(Children::<SocketAddr>::new(10, Duration::from_secs(60)));
    server.serve_cluster(Cluster { name: name(), is_timeline: true, secret: None, referrer });
    let (mut now, mut events) = (0, Vec::new());
    for turn in 1.. {
        now = now.max(client.poll_at().ceil_nanos());
        if now >= until || client.node().is_to_lead() {
            break;
        }
        let Some((to, question)) = client.on_timer(span(now), &Random::of(turn)) else { continue };
        client.sent(u64::try_from(now).unwrap());
        assert_eq!(server.asks_for(&question), Some(name()));
        let Some(ServedClock::Known(time)) = clock(now + 30_000) else { continue };
        let received = time.transmit;
        let clock = ServedClock::Known(time);
        let action = server.respond(span(now), &question, received, &clock, at("127.0.0.1:9"));
        let Action::Reply { bytes, .. } = action else { panic!("{action:?}") };
        now += 60_000;
        let said = client.waits_for(to).unwrap().read(&bytes, ERA_PIVOT);
        let counter = u64::try_from(now).unwrap();
        let tai = |stamp| Some(time_of(stamp));
        events.extend(client.heard(to, said, counter, tai, span(now)));
    }
    events
}

#[test]
fn it_follows_a_master_and_its_bounds_hold_what_that_says() {
    let mut client = client();
    let events = run(&mut client, SECOND, |ns| Some(master(ns, 7 * SECOND, 1, 15)));
    let stated = client.rate().map(|rate| rate.largest_ppm());
    assert_eq!(stated, Some(15), "others are told the master's rate");
    assert_eq!(events, [Event::Vouches]);
    let node = client.node();
    assert_eq!((node.level(), node.origin()), (Some(1), Some(Origin { generation: 1, epoch: 5 })));
    let counter = 900_000_000;
    let (interval, _) = node.at(counter).unwrap();
    assert!(interval.contains(Instant::from_bits(0) + span(7 * SECOND + 900_000_000)));
    assert!(interval.width() < Duration::from_micros(80), "{}", interval.width());
    assert!(node.silence(span(SECOND)).unwrap() < span(SECOND / 2));
}

#[test]
fn a_greater_origin_is_gone_over_to_and_a_smaller_one_is_not() {
    let mut client = client();
    let events = run(&mut client, SECOND, |ns| {
        let generation = if ns < SECOND / 2 { 1 } else { 2 };
        Some(master(ns, i64::from(generation) * 10 * SECOND, generation, 15))
    });
    assert_eq!(events, [Event::Vouches, Event::BeganAnew, Event::Vouches]);
    let (interval, _) = client.node().at(900_000_000).unwrap();
    assert!(interval.contains(Instant::from_bits(0) + span(20 * SECOND + 900_000_000)));
    let events = run(&mut client, 2 * SECOND, |ns| Some(master(ns, 10 * SECOND, 1, 15)));
    assert!(events.iter().all(|event| matches!(event, Event::Stranger(_))), "{events:?}");
    assert_eq!(client.node().origin().unwrap().generation, 2);
}

#[test]
fn a_timeline_that_may_be_faster_than_is_assumed_is_refused_with_the_key_to_change() {
    let mut client = client();
    assert!(run(&mut client, SECOND / 2, |ns| Some(master(ns, 0, 1, 99))).is_empty());
    let (_, why) = client.refusals().next().unwrap();
    assert_eq!(why, Refused::Rate { ppm: 99 });
    assert!(why.to_string().contains("oscillator.unmeasured_rate_ppm"), "{why}");
}

#[test]
fn where_nobody_answers_it_begins_and_continues_what_it_has_heard() {
    let mut alone = client();
    run(&mut alone, 60 * SECOND, |_| None);
    assert!(alone.node().is_to_lead());
    let origin = alone.lead(5_000_000_000, 9, span(5 * SECOND));
    assert_eq!(origin, Origin { generation: 1, epoch: 9 });
    let (interval, _) = alone.node().at(5_000_000_123).unwrap();
    assert!(interval.contains(Instant::from_bits(0) + span(123)));
    assert!(interval.width() <= Duration::from_nanos(1));

    let mut heir = client();
    run(&mut heir, 60 * SECOND, |ns| (ns < SECOND).then(|| master(ns, 7 * SECOND, 1, 15)));
    assert!(heir.node().is_to_lead(), "its master was last heard a minute ago");
    let before = heir.node().at(4_000_000_000).unwrap().0;
    let origin = heir.lead(4_000_000_000, 9, span(4 * SECOND));
    assert_eq!(origin, Origin { generation: 2, epoch: 9 });
    let begins = heir.node().at(4_000_000_000).unwrap().0;
    assert!(begins.earliest() >= before.latest(), "{begins:?} {before:?}");
    assert!(begins.latest() - before.latest() < Duration::from_millis(1));
    assert_eq!((heir.node().level(), heir.node().leads().is_some()), (Some(0), true));
}
