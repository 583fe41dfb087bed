//! The channel: applications on the host or in a guest use it to tell timevisord their requirements
//! on a timeline.
//!
//! The same frames travel over the host's Unix socket ([`HOST_SOCKET`]), a VM's virtio-serial port
//! ([`PORT_NAME`]), vsock ([`VSOCK_PORT`]), and the socket of `timevisor-guest` inside a guest.
//! Reading the clock needs no channel, only the page. docs/reference/channel.md shows the frames
//! byte by byte.
//!
//! | module | owns |
//! | --- | --- |
//! | [`message`] | requests, responses, events: requirements and achieved quality |
//! | [`confidence`] | the meaning of one sigma: probabilities of errors |
//! | [`check`] | checks on requests that their types cannot express |
//! | [`frame`], [`reader`] | frames, and a search for them in a stream that may have lost bytes |
//! | [`incoming`] | the requests in a server's stream |
//! | [`server`] | the server's end of one connection |
//! | [`client`] | the client's end of one connection |
//! | [`relay`] | `timevisor-guest`: many applications' connections, one to the host |
//! | [`bucket`] | a rate limit |
//! | `crc`, `outbox` | checksum, unsent bytes |
//!
//! Rules: the socket identifies the peer, never the payload; a session begins with `hello` and the
//! server numbers it; request ids grow within a session; everything has a limit.
//!
//! What it does not do: open sockets, know timelines (crates/timelines does), or read the page.

pub mod bucket;
pub mod check;
pub mod client;
pub mod confidence;
mod crc;
pub mod frame;
pub mod incoming;
pub mod message;
mod outbox;
pub mod reader;
pub mod relay;
pub mod server;

pub use check::{InvalidRequest, is_name};
pub use client::{ClientAction, ClientConfig, ClientSession, RequestError};
pub use frame::{EncodeError, Frame, FrameHeader, Kind};
pub use incoming::{Arrived, Incoming, RequestReader};
pub use message::{
    Achieved, Bind, Binding, Bound, Confidence, Epoch, Event, Hello, HostPage, InvalidRequirement,
    Limits, Place, Problem, ProblemCode, Request, Requirement, Response, TimelineRow, Update,
    Welcome,
};
pub use outbox::MAX_UNSENT;
pub use reader::{Direction, FrameReader, Received};
pub use relay::{Relay, RelayAction, RelayConfig};
pub use server::{Over, ServerAction, ServerConfig, ServerCounters, ServerSession};

/// The protocol version; the server refuses another.
pub const VERSION: u8 = 1;

/// The socket of timevisord (on a host) and timevisor-guest (in a guest), unless configured
/// otherwise.
pub const HOST_SOCKET: &str = "/run/timevisor/timelines";

/// The virtio-serial port's name; in the guest `/dev/virtio-ports/org.timevisor.0`.
pub const PORT_NAME: &str = "org.timevisor.0";

/// The vsock port on the host (CID 2): "TV".
pub const VSOCK_PORT: u32 = 0x5456;

/// Makes a problem without an achievable quality.
fn problem(code: ProblemCode, message: &str, next_step: &str) -> Problem {
    let (message, next_step) = (message.to_owned(), next_step.to_owned());
    Problem { code, message, next_step, achievable: None }
}
