//! NTS without key establishment, for hosts that have a secret in common: each makes its cookies
//! itself.
//!
//! A cookie is a client's two keys, sealed with a key that the server has (RFC 8915 section 6). Who has
//! that key needs nobody to get cookies from. So the hosts of a cluster authenticate questions and
//! answers with the packets of NTS, without certificates, TLS or anything that a server would have to
//! remember.
//!
//! Each timeline has a cookie key of its own, derived from the secret and its name: who is a member of
//! one is none of another with the same secret.
//!
//! What it does not do: tell hosts apart (who has the secret is a member, and may answer for any of
//! them), generate random numbers, or read files.

use timevisor_time::Duration;
use zeroize::{Zeroize as _, Zeroizing};

use super::aead::{Cipher, KEY_LEN, Key, TAG_LEN};
use super::association::IDENTIFIER_LEN;
use super::field::{COOKIE, NONCE_LEN, UNIQUE_IDENTIFIER, write, write_authenticator};
use super::opening::Opening;
use super::server::{CookieCiphers, CookieKeys, Rotation, SessionKeys};
use crate::ntp::precise::Name;

/// The longest file that holds a secret.
pub const MOST_BYTES: u64 = 4096;

/// What the derivation of keys is for.
const PURPOSE: &[u8] = b"timevisor cluster key 1";

/// Separates keys for proofs from those for cookies.
const PROOF: &[u8] = b"timevisor proof of a key";

/// Separates keys for messages from both.
const MESSAGES: &[u8] = b"timevisor key for messages";

/// Why a text is no secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SecretError {
    /// Other characters, or another number of them.
    #[error(
        "it must hold 64 hexadecimal digits and nothing else; make one with `timevisor cluster key`"
    )]
    Malformed,
    /// Somebody has written down a pattern.
    #[error("all its bytes are the same; make one with `timevisor cluster key`")]
    Pattern,
}

/// What the hosts of a cluster have in common. It is overwritten when dropped and never shown.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; KEY_LEN]>);

impl Secret {
    /// From random bytes.
    #[must_use]
    pub const fn new(bytes: Zeroizing<[u8; KEY_LEN]>) -> Self {
        Self(bytes)
    }

    /// Reads the text of a file: 64 hexadecimal digits, and space around them.
    ///
    /// # Errors
    /// It is something else.
    pub fn parse(text: &[u8]) -> Result<Self, SecretError> {
        let (pairs, rest) = text.trim_ascii().as_chunks::<2>();
        if pairs.len() != KEY_LEN || !rest.is_empty() {
            return Err(SecretError::Malformed);
        }
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(SecretError::Malformed);
            *byte = u8::try_from(digit(*high)? << 4 | digit(*low)?).unwrap_or(0);
        }
        if bytes.iter().all(|byte| *byte == bytes[0]) {
            return Err(SecretError::Pattern);
        }
        Ok(Self(bytes))
    }

    /// The text that [`Self::parse`] reads, with a line end.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(2 * KEY_LEN + 1));
        for byte in self.0.iter() {
            for half in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(half), 16).unwrap_or('0'));
            }
        }
        text.push('\n');
        text
    }

    /// Proves that this secret is known, without telling it: what AES-SIV makes of a challenge and what it
    /// is about. `purpose` separates uses of one secret.
    #[must_use]
    pub fn proof(&self, purpose: &[u8], about: &[u8], challenge: &[u8; 16]) -> [u8; TAG_LEN] {
        let key = self.derived(PROOF, purpose);
        let tag = Cipher::new(&key).seal_in_place(challenge, about, &mut []);
        // The cipher refuses only more than 126 associated strings; there are two.
        tag.unwrap_or_default()
    }

    /// A key for messages of one purpose. It says nothing of the secret, nor of keys for other purposes.
    #[must_use]
    pub fn message_key(&self, purpose: &[u8]) -> Key {
        Key::new(self.derived(MESSAGES, purpose))
    }

    /// What AES-SIV makes of zeros; a tag would depend on the first half of the secret only.
    fn derived(&self, kind: &[u8], purpose: &[u8]) -> Zeroizing<[u8; KEY_LEN]> {
        let mut key = Zeroizing::new([0; KEY_LEN]);
        let sealed = Cipher::new(&self.0).seal_in_place(purpose, kind, &mut key[..]);
        // If the cipher ever refused, the key would be the secret nevertheless.
        if sealed.is_none() { self.0.clone() } else { key }
    }

    /// The key of this timeline's cookies.
    ///
    /// AES-SIV is a pseudorandom function of all its inputs (RFC 5297 section 6), so what it makes of
    /// zeros is a key that says nothing of the secret, nor of other clusters' keys.
    #[must_use]
    pub fn cookie_keys(&self, timeline: Name) -> CookieKeys {
        let mut key = Zeroizing::new([0; KEY_LEN]);
        let tag = Cipher::new(&self.0).seal_in_place(timeline.as_bytes(), PURPOSE, &mut key[..]);
        // The cipher refuses only more than 126 associated strings; there are two. If it ever did, the
        // key would be a secret one nevertheless.
        let Some([high, low, ..]) = tag else {
            return CookieKeys::new(Rotation::default(), Duration::ZERO, 0, self.0.clone());
        };
        CookieKeys::new(Rotation::default(), Duration::ZERO, u16::from_be_bytes([high, low]), key)
    }
}

