//! The offsets of the members of a kernel's structures, from its BPF type format
//! (Documentation/bpf/btf.rst, include/uapi/linux/btf.h).
//!
//! The bytes come from a guest. Every length is checked against the bytes that are present, and no
//! allocation is sized by a number in them. A name is followed through at most eight nested
//! structures and a million members. Bit fields are rejected, because nothing here reads one.

use crate::memory::{GuestMemory, MemoryError};
use crate::symbols::kallsyms::{Kernel, SymbolError};

const MAGIC: u16 = 0xeb9f;
/// Maximum size of the type information in bytes. A stock kernel of 2026 has 5 MiB.
const MAX_BYTES: u64 = 64 << 20;
const MAX_DEPTH: u32 = 8;
const MAX_MEMBERS: u32 = 1 << 20;
/// Maximum number of consecutive typedefs, consts and similar modifiers.
const MAX_MODIFIERS: u32 = 32;

mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const FLOAT: u32 = 16;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

/// Why a guest's types cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BtfError {
    /// The kernel has no type information.
    #[error(
        "the guest's kernel has no type information ({0}); it needs CONFIG_DEBUG_INFO_BTF, as Debian's, Fedora's and Ubuntu's kernels have it"
    )]
    None(#[from] SymbolError),
    /// Memory could not be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The type information is malformed.
    #[error("the guest's type information is damaged: {0}")]
    Damaged(&'static str),
    /// The format is newer than this program.
    #[error(
        "the guest's type information has kind {0}, which is not known; a newer timevisord may know it"
    )]
    Kind(u32),
    /// No such structure or member.
    #[error("the guest's kernel has no {0}")]
    Missing(String),
    /// Two structures with this name differ.
    #[error("the guest's kernel has several {0}")]
    Several(String),
}

/// A member of a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Offset in bytes from the beginning of the structure.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// A kernel's types.
#[derive(Clone, Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Where each type begins; type 0 is void.
    types: Vec<u32>,
    /// First byte and end of the strings.
    strings: (usize, usize),
    /// First byte and end of a module's strings, whose offsets continue after these.
    more_strings: (usize, usize),
}

#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    /// Whether members encode bit-field sizes.
    bits: bool,
    count: u32,
    /// The id of another type, or a size.
    size: u32,
    /// Where the data after the header begins.
    at: usize,
}

impl Btf {
    /// Reads the types of a kernel in memory.
    ///
    /// # Errors
    /// When it has no type information, or it is damaged.
    pub fn of_kernel(memory: &dyn GuestMemory, kernel: &Kernel) -> Result<Self, BtfError> {
        let start = kernel.symbols.address("__start_BTF")?;
        let end = kernel.symbols.address("__stop_BTF")?;
        let len = end.checked_sub(start).filter(|len| *len <= MAX_BYTES);
        let len =
            len.and_then(|len| usize::try_from(len).ok()).ok_or(BtfError::Damaged("its size"))?;
        // Checked before allocating this much: the start must lie in the image, or the end was
        // misread.
        kernel.physical(start)?;
        kernel.physical(end)?;
        let mut bytes = vec![0; len];
        kernel.read(memory, start, &mut bytes)?;
        Self::parse(bytes)
    }

