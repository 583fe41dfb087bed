//! What the tests of references share: a host to act on, and stand-ins for servers on the loopback.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;

use timevisor_estimate::Exchange;
use timevisor_linux::clock::realtime;
use timevisor_linux::counter::{HostCounter, HostMonotonicRaw};
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::udp::Sockets;
use timevisor_protocols::control::Reference as Report;
use timevisor_protocols::ntp::{Mode, NtpTimestamp, Packet, Source};
use timevisor_time::{Duration, Period, RateError};

use super::tally::Tally;
use super::{Driver, Reference, Surroundings};
use crate::config::{ClockConfig, ServerConfig};
use crate::leap::Leap;
use crate::parser::Parser;

/// Longer than any test takes; what is awaited comes within microseconds.
const LONG: std::time::Duration = std::time::Duration::from_secs(60);

/// What was sent over the loopback has arrived by then.
const DELIVERY: std::time::Duration = std::time::Duration::from_millis(50);

/// A host that knows TAI - UTC and nothing of the time.
pub struct Host {
    leap: Leap,
    counter: HostCounter,
    own_server: ServerConfig,
    parser: Parser,
}

impl Host {
    pub fn new() -> Self {
        Self {
            leap: Leap::load(&ClockConfig { tai_offset: Some(37), ..ClockConfig::default() }),
            counter: HostCounter::MonotonicRaw(HostMonotonicRaw::INITIAL),
            own_server: ServerConfig::default(),
            parser: Parser::new("parse-ntp", LONG),
        }
    }

    pub fn around(&self) -> Surroundings<'_> {
        Surroundings {
            counter: &self.counter,
            calibration: (Period::from_hz(1_000_000_000).unwrap(), RateError::ZERO),
            leap: &self.leap,
            known: None,
            sockets: Sockets::Stamped,
            taken: &[],
            own_server: &self.own_server,
            parser: &self.parser,
        }
    }
}

/// An NTP server that answers when it is told to, and is silent otherwise.
pub struct NtpServer {
    socket: UdpSocket,
    /// Shown in its answers.
    pub reference_id: [u8; 4],
}

impl NtpServer {
    /// A server of stratum 2 that follows the server with this id.
    pub fn following(reference_id: [u8; 4]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        Self { socket, reference_id }
    }

    pub fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Waits for a request and answers it.
    fn answer(&self) {
        let mut buffer = [0; 2048];
        let (len, from) = self.socket.recv_from(&mut buffer).unwrap();
        let (request, _) = Packet::parse(&buffer[..len]).unwrap();
        let now = NtpTimestamp::from_instant(realtime());
        let reply = Packet {
            mode: Mode::Server,
            stratum: 2,
            precision: -20,
            reference_id: self.reference_id,
            origin: request.transmit,
            receive: now,
            transmit: now,
            ..Packet::request(now, 4)
        };
        self.socket.send_to(&reply.to_bytes(), from).unwrap();
    }

    /// Whether a request has arrived.
    fn is_asked(&self) -> bool {
        self.socket.set_read_timeout(Some(DELIVERY)).unwrap();
        let asked = self.socket.peek(&mut [0; 2048]).is_ok();
        self.socket.set_read_timeout(Some(LONG)).unwrap();
        asked
    }

    /// Forgets the requests that were not answered.
    pub fn ignore_all(&self) {
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 2048]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
    }
}

/// What poll(2) says now: something is to be read, or an error or a stamp to be taken.
pub fn is_ready(fd: BorrowedFd<'_>) -> bool {
    is_ready_within(fd, std::time::Duration::ZERO)
}

/// Waits until poll(2) says so.
pub fn wait_until_ready(fd: BorrowedFd<'_>) {
    assert!(is_ready_within(fd, LONG), "nothing arrives");
}

fn is_ready_within(fd: BorrowedFd<'_>, timeout: std::time::Duration) -> bool {
    let mut fds = [PollFd::readable(fd)];
    wait(&mut fds, Some(timeout)).unwrap();
    let ready = fds[0].ready();
    ready.readable || ready.error || ready.hangup
}

/// Asks a reference's server when that is next due, and delivers its answer.
pub fn exchange(
    reference: &mut Reference,
    server: &NtpServer,
    now: &mut Duration,
    host: &Host,
) -> Vec<Exchange> {
    server.ignore_all();
    // A request that is in flight is given up first.
    for _ in 0..10 {
        *now = (*now).max(reference.poll_at());
        reference.on_timer(*now, &host.around());
        if server.is_asked() {
            break;
        }
    }
    server.answer();
    loop {
        wait_until_ready(reference.fds()[0]);
        // The request's own stamp may come first.
        let exchanges = reference.on_ready(*now, &host.around());
        if !exchanges.is_empty() {
            return exchanges;
        }
    }
}

/// Lets simulated time pass without any answer.
pub fn silence(references: &mut [Reference], now: &mut Duration, until: Duration, host: &Host) {
    while *now < until {
        let next = references.iter().map(Reference::poll_at).min().unwrap();
        *now = (*now).max(next).min(until);
        for reference in references.iter_mut().filter(|r| r.poll_at() <= *now) {
            reference.on_timer(*now, &host.around());
            assert!(reference.poll_at() > *now, "the timer does what it is due for");
        }
    }
}

/// A reference whose facts come from these sources.
pub fn saying(sources: &[Source]) -> Reference {
    let driver = Box::new(Said { sources: sources.to_vec(), certificates: Vec::new() });
    Reference { driver, offline: false, local_clock: None }
}

/// A reference whose answers were authenticated with these certificates.
pub fn authenticated(certificates: &[&[u8]]) -> Reference {
    let certificates = certificates.iter().map(|der| der.to_vec()).collect();
    let driver = Box::new(Said { sources: Vec::new(), certificates });
    Reference { driver, offline: false, local_clock: None }
}

struct Said {
    sources: Vec<Source>,
    certificates: Vec<Vec<u8>>,
}

impl Driver for Said {
    fn poll_at(&self) -> Duration {
        Duration::MAX
    }

    fn on_timer(&mut self, _now: Duration, _around: &Surroundings<'_>) -> Option<Exchange> {
        None
    }

    fn sources(&self) -> Vec<Source> {
        self.sources.clone()
    }

    fn certificates(&self) -> Vec<&[u8]> {
        self.certificates.iter().map(Vec::as_slice).collect()
    }

    fn restart(&mut self, _now: Duration) {}

    fn report(&self, _now: Duration) -> Report {
        Tally::new("said".to_owned()).report("said", "", Duration::ZERO, None)
    }
}
