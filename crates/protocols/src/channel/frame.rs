//! One frame: header, checksum, payload (docs/reference/channel.md has the table).
//!
//! What it does not do: find frames in a stream ([`super::reader`] does) or know what a payload means.

use std::array;

use serde::Serialize;

use super::{VERSION, crc};

/// What every frame begins with.
pub const MAGIC: [u8; 4] = *b"TVCH";

/// Bytes before the payload.
pub const HEADER_LEN: usize = 28;

/// The header's bytes under the checksum: all but the checksum itself, which is the header's end.
pub(super) const CHECKED_LEN: usize = 24;

/// The longest payload of a request. Little, because strangers send it.
pub const MAX_REQUEST_LEN: usize = 4096;

/// The longest payload of a response or an event.
pub const MAX_ANSWER_LEN: usize = u16::MAX as usize;

/// What a frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// From a client.
    Request = 1,
    /// From a server, to a request.
    Response = 2,
    /// From a server, unasked.
    Event = 3,
}

impl Kind {
    const fn from_u8(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Request),
            2 => Some(Self::Response),
            3 => Some(Self::Event),
            _ => None,
        }
    }

    /// The longest payload in bytes.
    #[must_use]
    pub const fn max_len(self) -> usize {
        match self {
            Self::Request => MAX_REQUEST_LEN,
            Self::Response | Self::Event => MAX_ANSWER_LEN,
        }
    }
}

/// A frame's header without the magic and the checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// The sender's protocol version. All versions share the header's layout.
    pub version: u8,
    /// What the payload is.
    pub kind: Kind,
    /// Bytes of payload.
    pub len: u16,
    /// The session: 0 in a hello, otherwise as the server numbered it.
    pub session: u64,
    /// The request's id; 0 in events.
    pub id: u64,
}

/// A frame whose checksum is right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// What stood before the payload.
    pub header: FrameHeader,
    /// JSON, in this version.
    pub payload: Vec<u8>,
}

/// A message that does not become a frame.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// Beyond what the other end takes.
    #[error("a payload of {len} bytes exceeds {max}; ask for less at a time")]
    TooLong {
        /// The payload's length.
        len: usize,
        /// The limit of its kind.
        max: usize,
    },
    /// What JSON cannot express.
    #[error("the message cannot be written as JSON; check its numbers")]
    Json(#[from] serde_json::Error),
}

impl FrameHeader {
    /// Takes the first [`HEADER_LEN`] bytes of a frame apart: the header, and the checksum that is claimed. Nothing if they
    /// cannot be a frame's.
    #[must_use]
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Option<(Self, u32)> {
        let word = |at: usize| u64::from_le_bytes(array::from_fn(|i| bytes[at + i]));
        let kind = Kind::from_u8(bytes[5])?;
        let len = u16::from_le_bytes([bytes[6], bytes[7]]);
        if bytes[..4] != MAGIC || usize::from(len) > kind.max_len() {
            return None;
        }
        let (session, id) = (word(8), word(16));
        let checksum = u32::from_le_bytes(array::from_fn(|i| bytes[CHECKED_LEN + i]));
        Some((Self { version: bytes[4], kind, len, session, id }, checksum))
    }

    /// The header's bytes under the checksum.
    fn checked(&self) -> [u8; CHECKED_LEN] {
        let mut bytes = [0; CHECKED_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.version;
        bytes[5] = self.kind as u8;
        bytes[6..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }
}

impl Frame {
    /// A frame of this version.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`].
    pub fn new(kind: Kind, session: u64, id: u64, payload: Vec<u8>) -> Result<Self, EncodeError> {
        let (len, max) = (payload.len(), kind.max_len());
        let too_long = EncodeError::TooLong { len, max };
        let Some(len) = u16::try_from(len).ok().filter(|_| len <= max) else {
            return Err(too_long);
        };
        let header = FrameHeader { version: VERSION, kind, len, session, id };
        Ok(Self { header, payload })
    }

    /// The frame that carries `message`.
    ///
    /// # Errors
    /// What [`EncodeError`] lists.
    pub fn of<T: Serialize>(
        kind: Kind,
        session: u64,
        id: u64,
        message: &T,
    ) -> Result<Self, EncodeError> {
        Self::new(kind, session, id, serde_json::to_vec(message)?)
    }

    /// The bytes on the stream.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let checked = self.header.checked();
        let mut bytes = Vec::with_capacity(HEADER_LEN + self.payload.len());
        bytes.extend_from_slice(&checked);
        bytes.extend_from_slice(&crc::checksum([&checked, &self.payload]).to_le_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}
