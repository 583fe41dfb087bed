//! A packet to send: the header and perhaps our extension field, without an allocation.
//!
//! What it does not do: parse, or hold the fields of NTS, which have no fixed length.

use core::fmt;
use core::ops::Deref;

use super::packet::{HEADER_LEN, Packet};
use super::precise;

/// The longest packet that is made here: the header and the longest field of [`precise`].
pub const MAX_LEN: usize = HEADER_LEN + precise::MAX_LEN;

/// Up to [`MAX_LEN`] bytes in place. Reads as a slice of the bytes in use.
#[derive(Clone, Copy)]
pub struct Datagram {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl Datagram {
    /// The header alone.
    #[must_use]
    pub fn new(header: &Packet) -> Self {
        let mut datagram = Self { bytes: [0; MAX_LEN], len: 0 };
        datagram.append(&header.to_bytes());
        datagram
    }

    /// Appends bytes. Those that do not fit are dropped, which no caller relies on: a header and
    /// one field of [`precise`] always fit.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        let free = &mut self.bytes[self.len..];
        let count = bytes.len().min(free.len());
        free[..count].copy_from_slice(&bytes[..count]);
        self.len += count;
    }
}

impl Deref for Datagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl PartialEq for Datagram {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Datagram {}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
