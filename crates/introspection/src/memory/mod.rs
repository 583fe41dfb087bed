//! Reading a guest's memory: by physical address through [`GuestMemory`], by virtual address
//! through a walk of its page tables.
//!
//! The guest controls its page tables, so a walk does not trust them: it reads at most five
//! entries, and an entry that points outside of memory is an error. This module never writes.

pub mod ram;

/// Where a read failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    /// The guest has no main memory at this address.
    #[error("the guest has no memory at {0:#x}")]
    NotRam(u64),
    /// The page tables do not map this address.
    #[error("the guest has mapped nothing at {0:#x}")]
    NotMapped(u64),
    /// The host could not read it.
    #[error("cannot read the guest's memory at {address:#x}: {reason}; does its QEMU still run?")]
    Host {
        /// Guest-physical address.
        address: u64,
        /// The host kernel's error message.
        reason: String,
    },
}

/// A guest's main memory, accessed by guest-physical address.
pub trait GuestMemory {
    /// Fills `buffer` from `address` on. Not atomic, because the guest may run.
    ///
    /// # Errors
    /// When part of the range is not main memory, or cannot be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError>;

    /// The ranges of main memory, each with its first address and its length; ascending and
    /// disjoint.
    fn ranges(&self) -> Vec<(u64, u64)>;
}

/// Reads `len` bytes, or fewer if the range of main memory ends earlier.
///
/// # Errors
/// As [`GuestMemory::read`].
pub fn read_some(
    memory: &dyn GuestMemory,
    address: u64,
    len: usize,
) -> Result<Vec<u8>, MemoryError> {
    let ranges = memory.ranges();
    let inside = ranges.iter().find(|(start, size)| address >= *start && address - start < *size);
    let (start, size) = inside.ok_or(MemoryError::NotRam(address))?;
    let left = size - (address - start);
    let len = usize::try_from(left).map_or(len, |left| left.min(len));
    let mut buffer = vec![0; len];
    memory.read(address, &mut buffer)?;
    Ok(buffer)
}

/// Page tables of an x86-64 guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageTables {
    /// Guest-physical address of the top-level table (CR3 without its flags).
    pub root: u64,
    /// CR4.LA57.
    pub five_levels: bool,
}

/// Bits 12 to 51 of an entry (Intel SDM volume 3, 5.5).
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const PRESENT: u64 = 1;
/// The entry maps a 1 GiB or 2 MiB page; valid only in tables of those levels.
const HUGE: u64 = 1 << 7;

impl PageTables {
    /// Translates a virtual address to a physical one.
    ///
    /// # Errors
    /// When nothing is mapped there, or a table lies outside of memory.
    pub fn translate(&self, memory: &dyn GuestMemory, address: u64) -> Result<u64, MemoryError> {
        let levels = if self.five_levels { 5 } else { 4 };
        let top = 12 + 9 * levels - 1;
        let sign = address.cast_signed() >> top;
        if sign != 0 && sign != -1 {
            return Err(MemoryError::NotMapped(address));
        }
        let mut table = self.root & ADDRESS;
        for level in (1..=levels).rev() {
            let shift = 12 + 9 * (level - 1);
            let index = (address >> shift) & 511;
            let mut bytes = [0; 8];
            memory.read(table + 8 * index, &mut bytes)?;
            let entry = u64::from_le_bytes(bytes);
            if entry & PRESENT == 0 {
                return Err(MemoryError::NotMapped(address));
            }
            if level == 1 || (level <= 3 && entry & HUGE != 0) {
                let inside = (1 << shift) - 1;
                return Ok((entry & ADDRESS & !inside) | (address & inside));
            }
            table = entry & ADDRESS;
        }
        Err(MemoryError::NotMapped(address))
    }

    /// Fills `buffer` from a virtual address on, page by page.
    ///
    /// # Errors
    /// When a page is not mapped, or is not main memory.
    pub fn read(
        &self,
        memory: &dyn GuestMemory,
        address: u64,
        buffer: &mut [u8],
    ) -> Result<(), MemoryError> {
        let mut done = 0;
        while done < buffer.len() {
            let at = address.checked_add(done as u64).ok_or(MemoryError::NotMapped(address))?;
            let in_page = usize::try_from(4096 - (at & 4095)).unwrap_or(4096);
            let end = (done + in_page).min(buffer.len());
            memory.read(self.translate(memory, at)?, &mut buffer[done..end])?;
            done = end;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
