//! The two messages of NTS key establishment (RFC 8915 section 4): ours, and the checks on the
//! server's.
//!
//! We offer NTPv4 with AEAD_AES_SIV_CMAC_256, which every NTS server must support. We do not offer
//! AES-128-GCM-SIV: servers derive its keys differently (chronyd 4.4 to 4.6 departs from the RFC),
//! and it would save only a few bytes per cookie.
//!
//! What it does not do: TLS ([`super::exchange`]) or the derivation of keys.

use super::config::COOKIES;
use super::error::KeyError;
use super::record::{
    AEAD_ALGORITHM, END_OF_MESSAGE, ERROR, NEW_COOKIE, NEXT_PROTOCOL, NTP_PORT, NTP_SERVER, Record,
    WARNING,
};

/// NTPv4's number among the protocols (RFC 8915 section 7.7).
pub const NTPV4: u16 = 0;
/// AEAD_AES_SIV_CMAC_256's number among the algorithms (RFC 5297; IANA's AEAD registry).
pub const AES_SIV_CMAC_256: u16 = 15;
/// The port for key establishment: TCP port 4460 (RFC 8915 section 7.1).
pub const DEFAULT_KE_PORT: u16 = 4460;
/// The port for NTP unless the server names another.
pub const DEFAULT_NTP_PORT: u16 = 123;

/// The longest answer that is read. Eight cookies of the longest kind that fits a request fill half
/// of it.
pub const MAX_ANSWER: usize = 16 * 1024;

/// The longest cookie that is kept: a request with such a cookie and no placeholder has 1152 bytes
/// and is not fragmented. Usual cookies have about 100 bytes.
pub const MAX_COOKIE: usize = 1024;

/// The checked content of the server's answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// One to eight.
    pub cookies: Vec<Vec<u8>>,
    /// The host that serves NTP, if it differs from the one that we asked for keys.
    pub ntp_server: Option<String>,
    /// Its UDP port, if it differs from [`DEFAULT_NTP_PORT`].
    pub ntp_port: Option<u16>,
}

/// Cookies are not shown: a reader could later recognize the client on the wire.
impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cookies, ntp_server, ntp_port } = self;
        write!(f, "Answer {{ {} cookies, {ntp_server:?}, {ntp_port:?} }}", cookies.len())
    }
}

/// Our message: NTPv4, one algorithm, end.
#[must_use]
pub fn request() -> Vec<u8> {
    let mut message = Vec::new();
    let records: [(u16, &[u8]); 3] = [
        (NEXT_PROTOCOL, &NTPV4.to_be_bytes()),
        (AEAD_ALGORITHM, &AES_SIV_CMAC_256.to_be_bytes()),
        (END_OF_MESSAGE, &[]),
    ];
    for (kind, body) in records {
        Record { critical: true, kind, body }.write(&mut message);
    }
    message
}

impl Answer {
    /// Reads the server's message from all bytes so far; returns `None` while it is incomplete.
    ///
    /// # Errors
    /// The server's own error, or the first unacceptable part of the message.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, KeyError> {
        let mut found = Found::default();
        let mut rest = bytes;
        while let Some((record, after)) = Record::split(rest) {
            if record.kind == END_OF_MESSAGE {
                if !record.body.is_empty() || !after.is_empty() {
                    return Err(KeyError::Malformed { what: "end of message" });
                }
                return found.finish().map(Some);
            }
            found.take(&record)?;
            rest = after;
        }
        if bytes.len() > MAX_ANSWER {
            return Err(KeyError::TooLong { limit: MAX_ANSWER });
        }
        Ok(None)
    }
}

/// The records so far.
#[derive(Default)]
struct Found {
    protocols: Option<Vec<u16>>,
    algorithms: Option<Vec<u16>>,
    server: Option<String>,
    port: Option<u16>,
    cookies: Vec<Vec<u8>>,
}

impl Found {
    fn take(&mut self, record: &Record<'_>) -> Result<(), KeyError> {
        match record.kind {
            NEXT_PROTOCOL => once(&mut self.protocols, record.numbers(), "next protocol"),
            AEAD_ALGORITHM => once(&mut self.algorithms, record.numbers(), "AEAD algorithm"),
            NTP_SERVER => once(&mut self.server, server_name(record.body), "NTP server"),
            NTP_PORT => once(&mut self.port, record.number().filter(|p| *p != 0), "NTP port"),
            ERROR => Err(match record.number() {
                Some(code) => KeyError::ServerError { code },
                None => KeyError::Malformed { what: "error" },
            }),
            WARNING => Err(match record.number() {
                Some(code) => KeyError::Warning { code },
                None => KeyError::Malformed { what: "warning" },
            }),
            NEW_COOKIE => {
                let usable = (1..=MAX_COOKIE).contains(&record.body.len());
                if usable && self.cookies.len() < COOKIES {
                    self.cookies.push(record.body.to_vec());
                }
                Ok(())
            }
            kind if record.critical => Err(KeyError::UnknownCritical { kind }),
            _ => Ok(()),
        }
    }

    fn finish(self) -> Result<Answer, KeyError> {
        let protocols = self.protocols.ok_or(KeyError::Malformed { what: "no next protocol" })?;
        match protocols[..] {
            [NTPV4] => {}
            [] => return Err(KeyError::NoNtp),
            _ => return Err(KeyError::Malformed { what: "a protocol that we did not offer" }),
        }
        match self.algorithms.unwrap_or_default()[..] {
            [AES_SIV_CMAC_256] => {}
            [] => return Err(KeyError::NoAlgorithm),
            _ => return Err(KeyError::Malformed { what: "an algorithm that we did not offer" }),
        }
        if self.cookies.is_empty() {
            return Err(KeyError::NoCookie);
        }
        Ok(Answer { cookies: self.cookies, ntp_server: self.server, ntp_port: self.port })
    }
}

/// Sets a value that only one record of this kind may set.
fn once<T>(place: &mut Option<T>, value: Option<T>, what: &'static str) -> Result<(), KeyError> {
    if place.is_some() || value.is_none() {
        return Err(KeyError::Malformed { what });
    }
    *place = value;
    Ok(())
}

/// Returns a host name or an address in ASCII, as the NTP server's record has it (RFC 8915 section
/// 4.1.7); `None` for anything else. 255 is DNS's limit.
#[must_use]
pub fn server_name(body: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(body).ok()?;
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:_".contains(&b));
    (plain && (1..=255).contains(&name.len())).then(|| name.to_owned())
}
