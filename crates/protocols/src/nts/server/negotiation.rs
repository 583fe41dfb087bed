//! The two messages of NTS key establishment, from the server's side (RFC 8915 section 4): the
//! client's is judged, and ours is made.
//!
//! What it does not do: TLS ([`super::exchange`]) or cookies ([`super::cookie`]).

use super::cookie::COOKIE_LEN;
use crate::nts::negotiation::{AES_SIV_CMAC_256, NTPV4};
use crate::nts::record::{
    AEAD_ALGORITHM, END_OF_MESSAGE, ERROR, NEW_COOKIE, NEXT_PROTOCOL, NTP_PORT, NTP_SERVER, Record,
    WARNING,
};

/// The longest message that is read. Usual ones have 16 to 64 bytes.
pub const MAX_REQUEST: usize = 4096;

/// Why a client gets no keys. Each is answered with what the RFC prescribes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A critical record of unknown type: error 0 (section 4.1.3).
    UnknownCritical,
    /// A message against the rules: error 1 (section 4.1.3).
    BadRequest,
    /// NTPv4 is not among the client's protocols: none is agreed on (section 4.1.2).
    NoProtocol,
    /// AEAD_AES_SIV_CMAC_256 is not among the client's algorithms: none is agreed on (section
    /// 4.1.5). A client that follows the RFC has it.
    NoAlgorithm,
}

impl Refusal {
    /// The message that tells the client.
    #[must_use]
    pub fn answer(self) -> Vec<u8> {
        match self {
            Self::UnknownCritical => message(&[(true, ERROR, &[0, 0])]),
            Self::BadRequest => message(&[(true, ERROR, &[0, 1])]),
            Self::NoProtocol => message(&[(true, NEXT_PROTOCOL, &[])]),
            Self::NoAlgorithm => message(&[PROTOCOL, (true, AEAD_ALGORITHM, &[])]),
        }
    }
}

/// Critical, type, body.
type Written<'a> = (bool, u16, &'a [u8]);

const PROTOCOL: Written<'_> = (true, NEXT_PROTOCOL, &NTPV4.to_be_bytes());
const ALGORITHM: Written<'_> = (true, AEAD_ALGORITHM, &AES_SIV_CMAC_256.to_be_bytes());

