//! The reference beside a ptp4l that is played here: real datagrams, and this machine's
//! CLOCK_REALTIME.

use std::os::unix::net::UnixDatagram;

use timevisor_linux::clock::realtime;
use timevisor_linux::counter::{HostCounter, HostMonotonicRaw};
use timevisor_linux::udp::Sockets;
use timevisor_protocols::ptp::management::get;
use timevisor_protocols::ptp::{Id, OFFSETS};
use timevisor_time::{Period, RateError};

use super::*;
use crate::config::{ClockConfig, ServerConfig};

const COUNTER: HostCounter = HostCounter::MonotonicRaw(HostMonotonicRaw::INITIAL);

const PTP_TIMESCALE: u8 = 1 << 3;
/// currentUtcOffsetValid and timeTraceable.
const VOUCHED: u8 = 1 << 2 | 1 << 4;

/// What the played ptp4l says.
#[derive(Clone, Copy)]
struct Said {
    master: u8,
    offset_ns: i64,
    flags: u8,
    announced: i16,
    own: i16,
}

struct Played {
    _directory: tempfile::TempDir,
    socket: UnixDatagram,
    leap: Leap,
    ptp: Ptp,
    now: Duration,
}

impl Played {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ptp4l");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let config = PtpConfig {
            device: "realtime".into(),
            socket: path,
            own_directory: directory.path().to_owned(),
            ..PtpConfig::default()
        };
        let leap = Leap::load(&ClockConfig { tai_offset: Some(37), ..ClockConfig::default() });
        let now = Duration::from_secs(1);
        let ptp = Ptp::new(&config, "ptp realtime".to_owned(), now);
        Self { _directory: directory, socket, leap, ptp, now }
    }

    /// Polls until there are so many offsets that one makes a statement.
    fn first(&mut self, said: &Said) -> Exchange {
        for _ in 0..OFFSETS {
            assert_eq!(self.poll(said).unwrap_err(), "probing");
        }
        self.poll(said).unwrap()
    }

    /// One poll: the exchange if there is one, or the status word.
    fn poll(&mut self, said: &Said) -> Result<Exchange, String> {
        let around = Surroundings {
            counter: &COUNTER,
            calibration: (Period::from_hz(1_000_000_000).unwrap(), RateError::ZERO),
            leap: &self.leap,
            known: None,
            sockets: Sockets::Stamped,
            taken: &[],
            own_server: &ServerConfig::default(),
            parser: &crate::parser::Parser::without_thread(),
        };
        self.now += Duration::from_secs(1);
        // Between readings that are closer than 20 ms no rate is seen.
        std::thread::sleep(std::time::Duration::from_millis(25));
        self.ptp.on_timer(self.now, &around);
        let ingress = realtime().floor_nanos();
        let mut request = [0; 100];
        while let Ok((length, from)) = self.socket.recv_from(&mut request) {
            let reply = said.reply(&request[..length], ingress);
            self.socket.send_to_addr(&reply, &from).unwrap();
        }
        let mut exchanges = self.ptp.on_ready(self.now, &around);
        exchanges.pop().ok_or_else(|| self.ptp.report(self.now).status)
    }
}

impl Said {
    fn data(&self, id: Id, ingress: i64) -> Vec<u8> {
        let clock = [self.master; 8];
        match id {
            Id::TimeStatus => [
                &self.offset_ns.to_be_bytes()[..],
                &ingress.to_be_bytes(),
                &[0; 22],
                &1_i32.to_be_bytes(),
                &clock,
            ]
            .concat(),
            // SLAVE, E2E.
            Id::Port => [&clock[..], &[0, 1, 9, 0], &[0; 8], &[0, 3, 0, 1, 0, 2]].concat(),
            // clockClass 6, clockAccuracy 0x23: 1 us.
            Id::Parent => [&clock[..], &[0; 11], &[6, 0x23, 0, 0, 128], &clock].concat(),
            Id::TimeProperties => [&self.announced.to_be_bytes()[..], &[self.flags, 0x20]].concat(),
            Id::Settings => [&[6, 0x23, 0, 0][..], &self.own.to_be_bytes(), &[0, 0x20]].concat(),
            // A path delay of 5 us.
            Id::Current => {
                let delay = (5_000_i64 << 16).to_be_bytes();
                [&1_u16.to_be_bytes()[..], &[0; 8], &delay].concat()
            }
        }
    }

    fn reply(&self, request: &[u8], ingress: i64) -> Vec<u8> {
        let number = u16::from_be_bytes([request[52], request[53]]);
        let id = Id::ALL.into_iter().find(|id| *id as u16 == number).unwrap();
        let data = self.data(id, ingress);
        let mut reply = get(id, 0, 0, u16::from_be_bytes([request[30], request[31]])).to_vec();
        let asker: [u8; 10] = std::array::from_fn(|i| request[20 + i]);
        reply[34..44].copy_from_slice(&asker);
        reply[46] = 2;
        reply[51] = u8::try_from(2 + data.len()).unwrap();
        reply.extend(data);
        reply[3] = u8::try_from(reply.len()).unwrap();
        reply
    }
}

