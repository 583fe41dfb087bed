//! A guest kernel's symbol table (kallsyms), found in its memory without a System.map or the
//! guest's help, with or without KASLR.
//!
//! | file | owns |
//! | --- | --- |
//! | `scan.rs` | a search through all memory for the one table that is easy to recognize, a piece at a time |
//! | `index.rs` | what that table looks like |
//! | `tables.rs` | the other tables around it: three layouts (scripts/kallsyms.c of 6.1, 6.5, 7.2) |
//! | `symbols.rs` | names and addresses, decoded |
//! | `effort.rs` | how much work all of that may be |
//! | `error.rs` | why no kernel was found |
//! | `image.rs` | the kernel's physical and virtual address, checked by its banner, its syscall table and its page tables |
//!
//! All these bytes come from a guest. Sizes are bounded before they are used, and tables that
//! contradict each other are rejected. A program in the guest can imitate a kernel in its memory.
//! Then two kernels are found, and neither is used.

mod effort;
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

/// Finds every kernel in memory, including one that ran before a reset, in one search.
///
/// # Errors
/// When there is none.
pub fn find_all(memory: &dyn GuestMemory) -> Result<Vec<Kernel>, KallsymsError> {
    let mut scan = Scan::new(memory);
    while !scan.step(memory, 64 << 20)? {}
    scan.kernels(memory)
}

/// Finds the only kernel in memory, in one search. [`Scan`] does the same in pieces.
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
