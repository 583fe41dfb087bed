//! Requests with NTS are opened, and answers are sealed (RFC 8915 sections 5.2 to 5.7).
//!
//! | a request | gets |
//! | --- | --- |
//! | whose cookie and authenticator are good | an answer that its client can authenticate, with a new cookie in place of the one that it has used up, and one for each placeholder |
//! | whose cookie was made with a secret that it shares with us ([`crate::nts::shared`]) | the same without cookies: it makes them itself |
//! | whose cookie cannot be read, or whose authenticator is wrong | an NTS NAK: a kiss of death, not authenticated, after which the client establishes new keys |
//! | without one identifier of 32 bytes or more, one cookie and one authenticator, or with anything behind the authenticator | nothing |
//!
//! The authenticator of an answer covers its header and everything in front of it, so also our own
//! field ([`crate::ntp::precise`]), which stands where it stands in the request. No answer is longer
//! than its request: there are as many new cookies as there is room for.
//!
//! The path of a packet makes no allocation: bytes are moved between buffers that live as long as
//! the server.
//!
//! What it does not do: know NTP's header, or anything about a client beyond its request.

use zeroize::Zeroize as _;

use super::cookie::{COOKIE_LEN, CookieCiphers, SessionKeys};
use super::keys::CookieKeys;
use crate::ntp::extension::ExtensionField;
use crate::ntp::packet::HEADER_LEN;
use crate::ntp::precise::Name;
use crate::nts::aead::TAG_LEN;
use crate::nts::config::COOKIES;
use crate::nts::field::{
    AUTHENTICATOR, Authenticator, COOKIE, COOKIE_PLACEHOLDER, NONCE_LEN, UNIQUE_IDENTIFIER,
    len_with, split, write,
};

/// RFC 8915 section 5.3: a shorter identifier could be guessed.
const MIN_IDENTIFIER: usize = 32;
/// An authenticator's lengths and nonce, and the tag without ciphertext.
const AUTHENTICATOR_LEN: usize = len_with(4 + NONCE_LEN + TAG_LEN);
/// Nonces that are generated at a time: one system call for a hundred packets.
const POOL: usize = 256;

/// The fields of NTS in a request, unverified.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Length of the datagram.
    len: usize,
    identifier: &'a [u8],
    cookie: &'a [u8],
    placeholders: usize,
    /// Everything that the authenticator covers.
    associated: &'a [u8],
    authenticator: Authenticator<'a>,
}

impl<'a> Request<'a> {
    /// Finds the fields; `None` if they are not what the RFC asks of a request.
    #[must_use]
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (mut identifier, mut cookie, mut placeholders) = (None, None, 0);
        let mut rest = datagram.get(HEADER_LEN..)?;
        loop {
            let covered = datagram.len() - rest.len();
            let (ExtensionField { kind, body }, after) = split(rest)?;
            match kind {
                UNIQUE_IDENTIFIER if identifier.is_none() && body.len() >= MIN_IDENTIFIER => {
                    identifier = Some(body);
                }
                COOKIE if cookie.is_none() => cookie = Some(body),
                UNIQUE_IDENTIFIER | COOKIE => return None,
                // A shorter one has no room for a cookie.
                COOKIE_PLACEHOLDER => placeholders += usize::from(body.len() >= COOKIE_LEN),
                AUTHENTICATOR => {
                    return Some(Self {
                        len: datagram.len(),
                        identifier: identifier?,
                        cookie: cookie?,
                        placeholders,
                        associated: &datagram[..covered],
                        authenticator: Authenticator::parse(body).filter(|_| after.is_empty())?,
                    });
                }
                _ => {}
            }
            rest = after;
        }
    }

    /// How many cookies an answer has whose other fields have this length; `None` if even those are
    /// longer than the request.
    fn cookies(&self, bare: usize) -> Option<usize> {
        let room = self.len.checked_sub(bare)? / len_with(COOKIE_LEN);
        Some(room.min(1 + self.placeholders).min(COOKIES))
    }
}

/// Fills bytes with random ones that nobody can predict; false if there are none.
pub type RandomSource = Box<dyn FnMut(&mut [u8]) -> bool + Send>;

/// A client whose request is authentic.
#[derive(Debug)]
pub struct Session {
    keys: SessionKeys,
    secret: Option<Name>,
}

impl Session {
    /// The timeline whose secret made its cookie; `None` for a cookie of this server.
    #[must_use]
    pub const fn secret(&self) -> Option<Name> {
        self.secret
    }
}

