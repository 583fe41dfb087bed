//! A node of a cluster that hears arbitrary datagrams, late, lost and in any order: it never breaks, its
//! bounds are never the wrong way round, and once it leads, it is exact. With a key, nothing is believed.
#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use timevisor_cluster::client::Client;
use timevisor_cluster::node::{Node, Settings};
use timevisor_cluster::wire::{Random, time_of};
use timevisor_cluster::{settle, succession};
use timevisor_estimate::RateLimits;
use timevisor_protocols::ntp::ERA_PIVOT;
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::nts::shared::{Sealer, Secret};
use timevisor_time::{Duration, Period, RateError};

/// Bytes of a step before its datagram: what happens, how much time passes (ms), how long the datagram is.
const HEAD: usize = 4;
/// Offsets in an NTP packet.
const ORIGIN: core::ops::Range<usize> = 24..32;
const TRANSMIT: core::ops::Range<usize> = 40..48;

fn client(own_timeline: bool, liars: usize) -> Client {
    let nominal = Period::from_hz(1_000_000_000).unwrap_or(Period::from_bits(1));
    let succession = succession::Settings {
        after: Duration::from_secs(1),
        step: Duration::from_millis(200),
        leads: true,
    };
    let settings = Settings {
        burst: settle::Limits { wanted: None, most: 8 },
        spacing: Duration::ZERO,
        children: 4,
        lease: Duration::from_secs(60),
        peers: 3,
        poll: Duration::from_millis(200),
        liars,
        trusted: None,
        succession: own_timeline.then_some(succession),
        rate: RateLimits::around(nominal, RateError::from_ppm(100)),
        nominal,
    };
    let at = |n: u8| SocketAddr::from(([10, 0, 0, n], 123));
    let node = Node::new(at(1), settings, vec![at(1), at(2), at(3)], 7, Duration::ZERO);
    let name = Name::new("lab").unwrap_or_default();
    Client::new(node, name, 123).with_most_rate(RateError::from_ppm(100))
}

fn random(number: u64) -> Random {
    let mut bytes = [1; Random::LEN];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    Random(bytes)
}

/// What seals the questions of a cluster with a key, whose answers nobody can make up.
fn sealer() -> Option<Sealer> {
    let secret = Secret::new([3; 32].into());
    let keys = secret.cookie_keys(Name::new("lab").unwrap_or_default());
    Some(Sealer::new(keys, &[[1; 32], [2; 32]].into()))
}

fuzz_target!(|data: &[u8]| {
    let Some((first, mut rest)) = data.split_first() else { return };
    let mut client = client(first & 1 != 0, usize::from(first >> 1 & 1));
    let is_sealed = first & 4 != 0;
    if is_sealed {
        client = client.with_sealer(sealer());
    }
    let (mut now, mut asked): (i64, Option<(SocketAddr, Vec<u8>)>) = (0, None);
    while rest.len() >= HEAD {
        let (head, after) = rest.split_at(HEAD);
        let len = usize::from(head[3]).min(after.len());
        let (datagram, after) = after.split_at(len);
        rest = after;
        now += i64::from(u16::from_be_bytes([head[1], head[2]]));
        let (at, counter) = (Duration::from_millis(now), now.unsigned_abs() * 1_000_000);
        if let Some((server, question)) = client.on_timer(at, &random(now.unsigned_abs())) {
            client.sent(counter);
            asked = Some((server, question.to_vec()));
        }
        if client.node().is_to_lead() {
            let origin = client.lead(counter, now.unsigned_abs(), at);
            assert_eq!(client.node().origin(), Some(origin));
            asked = None;
        }
        if let Some((server, question)) = &asked {
            let mut answer = datagram.to_vec();
            // Most answers are to the question that waits.
            if head[0] & 3 != 0 && answer.len() >= TRANSMIT.end {
                answer[ORIGIN].copy_from_slice(&question[TRANSMIT]);
            }
            if let Some(query) = client.waits_for(*server) {
                let said = query.read(&answer, ERA_PIVOT);
                assert!(said.is_err() || !is_sealed);
                let counter = counter + u64::from(head[0]);
                client.heard(*server, said, counter, |stamp| Some(time_of(stamp)), at);
            }
        }
        let node = client.node();
        if let Some((interval, _)) = node.at(counter + 1000) {
            assert!(interval.earliest() <= interval.latest());
            if node.leads().is_some() {
                assert!(interval.width() <= Duration::from_nanos(1) && node.vouches());
            }
        }
        assert!(node.leads().is_none() || node.level() == Some(0));
    }
});
