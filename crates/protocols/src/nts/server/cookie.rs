//! Cookies: a client's two keys, sealed with a key that only this server has (RFC 8915 section 6).
//!
//! | bytes | content |
//! | --- | --- |
//! | 2 | name of the key that seals the rest, [`CookieKey::id`] |
//! | 2 | the client's AEAD algorithm; always 15, AEAD_AES_SIV_CMAC_256 |
//! | 16 | nonce |
//! | 16 | tag, over all other bytes |
//! | 64 | encrypted: the key from client to server, then the one from server to client |
//!
//! All 100 bytes but the first four look random, so that an observer cannot tell which cookies
//! belong to one client. The first four are the same for every client.
//!
//! What it does not do: expire keys ([`super::keys`]) or generate nonces.

use zeroize::Zeroizing;

use super::keys::{CookieKey, CookieKeys};
use crate::nts::aead::{Cipher, KEY_LEN, TAG_LEN};
use crate::nts::field::NONCE_LEN;
use crate::nts::negotiation::AES_SIV_CMAC_256;

/// Bytes in a cookie. A multiple of four, as a field of NTP needs it.
pub const COOKIE_LEN: usize = HEAD_LEN + NONCE_LEN + TAG_LEN + 2 * KEY_LEN;

/// Name of the key, and algorithm.
const HEAD_LEN: usize = 4;
const _: () = assert!(COOKIE_LEN == 100);

/// A client's two keys. They are overwritten when dropped and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKeys(Zeroizing<[u8; 2 * KEY_LEN]>);

impl SessionKeys {
    /// The keys that TLS exported.
    #[must_use]
    pub fn new(client_to_server: &[u8; KEY_LEN], server_to_client: &[u8; KEY_LEN]) -> Self {
        let mut both = Zeroizing::new([0; 2 * KEY_LEN]);
        both[..KEY_LEN].copy_from_slice(client_to_server);
        both[KEY_LEN..].copy_from_slice(server_to_client);
        Self(both)
    }

    /// The cipher that opens the client's requests.
    #[must_use]
    pub fn client_to_server(&self) -> Cipher {
        self.cipher(0)
    }

    /// The cipher that seals answers.
    #[must_use]
    pub fn server_to_client(&self) -> Cipher {
        self.cipher(1)
    }

    fn cipher(&self, index: usize) -> Cipher {
        let (keys, _) = self.0.as_chunks();
        Cipher::new(&keys[index])
    }
}

/// Shows nothing of the keys.
impl std::fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionKeys(..)")
    }
}

/// [`CookieKeys`] ready for use.
#[derive(Debug)]
pub struct CookieCiphers(Vec<(u16, Cipher)>);

impl CookieCiphers {
    /// Expands the keys.
    #[must_use]
    pub fn new(keys: &CookieKeys) -> Self {
        let ready = |key: &CookieKey| (key.id, Cipher::new(&key.key));
        Self(keys.iter().map(ready).collect())
    }

    /// Makes a cookie with the newest key. Nonces must be unpredictable, because a client's cookies
    /// could be told by theirs. `None` never happens: there is always a key.
    #[must_use]
    pub fn make(
        &mut self,
        session: &SessionKeys,
        nonce: &[u8; NONCE_LEN],
    ) -> Option<[u8; COOKIE_LEN]> {
        let (id, cipher) = self.0.first_mut()?;
        let mut cookie = [0; COOKIE_LEN];
        let (head, rest) = cookie.split_at_mut(HEAD_LEN);
        head[..2].copy_from_slice(&id.to_be_bytes());
        head[2..].copy_from_slice(&AES_SIV_CMAC_256.to_be_bytes());
        let (nonce_place, rest) = rest.split_at_mut(NONCE_LEN);
        let (tag, text) = rest.split_at_mut(TAG_LEN);
        nonce_place.copy_from_slice(nonce);
        text.copy_from_slice(&session.0[..]);
        tag.copy_from_slice(&cipher.seal_in_place(nonce, head, text)?);
        Some(cookie)
    }

