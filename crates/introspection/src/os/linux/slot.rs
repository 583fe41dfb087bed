//! The slot of a kernel function: the NOP at its beginning that ftrace may use and that a trap
//! replaces.

use crate::memory::{GuestMemory, MemoryError};
use crate::point::SLOT;
use crate::symbols::kallsyms::{Kernel, SymbolError};

/// Why a function has no trap point.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PointError {
    /// No such function.
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    /// Memory could not be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The function begins with something other than a NOP.
    #[error(
        "{symbol} begins with {}, not with a NOP for ftrace: something in the guest traces it (switch that off: `echo nop > \
         /sys/kernel/tracing/current_tracer`, or unload the live patch), or its kernel is built without CONFIG_FUNCTION_TRACER",
        hex(.found)
    )]
    NoSlot {
        /// The function.
        symbol: String,
        /// Its first bytes.
        found: [u8; 9],
    },
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What may come before the slot: endbr64, or one of the 4-byte NOPs with which the kernel replaces
/// it (6.1 to 6.18: 66 0f 1f 00, later: 0f 1f 40 d6).
const BEFORE: [[u8; 4]; 3] =
    [[0xf3, 0x0f, 0x1e, 0xfa], [0x66, 0x0f, 0x1f, 0x00], [0x0f, 0x1f, 0x40, 0xd6]];

/// The address of a function's slot.
///
/// # Errors
/// When there is no such function, or it does not begin with an unused slot.
pub fn slot(memory: &dyn GuestMemory, kernel: &Kernel, symbol: &str) -> Result<u64, PointError> {
    slot_at(memory, kernel, kernel.symbols.address(symbol)?, symbol)
}

/// The address of the slot of the function at this address.
///
/// # Errors
/// When the function does not begin with an unused slot.
pub fn slot_at(
    memory: &dyn GuestMemory,
    kernel: &Kernel,
    address: u64,
    symbol: &str,
) -> Result<u64, PointError> {
    let mut found = [0; 9];
    kernel.read(memory, address, &mut found)?;
    if found.starts_with(&SLOT) {
        Ok(address)
    } else if found.ends_with(&SLOT) && BEFORE.iter().any(|before| found.starts_with(before)) {
        Ok(address + 4)
    } else {
        Err(PointError::NoSlot { symbol: symbol.to_owned(), found })
    }
}
