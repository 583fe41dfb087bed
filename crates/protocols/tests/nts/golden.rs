//! Bytes of real servers, `chronyd.txt` and `ntpd-rs.txt`: other ciphers, other TLS, other readings
//! of the RFC.

use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::{Client, Config as NtpConfig, NtpTimestamp, Outcome, Packet};
use timevisor_protocols::nts::aead::Key;
use timevisor_protocols::nts::negotiation::Answer;
use timevisor_protocols::nts::{Association, Config, Established, Random, Refusal, Status};
use timevisor_time::{Duration, Instant};

/// The transmit field of the requests.
const NTP_COOKIE: u64 = 0x0123_4567_89ab_cdef;

/// A session with a server.
struct Session(&'static str);

const SESSIONS: [Session; 2] =
    [Session(include_str!("chronyd.txt")), Session(include_str!("ntpd-rs.txt"))];

impl Session {
    fn bytes(&self, name: &str) -> Vec<u8> {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(' '));
        let (_, text) = lines.find(|(found, _)| *found == name).unwrap();
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        assert!(rest.is_empty());
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        pairs.iter().map(|pair| byte(pair)).collect()
    }

    fn answer(&self) -> Answer {
        Answer::parse(&self.bytes("answer")).unwrap().unwrap()
    }

    /// As when the request was made: seven of the eight cookies, so that one placeholder is sent.
    fn association(&self) -> Association {
        let key = |name| Key::new(<[u8; 32]>::try_from(self.bytes(name)).unwrap().into());
        let mut answer = self.answer();
        answer.cookies.truncate(7);
        let mut association = Association::new(Config::default()).unwrap();
        let established = Established {
            client_to_server: key("client_to_server"),
            server_to_client: key("server_to_client"),
            answer,
        };
        association.established(Duration::ZERO, established);
        association
    }

    /// After the request.
    fn waiting(&self) -> Association {
        let mut association = self.association();
        association.seal(&header(), &random()).unwrap();
        association
    }
}

fn random() -> Random {
    let count = |first| move |i: usize| first + u8::try_from(i).unwrap();
    Random { identifier: std::array::from_fn(count(0)), nonce: std::array::from_fn(count(0xf0)) }
}

fn header() -> [u8; HEADER_LEN] {
    Packet::request(NtpTimestamp::from_bits(NTP_COOKIE), 4).to_bytes()
}

#[test]
fn key_establishment_is_read() {
    let [chronyd, ntpd_rs] = SESSIONS.map(|session| session.answer());
    assert_eq!((chronyd.ntp_port, chronyd.ntp_server), (Some(11_123), None));
    assert_eq!(chronyd.cookies.iter().map(Vec::len).collect::<Vec<_>>(), [100; 8]);
    assert_eq!(ntpd_rs.ntp_port, Some(11_124));
    assert_eq!(ntpd_rs.ntp_server.as_deref(), Some("127.0.0.1"));
    assert_eq!(ntpd_rs.cookies.iter().map(Vec::len).collect::<Vec<_>>(), [104; 8]);
}

#[test]
fn requests_that_were_answered() {
    for session in SESSIONS {
        let request = session.association().seal(&header(), &random()).unwrap();
        assert_eq!(request, session.bytes("request"));
    }
}

#[test]
fn answers_are_authentic_and_the_ntp_client_accepts_them() {
    for session in SESSIONS {
        let mut client = Client::new(NtpConfig::default(), Duration::ZERO).unwrap();
        let request = client.on_timer(Duration::ZERO, NTP_COOKIE).unwrap();
        client.sent(1);
        assert_eq!(request.bytes[..], header());
        let (mut association, response) = (session.waiting(), session.bytes("response"));
        let opened = association.open(&response).unwrap();
        assert_eq!(opened, response[..HEADER_LEN]);
        // 2026-11-20 16:41 UTC
        let about = Instant::from_unix_nanos(1_795_192_897_000_000_000);
        let outcome = client.on_datagram(Duration::from_millis(1), &opened, about, |ta| (ta, 9));
        assert!(matches!(outcome, Outcome::Exchange(x) if x.response.stratum == 1), "{outcome:?}");
        // One spent, two came.
        let status = association.status(Duration::ZERO);
        assert_eq!(status, Status::Authenticated { cookies: 8, age: Duration::ZERO });
    }
}

#[test]
fn every_flipped_bit_of_an_answer_is_noticed() {
    for session in SESSIONS {
        let (mut association, response) = (session.waiting(), session.bytes("response"));
        for bit in 0..response.len() * 8 {
            let mut damaged = response.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(association.open(&damaged).is_err(), "bit {} of byte {}", bit % 8, bit / 8);
        }
        assert!(association.open(&response).is_ok());
    }
}

#[test]
fn naks_are_known() {
    for session in SESSIONS {
        let mut association = session.waiting();
        assert_eq!(association.open(&session.bytes("nak")), Err(Refusal::Nak));
        assert!(association.needs_keys());
    }
}
