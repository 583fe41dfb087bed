//! chronyd on the loopback, as far as it answers `tracking`.

use std::net::UdpSocket;

use timevisor_time::Instant;

use super::super::Reference;
use super::super::testing::{Host, is_ready, saying, wait_until_ready};
use super::*;
use crate::config::ReferenceConfig;

/// CLOCK_REALTIME ran for `elapsed_us` while the counter ran for 1 ms.
fn stepped(elapsed_us: i128) -> bool {
    let bracket = |before: u64, us: i128| Bracket {
        before,
        realtime: Instant::from_unix_nanos(1_700_000_000_000_000_000 + us * 1000),
        after: before + 100,
    };
    let (before, after) = (bracket(5000, 0), bracket(1_005_000, elapsed_us));
    is_stepped(&before, &after, Period::from_hz(1_000_000_000).unwrap())
}

#[test]
fn steps_are_noticed_in_both_directions_and_slews_are_not_steps() {
    assert_eq!([1000, 1083, 917].map(stepped), [false; 3], "chronyd slews by 83,333 ppm");
    assert_eq!([1200, 800, 0, -5].map(stepped), [true; 4]);
}

/// A chronyd that answers when it is told to.
struct Chronyd(UdpSocket);

const UNSYNCHRONIZED: u16 = 3;

impl Chronyd {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        Self(socket)
    }

    fn config(&self) -> ChronyConfig {
        let address = self.0.local_addr().unwrap();
        let text = format!("type = \"chrony\"\naddress = \"{address}\"");
        let ReferenceConfig::Chrony(chrony) = toml::from_str(&text).unwrap() else {
            panic!("not chrony")
        };
        chrony
    }

    /// Forgets the requests that were not answered.
    fn ignore_all(&self) {
        self.0.set_nonblocking(true).unwrap();
        while self.0.recv(&mut [0; 200]).is_ok() {}
        self.0.set_nonblocking(false).unwrap();
    }

    /// Answers a request: it follows the server with this id, and its clock is right.
    fn answer(&self, reference_id: [u8; 4], leap: u16) {
        let mut request = [0; 200];
        let (len, from) = self.0.recv_from(&mut request).unwrap();
        // candm.h: RPY_TRACKING, whose length is the request's.
        let mut reply = vec![0; len];
        reply[..2].copy_from_slice(&[6, 2]);
        reply[4..8].copy_from_slice(&[0, 33, 0, 5]);
        reply[16..20].copy_from_slice(&request[8..12]);
        reply[28..32].copy_from_slice(&reference_id);
        reply[53] = 3;
        reply[54..56].copy_from_slice(&leap.to_be_bytes());
        self.0.send_to(&reply, from).unwrap();
    }
}

/// Asks chronyd, has it answer, and takes the answer.
fn ask(
    reference: &mut Reference,
    chronyd: &Chronyd,
    now: &mut Duration,
    said: ([u8; 4], u16),
) -> usize {
    let host = Host::new();
    *now = (*now).max(reference.poll_at());
    reference.on_timer(*now, &host.around());
    chronyd.answer(said.0, said.1);
    let answers = |report: &Report| report.accepted + report.rejected.values().sum::<u64>();
    let before = answers(&reference.report(*now));
    loop {
        wait_until_ready(reference.fds()[0]);
        let exchanges = reference.on_ready(*now, &host.around()).len();
        if answers(&reference.report(*now)) > before {
            return exchanges;
        }
    }
}

fn reference(chronyd: &Chronyd) -> Reference {
    Reference::new(&ReferenceConfig::Chrony(chronyd.config()), Duration::ZERO).unwrap()
}

/// chronyd with a reference clock names no server; by NTP it is asked at one of this machine's
/// addresses.
#[test]
fn chronyd_asked_by_ntp_too_is_one_witness() {
    let chronyd = Chronyd::new();
    let gps = Source::new([10, 0, 0, 9].into(), 1, *b"GPS\0");
    let mut all = [saying(&[gps.on_this_machine(Port::Ntp)]), reference(&chronyd), saying(&[gps])];
    let mut now = Duration::ZERO;
    assert_eq!(ask(&mut all[1], &chronyd, &mut now, (*b"GPS\0", 0)), 1);
    assert_eq!(Reference::witnesses(&all), [0, 0, 2]);
}

#[test]
fn chronyd_and_the_server_that_it_follows_are_one_witness() {
    let chronyd = Chronyd::new();
    let (followed, other) = ([10, 0, 0, 9], [10, 0, 0, 8]);
    let server = |own: [u8; 4]| saying(&[Source::new(own.into(), 1, *b"GPS\0")]);
    let mut all = [server(other), reference(&chronyd), server(followed)];
    let mut now = Duration::ZERO;
    assert_eq!(Reference::witnesses(&all), [0, 1, 2], "it has said nothing");
    assert_eq!(ask(&mut all[1], &chronyd, &mut now, (followed, 0)), 1);
    assert_eq!(Reference::witnesses(&all), [0, 1, 1]);
    // Another server that follows the same one.
    all[0] = saying(&[Source::new(other.into(), 2, followed)]);
    assert_eq!(Reference::witnesses(&all), [0, 0, 0]);
    all[0] = server(other);
    // chronyd loses its source, says nothing, and is asked in vain: what it said stays true.
    assert_eq!(ask(&mut all[1], &chronyd, &mut now, ([0; 4], UNSYNCHRONIZED)), 0);
    assert_eq!(all[1].report(now).status, "unsynchronized");
    assert_eq!(Reference::witnesses(&all), [0, 1, 1]);
    let host = Host::new();
    for _ in 0..100 {
        now = now.max(all[1].poll_at());
        all[1].on_timer(now, &host.around());
    }
    assert_eq!(all[1].report(now).status, "no-answer");
    assert_eq!(Reference::witnesses(&all), [0, 1, 1]);
    // It follows the other one now, and what it said with the first one's time stays true.
    chronyd.ignore_all();
    all[1].restart(now);
    assert_eq!(ask(&mut all[1], &chronyd, &mut now, (other, 0)), 1);
    assert_eq!(Reference::witnesses(&all), [0, 0, 0]);
}

#[test]
fn the_stamp_of_a_request_that_nobody_awaits_wakes_nobody_twice() {
    let chronyd = Chronyd::new();
    let host = Host::new();
    let mut chrony = Chrony::new(&chronyd.config(), Duration::ZERO).unwrap();
    chrony.on_timer(Duration::ZERO, &host.around());
    let Some(Link::Udp(socket)) = &chrony.link else { panic!("no socket") };
    if !socket.stamping() {
        return;
    }
    // The request's own stamp, and a second one of the same packet.
    let past = UdpSocket::from(socket.as_fd().try_clone_to_owned().unwrap());
    past.send(b"stamped").unwrap();
    wait_until_ready(chrony.fds()[0]);
    assert_eq!(chrony.on_ready(Duration::ZERO, &host.around()).len(), 0);
    assert!(!is_ready(chrony.fds()[0]));
    assert!(chrony.asked.is_some(), "its answer is still awaited");
}
