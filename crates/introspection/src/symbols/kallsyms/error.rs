//! Why no symbol table was found.

use crate::memory::MemoryError;

/// Why no symbols could be found.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KallsymsError {
    /// No kernel was found.
    #[error(
        "no Linux kernel's symbol table in the guest's memory: it has not booted yet, or its kernel is built without CONFIG_KALLSYMS_ALL, or \
         lays its tables out in a way that is not known (known: 5.18 to 6.1, and from 6.5 on); the nearest found: {0}"
    )]
    NotFound(String),
    /// Several kernels were found.
    #[error(
        "{0} places in the guest's memory look like its kernel's symbol table; after a kexec or beside a program that imitates one, reboot \
         the guest and attach again"
    )]
    Ambiguous(usize),
    /// Too many candidates to try.
    #[error(
        "more than {0} places in the guest's memory look like a symbol table; somebody in the guest imitates them"
    )]
    TooMany(usize),
    /// Memory could not be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
