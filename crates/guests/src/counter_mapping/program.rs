//! Where a running QEMU has its variables: the dynamic symbols of its executable, and where that was
//! loaded.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;

use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{Endianness, Object, ObjectSegment, ObjectSymbol, ReadCache, ReadRef, elf};
use timevisor_linux::process::{MapLine, Process};

use super::mapping::MappingError;

/// What is looked for.
const WANTED: [&str; 2] = ["timers_state", "use_icount"];
/// QEMU's dynamic symbols and their names take less than a megabyte. Whoever makes an executable
/// chooses how large its tables are, and parsing takes all of them into memory.
const LARGEST_TABLES: u64 = 64 << 20;
/// Executables that are remembered. A host has one or two QEMUs.
const MOST: usize = 16;

/// The symbols of one executable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbols {
    /// Offset in the file, and address, of its first segment.
    first: (u64, u64),
    found: Vec<(String, u64)>,
}

impl Symbols {
    /// Parses an ELF file of 64 bits. Nothing in it is believed: it may belong to anybody.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse<'a>(data: impl ReadRef<'a>) -> Result<Self, String> {
        let size = size_of_tables(data).map_err(|error| error.to_string())?;
        if size > LARGEST_TABLES {
            return Err("its symbol tables are larger than any QEMU's".to_owned());
        }
        let elf = object::File::parse(data).map_err(|error| error.to_string())?;
        let first = elf.segments().next().ok_or("no segments")?;
        let found = elf
            .dynamic_symbols()
            .filter(ObjectSymbol::is_definition)
            .filter_map(|symbol| Some((symbol.name().ok()?, symbol.address())))
            .filter(|(name, _)| WANTED.contains(name))
            .map(|(name, address)| (name.to_owned(), address))
            .take(WANTED.len())
            .collect();
        Ok(Self { first: (first.file_range().0, first.address()), found })
    }

    /// The same in a process that has mapped the executable where `is_executable` says so.
    #[must_use]
    pub fn loaded(
        &self,
        maps: &[MapLine],
        is_executable: impl Fn(&MapLine) -> bool,
    ) -> Option<Program> {
        let (offset, address) = self.first;
        let holds = |map: &&MapLine| {
            is_executable(map)
                && map.offset <= offset
                && offset - map.offset < map.end.saturating_sub(map.start)
        };
        let map = maps.iter().find(holds)?;
        let start = map.start.wrapping_add(offset - map.offset);
        Some(Program { symbols: self.found.clone(), bias: start.wrapping_sub(address) })
    }
}

/// The size of all symbol and string tables together, bytes, as the section headers state it.
fn size_of_tables<'a>(data: impl ReadRef<'a>) -> object::Result<u64> {
    let header = elf::FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let tables = [elf::SHT_DYNSYM, elf::SHT_SYMTAB, elf::SHT_STRTAB];
    let sections = header.section_headers(endian, data)?;
    let sizes = sections.iter().filter(|section| tables.contains(&section.sh_type(endian)));
    Ok(sizes.fold(0, |sum, section| sum.saturating_add(section.sh_size(endian))))
}

/// A running program's symbols and load address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    symbols: Vec<(String, u64)>,
    bias: u64,
}

impl Program {
    /// Where this symbol is in the process.
    #[must_use]
    pub fn address(&self, name: &str) -> Option<u64> {
        let (_, address) = self.symbols.iter().find(|(known, _)| known == name)?;
        Some(address.wrapping_add(self.bias))
    }
}

/// An executable as it was: another one at its place, or another content, is another file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct FileId {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl FileId {
    fn of(file: &Metadata) -> Self {
        let changed = (file.ctime(), file.ctime_nsec());
        Self { device: file.dev(), inode: file.ino(), size: file.size(), changed }
    }
}

/// The symbols of the executables that were looked at.
#[derive(Clone, Debug, Default)]
pub struct Programs(HashMap<FileId, Symbols>);

impl Programs {
    /// The program of a process.
    ///
    /// # Errors
    /// When the process has ended, or its executable cannot be read, or is not mapped.
    pub fn of(&mut self, process: Process) -> Result<Program, MappingError> {
        let wrong = |reason: &str| MappingError::Program { reason: reason.to_owned() };
        let file: File = process.open_exe()?;
        let here = file.metadata().map_err(|error| wrong(&error.to_string()))?;
        let id = FileId::of(&here);
        let symbols = match self.0.get(&id) {
            Some(known) => known.clone(),
            None => {
                let cache = ReadCache::new(file);
                let symbols = Symbols::parse(&cache).map_err(|reason| wrong(&reason))?;
                if self.0.len() >= MOST {
                    self.0.clear();
                }
                self.0.insert(id, symbols.clone());
                symbols
            }
        };
        let path = process.exe()?;
        let path = path.to_string_lossy();
        // On some file systems (btrfs) a mapping tells another device than the file does.
        let is_executable =
            |map: &MapLine| map.is_of(&here) || (map.inode == here.ino() && map.path == path);
        let program = symbols.loaded(&process.maps()?, is_executable);
        program.ok_or_else(|| wrong("the program's first segment is not mapped"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_is_parsed_once() {
        let us = Process::open(std::process::id()).unwrap();
        let mut programs = Programs::default();
        let first = programs.of(us).unwrap();
        assert_eq!(programs.of(us).unwrap(), first);
        assert_eq!(programs.0.len(), 1);
    }

    #[test]
    fn only_the_executables_own_mapping_counts() {
        let symbols =
            Symbols { first: (0, 0x40_0000), found: vec![("timers_state".to_owned(), 0x40_1000)] };
        let map = |start: u64, inode: u64| MapLine {
            start,
            end: start + 0x1000,
            permissions: "r--p".to_owned(),
            offset: 0,
            device: "08:01".to_owned(),
            inode,
            path: "/usr/bin/qemu-system-x86_64".to_owned(),
        };
        // Another file that was mapped at a lower address, under the same name.
        let maps = [map(0x1_0000, 6), map(0x7000_0000, 7)];
        let program = symbols.loaded(&maps, |map| map.inode == 7).unwrap();
        assert_eq!(program.address("timers_state"), Some(0x7000_1000));
        assert_eq!(symbols.loaded(&maps, |map| map.inode == 8), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", &[0; 200]] {
            assert!(Symbols::parse(bytes).is_err());
        }
    }
}
