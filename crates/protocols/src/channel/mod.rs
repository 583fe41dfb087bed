//! The channel: how applications, on the host or in a guest, tell timevisord what they need of a timeline.
//!
//! The same frames travel over the host's Unix socket ([`HOST_SOCKET`]), a VM's virtio-serial port ([`PORT_NAME`]), vsock
//! ([`VSOCK_PORT`]), and the socket that `timevisor-guest` offers inside a guest. Reading the clock needs none of this: it is
//! on the page. docs/reference/channel.md shows the frames byte by byte.
//!
//! | module | owns |
//! | --- | --- |
//! | [`message`] | requests, responses, events: requirements and achieved quality |
//! | [`check`] | what their types cannot say |
//! | [`frame`], [`reader`] | frames, and finding them in a stream that may have lost the thread |
//! | [`server`] | the server's end of one connection |
//! | [`client`] | the client's end of one connection |
//! | [`relay`] | `timevisor-guest`: many applications' connections, one to the host |
//! | [`bucket`] | a rate limit |
//! | `crc`, `outbox` | checksum, unsent bytes |
//!
//! Rules: identity comes from the socket, never from the payload; a session begins with `hello` and is numbered by the
//! server; request ids grow within a session; everything has a limit.
//!
//! What it does not do: open sockets, know timelines (crates/timelines does), or read the page.

pub mod bucket;
pub mod check;
pub mod client;
mod crc;
pub mod frame;
pub mod message;
mod outbox;
pub mod reader;
pub mod relay;
pub mod server;

pub use check::{InvalidRequest, is_name};
pub use client::{ClientAction, ClientConfig, ClientSession, RequestError};
pub use frame::{EncodeError, Frame, FrameHeader, Kind};
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

/// Where timevisord (on a host) and timevisor-guest (in a guest) listen unless configured otherwise.
pub const HOST_SOCKET: &str = "/run/timevisor/timelines";

/// The virtio-serial port's name; in the guest `/dev/virtio-ports/org.timevisor.0`.
pub const PORT_NAME: &str = "org.timevisor.0";

/// The vsock port on the host (CID 2): "TV".
pub const VSOCK_PORT: u32 = 0x5456;

/// A problem without further figures.
fn problem(code: ProblemCode, message: &str, next_step: &str) -> Problem {
    let (message, next_step) = (message.to_owned(), next_step.to_owned());
    Problem { code, message, next_step, achievable: None }
}
