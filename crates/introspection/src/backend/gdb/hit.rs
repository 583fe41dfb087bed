//! The reads at a point: registers are already known, memory has to be requested.

use super::codec;
use super::registers::Registers;
use crate::point::{Base, Point, Read};

/// A vCPU that has stopped at a point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hit {
    /// Index of the point.
    pub(super) point: usize,
    /// The vCPU, as the stub names it.
    pub(super) thread: u16,
    /// The reply to `g`.
    registers: Vec<u8>,
    /// The first 8 bytes of each read so far.
    values: Vec<u64>,
    /// The bytes of all reads so far.
    pub(super) data: Vec<u8>,
    /// Bit n: read n failed.
    pub(super) failed: u16,
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Request this memory.
    Memory { address: u64, len: u16 },
    /// All reads are done.
    Complete,
    /// The filter drops this event.
    Unwanted,
}

impl Hit {
    pub(super) fn new(point: usize, thread: u16, registers: Vec<u8>) -> Self {
        Self { point, thread, registers, values: Vec::new(), data: Vec::new(), failed: 0 }
    }

    /// Proceeds until memory is needed.
    pub(super) fn next(&mut self, point: &Point, places: &Registers) -> Next {
        while let Some(read) = point.reads.get(self.values.len()) {
            match self.begin(read, places) {
                None => self.take(point, None),
                Some((value, true)) => self.take(point, Some(&value.to_le_bytes())),
                Some((address, false)) => return Next::Memory { address, len: read.len },
            }
            if self.is_unwanted(point) {
                return Next::Unwanted;
            }
        }
        Next::Complete
    }

    /// Takes the reply to a memory request, or its failure; returns false if the filter drops the
    /// event.
    pub(super) fn memory(&mut self, point: &Point, answer: &[u8]) -> bool {
        let len = point.reads.get(self.values.len()).map_or(0, |read| usize::from(read.len));
        let bytes = codec::bytes(answer).filter(|bytes| bytes.len() == len);
        self.take(point, bytes.as_deref());
        !self.is_unwanted(point)
    }

    /// A value, and whether it is the result of the read or its address; `None` if the base is a
    /// read that failed.
    fn begin(&self, read: &Read, places: &Registers) -> Option<(u64, bool)> {
        let register = |register| places.value(&self.registers, register);
        let (base, whole) = match read.base {
            Base::Register(of) => (register(of)?, false),
            Base::Value(of) => (register(of)?, true),
            Base::Earlier(n) => {
                (*self.values.get(usize::from(n)).filter(|value| **value != 0)?, false)
            }
            Base::Absolute => (0, false),
        };
        Some((base.wrapping_add_signed(read.offset), whole))
    }

    fn take(&mut self, point: &Point, bytes: Option<&[u8]>) {
        let n = self.values.len();
        let len = point.reads.get(n).map_or(0, |read| usize::from(read.len));
        let mut first = [0; 8];
        match bytes {
            Some(bytes) => {
                let head = bytes.len().min(8);
                first[..head].copy_from_slice(&bytes[..head]);
                self.data.extend_from_slice(bytes);
            }
            None => {
                self.data.resize(self.data.len() + len, 0);
                self.failed |= u32::try_from(n).ok().and_then(|n| 1u16.checked_shl(n)).unwrap_or(0);
            }
        }
        self.values.push(u64::from_le_bytes(first));
    }

    /// Whether the filter drops the event, judged by the last read if it succeeded.
    fn is_unwanted(&self, point: &Point) -> bool {
        let Some(filter) = point.filter else { return false };
        let (made, which) = (self.values.len(), usize::from(filter.read));
        let could = self.failed & 1u16.checked_shl(filter.read.into()).unwrap_or(0) == 0;
        let value = self.values.get(which).copied().unwrap_or(0);
        let bit = u32::try_from(value).ok().and_then(|value| 1u64.checked_shl(value));
        made == which + 1 && could && bit.is_none_or(|bit| filter.mask & bit == 0)
    }
}
