//! Trap points: at which instruction of the guest's kernel, and what to read there. Data: every backend does the same with them.

use crate::memory::{GuestMemory, MemoryError};
use crate::symbols::kallsyms::{Kernel, SymbolError};

/// What a compiler puts at the beginning of a function for ftrace, and ftrace has not changed: NOP of 5 bytes.
pub const SLOT: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Limits of one set of points; the plugin's are the same.
pub mod limits {
    /// Points at once.
    pub const POINTS: usize = 32;
    /// Reads of one.
    pub const READS: usize = 16;
    /// Bytes that all reads of one give.
    pub const DATA: usize = 256;
}

/// A register, numbered as KVM numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Register {
    /// The third argument.
    Rdx = 2,
    /// The stack.
    Rsp = 4,
    /// The second argument.
    Rsi = 6,
    /// The first argument.
    Rdi = 7,
    /// Where this processor's own variables are.
    GsBase = 16,
    /// The page tables.
    Cr3 = 17,
}

/// Where a read begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// Memory at what a register holds.
    Register(Register),
    /// Memory at what an earlier read of 8 or 4 bytes gave.
    Earlier(u8),
    /// No memory: the register itself.
    Value(Register),
    /// Memory at the offset itself: a variable of a guest in one address space.
    Absolute,
}

/// One read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// Where it begins.
    pub base: Base,
    /// Added to that.
    pub offset: i64,
    /// So many bytes.
    pub len: u16,
}

impl Read {
    /// Of memory at what a register holds.
    #[must_use]
    pub const fn at(register: Register, offset: i64, len: u16) -> Self {
        Self { base: Base::Register(register), offset, len }
    }

    /// Of memory at what an earlier read gave.
    #[must_use]
    pub const fn from(earlier: u8, offset: i64, len: u16) -> Self {
        Self { base: Base::Earlier(earlier), offset, len }
    }

    /// Of memory at an address.
    #[must_use]
    pub const fn absolute(address: u64, len: u16) -> Self {
        Self { base: Base::Absolute, offset: address.cast_signed(), len }
    }

    /// Of a register.
    #[must_use]
    pub const fn value(register: Register) -> Self {
        Self { base: Base::Value(register), offset: 0, len: 8 }
    }
}

/// Only if this read's number is one of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// Which read.
    pub read: u8,
    /// Bit n: n passes.
    pub mask: u64,
}

/// One instruction and what is read before it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// Told with each event.
    pub id: u16,
    /// The function, for people.
    pub symbol: String,
    /// Virtual address of the instruction.
    pub address: u64,
    /// What must be there.
    pub expected: [u8; 5],
    /// In this order.
    pub reads: Vec<Read>,
    /// Who is wanted.
    pub filter: Option<Filter>,
}

/// Why a function has no trap point.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PointError {
    /// No such function.
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    /// Memory could not be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Something else than a NOP.
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

/// What may stand before the slot: endbr64, or the NOPs of 4 bytes that the kernel seals it with (6.1 to 6.18: 66 0f 1f 00, later: 0f 1f 40 d6).
const BEFORE: [[u8; 4]; 3] =
    [[0xf3, 0x0f, 0x1e, 0xfa], [0x66, 0x0f, 0x1f, 0x00], [0x0f, 0x1f, 0x40, 0xd6]];

/// The address of a function's slot.
///
/// # Errors
/// When there is no such function, or no untouched slot at its beginning.
pub fn slot(memory: &dyn GuestMemory, kernel: &Kernel, symbol: &str) -> Result<u64, PointError> {
    slot_at(memory, kernel, kernel.symbols.address(symbol)?, symbol)
}

/// The same of a function that is known to be at this address.
///
/// # Errors
/// When there is no untouched slot at its beginning.
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