const SAID: Said =
    Said { master: 0xaa, offset_ns: 2_000, flags: PTP_TIMESCALE | VOUCHED, announced: 37, own: 37 };

/// How far the exchange is from CLOCK_REALTIME, whole seconds.
fn seconds_ahead(exchange: &Exchange) -> i64 {
    let ahead = exchange.tb - realtime().relabel::<Tai>();
    (ahead + Duration::from_millis(500)).floor_nanos().div_euclid(1_000_000_000)
}

#[test]
fn the_eighth_offset_after_the_first_makes_a_statement_and_the_master_is_named() {
    let mut played = Played::new();
    let exchange = played.first(&SAID);
    assert_eq!(seconds_ahead(&exchange), 37);
    // 2 us offset, 5 us path, 1 us grandmaster, 100 ns, and some drift.
    assert!(exchange.error > Duration::from_nanos(8_099), "{}", exchange.error);
    assert!(exchange.error < Duration::from_millis(1), "{}", exchange.error);
    let detail = played.ptp.report(played.now).detail;
    for part in ["SLAVE", "aaaaaa.aaaa.aaaaaa", "path delay 5"] {
        assert!(detail.contains(part), "{detail}");
    }
}

#[test]
fn an_offset_that_the_table_contradicts_is_refused_and_taken_again() {
    let mut played = Played::new();
    played.first(&SAID);
    let wrong = Said { announced: 36, own: 36, ..SAID };
    assert_eq!(played.poll(&wrong).unwrap_err(), "new_timescale");
    for _ in 1..OFFSETS {
        assert_eq!(played.poll(&wrong).unwrap_err(), "probing");
    }
    assert_eq!(played.poll(&wrong).unwrap_err(), "utc_offset");
    let detail = played.ptp.report(played.now).detail;
    assert!(detail.contains("36 s") && detail.contains("37 s"), "{detail}");
    assert_eq!(played.poll(&SAID).unwrap_err(), "new_timescale");
    for _ in 1..OFFSETS {
        played.poll(&SAID).unwrap_err();
    }
    assert_eq!(seconds_ahead(&played.poll(&SAID).unwrap()), 37);
}

#[test]
fn what_nobody_vouches_for_is_taken_back_as_ptp4l_applied_it() {
    let mut played = Played::new();
    let own = Said { flags: PTP_TIMESCALE, announced: 35, own: 36, ..SAID };
    assert_eq!(seconds_ahead(&played.first(&own)), 36);
    let detail = played.ptp.report(played.now).detail;
    assert!(detail.contains("TAI - UTC = 36 s, which the grandmaster does not vouch"), "{detail}");
}

#[test]
fn a_new_master_is_waited_for_and_only_its_own_offsets_count() {
    let mut played = Played::new();
    played.first(&Said { offset_ns: 900_000_000, ..SAID });
    let other = Said { master: 0xbb, ..SAID };
    assert_eq!(played.poll(&other).unwrap_err(), "new_master");
    for _ in 1..OFFSETS {
        played.poll(&other).unwrap_err();
    }
    let exchange = played.poll(&other).unwrap();
    assert!(exchange.error < Duration::from_millis(1), "{}", exchange.error);
    assert!(played.ptp.report(played.now).detail.contains("bbbbbb.bbbb.bbbbbb"));
}

/// Two statements of one master that exclude each other: somebody set the clock.
#[test]
fn a_jump_that_ptp4l_does_not_explain_is_refused_once() {
    let mut played = Played::new();
    let exchange = played.first(&SAID);
    // As if the clock had been set back by a second since.
    let second = Duration::from_secs(1);
    played.ptp.before =
        Some(Exchange { tb: exchange.tb + second, te: exchange.te + second, ..exchange });
    assert_eq!(played.poll(&SAID).unwrap_err(), "jump");
    assert!(played.ptp.report(played.now).detail.contains("another program"));
    played.first(&SAID);
}

#[test]
fn a_silent_ptp4l_is_told_and_starts_over_when_it_is_back() {
    let mut played = Played::new();
    played.first(&SAID);
    let socket = std::mem::replace(&mut played.socket, UnixDatagram::unbound().unwrap());
    played.socket.set_nonblocking(true).unwrap();
    played.poll(&SAID).unwrap_err();
    // It reads and does not answer.
    while socket.recv(&mut [0; 100]).is_ok() {}
    assert_eq!(played.poll(&SAID).unwrap_err(), "no-answer");
    drop(socket);
    assert_eq!(played.poll(&SAID).unwrap_err(), "unreachable");
}
