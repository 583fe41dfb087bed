//! What a datagram from a server says, before anybody judges it.
//!
//! A daemon can parse in a thread without rights: bytes go in, and a value with no bytes of unknown
//! length comes out.
//!
//! What it does not do: know the request or the keys. [`super::client`] matches the cookie, and NTS
//! authenticates before this.

use super::extension::Tail;
use super::packet::{ANSWER_VERSIONS, Mode, Packet};
use super::precise;
use super::reject::RejectReason;

/// A well-formed packet of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The header.
    pub(super) packet: Packet,
    /// Our field, if the packet carries it.
    pub(super) field: Option<precise::Reply>,
}

impl Answer {
    /// Parses a datagram, and checks what needs no state.
    ///
    /// # Errors
    /// The first check that fails: length, mode, version, extension fields.
    pub fn parse(bytes: &[u8]) -> Result<Self, RejectReason> {
        let (packet, tail) = Packet::parse(bytes).map_err(|_| RejectReason::TooShort)?;
        if packet.mode != Mode::Server {
            return Err(RejectReason::Mode);
        }
        if !ANSWER_VERSIONS.contains(&packet.version) {
            return Err(RejectReason::Version);
        }
        let tail = Tail::parse(tail).map_err(|_| RejectReason::MalformedTail)?;
        Ok(Self { packet, field: precise::Reply::find(&tail.fields, precise::Name::HOST) })
    }
}
