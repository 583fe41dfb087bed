//! The server's side of NTS (RFC 8915): keys for clients, and answers that they can authenticate.
//!
//! | module | owns |
//! | --- | --- |
//! | [`keys`] | the keys that seal cookies: one a day, the last eight are accepted |
//! | [`cookie`] | cookies: a client's two keys, sealed so that only this server can read them |
//! | [`negotiation`] | the messages of key establishment: the client's is judged, ours is made |
//! | [`exchange`] | TLS 1.3 around the two messages, with the server's certificate |
//! | [`mod@answer`] | opens requests, seals answers, tells a client that its cookie cannot be read |
//!
//! The server keeps nothing about a client: what it needs to know is in the client's cookie.
//! [`crate::ntp::server::Server`] does the NTP between [`Protector::open`] and
//! [`Protector::protect`].
//!
//! What it does not do: open sockets, read files or clocks, or generate random numbers. The caller
//! passes them in, except for those of TLS.

pub mod answer;
pub mod cookie;
pub mod exchange;
pub mod keys;
pub mod negotiation;

pub use answer::{Protector, RandomSource, Request, Session};
pub use cookie::{COOKIE_LEN, CookieCiphers, SessionKeys};
pub use exchange::{Exchange, ExchangeError, Identity, IdentityError, Progress};
pub use keys::{CookieKey, CookieKeys, Rotation};
pub use negotiation::{Refusal, answer, request};
