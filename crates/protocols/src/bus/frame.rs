//! Frames: the length of what follows in four bytes, then that.

use super::{MAX_MEMBERS, MAX_MESSAGE};

/// The longest content of a frame: a message to all members.
pub const MAX_FRAME: usize = MAX_MESSAGE + 16 * MAX_MEMBERS;

/// Bytes that are no frames. Nothing after them can be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than any frame.
    #[error(
        "a frame claims {0} bytes, more than {MAX_FRAME}: the other end speaks another protocol"
    )]
    TooLong(usize),
}

/// One frame with this content.
#[must_use]
pub fn frame(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], content].concat()
}

/// Finds frames in a stream.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    taken: usize,
}

impl Frames {
    /// Bytes that came.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
            // One long frame does not keep its memory for ever.
            if self.bytes.is_empty() {
                self.bytes.shrink_to(1 << 16);
            }
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// How many bytes have come and were not taken yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The content of the next frame that is complete.
    ///
    /// # Errors
    /// When the stream cannot be one of frames.
    pub fn take(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = &self.bytes[self.taken..];
        let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_FRAME {
            return Err(FrameError::TooLong(length));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.taken + 4;
        self.taken = start + length;
        Ok(Some(&self.bytes[start..self.taken]))
    }
}
