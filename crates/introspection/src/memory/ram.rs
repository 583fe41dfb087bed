//! Maps guest-physical addresses to offsets in QEMU's main memory backend.
//!
//! QEMU's PC machines have one block of main memory. The guest sees its beginning at address 0 and
//! the rest at 4 GiB. The split follows hw/i386/pc_q35.c (pc_q35_init), pc_piix.c (pc_init1) and
//! microvm.c (microvm_memory_init) of QEMU 7.2 to 10.0. The holes of firmware and video memory
//! below 1 MiB are ignored, because no kernel keeps its own data there. Not supported: memory
//! devices (DIMMs), NUMA with several backends, SGX, and machines that move memory above 1 TiB.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use timevisor_linux::process::{MapLine, ProcessMemory};

use crate::memory::{GuestMemory, MemoryError};

const GIB: u64 = 1 << 30;
const FOUR_GIB: u64 = 4 * GIB;
/// Maximum supported memory size. With more, an AMD guest's memory above 4 GiB may start at 1 TiB
/// (pc_memory_init, the HyperTransport hole).
const MOST: u64 = 1010 * GIB;

/// How a machine type splits its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Machine {
    /// `q35`, `pc-q35-*`.
    Q35,
    /// `pc`, `pc-i440fx-*` from 2.0 on.
    Pc,
    /// `microvm`.
    Microvm,
}

/// Why the layout is unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// The machine type is unknown.
    #[error("how machine type {0} places its memory is not known; known are q35, pc and microvm")]
    Machine(String),
    /// More memory than is supported.
    #[error("{0} bytes of memory: this machine may place them elsewhere; up to 1010 GiB is known")]
    TooMuch(u64),
    /// No memory.
    #[error("a guest without memory")]
    Empty,
}

impl Machine {
    /// Parses the value of `-machine`.
    ///
    /// # Errors
    /// When the type's split is unknown.
    pub fn parse(name: &str) -> Result<Self, LayoutError> {
        // Proxmox appends its own revision to a type: `pc-q35-9.2+pve1`.
        let (kind, revision) = name.split_once('+').unwrap_or((name, ""));
        let is_proxmox = revision.strip_prefix("pve").is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        });
        match if is_proxmox { kind } else { name } {
            "microvm" => Ok(Self::Microvm),
            "q35" => Ok(Self::Q35),
            "pc" => Ok(Self::Pc),
            kind if kind.starts_with("pc-q35-") => Ok(Self::Q35),
            // 1.x machines do not align at 1 GiB; QEMU has dropped those types.
            kind if kind.starts_with("pc-i440fx-") && !kind.starts_with("pc-i440fx-1.") => {
                Ok(Self::Pc)
            }
            _ => Err(LayoutError::Machine(name.to_owned())),
        }
    }

    fn below_four_gib(self, size: u64, most: Option<u64>) -> u64 {
        let low = match self {
            Self::Q35 => {
                let low = if size >= 0xb000_0000 { 0x8000_0000 } else { 0xb000_0000 };
                low.min(most.unwrap_or(FOUR_GIB))
            }
            Self::Pc => {
                let low = most.unwrap_or(0xe000_0000);
                if size >= low { low.min(0xc000_0000) } else { low }
            }
            Self::Microvm => 0xc000_0000,
        };
        low.min(size)
    }
}

/// A contiguous piece of guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    address: u64,
    len: u64,
    /// Its offset in the backend.
    at: u64,
}

/// Which pieces of the backend the guest sees, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RamLayout(Vec<Piece>);

impl RamLayout {
    /// The layout of a machine with `size` bytes of main memory, and with `max-ram-below-4g` if it
    /// is set.
    ///
    /// # Errors
    /// When the layout is unknown.
    pub fn new(machine: Machine, size: u64, below_4g: Option<u64>) -> Result<Self, LayoutError> {
        if size == 0 {
            return Err(LayoutError::Empty);
        }
        if size > MOST {
            return Err(LayoutError::TooMuch(size));
        }
        let low = machine.below_four_gib(size, below_4g);
        let pieces = [
            Piece { address: 0, len: low, at: 0 },
            Piece { address: FOUR_GIB, len: size - low, at: low },
        ];
        Ok(Self(pieces.into_iter().filter(|piece| piece.len > 0).collect()))
    }

    /// Every piece: guest-physical address, length, offset in the backend.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.0.iter().map(|piece| (piece.address, piece.len, piece.at))
    }

    /// The offset in the backend of `len` bytes at guest-physical `address`; `None` if they are not
    /// within a single piece.
    #[must_use]
    pub fn place(&self, address: u64, len: u64) -> Option<u64> {
        let piece = self.0.iter().find(|p| address >= p.address && address - p.address < p.len)?;
        let inside = address - piece.address;
        (len <= piece.len - inside).then_some(piece.at + inside)
    }
}

/// Read access to a backend.
pub trait Backing {
    /// Fills `buffer` from offset `at` on.
    ///
    /// # Errors
    /// When the host cannot read it.
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// The file of a `memory-backend-file`, or a `memory-backend-memfd` through /proc/PID/fd. It holds
/// the guest's memory only with `share=on`.
impl Backing for File {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, at)
    }
}

