//! Finds the kernel's image: memory must hold the contents that its symbols imply, and its page
//! tables must agree.

use super::symbols::Symbols;
use super::tables::{Addresses, IMAGE, Tables, Why};
use crate::memory::{GuestMemory, MemoryError, PageTables};

/// Alignment of every x86-64 kernel's physical address (CONFIG_PHYSICAL_ALIGN, at least 2 MiB).
const ALIGNMENT: u64 = 2 << 20;
const BANNER: &[u8] = b"Linux version ";
/// The largest image that is tried.
const MAX_IMAGE: u64 = 1 << 30;

/// A kernel's version: major, minor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub u32, pub u32);

/// A guest's kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// Its symbols, at the addresses that they have in this boot.
    pub symbols: Symbols,
    /// From the banner, as `uname -r` prints it.
    pub release: String,
    /// The first two numbers of the release.
    pub version: Version,
    /// The page tables that map its image (init_top_pgt).
    pub tables: PageTables,
    /// Virtual addresses of _text and _end.
    image: (u64, u64),
    /// Physical address of _text.
    physical: u64,
}

impl Kernel {
    /// Locates the image from tables that agree with each other.
    pub(super) fn place(memory: &dyn GuestMemory, tables: Tables) -> Result<Self, Why> {
        let Tables { mut symbols, addresses, index } = tables;
        let at = |symbols: &Symbols, name: &str| symbols.address(name).map_err(|e| e.to_string());
        let (text, end) = (at(&symbols, "_text")?, at(&symbols, "_end")?);
        if end <= text || end - text > MAX_IMAGE {
            return Err(format!("an image from {text:#x} to {end:#x}"));
        }
        let banner = at(&symbols, "linux_banner")?.wrapping_sub(text);
        let has_banner = |physical: u64| {
            let mut found = [0; BANNER.len()];
            let place = physical.checked_add(banner);
            place.is_some_and(|at| memory.read(at, &mut found).is_ok()) && found == *BANNER
        };
        let (virtual_text, physical) = match addresses {
            Addresses::Virtual => {
                let first = index.saturating_sub(end - text).next_multiple_of(ALIGNMENT);
                let step = usize::try_from(ALIGNMENT).unwrap_or(usize::MAX);
                let mut places = (first..=index).step_by(step).filter(|p| has_banner(*p));
                match (places.next(), places.next()) {
                    (Some(physical), None) => (text, physical),
                    (None, _) => return Err("there is no banner where the symbols have it".into()),
                    _ => return Err("there are two banners where the symbols have one".into()),
                }
            }
            Addresses::Physical => {
                if !text.is_multiple_of(ALIGNMENT) || !has_banner(text) {
                    return Err("there is no banner where the symbols have it".into());
                }
                let shift = by_syscalls(memory, &symbols)?;
                symbols.shift(shift);
                (text.wrapping_add(shift), text)
            }
        };
        let len = end - text;
        if !IMAGE.contains(&virtual_text) || !virtual_text.is_multiple_of(ALIGNMENT) {
            return Err(format!("an image at {virtual_text:#x}"));
        }
        let mut this = Self {
            symbols,
            release: String::new(),
            version: Version(0, 0),
            tables: PageTables { root: 0, five_levels: false },
            image: (virtual_text, virtual_text + len),
            physical,
        };
        this.release = this.read_release(memory, virtual_text.wrapping_add(banner))?;
        this.version = version(&this.release).ok_or("a version without numbers")?;
        this.tables = this.own_tables(memory)?;
        Ok(this)
    }

    /// Whether both are the same image.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        (self.physical, self.image) == (other.physical, other.image)
    }

    /// Physical address of a virtual address in the image.
    ///
    /// # Errors
    /// When `address` is not in the image.
    pub fn physical(&self, address: u64) -> Result<u64, MemoryError> {
        let (first, end) = self.image;
        if (first..end).contains(&address) {
            Ok(self.physical + (address - first))
        } else {
            Err(MemoryError::NotMapped(address))
        }
    }

    /// Reads from the image.
    ///
    /// # Errors
    /// When the range is not entirely in the image, or cannot be read.
    pub fn read(
        &self,
        memory: &dyn GuestMemory,
        address: u64,
        buffer: &mut [u8],
    ) -> Result<(), MemoryError> {
        if let Some(more) = buffer.len().checked_sub(1) {
            self.physical(address.saturating_add(more as u64))?;
        }
        memory.read(self.physical(address)?, buffer)
    }

    fn read_release(&self, memory: &dyn GuestMemory, banner: u64) -> Result<String, Why> {
        let mut bytes = [0; 96];
        self.read(memory, banner, &mut bytes).map_err(|e| e.to_string())?;
        let text = &bytes[BANNER.len()..];
        let len = text.iter().position(|byte| !byte.is_ascii_graphic()).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..len]).into_owned())
    }

    /// Rejects a copy of a kernel in the page cache: it has symbols and a banner, but no page
    /// tables map it.
    fn own_tables(&self, memory: &dyn GuestMemory) -> Result<PageTables, Why> {
        let root = self.symbols.address("init_top_pgt").map_err(|e| e.to_string())?;
        let root = self.physical(root).map_err(|e| e.to_string())?;
        let maps =
            |tables: &PageTables| tables.translate(memory, self.image.0) == Ok(self.physical);
        [false, true]
            .map(|five_levels| PageTables { root, five_levels })
            .into_iter()
            .find(maps)
            .ok_or_else(|| "its page tables do not map it".into())
    }
}

/// The difference between virtual and physical addresses, from two entries of the syscall table.
fn by_syscalls(memory: &dyn GuestMemory, symbols: &Symbols) -> Result<u64, Why> {
    let at = |name: &str| symbols.address(name).map_err(|e| e.to_string());
    let mut entries = [0; 16];
    memory.read(at("sys_call_table")?, &mut entries).map_err(|e| e.to_string())?;
    let entry = |n: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&entries[8 * n..8 * n + 8]);
        u64::from_le_bytes(eight)
    };
    let read = entry(0).wrapping_sub(at("__x64_sys_read")?);
    let write = entry(1).wrapping_sub(at("__x64_sys_write")?);
    if read == write {
        Ok(read)
    } else {
        Err("the syscall table does not hold read and write".into())
    }
}

fn version(release: &str) -> Option<Version> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some(Version(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