    /// Reads a cookie; `None` if it is not ours, was altered, or its key is forgotten.
    #[must_use]
    pub fn open(&mut self, cookie: &[u8]) -> Option<SessionKeys> {
        let cookie: &[u8; COOKIE_LEN] = cookie.try_into().ok()?;
        let (head, rest) = cookie.split_first_chunk::<HEAD_LEN>()?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_LEN>()?;
        let (tag, text) = rest.split_first_chunk::<TAG_LEN>()?;
        let [id_hi, id_lo, algorithm_hi, algorithm_lo] = *head;
        if u16::from_be_bytes([algorithm_hi, algorithm_lo]) != AES_SIV_CMAC_256 {
            return None;
        }
        let id = u16::from_be_bytes([id_hi, id_lo]);
        let (_, cipher) = self.0.iter_mut().find(|(known, _)| *known == id)?;
        let mut session = SessionKeys(Zeroizing::new(*text.first_chunk()?));
        cipher.open_in_place(nonce, head, tag, &mut session.0[..]).then_some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::Rotation;
    use super::*;
    use timevisor_time::Duration;

    fn keys() -> CookieKeys {
        let key = Zeroizing::new([3; KEY_LEN]);
        CookieKeys::new(Rotation::default(), Duration::ZERO, 0x0102, key)
    }

    fn session() -> SessionKeys {
        SessionKeys::new(&[1; KEY_LEN], &[2; KEY_LEN])
    }

    /// The bytes of a cookie. A change of them makes every cookie out there unreadable.
    #[test]
    fn golden_bytes() {
        let cookie = CookieCiphers::new(&keys()).make(&session(), &[9; 16]).unwrap();
        assert_eq!(cookie[..20], [&[1, 2, 0, 15][..], &[9; 16]].concat());
        let sealed = crate::nts::aead::Key::new(Zeroizing::new([3; KEY_LEN]))
            .seal(&[9; 16], &[1, 2, 0, 15], &[[1; 32], [2; 32]].concat())
            .unwrap();
        assert_eq!(cookie[20..], sealed);
    }

    #[test]
    fn every_bit_of_a_cookie_counts() {
        let mut ciphers = CookieCiphers::new(&keys());
        let cookie = ciphers.make(&session(), &[9; 16]).unwrap();
        assert_eq!(ciphers.open(&cookie), Some(session()));
        for bit in 0..8 * COOKIE_LEN {
            let mut damaged = cookie;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ciphers.open(&damaged), None, "bit {bit}");
        }
        assert_eq!(ciphers.open(&cookie[1..]), None);
        assert_eq!(ciphers.open(&[&cookie[..], &[0; 4]].concat()), None);
        assert_eq!(ciphers.open(&[]), None);
    }

    #[test]
    fn a_cookie_lives_as_long_as_its_key() {
        let mut keys = keys();
        let cookie = CookieCiphers::new(&keys).make(&session(), &[9; 16]).unwrap();
        for day in 1..8 {
            keys.rotate(Duration::from_secs(day * 86_400), Zeroizing::new([9; KEY_LEN]));
            let mut ciphers = CookieCiphers::new(&keys);
            assert_eq!(ciphers.open(&cookie), Some(session()), "day {day}");
            let fresh = ciphers.make(&session(), &[9; 16]).unwrap();
            assert_ne!(fresh[..4], cookie[..4], "the newest key seals");
        }
        keys.rotate(Duration::from_secs(8 * 86_400), Zeroizing::new([9; KEY_LEN]));
        assert_eq!(CookieCiphers::new(&keys).open(&cookie), None);
    }

    #[test]
    fn keys_are_not_shown() {
        let text = format!("{:?} {:?}", session(), CookieCiphers::new(&keys()));
        assert_eq!(text, "SessionKeys(..) CookieCiphers([(258, Cipher(..))])");
    }
}
