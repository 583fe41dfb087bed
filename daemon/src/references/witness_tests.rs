//! One witness, one vote: which references are told to be one, over outages and by every sign.

use timevisor_protocols::ntp::Source;
use timevisor_time::Duration;

use super::testing::{Host, NtpServer, authenticated, exchange, saying, silence};
use super::{Reference, arrangement};
use crate::config::{Config, ReferenceConfig};

const HOUR: Duration = Duration::from_secs(3600);
const NOBODY: [u8; 4] = [10, 0, 0, 7];
const ONE: [u8; 4] = [10, 0, 0, 8];
const OTHER: [u8; 4] = [10, 0, 0, 9];

fn configs(servers: &[NtpServer], keys: &str) -> Vec<ReferenceConfig> {
    let table = |server: &NtpServer| {
        let address = server.address();
        format!("[[reference]]\ntype = \"ntp\"\naddress = \"{address}\"\n{keys}\n")
    };
    Config::parse(&servers.iter().map(table).collect::<String>()).unwrap().references
}

#[test]
fn a_server_that_stops_answering_stays_in_its_group() {
    let mut servers = [ONE, ONE, OTHER].map(NtpServer::following);
    let (host, mut now) = (Host::new(), Duration::from_secs(100));
    let mut all = Reference::all(&configs(&servers, "poll = \"64s\""), now).unwrap();
    assert_eq!(Reference::witnesses(&all), [0, 1, 2], "nobody has said anything");
    for (reference, server) in all.iter_mut().zip(&servers) {
        exchange(reference, server, &mut now, &host);
    }
    assert_eq!(Reference::witnesses(&all), [0, 0, 2]);
    // One is silent, while the others answer.
    for hours in 1..=6i64 {
        let end = Duration::from_secs(100) + Duration::from_secs(3600 * hours);
        silence(&mut all, &mut now, end, &host);
        for index in [1, 2] {
            exchange(&mut all[index], &servers[index], &mut now, &host);
        }
        assert_eq!(Reference::witnesses(&all), [0, 0, 2], "after {hours} h");
    }
    assert_ne!(all[0].report(now).status, "reachable");
    // All are silent, longer than any answer counts.
    let end = now + Duration::from_secs(48 * 3600);
    silence(&mut all, &mut now, end, &host);
    assert_eq!(Reference::witnesses(&all), [0, 0, 2]);
    // It returns with another source, and its facts of two days ago are replaced.
    servers[0].reference_id = OTHER;
    for index in [0, 1, 2] {
        exchange(&mut all[index], &servers[index], &mut now, &host);
    }
    assert_eq!(Reference::witnesses(&all), [0, 1, 0]);
    // What it just said stays true when it changes its source: it is one with both for a while.
    servers[0].reference_id = ONE;
    exchange(&mut all[0], &servers[0], &mut now, &host);
    assert_eq!(Reference::witnesses(&all), [0, 0, 0]);
    let end = now + HOUR + HOUR + HOUR + HOUR;
    silence(&mut all, &mut now, end, &host);
    exchange(&mut all[0], &servers[0], &mut now, &host);
    assert_eq!(Reference::witnesses(&all), [0, 0, 2]);
}

/// The facts of a server whose keys change are kept, and so is its group, also if it never answers
/// again.
#[test]
fn a_server_with_other_keys_stays_in_its_group() {
    let servers = [ONE, ONE].map(NtpServer::following);
    let (host, mut now) = (Host::new(), Duration::from_secs(100));
    let before = configs(&servers, "poll = \"64s\"");
    let mut all = Reference::all(&before, now).unwrap();
    for (reference, server) in all.iter_mut().zip(&servers) {
        exchange(reference, server, &mut now, &host);
    }
    let after = configs(&servers, "poll = \"32s\"");
    let arranged = arrangement::arrange(&before, &mut all, &after, now).unwrap();
    let all: Vec<_> = arranged.into_iter().map(|(reference, _)| reference).collect();
    assert_eq!(Reference::witnesses(&all), [0, 0]);
    // What begins with nothing has no group.
    let fresh = Reference::all(&after, now).unwrap();
    assert_eq!(Reference::witnesses(&fresh), [0, 1]);
}

#[test]
fn a_chain_of_signs_makes_one_witness() {
    let source = |own: [u8; 4], upstream| Source::new(own.into(), 2, upstream);
    let clock = |path: &str, sources: &[Source]| Reference {
        local_clock: Some(path.into()),
        ..saying(sources)
    };
    let all = [
        saying(&[source([10, 0, 0, 1], ONE)]),
        clock("CLOCK_REALTIME", &[]),
        clock("/dev/ptp0", &[]),
        saying(&[source([10, 0, 0, 2], NOBODY)]),
        // Reads the same clock as the second, and its server is the first one's.
        clock("CLOCK_REALTIME", &[source([127, 0, 0, 1], ONE)]),
    ];
    assert_eq!(Reference::witnesses(&all), [0, 0, 2, 3, 0]);
}

/// A renewed certificate reaches two references of one party days apart, with their next keys.
#[test]
fn one_party_stays_one_witness_while_its_certificate_is_renewed() {
    let (old, new, other) = (&b"old"[..], &b"new"[..], &b"other"[..]);
    let all = [
        authenticated(&[old]),
        authenticated(&[other]),
        authenticated(&[old, new]),
        authenticated(&[new]),
        authenticated(&[]),
    ];
    assert_eq!(Reference::witnesses(&all), [0, 1, 0, 0, 4]);
}
