//! A guest kernel's own symbol table (kallsyms), found in its memory: no System.map, no help from the guest, with or without KASLR.
//!
//! | file | owns |
//! | --- | --- |
//! | `scan.rs` | a search through all memory for the one table that is easy to recognize, a piece at a time |
//! | `index.rs` | what that table looks like |
//! | `tables.rs` | the other tables around it: three layouts (scripts/kallsyms.c of 6.1, 6.5, 7.2) |
//! | `symbols.rs` | names and addresses, decoded |
//! | `error.rs` | why no kernel was found |
//! | `image.rs` | where the kernel is, physically and virtually, checked by its banner, its syscall table and its own page tables |
//!
//! All of it is bytes that a guest wrote. Sizes are bounded before they are used, and what does not fit together is not used. A guest's
//! program can imitate a kernel in its own memory: then there are two, and neither is taken.

mod error;
mod image;
mod index;
mod scan;
mod symbols;
mod tables;

pub use error::KallsymsError;
pub use image::{Kernel, Version};
pub use scan::Scan;
pub use symbols::{SymbolError, Symbols};

use crate::memory::GuestMemory;

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