/// A message of these records and the end.
fn message(records: &[Written<'_>]) -> Vec<u8> {
    let mut message = Vec::new();
    for (critical, kind, body) in records.iter().chain([&(true, END_OF_MESSAGE, &[][..])]) {
        Record { critical: *critical, kind: *kind, body }.write(&mut message);
    }
    message
}

/// Judges the client's message from all bytes so far: `Some(Ok(()))` if NTPv4 and our algorithm are
/// agreed on, `None` while the message is incomplete.
#[must_use]
pub fn request(bytes: &[u8]) -> Option<Result<(), Refusal>> {
    if bytes.len() > MAX_REQUEST {
        return Some(Err(Refusal::BadRequest));
    }
    let mut offered = Offered::default();
    let mut rest = bytes;
    while let Some((record, after)) = Record::split(rest) {
        if record.kind == END_OF_MESSAGE {
            // A client waits for our answer before it says anything else.
            let is_end = record.body.is_empty() && after.is_empty();
            return Some(if is_end { offered.judge() } else { Err(Refusal::BadRequest) });
        }
        if let Err(refusal) = offered.take(&record) {
            return Some(Err(refusal));
        }
        rest = after;
    }
    None
}

/// What the client offers so far.
#[derive(Default)]
struct Offered {
    protocols: Option<Vec<u16>>,
    algorithms: Option<Vec<u16>>,
}

impl Offered {
    fn take(&mut self, record: &Record<'_>) -> Result<(), Refusal> {
        match record.kind {
            NEXT_PROTOCOL => once(&mut self.protocols, record),
            AEAD_ALGORITHM => once(&mut self.algorithms, record),
            // Where the client would like to ask. We answer for ourselves only (sections 4.1.7 and
            // 4.1.8 leave it to the server).
            NTP_SERVER | NTP_PORT => Ok(()),
            // Only a server sends these.
            ERROR | WARNING | NEW_COOKIE => Err(Refusal::BadRequest),
            _ if record.critical => Err(Refusal::UnknownCritical),
            _ => Ok(()),
        }
    }

    fn judge(self) -> Result<(), Refusal> {
        let protocols = self.protocols.ok_or(Refusal::BadRequest)?;
        if !protocols.contains(&NTPV4) {
            return Err(Refusal::NoProtocol);
        }
        // Who offers NTPv4 must offer algorithms (section 4.1.5).
        let algorithms = self.algorithms.ok_or(Refusal::BadRequest)?;
        if algorithms.contains(&AES_SIV_CMAC_256) { Ok(()) } else { Err(Refusal::NoAlgorithm) }
    }
}

/// Takes a list that only one record of its kind may set, and that is not empty.
fn once(place: &mut Option<Vec<u16>>, record: &Record<'_>) -> Result<(), Refusal> {
    let list = record.numbers().filter(|list| !list.is_empty());
    if place.is_some() || list.is_none() {
        return Err(Refusal::BadRequest);
    }
    *place = list;
    Ok(())
}

/// Our message to a client that gets keys: the protocol, the algorithm, where to ask unless it is
/// this host at port 123, and the cookies.
#[must_use]
pub fn answer(cookies: &[[u8; COOKIE_LEN]], server: Option<&str>, port: Option<u16>) -> Vec<u8> {
    let port = port.map(u16::to_be_bytes);
    let mut records = vec![PROTOCOL, ALGORITHM];
    // Critical: a client that asked elsewhere would get no answer.
    records.extend(server.map(|name| (true, NTP_SERVER, name.as_bytes())));
    records.extend(port.as_ref().map(|port| (true, NTP_PORT, &port[..])));
    records.extend(cookies.iter().map(|cookie| (false, NEW_COOKIE, &cookie[..])));
    message(&records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nts::negotiation::{Answer, request as ours};
    use proptest::prelude::*;

    #[test]
    fn our_own_client_is_understood_and_understands() {
        assert_eq!(request(&ours()), Some(Ok(())));
        let cookies = [[7; COOKIE_LEN], [8; COOKIE_LEN]];
        let said = |server, port| Answer::parse(&answer(&cookies, server, port)).unwrap().unwrap();
        let plain = said(None, None);
        assert_eq!(plain.cookies, cookies.map(|cookie| cookie.to_vec()));
        assert_eq!((plain.ntp_server, plain.ntp_port), (None, None));
        let elsewhere = said(Some("ntp.example.net"), Some(1123));
        assert_eq!(elsewhere.ntp_server.as_deref(), Some("ntp.example.net"));
        assert_eq!(elsewhere.ntp_port, Some(1123));
    }

    #[test]
    fn golden_bytes() {
        let bytes = answer(&[[0xab; COOKIE_LEN]], Some("a.b"), Some(1123));
        let head = [
            [0x80, 1, 0, 2, 0, 0].as_slice(),
            &[0x80, 4, 0, 2, 0, 15],
            &[0x80, 6, 0, 3, b'a', b'.', b'b'],
            &[0x80, 7, 0, 2, 0x04, 0x63],
            &[0, 5, 0, 100],
        ]
        .concat();
        assert_eq!(bytes, [head, vec![0xab; 100], vec![0x80, 0, 0, 0]].concat());
        let refused = |refusal: Refusal| refusal.answer();
        assert_eq!(refused(Refusal::UnknownCritical), [0x80, 2, 0, 2, 0, 0, 0x80, 0, 0, 0]);
        assert_eq!(refused(Refusal::BadRequest), [0x80, 2, 0, 2, 0, 1, 0x80, 0, 0, 0]);
        assert_eq!(refused(Refusal::NoProtocol), [0x80, 1, 0, 0, 0x80, 0, 0, 0]);
        let none = [0x80, 1, 0, 2, 0, 0, 0x80, 4, 0, 0, 0x80, 0, 0, 0];
        assert_eq!(refused(Refusal::NoAlgorithm), none);
    }

    #[test]
    fn other_clients_offer_more() {
        let offer = message(&[
            (true, NEXT_PROTOCOL, &[0x80, 1, 0, 0]),
            (false, AEAD_ALGORITHM, &[0, 30, 0, 17, 0, 15]),
            // chronyd's, about AES-128-GCM-SIV.
            (false, 1024, &[]),
            (true, NTP_SERVER, b"ntp.example.net"),
            (true, NTP_PORT, &[0, 123]),
        ]);
        assert_eq!(request(&offer), Some(Ok(())));
        for cut in 0..offer.len() {
            assert_eq!(request(&offer[..cut]), None, "{cut} bytes");
        }
    }

    #[test]
    fn every_fault_has_its_refusal() {
        use Refusal::{BadRequest, NoAlgorithm, NoProtocol, UnknownCritical};
        let wrong: &[(&[Written<'_>], Refusal)] = &[
            (&[], BadRequest),
            (&[ALGORITHM], BadRequest),
            (&[PROTOCOL], BadRequest),
            (&[PROTOCOL, PROTOCOL, ALGORITHM], BadRequest),
            (&[PROTOCOL, ALGORITHM, ALGORITHM], BadRequest),
            (&[PROTOCOL, (true, AEAD_ALGORITHM, &[])], BadRequest),
            (&[PROTOCOL, (true, AEAD_ALGORITHM, &[15])], BadRequest),
            (&[PROTOCOL, ALGORITHM, (false, NEW_COOKIE, &[1])], BadRequest),
            (&[(true, ERROR, &[0, 0])], BadRequest),
            (&[(true, WARNING, &[0, 0])], BadRequest),
            (&[PROTOCOL, ALGORITHM, (true, 0, &[1])], BadRequest),
            (&[PROTOCOL, (true, 0x4001, &[]), ALGORITHM], UnknownCritical),
            (&[(true, NEXT_PROTOCOL, &[0x80, 1]), ALGORITHM], NoProtocol),
            (&[PROTOCOL, (true, AEAD_ALGORITHM, &[0, 30])], NoAlgorithm),
        ];
        for (records, refusal) in wrong {
            assert_eq!(request(&message(records)), Some(Err(*refusal)), "{records:?}");
        }
        let twice = [ours(), vec![0]].concat();
        assert_eq!(request(&twice), Some(Err(BadRequest)), "more behind the end");
        let endless = [0x40, 0, 0, 0].repeat(MAX_REQUEST / 4 + 1);
        assert_eq!(request(&endless), Some(Err(BadRequest)));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = request(&bytes);
        }
    }
}
