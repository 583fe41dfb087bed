//! NTS around one NTP association: seals requests, opens answers, and detects when new keys are
//! needed (RFC 8915 section 5.7).
//!
//! The NTP client does not change. Its request goes in and comes out with extension fields. A
//! datagram goes in, and its header comes out if it answers the request in flight and every bit of
//! it is authentic. Our own field ([`crate::ntp::precise`]) goes the same way: the authenticator
//! covers it in a request, and it comes out of an answer only from what the authenticator covers.
//! Nothing else reaches the client: no plain answer, no unauthenticated kiss of death, no
//! unauthenticated field. The only unauthenticated packet with an effect is the NTS NAK,
//! which causes a new key establishment unless an authentic answer arrives after all.
//!
//! What it does not do: send, connect, generate random numbers, or judge the header.

use timevisor_time::Duration;

use super::aead::Key;
use super::config::{Config, ConfigError};
use super::cookies::Cookies;
use super::exchange::Established;
use super::field::{
    COOKIE, COOKIE_PLACEHOLDER, NONCE_LEN, UNIQUE_IDENTIFIER, len_with, write, write_authenticator,
};
use super::opening::{Opened, Opening};
use super::retry::Retry;
use super::status::{Counters, Refusal, Status};

/// Bytes in a unique identifier: RFC 8915 section 5.3 asks for at least 32.
pub const IDENTIFIER_LEN: usize = 32;

/// Randomness for one request; both values must be unpredictable to others and never reused.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// The identifier that the answer must repeat.
    pub identifier: [u8; IDENTIFIER_LEN],
    /// The cipher's nonce.
    pub nonce: [u8; NONCE_LEN],
}

#[derive(Clone, Debug)]
struct Keys {
    client_to_server: Key,
    server_to_client: Key,
    since: Duration,
    /// True once an answer was authenticated with these keys.
    used: bool,
}

/// Keys and cookies for one server. Every `now` is monotonic time since an origin that the caller
/// chooses.
#[derive(Clone, Debug)]
pub struct Association {
    config: Config,
    keys: Option<Keys>,
    cookies: Cookies,
    /// The request in flight.
    identifier: Option<[u8; IDENTIFIER_LEN]>,
    /// The server answered the request in flight with a NAK: it could not read our cookie.
    nak: bool,
    /// Why the last packet was refused, until an authentic one arrives.
    refused: Option<Refusal>,
    retry: Retry,
    counters: Counters,
}