    /// Parses the contents of /sys/kernel/btf/vmlinux.
    ///
    /// # Errors
    /// When the types are damaged, or newer than this program.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        let Parts { types, strings } = Parts::find(&bytes, 0)?;
        let mut this = Self { bytes, types: vec![0], strings, more_strings: (0, 0) };
        this.add(types)?;
        Ok(this)
    }

    /// Adds a module's types, as in /sys/kernel/btf/MODULE; their ids continue after the kernel's
    /// own.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn with_module(mut self, module: &[u8]) -> Result<Self, BtfError> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(module);
        let Parts { types, strings } = Parts::find(&self.bytes, start)?;
        self.more_strings = strings;
        self.add(types)?;
        Ok(self)
    }

    fn add(&mut self, (mut at, end): (usize, usize)) -> Result<(), BtfError> {
        while at < end {
            let next = self.end_of(at)?;
            if next > end {
                return Err(BtfError::Damaged("a type beyond the end"));
            }
            self.types.push(u32::try_from(at).map_err(|_| BtfError::Damaged("its size"))?);
            at = next;
        }
        Ok(())
    }

    /// The raw bytes, as in /sys/kernel/btf/vmlinux.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Finds a member, such as `dl.dl_runtime` of `task_struct`. Anonymous structures and unions
    /// are searched too.
    ///
    /// # Errors
    /// When there is no such member, or several structures of that name disagree.
    pub fn member(&self, structure: &str, path: &str) -> Result<Member, BtfError> {
        let missing = || BtfError::Missing(format!("struct {structure} with {path}"));
        let mut found = None;
        let mut budget = MAX_MEMBERS;
        for id in 1..self.types.len() {
            let Some(this) = self.get(id) else { continue };
            if this.kind != kind::STRUCT || !self.named(this.name, structure.as_bytes()) {
                continue;
            }
            let member = self.follow(this, path, &mut budget);
            match (found, member) {
                (_, None) => {}
                (None, Some(_)) => found = member,
                (Some(one), Some(other)) if one == other => {}
                _ => return Err(BtfError::Several(format!("struct {structure}"))),
            }
        }
        found.ok_or_else(missing)
    }

    fn follow(&self, from: Type, path: &str, budget: &mut u32) -> Option<Member> {
        let (mut at, mut offset) = (from, 0u32);
        let mut names = path.split('.').peekable();
        let mut depth = 0;
        while let Some(name) = names.next().filter(|name| !name.is_empty()) {
            depth += 1;
            let (id, inside) = self.find(at, name.as_bytes(), depth, budget)?;
            offset = offset.checked_add(inside)?;
            at = self.resolve(id)?;
            if names.peek().is_none() {
                return Some(Member { offset, size: self.size(at, MAX_MODIFIERS)? });
            }
            if depth >= MAX_DEPTH {
                return None;
            }
        }
        None
    }

    /// The type and offset of a member of this structure or union.
    fn find(&self, this: Type, name: &[u8], depth: u32, budget: &mut u32) -> Option<(u32, u32)> {
        if !matches!(this.kind, kind::STRUCT | kind::UNION) || depth > MAX_DEPTH {
            return None;
        }
        (0..this.count as usize).find_map(|n| {
            *budget = budget.checked_sub(1)?;
            let at = this.at + 12 * n;
            let (called, id, place) =
                (word(&self.bytes, at)?, word(&self.bytes, at + 4)?, word(&self.bytes, at + 8)?);
            let (bits, size) =
                if this.bits { (place & 0xff_ffff, place >> 24) } else { (place, 0) };
            if self.named(called, name) {
                return (size == 0 && bits.is_multiple_of(8)).then_some((id, bits / 8));
            }
            if !self.named(called, b"") {
                return None;
            }
            let (id, inside) = self.find(self.resolve(id)?, name, depth + 1, budget)?;
            Some((id, inside.checked_add(bits / 8)?))
        })
    }

    /// The type behind typedefs and qualifiers such as const.
    fn resolve(&self, mut id: u32) -> Option<Type> {
        for _ in 0..MAX_MODIFIERS {
            let this = self.get(id as usize)?;
            match this.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = this.size;
                }
                _ => return Some(this),
            }
        }
        None
    }

    fn size(&self, this: Type, left: u32) -> Option<u32> {
        match this.kind {
            kind::INT | kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::FLOAT => {
                Some(this.size)
            }
            kind::PTR => Some(8),
            kind::ARRAY => {
                let of = self.resolve(word(&self.bytes, this.at)?)?;
                let one = self.size(of, left.checked_sub(1)?)?;
                one.checked_mul(word(&self.bytes, this.at + 8)?)
            }
            _ => None,
        }
    }

    fn get(&self, id: usize) -> Option<Type> {
        let at = *self.types.get(id).filter(|_| id > 0)? as usize;
        self.type_at(at)
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let info = word(&self.bytes, at + 4)?;
        Some(Type {
            name: word(&self.bytes, at)?,
            kind: info >> 24 & 0x1f,
            bits: info >> 31 != 0,
            count: info & 0xffff,
            size: word(&self.bytes, at + 8)?,
            at: at + 12,
        })
    }

    fn end_of(&self, at: usize) -> Result<usize, BtfError> {
        let this = self.type_at(at).ok_or(BtfError::Damaged("a type beyond the end"))?;
        let count = this.count as usize;
        let more = match this.kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
            kind::ENUM | kind::FUNC_PROTO => 8 * count,
            kind::PTR..=kind::TYPE_TAG => 0,
            other => return Err(BtfError::Kind(other)),
        };
        Ok(this.at + more)
    }

    fn named(&self, at: u32, name: &[u8]) -> bool {
        let (start, end) = self.strings;
        let at = at as usize;
        let (part, at) = match at.checked_sub(end - start) {
            Some(at) => (self.more_strings, at),
            None => (self.strings, at),
        };
        let text = self.bytes.get(part.0..part.1).and_then(|strings| strings.get(at..));
        text.and_then(|text| text.strip_prefix(name)).is_some_and(|rest| rest.first() == Some(&0))
    }
}

/// The byte ranges of types and strings: first byte and end.
struct Parts {
    types: (usize, usize),
    strings: (usize, usize),
}

impl Parts {
    /// Parses the header at `start` of `bytes`.
    fn find(bytes: &[u8], start: usize) -> Result<Self, BtfError> {
        let word = |at| word(bytes, start + at).ok_or(BtfError::Damaged("it is too short"));
        let first = word(0)?;
        if first & 0xffff != u32::from(MAGIC) {
            return Err(BtfError::Damaged("its beginning"));
        }
        if first >> 16 & 0xff != 1 {
            return Err(BtfError::Damaged("its version"));
        }
        let header = start.checked_add(word(4)? as usize);
        let part = |offset: u32, len: u32| {
            let start = header?.checked_add(offset as usize)?;
            let end = start.checked_add(len as usize)?;
            (end <= bytes.len()).then_some((start, end))
        };
        let types = part(word(8)?, word(12)?).ok_or(BtfError::Damaged("its types' place"))?;
        let strings = part(word(16)?, word(20)?).ok_or(BtfError::Damaged("its strings' place"))?;
        Ok(Self { types, strings })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
#[path = "btf_tests.rs"]
mod tests;
