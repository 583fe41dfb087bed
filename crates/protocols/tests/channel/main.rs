//! The channel: frames, both ends, and the relay.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod client;
mod common;
mod frames;
mod relay;
mod server;
