//! Arbitrary, damaged and authentic requests at a server with NTS: exactly what the client sealed is
//! answered with NTS, the client accepts the answer, and nothing is amplified. And arbitrary
//! messages of key establishment: keys are agreed on only by what the client has offered.
#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::{decode, edited, some_bytes};
use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::server::{Action, Config, ServedClock, ServedTime, Server, Tally};
use timevisor_protocols::ntp::{Datagram, LeapIndicator, NtpTimestamp, Packet, precise};
use timevisor_protocols::nts::aead::Key;
use timevisor_protocols::nts::field::{self, AUTHENTICATOR, COOKIE, UNIQUE_IDENTIFIER};
use timevisor_protocols::nts::negotiation::{AES_SIV_CMAC_256, Answer, NTPV4};
use timevisor_protocols::nts::record::{AEAD_ALGORITHM, END_OF_MESSAGE, NEXT_PROTOCOL, Record};
use timevisor_protocols::nts::server::{
    CookieCiphers, CookieKeys, Protector, Rotation, SessionKeys, request,
};
use timevisor_protocols::nts::{Association, Config as NtsConfig, Established, Random};
use timevisor_time::{Duration, Instant};

fuzz_target!(|data: &[u8]| {
    check_message(data);
    decode(data, |u| {
        let mut message = Vec::new();
        for _ in 0..u.int_in_range(0..=5)? {
            let kind = u.int_in_range(0..=9)?;
            let record = Record { critical: u.arbitrary()?, kind, body: some_bytes(u)? };
            record.write(&mut message);
        }
        Record { critical: true, kind: END_OF_MESSAGE, body: &[] }.write(&mut message);
        check_message(&message);
        Ok(())
    });
    decode(data, run);
});

fn check_message(bytes: &[u8]) {
    let Some(Ok(())) = request(bytes) else { return };
    let (mut protocols, mut algorithms, mut rest) = (Vec::new(), Vec::new(), bytes);
    while let Some((record, after)) = Record::split(rest) {
        match record.kind {
            NEXT_PROTOCOL => protocols.extend(record.numbers().expect("a list")),
            AEAD_ALGORITHM => algorithms.extend(record.numbers().expect("a list")),
            _ => {}
        }
        rest = after;
    }
    assert!(rest.is_empty() && protocols.contains(&NTPV4));
    assert!(algorithms.contains(&AES_SIV_CMAC_256));
    for cut in [bytes.len() - 1, bytes.len() / 2] {
        assert_eq!(request(&bytes[..cut]), None);
    }
}

fn run(u: &mut Unstructured) -> Result<()> {
    let key = [3; 32].into();
    let keys = CookieKeys::new(Rotation::default(), Duration::ZERO, 1, key);
    let config = Config { clients: 16, rate_interval: Duration::ZERO, ..Config::default() };
    let mut server = Server::new(config, 7).expect("it is valid");
    let mut count = 0u8;
    let random = move |bytes: &mut [u8]| {
        count = count.wrapping_add(1);
        bytes.fill(count);
        true
    };
    server.serve_nts(Protector::new(&keys, Box::new(random)));
    let session = SessionKeys::new(&[1; 32], &[2; 32]);
    let cookie = CookieCiphers::new(&keys).make(&session, &[5; 16]).expect("there is a key");
    let mut world = World { server, cookie: cookie.to_vec(), association: association(&cookie) };
    while !u.is_empty() {
        world.step(u)?;
    }
    Ok(())
}

fn association(cookie: &[u8]) -> Association {
    let mut association = Association::new(NtsConfig::default()).expect("the default is valid");
    let established = Established {
        client_to_server: Key::new([1; 32].into()),
        server_to_client: Key::new([2; 32].into()),
        answer: Answer { cookies: vec![cookie.to_vec(); 8], ntp_server: None, ntp_port: None },
    };
    association.established(Duration::ZERO, established);
    association
}

struct World {
    server: Server,
    cookie: Vec<u8>,
    association: Association,
}

impl World {
    fn step(&mut self, u: &mut Unstructured) -> Result<()> {
        let mut header = Packet::request(NtpTimestamp::from_bits(u.arbitrary()?), 4);
        header.origin = NtpTimestamp::from_bits(u.arbitrary()?);
        let mut plain = Datagram::new(&header);
        if u.arbitrary()? {
            let referrals = u.int_in_range(0..=8)?;
            precise::Request { referrals, ..precise::Request::HOST }.write(&mut plain);
        }
        if self.association.needs_keys() {
            self.association = association(&self.cookie);
        }
        let random = Random { identifier: u.arbitrary()?, nonce: u.arbitrary()? };
        let sealed = self.association.seal(&plain, &random).expect("there are keys");
        match u.int_in_range(0..=3)? {
            0 => {
                let made = self.made_up(u, &plain)?;
                self.ask(&made);
            }
            1 => {
                let damaged = edited(u, &sealed)?;
                // The authenticator of ours is the last 40 bytes; zeros may be added to it.
                let covered = &sealed[..sealed.len() - 40];
                let answered = self.ask(&damaged);
                assert!(!answered || damaged.starts_with(covered), "it is not authentic");
            }
            // Lost on the way.
            2 => {}
            _ => {
                assert!(self.ask(&sealed));
                let reply = self.server.protected();
                self.association.open(reply).expect("the client accepts the answer");
            }
        }
        Ok(())
    }

    /// Fields in any order, perhaps authentic.
    fn made_up(&self, u: &mut Unstructured, plain: &[u8]) -> Result<Vec<u8>> {
        let mut packet = plain.to_vec();
        for _ in 0..u.int_in_range(0..=5)? {
            match u.int_in_range(0..=3)? {
                0 => field::write(&mut packet, UNIQUE_IDENTIFIER, some_bytes(u)?),
                1 => field::write(&mut packet, COOKIE, &self.cookie),
                2 => field::write(&mut packet, AUTHENTICATOR, some_bytes(u)?),
                _ => field::write(&mut packet, u.arbitrary()?, some_bytes(u)?),
            }
        }
        if u.arbitrary()? {
            let key = Key::new([1; 32].into());
            field::write_authenticator(&mut packet, &key, &[6; 16], some_bytes(u)?)
                .expect("two strings");
        }
        Ok(packet)
    }

    /// True if the request gets an answer with NTS.
    fn ask(&mut self, request: &[u8]) -> bool {
        let transmit = Instant::from_unix_nanos(1_800_000_000_000_000_000);
        let clock = ServedClock::Known(ServedTime {
            transmit,
            error: Duration::from_micros(20),
            leap: LeapIndicator::NoWarning,
            stratum: 1,
            reference_id: *b"TEST",
            reference: transmit,
            precision: -24,
            precise: None,
        });
        let from = SocketAddr::from(([10, 0, 0, 1], 123));
        match self.server.respond(Duration::ZERO, request, transmit, &clock, from) {
            Action::Protected { outcome, .. } => {
                let reply = self.server.protected();
                assert!(reply.len() <= request.len(), "amplification");
                let fields = field::split_all(&reply[HEADER_LEN..]).expect("fields only");
                let is_sealed = fields.iter().any(|field| field.kind == AUTHENTICATOR);
                assert_eq!(is_sealed, outcome == Tally::Answered, "{outcome:?}");
                is_sealed
            }
            Action::Reply { bytes, .. } => {
                assert!(bytes.len() <= request.len(), "amplification");
                false
            }
            Action::Kiss { .. } => panic!("there is no limit"),
            Action::Drop(_) => false,
        }
    }
}
