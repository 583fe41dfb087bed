//! The protocol between timevisord and the plugin; plugins/tcg/introspect.h describes the other
//! end.
//!
//! A frame is a header of 8 bytes (u32 length of the payload, u16 kind, u16 zero) and its payload,
//! little endian. The plugin runs in QEMU's process, which a guest may have taken over, so every
//! size is checked.

use crate::backend::RawEvent;
use crate::backend::Refused;
use crate::point::{Base, Point, limits};

/// Version of the protocol.
pub const VERSION: u16 = 2;
const MAGIC: u32 = 0x5049_5654;
/// Maximum size of a payload from the plugin. An event with all its data has 288 bytes.
const MAX_PAYLOAD: usize = 1024;
const HEADER: usize = 8;
const NO_FILTER: u8 = 0xff;

mod kind {
    pub(super) const POINTS: u16 = 1;
    pub(super) const HELLO: u16 = 0x81;
    pub(super) const INSTALLED: u16 = 0x82;
    pub(super) const EVENT: u16 = 0x83;
    pub(super) const MISMATCH: u16 = 0x84;
    pub(super) const REFUSED: u16 = 0x85;
    pub(super) const STATUS: u16 = 0x86;
}

/// A message from the plugin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The first message of a connection.
    Hello {
        /// Protocol version.
        version: u16,
        /// Number of vCPUs that the plugin has seen.
        vcpus: u16,
        /// Bit mask of the registers that the plugin can read, by number.
        registers: u32,
        /// Sequence number of the next event.
        next: u64,
        /// Events dropped since QEMU started.
        dropped: u64,
        /// Changes when QEMU restarts.
        epoch: u64,
    },
    /// A set of points is in place.
    Installed {
        /// The generation of the request.
        generation: u32,
        /// Number of points.
        count: u16,
    },
    /// A point was hit.
    Event {
        /// What the plugin read.
        event: RawEvent,
        /// The current value of `dropped`, as in the hello.
        dropped: u64,
    },
    /// The instruction at a point is not the expected one.
    Mismatch {
        /// The generation of the points.
        generation: u32,
        /// Index of the point.
        point: u16,
        /// The bytes at the point.
        found: Vec<u8>,
    },
    /// The plugin rejects a set of points.
    Refused {
        /// The generation of the points.
        generation: u32,
        /// 1: the points exceed the plugin's limits.
        code: u16,
    },
    /// Events were dropped.
    Status {
        /// Sequence number of the next event.
        next: u64,
        /// The current value of `dropped`, as in the hello.
        dropped: u64,
    },
}

/// Why a stream cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// A frame that is too long.
    #[error("a frame of {0} bytes")]
    Long(u32),
    /// The payload does not match the frame's kind.
    #[error("a damaged frame of kind {0:#x}")]
    Damaged(u16),
    /// An unknown kind.
    #[error("a frame of the unknown kind {0:#x}")]
    Kind(u16),
}

/// Splits a stream into messages.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    at: usize,
}

impl Decoder {
    /// Appends bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete message.
    ///
    /// # Errors
    /// When the stream is unusable; it remains so.
    pub fn message(&mut self) -> Result<Option<Message>, Fault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let mut fields = Fields(rest);
        let (Some(len), Some(kind), Some(_)) = (fields.u32(), fields.u16(), fields.u16()) else {
            return Ok(None);
        };
        let size = usize::try_from(len).ok().filter(|len| *len <= MAX_PAYLOAD);
        let size = size.ok_or(Fault::Long(len))?;
        let Some(payload) = rest.get(HEADER..HEADER + size) else { return Ok(None) };
        let mut fields = Fields(payload);
        let message = parse(kind, &mut fields)?;
        match message {
            Some(message) if fields.0.is_empty() => {
                self.at += HEADER + size;
                Ok(Some(message))
            }
            _ => Err(Fault::Damaged(kind)),
        }
    }
}

fn parse(kind: u16, fields: &mut Fields<'_>) -> Result<Option<Message>, Fault> {
    let message = match kind {
        kind::HELLO => (fields.u32() == Some(MAGIC)).then(|| hello(fields)).flatten(),
        kind::INSTALLED => installed(fields),
        kind::EVENT => event(fields),
        kind::MISMATCH => mismatch(fields),
        kind::REFUSED => installed(fields).map(|message| match message {
            Message::Installed { generation, count } => {
                Message::Refused { generation, code: count }
            }
            other => other,
        }),
        kind::STATUS => status(fields),
        other => return Err(Fault::Kind(other)),
    };
    Ok(message)
}

