//! What a server sends, made by hand: messages of key establishment, and answers to NTP requests.

use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::{LeapIndicator, Mode, Packet};
use timevisor_protocols::nts::aead::Key;
use timevisor_protocols::nts::field::{
    self, AUTHENTICATOR, Authenticator, COOKIE, COOKIE_PLACEHOLDER, UNIQUE_IDENTIFIER,
};
use timevisor_protocols::nts::negotiation::Answer;
use timevisor_protocols::nts::record::{AEAD_ALGORITHM, NEW_COOKIE, NEXT_PROTOCOL, Record};
use timevisor_protocols::nts::{Association, Config, Established, Random};
use timevisor_time::Duration;

/// A message from (critical, type, body).
pub(crate) fn message(records: &[(bool, u16, &[u8])]) -> Vec<u8> {
    let mut message = Vec::new();
    for (critical, kind, body) in records {
        Record { critical: *critical, kind: *kind, body }.write(&mut message);
    }
    message
}

/// NTPv4, the algorithm, eight cookies of 100 bytes.
pub(crate) fn good_answer() -> Vec<u8> {
    let cookies: Vec<_> = (0..8).map(|n| vec![n + 92; 100]).collect();
    let mut records: Vec<(bool, u16, &[u8])> =
        vec![(true, NEXT_PROTOCOL, &[0, 0]), (true, AEAD_ALGORITHM, &[0, 15])];
    records.extend(cookies.iter().map(|c| (false, NEW_COOKIE, &c[..])));
    records.push((true, 0, &[]));
    message(&records)
}

pub(crate) fn key(byte: u8) -> Key {
    Key::new([byte; 32].into())
}

/// An association with keys 1 and 2 and this many cookies of `len` bytes, the first full of 1, the
/// next of 2...
pub(crate) fn association(cookies: u8, len: usize) -> Association {
    let mut association = Association::new(Config::default()).unwrap();
    association.exchange_began(Duration::ZERO);
    association.established(Duration::ZERO, established((1..=cookies).map(|n| vec![n; len])));
    association
}

pub(crate) fn established(cookies: impl Iterator<Item = Vec<u8>>) -> Established {
    Established {
        client_to_server: key(1),
        server_to_client: key(2),
        answer: Answer { cookies: cookies.collect(), ntp_server: None, ntp_port: None },
    }
}

/// Not random at all, but different for each `n`.
pub(crate) fn random(n: u8) -> Random {
    Random { identifier: [n; 32], nonce: [!n; 16] }
}

pub(crate) fn header() -> [u8; HEADER_LEN] {
    Packet::request(timevisor_protocols::ntp::NtpTimestamp::from_bits(0x1234), 4).to_bytes()
}

/// A request as the server takes it apart.
pub(crate) struct Asked {
    pub(crate) header: [u8; HEADER_LEN],
    pub(crate) identifier: Vec<u8>,
    pub(crate) cookie: Vec<u8>,
    pub(crate) placeholders: Vec<usize>,
}

/// Whether the last field authenticates all before it, with our key.
pub(crate) fn is_authentic(request: &[u8]) -> bool {
    let fields = field::split_all(&request[HEADER_LEN..]).unwrap_or_default();
    fields.last().filter(|last| last.kind == AUTHENTICATOR).is_some_and(|last| {
        let covered = &request[..request.len() - last.body.len() - 4];
        Authenticator::parse(last.body)
            .and_then(|a| key(1).open(a.nonce, covered, a.sealed))
            .is_some_and(|plain| plain.is_empty())
    })
}

/// Panics unless the request is authentic and has what RFC 8915 section 5.7 asks for.
pub(crate) fn take_apart(request: &[u8]) -> Asked {
    assert!(is_authentic(request));
    let fields = field::split_all(&request[HEADER_LEN..]).expect("fields only");
    assert_eq!(fields.iter().filter(|f| f.kind == UNIQUE_IDENTIFIER).count(), 1);
    assert_eq!(fields.iter().filter(|f| f.kind == COOKIE).count(), 1);
    let one = |kind| fields.iter().find(|f| f.kind == kind).unwrap().body.to_vec();
    let holders = fields.iter().filter(|f| f.kind == COOKIE_PLACEHOLDER);
    Asked {
        header: *request.first_chunk().unwrap(),
        identifier: one(UNIQUE_IDENTIFIER),
        cookie: one(COOKIE),
        placeholders: holders.map(|f| f.body.len()).collect(),
    }
}

/// The header of an answer.
pub(crate) fn answer_header(asked: &Asked) -> [u8; HEADER_LEN] {
    let (request, _) = Packet::parse(&asked.header).unwrap();
    let packet = Packet {
        leap: LeapIndicator::NoWarning,
        mode: Mode::Server,
        stratum: 1,
        origin: request.transmit,
        ..request
    };
    packet.to_bytes()
}

/// An authentic answer with these cookies inside.
pub(crate) fn answer(asked: &Asked, cookies: &[Vec<u8>]) -> Vec<u8> {
    let mut inner = Vec::new();
    for cookie in cookies {
        field::write(&mut inner, COOKIE, cookie);
    }
    let mut packet = answer_header(asked).to_vec();
    field::write(&mut packet, UNIQUE_IDENTIFIER, &asked.identifier);
    field::write_authenticator(&mut packet, &key(2), &[0x77; 16], &inner).unwrap();
    packet
}

/// A kiss of death with this code, not authenticated, as an NTS NAK is.
pub(crate) fn kiss(asked: &Asked, code: [u8; 4]) -> Vec<u8> {
    let header = answer_header(asked);
    let (answer, _) = Packet::parse(&header).unwrap();
    let packet =
        Packet { leap: LeapIndicator::Unsynchronized, stratum: 0, reference_id: code, ..answer };
    let mut bytes = packet.to_bytes().to_vec();
    field::write(&mut bytes, UNIQUE_IDENTIFIER, &asked.identifier);
    bytes
}
