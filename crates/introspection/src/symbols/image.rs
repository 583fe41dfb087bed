//! The ELF file of a guest that runs in one flat address space. The operator supplies it, because
//! such a guest has no symbols in its memory.
//!
//! The file is checked against the guest's memory before it is used ([`Image::is_in`]): with
//! another build, trap points would land in the middle of other functions. No allocation is sized
//! by a number in the file, and every inconsistency is an error.
//!
//! What it does not do: relocate, read DWARF, or follow page tables. Virtual and physical addresses
//! must be equal.

use object::LittleEndian as Le;
use object::elf::{EM_386, EM_X86_64};
use object::elf::{ET_EXEC, FileHeader32, FileHeader64, PT_LOAD, SHN_UNDEF};
use object::elf::{SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHT_PROGBITS, SHT_SYMTAB, STT_FILE};
use object::read::elf::{
    FileHeader, ProgramHeader as _, SectionHeader as _, SectionTable, Sym as _,
};

use crate::memory::{GuestMemory, MemoryError};
use crate::point::SLOT;
use crate::symbols::near::nearest;

/// Maximum size of a file; no RTOS is larger.
pub const MOST_BYTES: usize = 64 << 20;
/// Maximum number of code sections; linkers make one or two.
const MOST_PARTS: usize = 64;
/// Symbols among which a misspelt one is looked for.
const MOST_NAMES: usize = 1 << 16;
/// Owner of our notes, without the terminating NUL.
const OWNER: &[u8] = b"Timevisor";
/// endbr32 and endbr64, which may stand before a slot.
const BEFORE: [[u8; 4]; 2] = [[0xf3, 0x0f, 0x1e, 0xfb], [0xf3, 0x0f, 0x1e, 0xfa]];

/// Why a file cannot be used for the guest for which it was supplied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// The file is too long.
    #[error("the image has more than {} MiB; give the ELF file of the guest, not a disk", MOST_BYTES >> 20)]
    Long,
    /// Not an ELF file, or a damaged one.
    #[error(
        "the image is not a sound x86 ELF file ({0}); give the file that QEMU's -kernel gets, with its symbols"
    )]
    Elf(String),
    /// A position-independent executable or an object file.
    #[error("the image is not linked to the address at which it runs; link it without -pie and -r")]
    NotLinked,
    /// Virtual and physical addresses differ.
    #[error(
        "the image runs at {address:#x} and is loaded at {physical:#x}; only guests in which these are the same are known"
    )]
    NotFlat {
        /// The virtual address.
        address: u64,
        /// The physical address.
        physical: u64,
    },
    /// No code, or code in too many sections.
    #[error(
        "the image has {0} sections of code that are not written to; 1 to {MOST_PARTS} are expected"
    )]
    Parts(usize),
    /// The file was stripped.
    #[error("the image has no symbols; give the file as it was linked, before `strip`")]
    Stripped,
    /// No such symbol.
    #[error("the image has no symbol {0}")]
    NoSymbol(String),
    /// Several symbols have this name.
    #[error("the image has several symbols {0}, at different addresses")]
    Ambiguous(String),
    /// A function outside of the sections that are compared.
    #[error("{0} is not in a section of code that is not written to")]
    Outside(String),
    /// A function without a trap slot.
    #[error(
        "{symbol} begins with {found:02x?}, not with a NOP of 5 bytes: compile it with `-pg -mfentry -mnop-mcount`"
    )]
    NoSlot {
        /// The function.
        symbol: String,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// The guest runs something else.
    #[error(
        "the image is not what the guest runs: its memory differs at {0:#x}; give the file with which it was started"
    )]
    Another(u64),
    /// The guest's memory could not be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

fn unsound(error: object::Error) -> ImageError {
    ImageError::Elf(error.to_string())
}

/// A parsed file.
#[derive(Clone, Debug)]
pub struct Image<'a> {
    bytes: &'a [u8],
    wide: bool,
    /// Its code sections: address and bytes.
    parts: Vec<(u64, &'a [u8])>,
}

