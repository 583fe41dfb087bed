//! Pools over loopback, with servers that stay silent or answer when they are told to.

use super::*;
use crate::config::{ClockConfig, Config, ServerConfig};
use crate::leap::Leap;
use timevisor_linux::counter::{HostCounter, HostMonotonicRaw};
use timevisor_linux::udp::Sockets;
use timevisor_time::{Period, RateError};

const SECOND: Duration = Duration::from_secs(1);

fn around<'a>(
    leap: &'a Leap,
    counter: &'a HostCounter,
    own_server: &'a ServerConfig,
) -> Surroundings<'a> {
    Surroundings {
        counter,
        calibration: (Period::from_hz(1_000_000_000).unwrap(), RateError::ZERO),
        leap,
        known: None,
        sockets: Sockets::Stamped,
        taken: &[],
        own_server,
    }
}

/// Drives the members for this many seconds of simulated time; no server answers.
fn run(members: &mut [Member], now: &mut Duration, seconds: i64) -> Vec<usize> {
    let leap = Leap::load(&ClockConfig { tai_offset: Some(37), ..ClockConfig::default() });
    let counter = HostCounter::MonotonicRaw(HostMonotonicRaw::INITIAL);
    let own = ServerConfig::default();
    let around = around(&leap, &counter, &own);
    let end = *now + Duration::from_secs(seconds);
    let mut replaced = Vec::new();
    while *now < end {
        for (index, member) in members.iter_mut().enumerate() {
            if *now >= member.poll_at() {
                member.on_timer(*now, &around);
            }
            if member.take_replacement() {
                replaced.push(index);
            }
        }
        *now += SECOND.half();
    }
    replaced
}

fn members(at: &[SocketAddr], now: Duration) -> Vec<Member> {
    let text =
        "[[reference]]\ntype = \"ntp\"\npool = \"pool.invalid\"\nservers = 2\npoll = \"4s\"\n";
    let config = Config::parse(text).unwrap();
    let pool = Pool::new("pool.invalid").unwrap();
    // The name is not resolved during this test, so no name server is needed.
    pool.borrow_mut().resolver = None;
    pool.borrow_mut().addresses.learn(at, now);
    config.references.iter().map(|c| Member::new(c, Rc::clone(&pool), now)).collect()
}

/// Sockets that are bound and never read: unresponsive servers.
fn silent(count: usize) -> Vec<std::net::UdpSocket> {
    (0..count).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect()
}

/// An outage: nobody is replaced, nothing is forgotten, and the addresses stay in the pool.
#[test]
fn while_all_are_silent_nobody_is_replaced() {
    let sockets = silent(4);
    let at: Vec<_> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
    let mut now = Duration::from_secs(100);
    let mut members = members(&at, now);
    assert_eq!(run(&mut members, &mut now, 3000), Vec::<usize>::new());
    let used = |m: &Member| m.server.as_ref().map(|(address, _)| *address);
    assert_eq!((used(&members[0]), used(&members[1])), (Some(at[0]), Some(at[1])));
    assert!(members[0].pool.borrow().addresses.given_up().is_empty());
    let report = members[0].report(now);
    assert_eq!((report.name.as_str(), report.kind.as_str()), ("pool.invalid#1", "ntp"));
}

/// A stand-in for a server: answers every request that has arrived.
fn answer(server: &std::net::UdpSocket) {
    use timevisor_protocols::ntp::{Mode, NtpTimestamp, Packet};
    server.set_nonblocking(true).unwrap();
    let mut buffer = [0; 128];
    while let Ok((len, from)) = server.recv_from(&mut buffer) {
        let (request, _) = Packet::parse(&buffer[..len]).unwrap();
        let now = NtpTimestamp::from_instant(timevisor_linux::clock::realtime());
        let reply = Packet {
            mode: Mode::Server,
            stratum: 1,
            precision: -20,
            origin: request.transmit,
            receive: now,
            transmit: now,
            ..Packet::request(now, 4)
        };
        server.send_to(&reply.to_bytes(), from).unwrap();
    }
}

#[test]
fn a_silent_server_is_replaced_when_its_successor_has_answered_and_a_liar_is_forgotten() {
    for falseticker in [false, true] {
        let sockets = silent(3);
        let at: Vec<_> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        let mut now = Duration::from_secs(100);
        let mut members = members(&at, now);
        members.truncate(1);
        run(&mut members, &mut now, 40);
        members[0].falseticker = falseticker;
        let mut forgotten = Vec::new();
        for _ in 0..400 {
            forgotten.extend(run(&mut members, &mut now, 1));
            answer(&sockets[1]);
            std::thread::sleep(std::time::Duration::from_millis(1));
            let leap = Leap::load(&ClockConfig { tai_offset: Some(37), ..ClockConfig::default() });
            let counter = HostCounter::MonotonicRaw(HostMonotonicRaw::INITIAL);
            members[0].on_ready(now, &around(&leap, &counter, &ServerConfig::default()));
            members[0].falseticker &= falseticker;
            forgotten.extend(members[0].take_replacement().then_some(0));
            if members[0].server.as_ref().unwrap().0 == at[1] {
                break;
            }
        }
        assert_eq!(members[0].server.as_ref().unwrap().0, at[1]);
        assert_eq!(forgotten.len(), usize::from(falseticker));
        assert_eq!(members[0].pool.borrow().addresses.given_up().len(), 1);
    }
}

/// Two of three members have no address of their own: their vote is the first one's.
#[test]
fn members_without_an_address_share_the_vote_of_one_that_has() {
    let sockets = silent(1);
    let now = Duration::from_secs(100);
    let mut members = members(&[sockets[0].local_addr().unwrap()], now);
    members[0].pool.borrow_mut().heard_at = Some(now);
    let mut at = now;
    run(&mut members, &mut at, 2);
    let server = members[0].witness();
    assert!(server.is_some());
    assert_eq!((members[0].duplicate(), members[1].duplicate()), (None, server));
    let report = members[1].report(at);
    assert!(report.detail.contains("set `servers` to their number"), "{}", report.detail);
}
