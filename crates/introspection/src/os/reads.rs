//! The results of a point's reads, for decoders.

use crate::backend::RawEvent;
use crate::os::guest_os::DecodeError;

/// The reads of one event.
pub(super) struct Reads<'a> {
    /// The event.
    pub(super) raw: &'a RawEvent,
    /// The length of each read of its point.
    pub(super) lens: Vec<u16>,
}

impl Reads<'_> {
    /// All bytes of a read.
    pub(super) fn all(&self, n: usize) -> Result<&[u8], DecodeError> {
        let error = DecodeError::Read { point: self.raw.point, read: n };
        self.raw.read(&self.lens, n).ok_or(error)
    }

    /// Some bytes of a read.
    pub(super) fn bytes<const N: usize>(
        &self,
        n: usize,
        at: usize,
    ) -> Result<[u8; N], DecodeError> {
        let bytes = self.raw.read(&self.lens, n).and_then(|bytes| bytes.get(at..at + N));
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or(DecodeError::Read { point: self.raw.point, read: n })
    }

    /// The first 4 bytes of a read.
    pub(super) fn u32(&self, n: usize) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.bytes(n, 0)?))
    }

    /// The first 8 bytes of a read.
    pub(super) fn u64(&self, n: usize) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.bytes(n, 0)?))
    }
}

/// A name up to its terminating zero. The guest chooses it, so characters that could affect a
/// terminal or a log are replaced.
pub(super) fn name(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let shown = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' };
    bytes[..len].iter().map(shown).collect()
}