impl<'a> Image<'a> {
    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// When it is not an executable for x86 in one flat address space.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ImageError> {
        if bytes.len() > MOST_BYTES {
            return Err(ImageError::Long);
        }
        // EI_CLASS; the parsers check it again.
        let wide = bytes.get(4) == Some(&2);
        let parts = if wide {
            parts(bytes, FileHeader64::<Le>::parse(bytes).map_err(unsound)?, EM_X86_64)?
        } else {
            parts(bytes, FileHeader32::<Le>::parse(bytes).map_err(unsound)?, EM_386)?
        };
        Ok(Self { bytes, wide, parts })
    }

    /// Whether it is a 64-bit executable: arguments are in registers then, and on the stack
    /// otherwise.
    #[must_use]
    pub const fn is_wide(&self) -> bool {
        self.wide
    }

    /// The contents of our note of this type, if the file has one.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn note(&self, kind: u32) -> Result<Option<&'a [u8]>, ImageError> {
        self.note_of(OWNER, kind)
    }

    /// The contents of the first note of this owner (without its terminating NUL) and type, if the
    /// file has one.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn note_of(&self, owner: &[u8], kind: u32) -> Result<Option<&'a [u8]>, ImageError> {
        if self.wide {
            let elf = FileHeader64::<Le>::parse(self.bytes).map_err(unsound)?;
            note(self.bytes, elf, owner, kind)
        } else {
            let elf = FileHeader32::<Le>::parse(self.bytes).map_err(unsound)?;
            note(self.bytes, elf, owner, kind)
        }
    }

    /// A symbol's address.
    ///
    /// # Errors
    /// When there is not exactly one such symbol, or the file is damaged.
    pub fn address(&self, symbol: &str) -> Result<u64, ImageError> {
        if self.wide {
            address(self.bytes, FileHeader64::<Le>::parse(self.bytes).map_err(unsound)?, symbol)
        } else {
            address(self.bytes, FileHeader32::<Le>::parse(self.bytes).map_err(unsound)?, symbol)
        }
    }

    /// The symbol with the name that is nearest to one that the file does not have, if one is near
    /// (`nearest`). It is printable.
    #[must_use]
    pub fn near(&self, symbol: &str) -> Option<&'a str> {
        if self.wide {
            near(self.bytes, FileHeader64::<Le>::parse(self.bytes).ok()?, symbol)
        } else {
            near(self.bytes, FileHeader32::<Le>::parse(self.bytes).ok()?, symbol)
        }
    }

    /// The address of a function's slot.
    ///
    /// # Errors
    /// When there is no such function, or no slot at its beginning.
    pub fn slot(&self, symbol: &str) -> Result<u64, ImageError> {
        let address = self.address(symbol)?;
        let outside = || ImageError::Outside(symbol.to_owned());
        let code = self.parts.iter().find_map(|(start, bytes)| {
            bytes.get(usize::try_from(address.checked_sub(*start)?).ok()?..)
        });
        let code = code.filter(|code| !code.is_empty()).ok_or_else(outside)?;
        let skipped = if BEFORE.iter().any(|before| code.starts_with(before)) { 4 } else { 0 };
        if code[skipped..].starts_with(&SLOT) {
            Ok(address + skipped as u64)
        } else {
            let found = code[..code.len().min(9)].to_vec();
            Err(ImageError::NoSlot { symbol: symbol.to_owned(), found })
        }
    }

    /// Compares all of its code with memory, byte by byte.
    ///
    /// # Errors
    /// When they differ, or the memory cannot be read.
    pub fn is_in(&self, memory: &dyn GuestMemory) -> Result<(), ImageError> {
        let mut found = [0; 4096];
        for (start, bytes) in &self.parts {
            for (n, expected) in bytes.chunks(found.len()).enumerate() {
                let at = start + (n * found.len()) as u64;
                let found = &mut found[..expected.len()];
                memory.read(at, found)?;
                if let Some(other) = found.iter().zip(expected).position(|(a, b)| a != b) {
                    return Err(ImageError::Another(at + other as u64));
                }
            }
        }
        Ok(())
    }
}