/// Shows nothing of the secret.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Randomness for one question; nobody else may know it before the question is sent, and none is used
/// twice.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// The identifier that the answer must repeat.
    pub identifier: [u8; IDENTIFIER_LEN],
    /// The nonce of the question.
    pub nonce: [u8; NONCE_LEN],
    /// The nonce of its cookie.
    pub cookie: [u8; NONCE_LEN],
}

/// A host's part: seals its questions, so that every host with the same secret can authenticate them.
#[derive(Clone)]
pub struct Sealer {
    keys: CookieKeys,
    session: SessionKeys,
    client_to_server: Key,
    server_to_client: Key,
}

impl Sealer {
    /// For the timeline of these cookie keys, with two random keys of this host's own.
    #[must_use]
    pub fn new(keys: CookieKeys, session: &Zeroizing<[[u8; KEY_LEN]; 2]>) -> Self {
        let [to_server, to_client] = **session;
        Self {
            keys,
            session: SessionKeys::new(&to_server, &to_client),
            client_to_server: Key::new(Zeroizing::new(to_server)),
            server_to_client: Key::new(Zeroizing::new(to_client)),
        }
    }

    /// The datagram of a plain question (a header and whole extension fields), and what opens the
    /// answer to it. `None` never happens: it is the cipher's refusal of too many inputs.
    #[must_use]
    pub fn seal(&self, plain: &[u8], random: &Random) -> Option<(Vec<u8>, Opening)> {
        let cookie = CookieCiphers::new(&self.keys).make(&self.session, &random.cookie)?;
        let mut packet = plain.to_vec();
        write(&mut packet, UNIQUE_IDENTIFIER, &random.identifier);
        write(&mut packet, COOKIE, &cookie);
        write_authenticator(&mut packet, &self.client_to_server, &random.nonce, &[])?;
        let opening = Opening::new(Some((self.server_to_client.clone(), random.identifier)));
        Some((packet, opening))
    }
}

/// Shows nothing of the keys.
impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer(..)")
    }
}

/// Random bytes for a [`Sealer`]'s own keys.
///
/// `fill` makes bytes random, and returns false if it cannot; then there are no keys.
#[must_use]
pub fn session(fill: impl FnOnce(&mut [u8]) -> bool) -> Option<Zeroizing<[[u8; KEY_LEN]; 2]>> {
    let mut keys = Zeroizing::new([[0; KEY_LEN]; 2]);
    let filled = fill(keys.as_flattened_mut());
    if !filled {
        keys.zeroize();
    }
    filled.then_some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        let mut bytes = [byte; KEY_LEN];
        bytes[0] = 1;
        Secret::new(Zeroizing::new(bytes))
    }

    #[test]
    fn a_secret_is_read_as_it_was_written() {
        let text = secret(0xa7).text();
        assert_eq!(text.len(), 65);
        let read = Secret::parse(text.as_bytes()).unwrap();
        assert_eq!(*read.text(), *text);
        let upper = format!("\n {} ", text.trim().to_uppercase());
        assert_eq!(*Secret::parse(upper.as_bytes()).unwrap().text(), *text);
        let wrong = ["", "12", &text[1..], &format!("{}00", text.trim()), &"xy".repeat(32)];
        for text in wrong {
            assert_eq!(
                Secret::parse(text.as_bytes()).err(),
                Some(SecretError::Malformed),
                "{text}"
            );
        }
        assert_eq!(Secret::parse("07".repeat(32).as_bytes()).err(), Some(SecretError::Pattern));
        assert_eq!(format!("{read:?}"), "Secret(..)");
    }

    #[test]
    fn each_timeline_has_keys_of_its_own() {
        let name = |name| Name::new(name).unwrap();
        let keys = |secret: &Secret, timeline| secret.cookie_keys(name(timeline));
        let first = keys(&secret(7), "lab");
        assert_eq!(first, keys(&secret(7), "lab"), "the same on every host");
        assert_ne!(first, keys(&secret(7), "other"));
        assert_ne!(first, keys(&secret(8), "lab"));
        let derived = first.iter().next().unwrap().key.clone();
        assert_ne!(*derived, *secret(7).0);
    }

    /// A change of the derivation divides a cluster that is updated host by host.
    #[test]
    fn golden_bytes() {
        let keys = secret(7).cookie_keys(Name::new("lab").unwrap());
        let key = keys.iter().next().unwrap();
        assert_eq!((key.id, &key.key[..4]), (GOLDEN_ID, &GOLDEN_KEY[..]));
    }

    const GOLDEN_ID: u16 = 4839;
    const GOLDEN_KEY: [u8; 4] = [242, 169, 44, 16];

    #[test]
    fn proofs_and_message_keys_depend_on_every_bit_of_the_secret_and_on_their_purpose() {
        let challenge = [3; 16];
        let both = |secret: &Secret, purpose: &[u8]| {
            let sealed = secret.message_key(purpose).seal(b"n", b"a", b"text").unwrap();
            (secret.proof(purpose, b"me", &challenge), sealed)
        };
        let bytes: [u8; KEY_LEN] = std::array::from_fn(|index| u8::try_from(index).unwrap());
        let secret = Secret::new(Zeroizing::new(bytes));
        let own = both(&secret, b"p");
        assert_eq!(own, both(&secret, b"p"));
        let other = both(&secret, b"q");
        assert!(own.0 != other.0 && own.1 != other.1);
        for bit in 0..KEY_LEN * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let other = both(&Secret::new(Zeroizing::new(bytes)), b"p");
            assert!(own.0 != other.0 && own.1 != other.1, "bit {bit}");
        }
    }
}
