//! A trap point: an instruction of the guest's kernel, and what to read when it is reached. Plain
//! data, the same for every backend.

/// The 5-byte NOP that a compiler places at the beginning of a function for ftrace. ftrace may
/// replace it.
pub const SLOT: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Limits of one set of points. The plugin has the same limits.
pub mod limits {
    /// Points in a set.
    pub const POINTS: usize = 32;
    /// Reads per point.
    pub const READS: usize = 16;
    /// Total bytes of all reads of a point.
    pub const DATA: usize = 256;
}

/// A register, identified by KVM's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Register {
    /// The third argument.
    Rdx = 2,
    /// The stack pointer.
    Rsp = 4,
    /// The second argument.
    Rsi = 6,
    /// The first argument.
    Rdi = 7,
    /// The base of this processor's per-CPU variables.
    GsBase = 16,
    /// The root of the page tables.
    Cr3 = 17,
}

/// Where a read begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// Memory at the address in a register.
    Register(Register),
    /// Memory at the address that an earlier read of 8 or 4 bytes gave.
    Earlier(u8),
    /// The value of the register itself; no memory is read.
    Value(Register),
    /// Memory at the offset itself: a variable of a guest in one address space.
    Absolute,
}

/// One read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The base of the address.
    pub base: Base,
    /// Offset from the base.
    pub offset: i64,
    /// Number of bytes.
    pub len: u16,
}

impl Read {
    /// Reads memory at the address in a register.
    #[must_use]
    pub const fn at(register: Register, offset: i64, len: u16) -> Self {
        Self { base: Base::Register(register), offset, len }
    }

    /// Reads memory at the address that an earlier read gave.
    #[must_use]
    pub const fn from(earlier: u8, offset: i64, len: u16) -> Self {
        Self { base: Base::Earlier(earlier), offset, len }
    }

    /// Reads memory at an address.
    #[must_use]
    pub const fn absolute(address: u64, len: u16) -> Self {
        Self { base: Base::Absolute, offset: address.cast_signed(), len }
    }

    /// Reads a register.
    #[must_use]
    pub const fn value(register: Register) -> Self {
        Self { base: Base::Value(register), offset: 0, len: 8 }
    }
}

/// Drops an event unless one of its reads yields one of these numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// Index of the read.
    pub read: u8,
    /// Bit n is set: number n passes.
    pub mask: u64,
}

/// One instruction, and what is read before it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// Identifies the point in events.
    pub id: u16,
    /// The function's name, for messages.
    pub symbol: String,
    /// Virtual address of the instruction.
    pub address: u64,
    /// The bytes that must be at this address.
    pub expected: [u8; 5],
    /// The reads, in this order.
    pub reads: Vec<Read>,
    /// Which events are wanted; if absent, all.
    pub filter: Option<Filter>,
}
