//! A guest kernel's own symbol table (kallsyms), found in its memory: no System.map, no help from the guest, with or without KASLR.
//!
//! | file | owns |
//! | --- | --- |
//! | `scan.rs` | a search through all memory for the one table that is easy to recognize, a piece at a time |
//! | `tables.rs` | the other tables around it: three layouts (scripts/kallsyms.c of 6.1, 6.5, 7.2) |
//! | `symbols.rs` | names and addresses, decoded |
//! | `image.rs` | where the kernel is, physically and virtually, checked by its banner, its syscall table and its own page tables |
//!
//! All of it is bytes that a guest wrote. Sizes are bounded before they are used, and what does not fit together is not used. A guest's
//! program can imitate a kernel in its own memory: then there are two, and neither is taken.

mod image;
mod scan;
mod symbols;
mod tables;

pub use image::{Kernel, Version};
pub use scan::Scan;
pub use symbols::{SymbolError, Symbols};

use crate::memory::{GuestMemory, MemoryError};

/// Why there are no symbols.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KallsymsError {
    /// No kernel.
    #[error(
        "no Linux kernel's symbol table in the guest's memory: it has not booted yet, or its kernel is built without CONFIG_KALLSYMS_ALL, or \
         lays its tables out in a way that is not known (known: 5.18 to 6.1, and from 6.5 on); the nearest found: {0}"
    )]
    NotFound(String),
    /// Several kernels.
    #[error(
        "{0} places in the guest's memory look like its kernel's symbol table; after a kexec or beside a program that imitates one, reboot \
         the guest and attach again"
    )]
    Ambiguous(usize),
    /// Too many places to try.
    #[error(
        "more than {0} places in the guest's memory look like a symbol table; somebody in the guest imitates them"
    )]
    TooMany(usize),
    /// Memory could not be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Finds every kernel there is, also one that ran before a reset, all memory at once; at least one.
///
/// # Errors
/// When there is none.
pub fn find_all(memory: &dyn GuestMemory) -> Result<Vec<Kernel>, KallsymsError> {
    let mut scan = Scan::new(memory);
    while !scan.step(memory, 64 << 20)? {}
    scan.kernels(memory)
}

/// Finds the one kernel there is, all memory at once. [`Scan`] does the same in pieces.
///
/// # Errors
/// When there is none, or more than one.
pub fn find(memory: &dyn GuestMemory) -> Result<Kernel, KallsymsError> {
    let mut scan = Scan::new(memory);
    while !scan.step(memory, 64 << 20)? {}
    scan.kernel(memory)
}

#[cfg(test)]
mod tests;