impl Association {
    /// Makes an association without keys.
    ///
    /// # Errors
    /// What [`Config::validate`] finds.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            keys: None,
            cookies: Cookies::default(),
            identifier: None,
            nak: false,
            refused: None,
            retry: Retry::new(config),
            counters: Counters::default(),
        })
    }

    /// Returns true if no further request can be sealed before a key establishment: there are no
    /// keys, the cookies are used up, or the server cannot read them. Ask when the next request is
    /// due, not earlier: until then an authentic answer may still refute a NAK.
    #[must_use]
    pub fn needs_keys(&self) -> bool {
        self.keys.is_none() || self.cookies.is_empty() || self.nak
    }

    /// Returns when the next key establishment may begin.
    #[must_use]
    pub fn exchange_at(&self) -> Duration {
        self.retry.at()
    }

    /// Records that a key establishment begins.
    pub fn exchange_began(&mut self, now: Duration) {
        self.counters.exchanges += 1;
        self.retry.began(now);
    }

    /// Records its success and forgets all earlier keys and cookies.
    pub fn established(&mut self, now: Duration, fresh: Established) {
        self.counters.established += 1;
        self.cookies.replace(fresh.answer.cookies);
        self.keys = Some(Keys {
            client_to_server: fresh.client_to_server,
            server_to_client: fresh.server_to_client,
            since: now,
            used: false,
        });
        self.identifier = None;
        self.nak = false;
        self.refused = None;
    }

    /// Makes the datagram of a request: the plain `request` (a header and whole extension fields), a
    /// unique identifier, one cookie, placeholders for missing cookies, and the authenticator over
    /// all that. The cookie is used up whatever happens to the datagram. Returns `None` if keys are
    /// needed.
    pub fn seal(&mut self, request: &[u8], random: &Random) -> Option<Vec<u8>> {
        if self.needs_keys() {
            return None;
        }
        let keys = self.keys.as_ref()?;
        let (cookie, lacking) = self.cookies.take()?;
        let mut packet = request.to_vec();
        write(&mut packet, UNIQUE_IDENTIFIER, &random.identifier);
        write(&mut packet, COOKIE, &cookie);
        let room = self.config.max_request.saturating_sub(packet.len() + authenticator_len());
        for _ in 0..lacking.min(room / len_with(cookie.len())) {
            write(&mut packet, COOKIE_PLACEHOLDER, &vec![0; cookie.len()]);
        }
        write_authenticator(&mut packet, &keys.client_to_server, &random.nonce, &[])?;
        self.identifier = Some(random.identifier);
        Some(packet)
    }

    /// Returns an authentic answer to the request in flight as a plain one, the header and our own
    /// field if it has one, and stores the cookies in it: [`Self::opened`] for a caller that opens
    /// answers where it keeps its state.
    ///
    /// # Errors
    /// Why the datagram is not such an answer. Apart from [`Refusal::Nak`], it then has no effect.
    pub fn open(&mut self, datagram: &[u8]) -> Result<Vec<u8>, Refusal> {
        let opened = self.opening().open(datagram);
        self.opened(opened)
    }

    /// Returns what it takes to open an answer to the request in flight, anywhere.
    #[must_use]
    pub fn opening(&self) -> Opening {
        let keys = self.keys.as_ref();
        Opening::new(keys.map(|keys| keys.server_to_client.clone()).zip(self.identifier))
    }

    /// Heeds the result of [`Opening::open`], made for the request in flight. Returns the plain form
    /// of an authentic answer.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn opened(&mut self, opened: Result<Opened, Refusal>) -> Result<Vec<u8>, Refusal> {
        match &opened {
            Ok(_) => self.succeed(),
            Err(refusal) => {
                self.nak |= *refusal == Refusal::Nak;
                // A duplicate of an answer says nothing about the server or the path.
                if *refusal != Refusal::NotAwaited {
                    self.refused = Some(*refusal);
                }
                *self.counters.refused.entry(*refusal).or_default() += 1;
            }
        }
        let Opened { plain, cookies } = opened?;
        for cookie in cookies {
            self.cookies.add(&cookie);
        }
        Ok(plain)
    }

    /// Returns the state to show.
    #[must_use]
    pub fn status(&self, now: Duration) -> Status {
        let cookies = self.cookies.len();
        let Some(keys) = &self.keys else { return Status::NoKeys };
        match self.refused {
            _ if self.nak => Status::Nak,
            _ if cookies == 0 => Status::NoCookies,
            Some(reason) => Status::Refused { reason },
            None if keys.used => Status::Authenticated { cookies, age: now - keys.since },
            None => Status::Keyed { cookies },
        }
    }

    /// Returns the number of unused cookies.
    #[must_use]
    pub fn cookies(&self) -> usize {
        self.cookies.len()
    }

    /// Returns when the keys were established; `None` without keys.
    #[must_use]
    pub fn keyed_at(&self) -> Option<Duration> {
        self.keys.as_ref().map(|keys| keys.since)
    }

    /// Returns the counts of everything that has happened.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the configuration passed to [`Self::new`].
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn succeed(&mut self) {
        self.identifier = None;
        self.nak = false;
        self.refused = None;
        self.retry.succeeded();
        self.counters.authenticated += 1;
        if let Some(keys) = &mut self.keys {
            keys.used = true;
        }
    }
}

/// Length of our authenticator: lengths, nonce, and a tag without ciphertext.
const fn authenticator_len() -> usize {
    len_with(4 + NONCE_LEN + super::aead::TAG_LEN)
}
