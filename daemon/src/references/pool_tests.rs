//! Pools over loopback, with servers that stay silent or answer when they are told to.

use super::super::testing::Host;
use super::*;
use crate::config::Config;

const SECOND: Duration = Duration::from_secs(1);

/// Drives the members for this many seconds of simulated time; no server answers.
fn run(members: &mut [Member], now: &mut Duration, seconds: i64) -> Vec<usize> {
    let host = Host::new();
    let around = host.around();
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
    members_polled("4s", at, now)
}

fn members_polled(poll: &str, at: &[SocketAddr], now: Duration) -> Vec<Member> {
    let text = format!(
        "[[reference]]\ntype = \"ntp\"\npool = \"pool.invalid\"\nservers = 2\npoll = \"{poll}\"\n"
    );
    let config = Config::parse(&text).unwrap();
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
    let host = Host::new();
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
            members[0].on_ready(now, &host.around());
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

fn server(member: &mut Member) -> &mut Server {
    &mut member.server.as_mut().unwrap().1
}

/// Not an address of this machine: the way to a server was another one.
const ELSEWHERE: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));

#[test]
fn a_new_way_to_a_members_server_is_taken_at_once_and_its_patience_starts_over() {
    let sockets = silent(2);
    let at: Vec<_> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
    let mut now = Duration::from_secs(100);
    let mut members = members_polled("64s", &at, now);
    run(&mut members, &mut now, 300);
    server(&mut members[0]).path().pretend_source(ELSEWHERE);
    let before: Vec<_> =
        members.iter_mut().map(|member| (member.useless_since, server(member).poll_at())).collect();
    assert!(before.iter().all(|(since, due)| since.is_some() && *due > now + SECOND), "{before:?}");
    members.iter_mut().for_each(|member| member.network_changed(now));
    // The first server's way is another one, the second's is as it was.
    assert_eq!((members[0].useless_since, server(&mut members[0]).poll_at()), (None, now));
    assert_eq!((members[1].useless_since, server(&mut members[1]).poll_at()), before[1]);
    let used = |member: &Member| member.server.as_ref().map(|(address, _)| *address);
    assert_eq!((used(&members[0]), used(&members[1])), (Some(at[0]), Some(at[1])));
}

#[test]
fn a_server_on_trial_takes_a_new_way_too() {
    let sockets = silent(3);
    let at: Vec<_> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
    let mut now = Duration::from_secs(100);
    let mut members = members_polled("64s", &at, now);
    for _ in 0..200 {
        if members[0].successor.is_none() {
            run(&mut members, &mut now, 1);
        }
    }
    let trial = &mut members[0].successor.as_mut().unwrap().server;
    assert_eq!(trial.fds().len(), 1);
    members[0].network_changed(now);
    let trial = &mut members[0].successor.as_mut().unwrap().server;
    assert_eq!(trial.fds().len(), 1, "its way is as it was");
    trial.path().pretend_source(ELSEWHERE);
    members[0].network_changed(now);
    let trial = &members[0].successor.as_ref().unwrap().server;
    assert_eq!(trial.fds().len(), 0, "the next request takes a new socket");
}

/// A member whose server could not be asked at all is not kept waiting.
#[test]
fn a_members_server_without_a_way_is_tried_at_once() {
    // The kernel refuses to connect to this address.
    let nowhere = SocketAddr::from(([255, 255, 255, 255], 123));
    let mut now = Duration::from_secs(100);
    let mut members = members(&[nowhere], now);
    members.truncate(1);
    run(&mut members, &mut now, 1);
    assert_eq!(members[0].report(now).status, "unreachable");
    assert!(server(&mut members[0]).poll_at() > now + SECOND);
    members[0].network_changed(now);
    assert!(server(&mut members[0]).poll_at() <= now);
}

/// The first server's upstream still tells whose word the member's facts are, two servers later.
#[test]
fn replaced_servers_keep_a_member_in_their_group_until_later_facts_replace_theirs() {
    let source = |last| Source::new([10, 0, 0, last].into(), 2, [10, 0, 0, 99]);
    let sockets = silent(3);
    let at: Vec<_> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
    let mut now = Duration::from_secs(100);
    let mut members = members(&at, now);
    members.truncate(1);
    let member = &mut members[0];
    let mut wanted = Vec::new();
    for last in 1..=2u8 {
        member.look(now, &[]);
        if let Some((_, server)) = &mut member.server {
            server.inherit(&*super::super::testing::saying(&[source(last)]).driver, now);
        }
        wanted.push(source(last));
        let (address, server) = member.take(now, &[]).unwrap();
        member.successor = Some(Successor { address, server, since: now });
        member.succeed(now);
        assert_eq!(member.sources(), wanted);
        now += SECOND;
    }
    // An outvoted server's word is forgotten, and with it whose word it was.
    member.pool.borrow_mut().addresses.learn(&at, now + Duration::from_secs(4000));
    let (address, server) = member.take(now, &[]).unwrap();
    member.successor = Some(Successor { address, server, since: now });
    member.falseticker = true;
    member.succeed(now);
    assert!(member.sources().is_empty());
}