/// Any backend, read through QEMU's memory.
#[derive(Debug)]
pub struct InProcess {
    /// QEMU's memory.
    pub memory: ProcessMemory,
    /// The backend's address in it (QMP: human-monitor-command `gpa2hva 0`).
    pub base: u64,
}

impl Backing for InProcess {
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        let address = self.base.checked_add(at).ok_or(io::ErrorKind::InvalidInput)?;
        self.memory.read_at(address, buffer).map_err(io::Error::other)
    }
}

/// Candidate addresses of a backend in QEMU's memory: every writable mapping of this size.
#[must_use]
pub fn bases(maps: &[MapLine], size: u64) -> Vec<u64> {
    let may_be = |map: &&MapLine| map.permissions.starts_with("rw") && map.end - map.start == size;
    maps.iter().filter(may_be).map(|map| map.start).collect()
}

/// A guest's main memory.
#[derive(Debug)]
pub struct Ram<B> {
    layout: RamLayout,
    backing: B,
}

impl<B: Backing> Ram<B> {
    /// Main memory with the contents of `backing` at the addresses of `layout`.
    pub const fn new(layout: RamLayout, backing: B) -> Self {
        Self { layout, backing }
    }
}

impl<B: Backing> GuestMemory for Ram<B> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let at = self.layout.place(address, buffer.len() as u64);
        let at = at.ok_or(MemoryError::NotRam(address))?;
        self.backing
            .read_at(at, buffer)
            .map_err(|error| MemoryError::Host { address, reason: error.to_string() })
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        self.layout.0.iter().map(|piece| (piece.address, piece.len)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(machine: Machine, size: u64, below: Option<u64>) -> Vec<(u64, u64, u64)> {
        let layout = RamLayout::new(machine, size, below).unwrap();
        layout.0.iter().map(|p| (p.address, p.len, p.at)).collect()
    }

    #[test]
    fn splits_of_qemu() {
        const G: u64 = GIB;
        // The examples in pc_piix.c.
        assert_eq!(pieces(Machine::Pc, 4 * G, None), [(0, 3 * G, 0), (4 * G, G, 3 * G)]);
        assert_eq!(pieces(Machine::Pc, 4 * G, Some(2 * G)), [(0, 2 * G, 0), (4 * G, 2 * G, 2 * G)]);
        assert_eq!(pieces(Machine::Pc, 3968 << 20, Some(4 * G)), [(0, 3968 << 20, 0)]);
        // `info mtree` of a q35 with 8 GiB.
        assert_eq!(pieces(Machine::Q35, 8 * G, None), [(0, 2 * G, 0), (4 * G, 6 * G, 2 * G)]);
        assert_eq!(pieces(Machine::Q35, 0xaff0_0000, None), [(0, 0xaff0_0000, 0)]);
        assert_eq!(pieces(Machine::Q35, 0xb000_0000, None).len(), 2);
        assert_eq!(pieces(Machine::Microvm, 4 * G, None), [(0, 3 * G, 0), (4 * G, G, 3 * G)]);
        assert_eq!(pieces(Machine::Microvm, 3 * G, None), [(0, 3 * G, 0)]);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(Machine::parse("pc-q35-10.0"), Ok(Machine::Q35));
        assert_eq!(Machine::parse("pc-i440fx-7.2"), Ok(Machine::Pc));
        assert!(Machine::parse("pc-i440fx-1.7").is_err() && Machine::parse("virt").is_err());
        assert!(RamLayout::new(Machine::Q35, 1011 * GIB, None).is_err());
        assert!(RamLayout::new(Machine::Q35, 0, None).is_err());
    }

    #[test]
    fn memory_of_the_guests_size() {
        let map = |start: u64, len: u64, permissions: &str| MapLine {
            start,
            end: start + len,
            permissions: permissions.into(),
            offset: 0,
            device: "00:00".into(),
            inode: 0,
            path: String::new(),
        };
        let maps =
            [map(0x1000, GIB, "r--p"), map(GIB * 4, GIB, "rw-p"), map(GIB * 8, 4096, "rw-p")];
        assert_eq!(bases(&maps, GIB), [GIB * 4]);
        assert!(bases(&maps, 2 * GIB).is_empty());
    }

    #[test]
    fn reads_stay_inside_a_piece() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0xc000_0000).unwrap();
        file.write_all_at(b"high", 0x8000_0000).unwrap();
        let layout = RamLayout::new(Machine::Q35, 0xc000_0000, None).unwrap();
        let ram = Ram::new(layout, file);
        let mut four = [0; 4];
        ram.read(FOUR_GIB, &mut four).unwrap();
        assert_eq!(&four, b"high");
        for address in [0x8000_0000 - 2, 0x8000_0000, FOUR_GIB + 0x4000_0000 - 2, u64::MAX - 1] {
            assert_eq!(ram.read(address, &mut four), Err(MemoryError::NotRam(address)));
        }
        assert_eq!(ram.ranges(), [(0, 0x8000_0000), (FOUR_GIB, 0x4000_0000)]);
    }
}
