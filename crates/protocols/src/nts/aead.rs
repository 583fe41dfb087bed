//! AEAD_AES_SIV_CMAC_256 as NTS uses it (RFC 5297; RFC 8915 section 5.1).
//!
//! What it does not do: choose nonces. The caller generates them; SIV tolerates a repeated nonce
//! better than other modes.

use aes::Aes128Enc;
use aes_siv::KeyInit;
use aes_siv::siv::CmacSiv;
use zeroize::Zeroizing;

/// SIV needs AES in one direction only; preparing keys for both takes twice the time.
type Aes128Siv = CmacSiv<Aes128Enc>;

/// Length of a key in bytes.
pub const KEY_LEN: usize = 32;
/// Bytes that sealing adds in front: the synthetic initialization vector, which is also the tag.
pub const TAG_LEN: usize = 16;

/// The key of one direction. It is overwritten when dropped and never shown.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; KEY_LEN]>);

impl Key {
    /// Makes a key from the bytes that TLS exported.
    #[must_use]
    pub const fn new(bytes: Zeroizing<[u8; KEY_LEN]>) -> Self {
        Self(bytes)
    }

    /// Returns the tag and ciphertext of `plaintext`, bound to `associated` and `nonce`. The
    /// library refuses (`None`) only more than 126 associated strings.
    #[must_use]
    pub fn seal(&self, nonce: &[u8], associated: &[u8], plaintext: &[u8]) -> Option<Vec<u8>> {
        self.cipher().encrypt([associated, nonce], plaintext).ok()
    }

    /// Returns the plaintext of `sealed` (tag and ciphertext), or `None` if any bit of the three
    /// has changed.
    #[must_use]
    pub fn open(&self, nonce: &[u8], associated: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        self.cipher().decrypt([associated, nonce], sealed).ok()
    }

    fn cipher(&self) -> Aes128Siv {
        Aes128Siv::new(&(*self.0).into())
    }
}

/// A key that is ready for use, for a server that must not allocate for each packet: it works in
/// place, and a key that serves many packets is expanded once.
pub struct Cipher(Aes128Siv);

impl Cipher {
    /// Expands a key.
    #[must_use]
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        Self(Aes128Siv::new(&(*key).into()))
    }

    /// Encrypts `text` in place, bound to `associated` and `nonce`, and returns the tag. `None` as
    /// in [`Key::seal`].
    #[must_use]
    pub fn seal_in_place(
        &mut self,
        nonce: &[u8],
        associated: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG_LEN]> {
        let tag = self.0.encrypt_inout_detached([associated, nonce], text.into()).ok()?;
        Some(tag.into())
    }

    /// Decrypts `text` in place; false if any bit of the four has changed, and then `text` holds
    /// nothing of use.
    #[must_use]
    pub fn open_in_place(
        &mut self,
        nonce: &[u8],
        associated: &[u8],
        tag: &[u8; TAG_LEN],
        text: &mut [u8],
    ) -> bool {
        let tag = (*tag).into();
        self.0.decrypt_inout_detached([associated, nonce], text.into(), &tag).is_ok()
    }
}

/// Shows nothing of the key.
impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cipher(..)")
    }
}

/// Shows nothing of the key.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let pair = |i| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(pair).collect()
    }

    fn key(text: &str) -> Key {
        Key::new(Zeroizing::new(hex(text).try_into().unwrap()))
    }

    /// RFC 5297 appendix A.1 has no nonce, so this tests the cipher below the form with two
    /// headers.
    #[test]
    fn rfc_5297_deterministic() {
        let key = key("fffefdfcfbfaf9f8f7f6f5f4f3f2f1f0f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
        let associated = hex("101112131415161718191a1b1c1d1e1f2021222324252627");
        let plain = hex("112233445566778899aabbccddee");
        let sealed = hex("85632d07c6e8f37f950acd320a2ecc9340c02b9690c4dc04daef7f6afe5c");
        assert_eq!(key.cipher().encrypt([&associated], &plain).unwrap(), sealed);
        assert_eq!(key.cipher().decrypt([&associated], &sealed).unwrap(), plain);
    }

    /// RFC 5297 appendix A.2 has two associated strings and then the nonce.
    #[test]
    fn rfc_5297_with_a_nonce() {
        let key = key("7f7e7d7c7b7a79787776757473727170404142434445464748494a4b4c4d4e4f");
        let first =
            hex("00112233445566778899aabbccddeeffdeaddadadeaddadaffeeddccbbaa99887766554433221100");
        let second = hex("102030405060708090a0");
        let nonce = hex("09f911029d74e35bd84156c5635688c0");
        let plain = b"this is some plaintext to encrypt using SIV-AES";
        let sealed = hex(
            "7bdb6e3b432667eb06f4d14bff2fbd0fcb900f2fddbe404326601965c889bf17dba77ceb094fa663b7a3f748ba8af829ea64ad544a272e9c485b62a3fd5c0d",
        );
        let headers = [&first[..], &second, &nonce];
        assert_eq!(key.cipher().encrypt(headers, plain).unwrap(), sealed);
    }

    #[test]
    fn every_input_is_bound() {
        let key = key("fffefdfcfbfaf9f8f7f6f5f4f3f2f1f0f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
        let sealed = key.seal(b"nonce", b"associated", b"").unwrap();
        assert_eq!(sealed.len(), TAG_LEN);
        assert_eq!(key.open(b"nonce", b"associated", &sealed), Some(vec![]));
        assert_eq!(key.open(b"nonc", b"associated", &sealed), None);
        assert_eq!(key.open(b"nonce", b"associate", &sealed), None);
        assert_eq!(key.open(b"associated", b"nonce", &sealed), None, "the order counts");
        assert_eq!(key.open(b"nonce", b"associated", &sealed[1..]), None);
        assert_eq!(key.open(b"nonce", b"associated", &[]), None);
    }

    #[test]
    fn in_place_is_the_same() {
        let bytes = [7; KEY_LEN];
        let (key, mut cipher) = (Key::new(Zeroizing::new(bytes)), Cipher::new(&bytes));
        for text in [&b""[..], b"short", b"a text that is longer than one block of AES"] {
            let sealed = key.seal(b"nonce", b"associated", text).unwrap();
            let mut buffer = text.to_vec();
            let tag = cipher.seal_in_place(b"nonce", b"associated", &mut buffer).unwrap();
            assert_eq!([&tag[..], &buffer].concat(), sealed);
            assert!(!cipher.open_in_place(b"other", b"associated", &tag, &mut buffer.clone()));
            assert!(cipher.open_in_place(b"nonce", b"associated", &tag, &mut buffer));
            assert_eq!(buffer, text);
        }
        assert_eq!(format!("{cipher:?}"), "Cipher(..)");
    }

    #[test]
    fn keys_are_not_shown() {
        let text = format!("{:?}", key(&"5a".repeat(32)));
        assert_eq!(text, "Key(..)");
    }
}
