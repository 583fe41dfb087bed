//! Checks that an earlier-found kernel is still in memory, by its banner, its page tables and the
//! bytes at its points.
//!
//! Another kernel at the same address has another banner, unless the same machine built it from the
//! same sources in the same second. A kernel that a reset left behind passes this check too; only
//! its heartbeat tells that it no longer runs.

use crate::memory::{GuestMemory, MemoryError, PageTables};
use crate::point::Point;
use crate::symbols::kallsyms::{Kernel, SymbolError};

/// Number of bytes of the banner that are compared: they hold the release, the builder, the
/// compiler and the build time.
const BANNER: usize = 256;

/// What identifies a kernel.
#[derive(Debug)]
pub(super) struct Mark {
    /// Virtual and physical address of the image.
    image: (u64, u64),
    /// Virtual address and contents of the banner.
    banner: (u64, Box<[u8; BANNER]>),
}

/// Why no identity could be recorded for a kernel.
#[derive(Debug, thiserror::Error)]
pub(super) enum MarkError {
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Mark {
    /// The identity of a kernel that has just been found.
    pub(super) fn of(memory: &dyn GuestMemory, kernel: &Kernel) -> Result<Self, MarkError> {
        let text = kernel.symbols.address("_text")?;
        let at = kernel.symbols.address("linux_banner")?;
        let mut banner = Box::new([0; BANNER]);
        kernel.read(memory, at, &mut *banner)?;
        Ok(Self { image: (text, kernel.physical(text)?), banner: (at, banner) })
    }

    /// Whether all of it is unchanged, and every point holds the bytes that it must hold; read
    /// through the kernel's own page tables in their current state.
    pub(super) fn is_there(
        &self,
        memory: &dyn GuestMemory,
        tables: &PageTables,
        points: &[Point],
    ) -> bool {
        let (text, physical) = self.image;
        let (at, banner) = &self.banner;
        let mut found = [0; BANNER];
        let has_slot = |point: &Point| {
            let mut found = [0; 5];
            tables.read(memory, point.address, &mut found).is_ok() && found == point.expected
        };
        tables.translate(memory, text) == Ok(physical)
            && tables.read(memory, *at, &mut found).is_ok()
            && found == **banner
            && points.iter().all(has_slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::SLOT;
    use crate::testing::Flat;

    const TABLES: PageTables = PageTables { root: 0x1000, five_levels: false };
    const SLOT_AT: usize = 0x9010;
    const BANNER_AT: usize = 0xa000;

    /// Page tables that identity-map the first 2 MiB, a banner and a slot.
    fn memory() -> Flat {
        let mut all = vec![0; 0x1_0000];
        for (table, entry) in [(0x1000, 0x2003u64), (0x2000, 0x3003), (0x3000, 0x83)] {
            all[table..table + 8].copy_from_slice(&entry.to_le_bytes());
        }
        all[BANNER_AT..BANNER_AT + 19].copy_from_slice(b"Linux version 7.3.4");
        all[SLOT_AT..SLOT_AT + 5].copy_from_slice(&SLOT);
        Flat(all)
    }

    #[test]
    fn another_byte_anywhere_is_another_kernel() {
        let mut banner = Box::new([0; BANNER]);
        memory().read(BANNER_AT as u64, &mut *banner).unwrap();
        let mark = Mark { image: (0x8000, 0x8000), banner: (BANNER_AT as u64, banner) };
        let point = Point {
            id: 1,
            symbol: "f".into(),
            address: SLOT_AT as u64,
            expected: SLOT,
            reads: Vec::new(),
            filter: None,
        };
        let is_there = |memory: &Flat| mark.is_there(memory, &TABLES, std::slice::from_ref(&point));
        assert!(is_there(&memory()));
        // The banner's first and last byte, the slot, and a table.
        for at in [BANNER_AT, BANNER_AT + BANNER - 1, SLOT_AT + 4, 0x1000] {
            let mut other = memory();
            other.0[at] ^= 1;
            assert!(!is_there(&other), "{at:#x}");
        }
        // The image is now mapped 2 MiB further on.
        let mut moved = memory();
        moved.0[0x3002] = 0x20;
        assert!(!is_there(&moved));
        assert!(!is_there(&Flat(vec![0; 16])), "no memory");
    }
}
