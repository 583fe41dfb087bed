//! Memory for tests: one piece that starts at address 0.

use crate::memory::{GuestMemory, MemoryError};

/// Bytes that start at guest-physical address 0.
#[derive(Debug)]
pub(super) struct Flat(pub(super) Vec<u8>);

impl GuestMemory for Flat {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let found = usize::try_from(address)
            .ok()
            .and_then(|at| self.0.get(at..at.checked_add(buffer.len())?))
            .ok_or(MemoryError::NotRam(address))?;
        buffer.copy_from_slice(found);
        Ok(())
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        vec![(0, self.0.len() as u64)]
    }
}
