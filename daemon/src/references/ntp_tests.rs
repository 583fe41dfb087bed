//! An NTP server over the loopback: which addresses are asked when, and stamps that come late.

use std::net::UdpSocket;
use std::os::fd::AsFd;

use super::super::testing::{Host, NtpServer, is_ready, wait_until_ready};
use super::*;

const POLL: Duration = Duration::from_secs(64);

/// A name with these addresses, asked every 64 s.
fn name(addresses: &[SocketAddr]) -> Ntp {
    let config = Config { poll_min: POLL, ..Config::default() };
    let ntp = Ntp::new("name.invalid", config, None, Duration::ZERO).unwrap();
    Ntp { path: Path::known("name.invalid", addresses), ..ntp }
}

/// Nobody answers: who is asked when.
fn asked(ntp: &mut Ntp, until: Duration) -> Vec<(Duration, SocketAddr)> {
    let (host, mut now) = (Host::new(), Duration::ZERO);
    let mut asked = Vec::new();
    while now < until {
        let before = ntp.client.counters().sent;
        ntp.on_timer(now, &host.around());
        if ntp.client.counters().sent > before {
            asked.push((now, ntp.peer().unwrap()));
        }
        assert!(ntp.poll_at() > now, "the timer does what it is due for");
        now = ntp.poll_at();
    }
    asked
}

#[test]
fn a_name_with_two_dead_addresses_is_asked_as_rarely_as_its_poll_says() {
    let servers = [[10, 0, 0, 8]; 2].map(NtpServer::following);
    let [one, two] = servers.each_ref().map(NtpServer::address);
    let asked = asked(&mut name(&[one, two]), Duration::from_secs(4 * 3600));
    // Each address gets one request, one timeout apart; and then the first one again.
    let (first, rest) = asked.split_at(3);
    let peers: Vec<_> = first.iter().map(|(_, peer)| *peer).collect();
    assert_eq!(peers, [one, two, one]);
    assert!(first[2].0 <= Duration::from_secs(4), "{first:?}");
    let gaps: Vec<_> = asked[2..].windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(gaps.iter().all(|gap| *gap >= POLL), "{gaps:?}");
    // A timeout may delay a request, never by a poll: both are asked all the time.
    assert!(rest.len() >= 200, "{}", rest.len());
    let of_one = rest.iter().filter(|(_, peer)| *peer == one).count();
    assert!(of_one.abs_diff(rest.len() - of_one) <= 8, "{of_one} of {}", rest.len());
}

#[test]
fn stamps_that_nobody_awaits_wake_nobody_twice() {
    let server = NtpServer::following([10, 0, 0, 8]);
    let (host, now) = (Host::new(), Duration::ZERO);
    let mut ntp = name(&[server.address()]);
    ntp.on_timer(now, &host.around());
    let socket = ntp.path.socket().unwrap();
    if !socket.stamping() {
        return;
    }
    // The request is lost, and with it whoever awaits its stamp.
    ntp.client.expire(Duration::from_secs(10));
    for late in [true, false] {
        let socket = ntp.path.socket().unwrap();
        if late {
            socket.send(b"its stamp comes after the request was given up").unwrap();
        } else {
            let past = UdpSocket::from(socket.as_fd().try_clone_to_owned().unwrap());
            past.send(b"the second stamp of a packet").unwrap();
        }
        wait_until_ready(ntp.fd().unwrap());
        assert_eq!(ntp.on_ready(now, &host.around()).len(), 0);
        assert!(!is_ready(ntp.fd().unwrap()), "late: {late}");
    }
}

/// A stamp that comes after its request was sent, and before its answer, is used.
#[test]
fn a_stamp_that_comes_in_time_is_kept() {
    let server = NtpServer::following([10, 0, 0, 8]);
    let (host, now) = (Host::new(), Duration::ZERO);
    let mut ntp = name(&[server.address()]);
    ntp.on_timer(now, &host.around());
    if !ntp.path.socket().unwrap().stamping() {
        return;
    }
    ntp.client.sent_mut().unwrap().stamp = None;
    ntp.path.socket().unwrap().send(b"whose stamp is taken for the request's").unwrap();
    wait_until_ready(ntp.fd().unwrap());
    ntp.on_ready(now, &host.around());
    assert!(ntp.client.sent_mut().unwrap().stamp.is_some());
}