fn hello(fields: &mut Fields<'_>) -> Option<Message> {
    let (version, vcpus, registers) = (fields.u16()?, fields.u16()?, fields.u32()?);
    let _zero = fields.u32()?;
    let (next, dropped, epoch) = (fields.u64()?, fields.u64()?, fields.u64()?);
    Some(Message::Hello { version, vcpus, registers, next, dropped, epoch })
}

fn installed(fields: &mut Fields<'_>) -> Option<Message> {
    let (generation, count) = (fields.u32()?, fields.u16()?);
    fields.u16()?;
    Some(Message::Installed { generation, count })
}

fn event(fields: &mut Fields<'_>) -> Option<Message> {
    let (sequence, counter, dropped) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (point, vcpu, failed, len) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
    let data = fields.take(usize::from(len).min(limits::DATA))?.to_vec();
    let counter = (counter != 0).then_some(counter);
    let event = RawEvent { sequence, counter, counter_error: 0, point, vcpu, failed, data };
    (usize::from(len) <= limits::DATA).then_some(Message::Event { event, dropped })
}

fn mismatch(fields: &mut Fields<'_>) -> Option<Message> {
    let (generation, point, len) = (fields.u32()?, fields.u16()?, fields.u16()?);
    let found = fields.take(8)?.get(..usize::from(len))?.to_vec();
    Some(Message::Mismatch { generation, point, found })
}

fn status(fields: &mut Fields<'_>) -> Option<Message> {
    Some(Message::Status { next: fields.u64()?, dropped: fields.u64()? })
}

/// Encodes a request for exactly these points.
///
/// # Errors
/// When they exceed the limits.
pub fn points(generation: u32, all: &[Point]) -> Result<Vec<u8>, Refused> {
    if all.len() > limits::POINTS {
        return Err(Refused::Points(all.len(), limits::POINTS));
    }
    let mut payload = generation.to_le_bytes().to_vec();
    payload.extend(u16::try_from(all.len()).unwrap_or(u16::MAX).to_le_bytes());
    payload.extend([0; 2]);
    for point in all {
        payload.extend(one(point).ok_or(Refused::Reads(point.id))?);
    }
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut frame = len.to_le_bytes().to_vec();
    frame.extend(kind::POINTS.to_le_bytes());
    frame.extend([0; 2]);
    frame.extend(payload);
    Ok(frame)
}

fn one(point: &Point) -> Option<Vec<u8>> {
    let (filter, mask) = point.filter.map_or((NO_FILTER, 0), |filter| (filter.read, filter.mask));
    let reads =
        u8::try_from(point.reads.len()).ok().filter(|n| usize::from(*n) <= limits::READS)?;
    let mut bytes = point.id.to_le_bytes().to_vec();
    bytes.extend([reads, filter, 5, 0, 0, 0]);
    bytes.extend(point.address.to_le_bytes());
    bytes.extend(point.expected);
    bytes.extend([0; 3]);
    bytes.extend(mask.to_le_bytes());
    let mut data = 0;
    for (n, read) in point.reads.iter().enumerate() {
        data += usize::from(read.len);
        let (base, index) = match read.base {
            Base::Register(register) => (0, register as u8),
            Base::Earlier(earlier) => {
                let pointer = point.reads.get(usize::from(earlier))?;
                if usize::from(earlier) >= n || !matches!(pointer.len, 4 | 8) {
                    return None;
                }
                (1, earlier)
            }
            Base::Value(_) if read.len != 8 => return None,
            Base::Value(register) => (2, register as u8),
            Base::Absolute => (3, 0),
        };
        if read.len == 0 || data > limits::DATA {
            return None;
        }
        bytes.extend([base, index]);
        bytes.extend(read.len.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(read.offset.to_le_bytes());
    }
    let decides = |filter: u8| point.reads.get(usize::from(filter)).is_some_and(|r| r.len <= 8);
    point.filter.is_none_or(|filter| decides(filter.read)).then_some(bytes)
}

/// The remaining bytes of a payload.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
