//! NTS through its public interface: golden bytes, a TLS server in memory, damaged packets, random
//! bytes; our client and our server together.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod authority;
mod establishing;
mod exchange;
mod golden;
mod negotiation;
mod packets;
mod precise;
mod random;
mod server;
mod serving;