/// The server's part of NTS in packets.
pub struct Protector {
    /// `None` where keys are shared only.
    cookies: Option<CookieCiphers>,
    /// Timelines of clusters, and what reads their members' cookies.
    shared: Vec<(Name, CookieCiphers)>,
    nonces: Nonces,
    /// Where encrypted fields of requests are opened.
    scratch: Vec<u8>,
    /// The answer.
    answer: Vec<u8>,
}

impl Protector {
    /// Starts with these keys.
    #[must_use]
    pub fn new(keys: &CookieKeys, random: RandomSource) -> Self {
        Self { cookies: Some(CookieCiphers::new(keys)), ..Self::without_keys(random) }
    }

    /// Starts without keys: only cookies of those who share a secret can be read.
    #[must_use]
    pub fn without_keys(random: RandomSource) -> Self {
        Self {
            cookies: None,
            shared: Vec::new(),
            nonces: Nonces { random, pool: Box::new([[0; NONCE_LEN]; POOL]), left: 0 },
            scratch: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// Uses other keys from now on.
    pub fn set_keys(&mut self, keys: &CookieKeys) {
        self.cookies = Some(CookieCiphers::new(keys));
    }

    /// Reads the cookies of the members of this timeline, too, who share the secret of these keys
    /// ([`crate::nts::shared`]).
    pub fn share(&mut self, timeline: Name, keys: &CookieKeys) {
        self.shared.push((timeline, CookieCiphers::new(keys)));
    }

    /// Returns a client whose request is authentic; `None` asks for [`Self::nak`].
    #[must_use]
    pub fn open(&mut self, request: &Request<'_>) -> Option<Session> {
        let (keys, secret) = self.read(request.cookie)?;
        let Authenticator { nonce, sealed } = request.authenticator;
        let (tag, text) = sealed.split_first_chunk::<TAG_LEN>()?;
        // What a client encrypts is authenticated, and not used: no field is defined for it.
        self.scratch.clear();
        self.scratch.extend_from_slice(text);
        let mut cipher = keys.client_to_server();
        let is_authentic = cipher.open_in_place(nonce, request.associated, tag, &mut self.scratch);
        self.scratch.zeroize();
        is_authentic.then_some(Session { keys, secret })
    }

    /// Keys of different origins may have one name: each is tried.
    fn read(&mut self, cookie: &[u8]) -> Option<(SessionKeys, Option<Name>)> {
        if let Some(keys) = self.cookies.as_mut().and_then(|cookies| cookies.open(cookie)) {
            return Some((keys, None));
        }
        let mut shared = self.shared.iter_mut();
        shared.find_map(|(name, cookies)| Some((cookies.open(cookie)?, Some(*name))))
    }

    /// Makes the answer from the plain one: a header, and perhaps our own field. False if there is
    /// none, because the request has no room for it or there are no random numbers.
    #[must_use]
    pub fn protect(&mut self, request: &Request<'_>, session: &Session, plain: &[u8]) -> bool {
        self.try_protect(request, session, plain).is_some()
    }

    /// Makes an NTS NAK from its header.
    pub fn nak(&mut self, request: &Request<'_>, header: &[u8; HEADER_LEN]) {
        self.begin(header, request);
    }

    /// The last answer or NAK that was made.
    #[must_use]
    pub fn answer(&self) -> &[u8] {
        &self.answer
    }

    fn begin(&mut self, plain: &[u8], request: &Request<'_>) {
        self.answer.clear();
        self.answer.extend_from_slice(plain);
        write(&mut self.answer, UNIQUE_IDENTIFIER, request.identifier);
    }

    fn try_protect(
        &mut self,
        request: &Request<'_>,
        session: &Session,
        plain: &[u8],
    ) -> Option<()> {
        self.begin(plain, request);
        let covered = self.answer.len();
        let room = request.cookies(covered + AUTHENTICATOR_LEN)?;
        let cookies = if session.secret.is_some() { 0 } else { room };
        let nonce = self.nonces.take()?;
        let encrypted = cookies * len_with(COOKIE_LEN);
        for number in [
            AUTHENTICATOR,
            u16::try_from(AUTHENTICATOR_LEN + encrypted).ok()?,
            u16::try_from(NONCE_LEN).ok()?,
            u16::try_from(TAG_LEN + encrypted).ok()?,
        ] {
            self.answer.extend_from_slice(&number.to_be_bytes());
        }
        self.answer.extend_from_slice(&nonce);
        self.answer.extend_from_slice(&[0; TAG_LEN]);
        for _ in 0..cookies {
            let cookie = self.cookies.as_mut()?.make(&session.keys, &self.nonces.take()?)?;
            write(&mut self.answer, COOKIE, &cookie);
        }
        let (associated, authenticator) = self.answer.split_at_mut(covered);
        let (head, text) = authenticator.split_at_mut(AUTHENTICATOR_LEN);
        let (_, tag) = head.split_last_chunk_mut::<TAG_LEN>()?;
        *tag = session.keys.server_to_client().seal_in_place(&nonce, associated, text)?;
        Some(())
    }
}

/// Shows no keys.
impl std::fmt::Debug for Protector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Protector(..)")
    }
}

