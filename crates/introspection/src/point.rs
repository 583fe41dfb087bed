//! Trap points: at which instruction of the guest's kernel, and what to read there. Data: every backend does the same with them.

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
