//! The extension fields of NTS in an NTP packet (RFC 8915 section 5, in the format of RFC 7822).
//!
//! Stricter than [`crate::ntp::extension`]: NTS packets carry no MAC, so every byte behind the
//! header belongs to a field.
//!
//! What it does not do: keys and state. [`super::association`] has both.

use super::aead::Key;
use crate::ntp::extension::ExtensionField;

/// RFC 8915 section 5.3.
pub const UNIQUE_IDENTIFIER: u16 = 0x0104;
/// RFC 8915 section 5.4.
pub const COOKIE: u16 = 0x0204;
/// RFC 8915 section 5.5.
pub const COOKIE_PLACEHOLDER: u16 = 0x0304;
/// RFC 8915 section 5.6.
pub const AUTHENTICATOR: u16 = 0x0404;

/// Type and length.
const HEADER_LEN: usize = 4;
/// RFC 7822 section 7.5.1.1: the shortest field.
const MIN_LEN: usize = 16;
/// Bytes in the nonce that we send: as long as RFC 8915 section 5.6 lets any algorithm ask for
/// without padding.
pub const NONCE_LEN: usize = 16;

/// Splits one field off the front; `None` when its length is impossible.
#[must_use]
pub fn split(bytes: &[u8]) -> Option<(ExtensionField<'_>, &[u8])> {
    let [kind_hi, kind_lo, len_hi, len_lo] = *bytes.first_chunk()?;
    let len = usize::from(u16::from_be_bytes([len_hi, len_lo]));
    if len < MIN_LEN || !len.is_multiple_of(4) {
        return None;
    }
    let (field, rest) = bytes.split_at_checked(len)?;
    let kind = u16::from_be_bytes([kind_hi, kind_lo]);
    Some((ExtensionField { kind, body: &field[HEADER_LEN..] }, rest))
}

/// All fields of `bytes`, which hold nothing else; `None` otherwise.
#[must_use]
pub fn split_all(mut bytes: &[u8]) -> Option<Vec<ExtensionField<'_>>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (field, rest) = split(bytes)?;
        fields.push(field);
        bytes = rest;
    }
    Some(fields)
}

/// How many bytes a field with a body of this length takes.
#[must_use]
pub const fn len_with(body: usize) -> usize {
    let len = HEADER_LEN + body.next_multiple_of(4);
    if len < MIN_LEN { MIN_LEN } else { len }
}

/// Appends a field to a packet, filled up with zeros. Bodies here are far below the 65,531 bytes
/// that fit.
pub fn write(packet: &mut Vec<u8>, kind: u16, body: &[u8]) {
    let len = len_with(body.len());
    packet.extend(kind.to_be_bytes());
    packet.extend(u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
    packet.extend(body);
    packet.resize(packet.len() + len - HEADER_LEN - body.len(), 0);
}

/// Appends the authenticator over all that is in `packet` so far. `None` is the cipher's refusal;
/// see [`Key::seal`].
#[must_use]
pub fn write_authenticator(
    packet: &mut Vec<u8>,
    key: &Key,
    nonce: &[u8; NONCE_LEN],
    plaintext: &[u8],
) -> Option<()> {
    let sealed = key.seal(nonce, packet, plaintext)?;
    let mut body = Vec::with_capacity(HEADER_LEN + NONCE_LEN + sealed.len());
    for part in [&nonce[..], &sealed] {
        body.extend(u16::try_from(part.len()).ok()?.to_be_bytes());
    }
    body.extend(nonce);
    body.extend(sealed);
    write(packet, AUTHENTICATOR, &body);
    Some(())
}

/// What an authenticator's body holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Authenticator<'a> {
    /// As the sender chose it.
    pub nonce: &'a [u8],
    /// Tag and ciphertext.
    pub sealed: &'a [u8],
}

impl<'a> Authenticator<'a> {
    /// Splits the body; `None` when its lengths are impossible or its padding, which nothing
    /// protects, is not zero.
    #[must_use]
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let ([nonce_hi, nonce_lo, sealed_hi, sealed_lo], rest) = body.split_first_chunk()?;
        let (nonce, rest) = split_padded(rest, u16::from_be_bytes([*nonce_hi, *nonce_lo]))?;
        let (sealed, rest) = split_padded(rest, u16::from_be_bytes([*sealed_hi, *sealed_lo]))?;
        (!nonce.is_empty() && all_zero(rest)).then_some(Self { nonce, sealed })
    }
}

/// `len` bytes, and what follows their padding to a multiple of four.
fn split_padded(bytes: &[u8], len: u16) -> Option<(&[u8], &[u8])> {
    let len = usize::from(len);
    let (padded, rest) = bytes.split_at_checked(len.next_multiple_of(4))?;
    let (value, padding) = padded.split_at(len);
    all_zero(padding).then_some((value, rest))
}

fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bad_lengths_are_refused() {
        let field = |len: u8, bytes: usize| [vec![1, 4, 0, len], vec![0; bytes - 4]].concat();
        assert!(split(&field(16, 16)).is_some());
        for (len, bytes) in [(0, 16), (12, 16), (18, 20), (20, 16)] {
            assert_eq!(split(&field(len, bytes)), None, "{len} of {bytes}");
        }
        assert_eq!(split_all(&field(16, 20)), None, "bytes behind the last field");
    }

    #[test]
    fn padding_must_be_zero() {
        // A nonce of 1, a tag of 2, and four more bytes.
        let body = [0, 1, 0, 2, 7, 0, 0, 0, 8, 9, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            Authenticator::parse(&body),
            Some(Authenticator { nonce: &[7], sealed: &[8, 9] })
        );
        for at in [5, 6, 7, 10, 11, 12, 15] {
            let mut damaged = body;
            damaged[at] = 1;
            assert_eq!(Authenticator::parse(&damaged), None, "byte {at}");
        }
        assert_eq!(Authenticator::parse(&[0, 0, 0, 4, 1, 2, 3, 4]), None, "no nonce");
        assert_eq!(Authenticator::parse(&body[..10]), None);
    }

    proptest! {
        #[test]
        fn fields_round_trip(bodies in prop::collection::vec((any::<u16>(), prop::collection::vec(any::<u8>(), 0..70)), 0..6)) {
            let mut bytes = Vec::new();
            for (kind, body) in &bodies {
                let before = bytes.len();
                write(&mut bytes, *kind, body);
                prop_assert_eq!(bytes.len() - before, len_with(body.len()));
            }
            let fields = split_all(&bytes).unwrap();
            prop_assert_eq!(fields.len(), bodies.len());
            for (field, (kind, body)) in fields.iter().zip(&bodies) {
                prop_assert_eq!(field.kind, *kind);
                prop_assert!(field.body.starts_with(body) && field.body[body.len()..].iter().all(|b| *b == 0));
            }
        }

        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(fields) = split_all(&bytes) {
                let len: usize = fields.iter().map(|f| f.body.len() + HEADER_LEN).sum();
                prop_assert_eq!(len, bytes.len());
            }
            let _ = Authenticator::parse(&bytes);
        }
    }
}