/// Random numbers in stock.
struct Nonces {
    random: RandomSource,
    pool: Box<[[u8; NONCE_LEN]; POOL]>,
    left: usize,
}

impl Nonces {
    /// Takes one that nobody has had.
    fn take(&mut self) -> Option<[u8; NONCE_LEN]> {
        if self.left == 0 && (self.random)(self.pool.as_flattened_mut()) {
            self.left = POOL;
        }
        self.left = self.left.checked_sub(1)?;
        Some(self.pool[self.left])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(kind: u16, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, kind, &vec![7; len]);
        bytes
    }

    fn authenticator() -> Vec<u8> {
        let mut bytes = Vec::new();
        let lengths = [0, 16, 0, 16];
        write(&mut bytes, AUTHENTICATOR, &[&lengths[..], &[1; 32]].concat());
        bytes
    }

    fn request(fields: &[Vec<u8>]) -> Vec<u8> {
        [vec![0x23; HEADER_LEN], fields.concat()].concat()
    }

    #[test]
    fn each_field_once_and_nothing_behind_the_authenticator() {
        let id = || field(UNIQUE_IDENTIFIER, 32);
        let cookie = || field(COOKIE, 100);
        let good = request(&[field(0x2005, 24), id(), cookie(), authenticator()]);
        let parsed = Request::parse(&good).unwrap();
        assert_eq!((parsed.identifier, parsed.cookie), (&[7; 32][..], &[7; 100][..]));
        assert_eq!(parsed.associated.len(), good.len() - 40);
        let wrong = [
            vec![],
            vec![id(), cookie()],
            vec![id(), authenticator()],
            vec![cookie(), authenticator()],
            vec![id(), id(), cookie(), authenticator()],
            vec![id(), cookie(), cookie(), authenticator()],
            vec![id(), cookie(), authenticator(), authenticator()],
            vec![id(), cookie(), authenticator(), field(0x2005, 24)],
            vec![field(UNIQUE_IDENTIFIER, 28), cookie(), authenticator()],
            vec![id(), cookie(), field(AUTHENTICATOR, 40)],
        ];
        for fields in wrong {
            assert!(Request::parse(&request(&fields)).is_none(), "{fields:?}");
        }
        assert!(Request::parse(&good[..HEADER_LEN - 1]).is_none());
    }

    #[test]
    fn only_placeholders_with_room_for_a_cookie_count() {
        let with = |lens: &[usize]| {
            let holders: Vec<_> = lens.iter().map(|len| field(COOKIE_PLACEHOLDER, *len)).collect();
            let ends = [field(UNIQUE_IDENTIFIER, 32), field(COOKIE, 100), authenticator()];
            let datagram = request(&[&holders[..], &ends].concat());
            let parsed = Request::parse(&datagram).unwrap();
            parsed.cookies(HEADER_LEN + 36 + AUTHENTICATOR_LEN)
        };
        assert_eq!(with(&[]), Some(1));
        assert_eq!(with(&[100, 100, 100]), Some(4));
        assert_eq!(with(&[96, 16, 100]), Some(2));
        assert_eq!(with(&[100; 20]), Some(8), "no client needs more");
    }

    #[test]
    fn without_random_numbers_there_are_no_nonces() {
        let mut calls = 0;
        let random: RandomSource = Box::new(move |bytes| {
            calls += 1;
            bytes.fill(calls);
            calls < 3
        });
        let mut nonces = Nonces { random, pool: Box::new([[0; NONCE_LEN]; POOL]), left: 0 };
        let taken: Vec<_> = std::iter::from_fn(|| nonces.take()).collect();
        assert_eq!(taken.len(), 2 * POOL);
        assert_eq!((taken[0], taken[POOL]), ([1; NONCE_LEN], [2; NONCE_LEN]));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Request::parse(&bytes);
        }
    }
}
