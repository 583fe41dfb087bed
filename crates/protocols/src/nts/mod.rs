//! Network Time Security for NTPv4 (RFC 8915): the client's side, and in [`server`] the other one.
//!
//! | module | owns |
//! | --- | --- |
//! | [`exchange`] | key establishment: TLS 1.3 around one message each way, and the keys from it |
//! | [`negotiation`] | the two messages and the checks on the server's |
//! | [`record`] | the records that messages are made of |
//! | [`trust`] | the certificate authorities |
//! | [`association`] | seals requests, detects when new keys are needed |
//! | [`opening`] | opens an answer, without the state around it |
//! | [`field`](mod@field) | the extension fields in NTP packets |
//! | [`aead`] | the cipher, and keys that are never shown |
//! | [`cookies`] | the store of cookies, each used once |
//! | [`retry`] | the interval between key establishments |
//! | [`config`] | every tunable, with unit and reason |
//! | [`error`] | why key establishment failed, with the next step |
//! | [`status`] | what operators see: counters, reasons, advice |
//! | [`date`] | a certificate's dates in messages |
//! | [`shared`] | hosts with a secret in common: questions without key establishment |
//! | [`server`] | the server's side: cookies, its half of key establishment, sealed answers |
//!
//! NTS wraps the NTP client: [`Association`] takes the bytes of a [`crate::ntp::Request`], and
//! returns the header of an authentic answer, with the field of [`crate::ntp::precise`] if it has
//! one, for [`crate::ntp::Client::on_datagram`].
//!
//! What it does not do: algorithms except AES-SIV-CMAC-256, a client's keys that outlive the
//! process, or protection against delay (an attacker on the path can still hold packets back; the
//! bounds account for that).

pub mod aead;
pub mod association;
pub mod config;
pub mod cookies;
pub mod date;
pub mod error;
pub mod exchange;
pub mod field;
pub mod negotiation;
pub mod opening;
pub mod record;
pub mod retry;
pub mod server;
pub mod shared;
pub mod status;
pub mod trust;
pub mod validity;

pub use association::{Association, Random};
pub use config::{Config, ConfigError};
pub use error::KeyError;
pub use exchange::{Established, Exchange};
pub use opening::{Opened, Opening};
pub use status::{Counters, Refusal, Status};
pub use trust::{TrustAnchors, TrustError};
pub use validity::CertificateTime;
