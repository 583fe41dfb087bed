//! A server of three clusters hears arbitrary requests: plain ones that name any cluster and any port, sealed ones
//! with the right key and with another one, damaged ones. It never breaks, no reply is longer than its request, who has
//! no key learns no time of a cluster that has one, and nobody is referred to more than a field holds, nor to a place
//! that no question came from.
#![no_main]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_cluster::children::Children;
use timevisor_cluster::wire::{Query, Random, Refused, Said};
use timevisor_fuzz::{decode, log_scaled, some_bytes};
use timevisor_protocols::ntp::LeapIndicator;
use timevisor_protocols::ntp::precise::{Asker, Bounds, Errors, Member, Name, RateLimits, Status};
use timevisor_protocols::ntp::server::{Action, Cluster, Config, OwnTimeline, PreciseTime, ServedClock, ServedTime, Server};
use timevisor_protocols::nts::server::Protector;
use timevisor_protocols::nts::shared::{Sealer, Secret};
use timevisor_time::{Duration, Instant, Utc};

/// An open cluster, one with a key, and one's own timeline with the same key.
const NAMES: [&str; 3] = ["lab", "sealed", "cell"];
const ASKERS: [Asker; 3] = [Asker::New, Asker::Settled, Asker::Serving];
const ADDRESSES: [&str; 4] = ["10.0.0.1", "10.0.0.2", "fe80::1", "fe80::1:0:0:0:1"];
/// More ports of one address than that have one place together.
const PER_ADDRESS: usize = 2;

fuzz_target!(|data: &[u8]| decode(data, run));

fn name(text: &str) -> Name {
    Name::new(text).unwrap_or_default()
}

fn now() -> Instant<Utc> {
    Instant::from_unix_nanos(1_800_000_000_000_000_000)
}

/// The clock that is served under this of the names.
fn clock(of: usize) -> ServedClock {
    let errors = Errors { below: Duration::from_micros(1), above: Duration::from_micros(3) };
    let bounds = Bounds { receive: errors, transmit: errors };
    let status = Status::Synchronized;
    let rate = RateLimits::default();
    let own = OwnTimeline { name: name(NAMES[2]), level: 1, rate, silence: None };
    let timeline = (of == 2).then_some(own);
    ServedClock::Known(ServedTime {
        transmit: now(),
        error: bounds.largest(),
        leap: LeapIndicator::NoWarning,
        stratum: 3,
        reference_id: [192, 0, 2, 1],
        reference: now(),
        precision: -24,
        precise: Some(PreciseTime { bounds, status, epoch: 77, generation: 5, timeline }),
    })
}

fn server() -> Server {
    let config = Config { rate_interval: Duration::ZERO, clients: 16, ..Config::default() };
    let mut server = Server::new(config, 1).expect("it is valid");
    let mut protector = Protector::without_keys(Box::new(|bytes| {
        bytes.fill(9);
        true
    }));
    for shared in &NAMES[1..] {
        protector.share(name(shared), &Secret::new([3; 32].into()).cookie_keys(name(shared)));
    }
    server.serve_nts(protector);
    for (at, text) in NAMES.into_iter().enumerate() {
        let children = Children::<SocketAddr>::new(6, Duration::from_secs(60)).with_most_per_address(PER_ADDRESS);
        let secret = (at > 0).then(|| name(text));
        server.serve_cluster(Cluster { name: name(text), is_timeline: at == 2, secret, referrer: Box::new(children) });
    }
    server
}

fn run(u: &mut Unstructured) -> Result<()> {
    let mut server = server();
    let mut passed = Duration::ZERO;
    let mut number = 0_u64;
    // Where somebody said that it serves.
    let mut places = BTreeSet::new();
    while !u.is_empty() {
        passed += Duration::from_millis(log_scaled(u)?);
        number += 1;
        let mut bytes = [1; Random::LEN];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        let random = Random(bytes);
        let of = u.int_in_range(0..=NAMES.len() - 1)?;
        let ip: IpAddr = u.choose(&ADDRESSES)?.parse().expect("it is an address");
        let member = Member { asker: *u.choose(&ASKERS)?, port: u.arbitrary()? };
        let right: bool = u.arbitrary()?;
        let secret = Secret::new([if right { 3 } else { 4 }; 32].into());
        let sealer = Sealer::new(secret.cookie_keys(name(NAMES[of])), &[[1; 32], [2; 32]].into());
        let sealed: bool = u.arbitrary()?;
        let made = Query::made(name(NAMES[of]), Some(member), sealed.then_some(&sealer), &random);
        let (query, mut question) = made.expect("the cipher takes it");
        let damaged: bool = u.arbitrary()?;
        if damaged {
            let at = u.int_in_range(0..=question.len() - 1)?;
            question[at] ^= u.int_in_range(1..=255)?;
            question.truncate(u.int_in_range(0..=question.len())?);
            question.extend(some_bytes(u)?);
        }
        places.insert(SocketAddr::new(ip, member.port));
        let from = SocketAddr::new(ip, u.int_in_range(1..=65_535)?);
        let answer = match server.respond(passed, &question, now(), &clock(of), from) {
            Action::Reply { bytes, .. } => bytes.to_vec(),
            Action::Kiss { bytes } => bytes.to_vec(),
            Action::Protected { .. } => server.protected().to_vec(),
            Action::Drop(_) => continue,
        };
        assert!(answer.len() <= question.len(), "amplification");
        if damaged {
            let _ = query.read(&answer, now());
            continue;
        }
        match query.read(&answer, now()) {
            Ok(said) => {
                assert!(of == 0 || (sealed && right), "somebody without the key was told the time");
                check(&said, &places);
            }
            Err(Refused::KeyRequired) => assert!(of > 0 && !sealed),
            Err(Refused::WrongKey) => assert!(sealed && (of == 0 || !right)),
            // A server without this key cannot answer a sealed question.
            Err(Refused::Stray) => assert!(sealed),
            Err(other) => panic!("{other:?}"),
        }
    }
    Ok(())
}

fn check(said: &Said, places: &BTreeSet<SocketAddr>) {
    for interval in said.intervals.iter().flatten() {
        assert!(interval.contains(now()));
    }
    for other in said.others.iter().flatten() {
        assert!(other.port() != 0 && places.contains(other), "{other} is nobody's");
    }
}
