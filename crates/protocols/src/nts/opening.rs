//! Opening one answer: parses its fields, authenticates it, decrypts its cookies.
//!
//! It needs the key and the identifier of the request in flight and no other state, so a daemon can
//! open answers in a thread without rights and give the result to [`super::association`].
//!
//! What it does not do: count, store cookies, or judge the header.

use super::aead::Key;
use super::association::IDENTIFIER_LEN;
use super::field::{
    AUTHENTICATOR, Authenticator, COOKIE, UNIQUE_IDENTIFIER, split, split_all, write,
};
use super::status::Refusal;
use crate::ntp::extension::ExtensionField;
use crate::ntp::packet::{HEADER_LEN, Mode, Packet};
use crate::ntp::precise;

/// The kiss code of a server that cannot read our cookie (RFC 8915 section 5.7).
const NAK: [u8; 4] = *b"NTSN";

/// What it takes to open an answer: the server's key and the identifier of the request in flight, if
/// there is one.
#[derive(Clone, Debug)]
pub struct Opening(Option<(Key, [u8; IDENTIFIER_LEN])>);

/// An authentic answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Opened {
    /// The header, and our own field if it has one.
    pub plain: Vec<u8>,
    /// New cookies.
    pub(super) cookies: Vec<Vec<u8>>,
}

/// Shows the number of cookies only.
impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opened({:?}, {} cookies)", self.plain, self.cookies.len())
    }
}

impl Opening {
    pub(super) const fn new(of: Option<(Key, [u8; IDENTIFIER_LEN])>) -> Self {
        Self(of)
    }

    /// Returns the plain form and the new cookies of an authentic answer.
    ///
    /// # Errors
    /// Why the datagram is not such an answer.
    pub fn open(&self, datagram: &[u8]) -> Result<Opened, Refusal> {
        let (header, _) = datagram.split_first_chunk().ok_or(Refusal::Malformed)?;
        let Some((key, identifier)) = &self.0 else { return Err(Refusal::NotAwaited) };
        let fields = Fields::parse(datagram)?;
        match fields.identifier {
            None => return Err(Refusal::Unauthenticated),
            Some(found) if found != identifier => return Err(Refusal::UnknownIdentifier),
            Some(_) => {}
        }
        let Some((associated, authenticator)) = fields.authenticator else {
            return Err(if is_nak(header) { Refusal::Nak } else { Refusal::Unauthenticated });
        };
        let plain = key
            .open(authenticator.nonce, associated, authenticator.sealed)
            .ok_or(Refusal::Forged)?;
        let inner = split_all(&plain).ok_or(Refusal::Malformed)?;
        let cookies = inner.iter().filter(|f| f.kind == COOKIE).map(|f| f.body.to_vec()).collect();
        let mut plain_answer = header.to_vec();
        for field in fields.precise.iter().chain(&inner).filter(|f| is_ours(f)) {
            write(&mut plain_answer, field.kind, field.body);
        }
        Ok(Opened { plain: plain_answer, cookies })
    }
}

/// The fields of NTS in a datagram, unverified.
struct Fields<'a> {
    identifier: Option<&'a [u8]>,
    /// Fields of [`precise::KIND`]. The authenticator covers them if there is one, because it comes
    /// last.
    precise: Vec<ExtensionField<'a>>,
    /// Everything that the authenticator covers, and the authenticator.
    authenticator: Option<(&'a [u8], Authenticator<'a>)>,
}

impl<'a> Fields<'a> {
    /// Parses the fields. The authenticator must come last, because nothing would protect what
    /// follows it. Unknown fields are skipped (RFC 7822); a second identifier is an error.
    fn parse(datagram: &'a [u8]) -> Result<Self, Refusal> {
        let mut found = Self { identifier: None, precise: Vec::new(), authenticator: None };
        let mut rest = &datagram[HEADER_LEN..];
        while !rest.is_empty() {
            let covered = datagram.len() - rest.len();
            let (ExtensionField { kind, body }, after) = split(rest).ok_or(Refusal::Malformed)?;
            match kind {
                UNIQUE_IDENTIFIER => {
                    let twice = found.identifier.replace(body).is_some();
                    if twice {
                        return Err(Refusal::Malformed);
                    }
                }
                AUTHENTICATOR => {
                    let authenticator = Authenticator::parse(body).ok_or(Refusal::Malformed)?;
                    if !after.is_empty() {
                        return Err(Refusal::Malformed);
                    }
                    found.authenticator = Some((&datagram[..covered], authenticator));
                }
                precise::KIND => found.precise.push(ExtensionField { kind, body }),
                _ => {}
            }
            rest = after;
        }
        Ok(found)
    }
}

/// Returns true for a field that the NTP client can read. Another field of the same type might be
/// too short to end a packet without a MAC.
fn is_ours(field: &ExtensionField<'_>) -> bool {
    precise::Reply::parse(field).is_some()
}

/// Returns true for a server's NTS NAK as the RFC defines it.
fn is_nak(header: &[u8; HEADER_LEN]) -> bool {
    Packet::parse(header).is_ok_and(|(packet, _)| {
        packet.mode == Mode::Server && packet.stratum == 0 && packet.reference_id == NAK
    })
}