fn parts<'a, E: FileHeader<Endian = Le>>(
    bytes: &'a [u8],
    elf: &E,
    machine: u16,
) -> Result<Vec<(u64, &'a [u8])>, ImageError> {
    if elf.e_machine(Le) != machine {
        return Err(ImageError::Elf("for another processor".to_owned()));
    }
    if elf.e_type(Le) != ET_EXEC {
        return Err(ImageError::NotLinked);
    }
    for header in elf.program_headers(Le, bytes).map_err(unsound)? {
        let (address, physical): (u64, u64) =
            (header.p_vaddr(Le).into(), header.p_paddr(Le).into());
        if header.p_type(Le) == PT_LOAD && address != physical {
            return Err(ImageError::NotFlat { address, physical });
        }
    }
    let mut parts = Vec::new();
    for section in sections(bytes, elf)?.iter() {
        let flags: u64 = section.sh_flags(Le).into();
        // Only code: processors write to descriptor tables, wherever these are.
        let code = u64::from(SHF_ALLOC | SHF_EXECINSTR);
        if flags & (code | u64::from(SHF_WRITE)) != code || section.sh_type(Le) != SHT_PROGBITS {
            continue;
        }
        let part = section.data(Le, bytes).map_err(unsound)?;
        let address: u64 = section.sh_addr(Le).into();
        if address.checked_add(part.len() as u64).is_none() {
            return Err(ImageError::Elf("a section is beyond the end of memory".to_owned()));
        }
        if !part.is_empty() {
            parts.push((address, part));
        }
        if parts.len() > MOST_PARTS {
            break;
        }
    }
    if parts.is_empty() || parts.len() > MOST_PARTS {
        return Err(ImageError::Parts(parts.len()));
    }
    Ok(parts)
}

fn sections<'a, E: FileHeader<Endian = Le>>(
    bytes: &'a [u8],
    elf: &E,
) -> Result<SectionTable<'a, E>, ImageError> {
    elf.sections(Le, bytes).map_err(unsound)
}

fn note<'a, E: FileHeader<Endian = Le>>(
    bytes: &'a [u8],
    elf: &E,
    owner: &[u8],
    kind: u32,
) -> Result<Option<&'a [u8]>, ImageError> {
    for section in sections(bytes, elf)?.iter() {
        let Some(mut notes) = section.notes(Le, bytes).map_err(unsound)? else { continue };
        while let Some(note) = notes.next().map_err(unsound)? {
            if note.name() == owner && note.n_type(Le) == kind {
                return Ok(Some(note.desc()));
            }
        }
    }
    Ok(None)
}

fn address<E: FileHeader<Endian = Le>>(
    bytes: &[u8],
    elf: &E,
    wanted: &str,
) -> Result<u64, ImageError> {
    let table = sections(bytes, elf)?.symbols(Le, bytes, SHT_SYMTAB).map_err(unsound)?;
    if table.is_empty() {
        return Err(ImageError::Stripped);
    }
    let mut found = None;
    for symbol in table.iter() {
        // A symbol whose name lies outside of the table is ignored.
        let Ok(name) = symbol.name(Le, table.strings()) else { continue };
        if name != wanted.as_bytes() || symbol.st_shndx(Le) == SHN_UNDEF {
            continue;
        }
        let address = symbol.st_value(Le).into();
        if found.is_some_and(|before| before != address) {
            return Err(ImageError::Ambiguous(wanted.to_owned()));
        }
        found = Some(address);
    }
    found.ok_or_else(|| ImageError::NoSymbol(wanted.to_owned()))
}

fn near<'a, E: FileHeader<Endian = Le>>(bytes: &'a [u8], elf: &E, wanted: &str) -> Option<&'a str> {
    let table = sections(bytes, elf).ok()?.symbols(Le, bytes, SHT_SYMTAB).ok()?;
    let defined = table
        .iter()
        .take(MOST_NAMES)
        .filter(|symbol| symbol.st_shndx(Le) != SHN_UNDEF && symbol.st_type() != STT_FILE);
    let names = defined.filter_map(|symbol| {
        let name = core::str::from_utf8(symbol.name(Le, table.strings()).ok()?).ok()?;
        name.bytes().all(|byte| byte.is_ascii_graphic()).then_some(name)
    });
    nearest(wanted, names)
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
