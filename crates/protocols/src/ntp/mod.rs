//! NTPv4 (RFC 5905): the client side of an association, and a server.
//!
//! | module | owns |
//! | --- | --- |
//! | [`format`](mod@format) | the 16.16 and 32.32 number formats, and the era of a 32-bit second |
//! | [`packet`] | the 48-byte header |
//! | [`extension`] | what may follow the header: extension fields and a MAC (RFC 7822) |
//! | [`candidates`] | which of the addresses of a server's name is asked |
//! | [`precise`] | our extension field: bounds in nanoseconds between Timevisors |
//! | [`datagram`] | a packet to send |
//! | [`config`] | every tunable of an association, with unit and reason |
//! | [`answer`] | what a datagram says, without the state that judges it |
//! | [`client`] | the state machine: which answers to accept, pairing of stamps; basic and interleaved mode (RFC 9769) |
//! | `pairing` | which answer belongs to which request |
//! | `schedule` | when to ask |
//! | `asking` | whether a request carries the field of [`precise`] |
//! | [`reject`] | why an answer was refused |
//! | [`response`] | the checks on an answer's content, and the server's own error budget |
//! | [`refid`] | reference ids: of addresses, and of servers that smear leap seconds |
//! | [`witnesses`](mod@witnesses) | which servers are one witness |
//! | [`server`] | answering requests |
//! | [`status`] | what operators see: reachability, counters, advice |
//!
//! What it does not do: run symmetric or broadcast modes, authenticate (NTS sits around this), take
//! timestamps, or compute offsets.

pub mod answer;
mod asking;
pub mod candidates;
pub mod client;
pub mod config;
pub mod datagram;
pub mod extension;
pub mod format;
pub mod packet;
mod pairing;
pub mod precise;
pub mod refid;
pub mod reject;
pub mod response;
mod schedule;
pub mod server;
pub mod status;
pub mod witnesses;

pub use answer::Answer;
pub use candidates::{Candidates, Step};
pub use client::{Client, Exchange, Outcome, Request};
pub use config::{Config, ConfigError};
pub use datagram::Datagram;
pub use format::{ERA_PIVOT, NtpShort, NtpTimestamp};
pub use packet::{LeapIndicator, Mode, Packet, PacketError};
pub use reject::RejectReason;
pub use response::{KissCode, Response};
pub use status::{Counters, Reach, Status};
pub use witnesses::{Port, Source, witnesses};
