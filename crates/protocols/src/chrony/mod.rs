//! The read-only part of chronyd's command protocol: the request of `chronyc tracking`, and its
//! reply.
//!
//! | module | owns |
//! | --- | --- |
//! | [`float`](mod@float) | the protocol's own 32-bit floating-point number, in integers |
//! | [`tracking`] | the request, the reply, and what they say about the clock |
//!
//! The protocol is described by chrony's own `candm.h` (version 6, chrony 2.0 and newer); it has no
//! other specification. Everything is big endian. A request is padded to the length of its reply,
//! so that chronyd cannot be used to amplify traffic.
//!
//! What it does not do: send commands that change anything, talk to chronyd older than 2.0, or open
//! sockets.

pub mod float;
pub mod tracking;

pub use float::Float;
pub use tracking::{LeapStatus, ReplyError, Tracking, Unusable, parse_reply, request};
