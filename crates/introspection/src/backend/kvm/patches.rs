//! Changes to a guest's code: all or none, and only where the expected bytes are present.
//!
//! The caller has stopped every vCPU.

use std::io;

use serde::{Deserialize, Serialize};
use timevisor_linux::process::ProcessMemory;

use super::trap::Trap;
use crate::backend::Site;
use crate::memory::ram::RamLayout;
use crate::point::SLOT;

/// A change to five bytes of QEMU's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// Address in QEMU's memory.
    pub address: u64,
    /// The guest's original bytes.
    pub original: [u8; 5],
    /// The trap's bytes.
    pub patched: [u8; 5],
}

impl Patch {
    /// The patch that traps at this site of a guest whose memory starts at `base` in QEMU's memory;
    /// `None` where the guest has no memory at the site.
    #[must_use]
    pub fn at(site: &Site, ram: &RamLayout, base: u64, trap: Trap) -> Option<Self> {
        let address = base + ram.place(site.address, 5)?;
        Some(Self { address, original: SLOT, patched: trap.bytes() })
    }
}

/// Access to a guest's code.
pub trait Code {
    /// Reads five bytes.
    ///
    /// # Errors
    /// When the host cannot read the memory.
    fn get(&self, address: u64) -> io::Result<[u8; 5]>;

    /// Writes five bytes.
    ///
    /// # Errors
    /// When the host cannot write the memory.
    fn set(&self, address: u64, bytes: [u8; 5]) -> io::Result<()>;
}

impl Code for ProcessMemory {
    fn get(&self, address: u64) -> io::Result<[u8; 5]> {
        let mut bytes = [0; 5];
        self.read_at(address, &mut bytes).map_err(io::Error::other)?;
        Ok(bytes)
    }

    fn set(&self, address: u64, bytes: [u8; 5]) -> io::Result<()> {
        self.write_at(address, &bytes).map_err(io::Error::other)
    }
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The guest's code has changed since it was last read.
    #[error(
        "the guest's code has {found:02x?} where {expected:02x?} was a moment ago; nothing was changed"
    )]
    Changed {
        /// The bytes that are there now.
        found: [u8; 5],
        /// The bytes that were expected.
        expected: [u8; 5],
    },
    /// Memory could not be read or written.
    #[error("the guest's code cannot be changed")]
    Io(#[from] io::Error),
}

/// Applies all changes.
///
/// # Errors
/// When a change fails; the others are then undone.
pub fn put(code: &dyn Code, patches: &[Patch]) -> Result<(), PatchError> {
    for patch in patches {
        let found = code.get(patch.address)?;
        if found != patch.original {
            return Err(PatchError::Changed { found, expected: patch.original });
        }
    }
    for (done, patch) in patches.iter().enumerate() {
        if let Err(error) = code.set(patch.address, patch.patched) {
            let _ = take(code, &patches[..done]);
            return Err(error.into());
        }
    }
    Ok(())
}

/// Undoes the changes that are still in place, and returns their number. Other bytes are left
/// alone, because the guest may have booted another kernel.
///
/// # Errors
/// When memory cannot be reached; some changes may then remain.
pub fn take(code: &dyn Code, patches: &[Patch]) -> io::Result<usize> {
    let mut taken = 0;
    for patch in patches {
        if code.get(patch.address)? == patch.patched {
            code.set(patch.address, patch.original)?;
            taken += 1;
        }
    }
    Ok(taken)
}

/// The number of changes that are in place.
///
/// # Errors
/// When memory cannot be reached.
pub fn in_place(code: &dyn Code, patches: &[Patch]) -> io::Result<usize> {
    let mut count = 0;
    for patch in patches {
        count += usize::from(code.get(patch.address)? == patch.patched);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    struct Memory {
        bytes: RefCell<Vec<u8>>,
        /// Writes to this address fail.
        fails_at: Option<u64>,
    }

    impl Code for Memory {
        fn get(&self, address: u64) -> io::Result<[u8; 5]> {
            let at = usize::try_from(address).unwrap();
            Ok(self.bytes.borrow()[at..at + 5].try_into().unwrap())
        }

        fn set(&self, address: u64, bytes: [u8; 5]) -> io::Result<()> {
            if self.fails_at == Some(address) {
                return Err(io::ErrorKind::Other.into());
            }
            let at = usize::try_from(address).unwrap();
            self.bytes.borrow_mut()[at..at + 5].copy_from_slice(&bytes);
            Ok(())
        }
    }

    fn patches() -> Vec<Patch> {
        let patch = |address| Patch { address, original: [1; 5], patched: [2; 5] };
        vec![patch(0), patch(10), patch(20)]
    }

    fn memory() -> Memory {
        Memory { bytes: RefCell::new(vec![1; 25]), fails_at: None }
    }

    #[test]
    fn all_are_put_and_taken() {
        let memory = memory();
        put(&memory, &patches()).unwrap();
        assert_eq!(in_place(&memory, &patches()).unwrap(), 3);
        assert_eq!(memory.bytes.borrow()[5..10], [1; 5], "nothing else");
        assert!(matches!(put(&memory, &patches()), Err(PatchError::Changed { .. })), "twice");
        assert_eq!(take(&memory, &patches()).unwrap(), 3);
        assert_eq!(*memory.bytes.borrow(), [1; 25]);
        assert_eq!(take(&memory, &patches()).unwrap(), 0);
    }

    #[test]
    fn all_or_none() {
        let mut memory = memory();
        memory.fails_at = Some(20);
        assert!(matches!(put(&memory, &patches()), Err(PatchError::Io(_))));
        assert_eq!(*memory.bytes.borrow(), [1; 25]);
        memory.fails_at = None;
        memory.bytes.borrow_mut()[22] = 9;
        assert!(matches!(put(&memory, &patches()), Err(PatchError::Changed { .. })));
        assert_eq!(in_place(&memory, &patches()).unwrap(), 0);
    }

    #[test]
    fn another_kernels_code_is_left_alone() {
        let memory = memory();
        put(&memory, &patches()).unwrap();
        memory.bytes.borrow_mut()[10..15].copy_from_slice(&[7; 5]);
        assert_eq!(take(&memory, &patches()).unwrap(), 2);
        assert_eq!(memory.bytes.borrow()[10..15], [7; 5]);
    }
}
