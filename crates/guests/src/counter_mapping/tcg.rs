//! A TCG guest's TSC offset, from QEMU's memory.
//!
//! QEMU keeps `guest TSC = host counter + timers_state.cpu_ticks_offset` while the virtual machine
//! runs, and the frozen TSC in the same field while it is stopped (softmmu/cpu-timers.c,
//! cpu_get_ticks and cpu_disable_ticks). The symbol is in the program's dynamic symbol table.
//! Checked against QEMU 7.2 and 10.0 (tests/qemu.rs). It writes nothing and stops nothing; QEMU's
//! own sequence count reveals a concurrent change.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{Endianness, Object, ObjectSegment, ObjectSymbol, ReadCache, elf};
use timevisor_clock_page::Counter as _;
use timevisor_linux::process::{Process, ProcessMemory};
use timevisor_time::CounterRatio;

use super::mapping::{CounterMapping, MappingError, MappingSource};

/// Maximum number of retries when a change interrupts a reading.
const TRIES: usize = 1000;

/// The beginning of struct TimersState (softmmu/timers-state.h), the same from QEMU 5.0 to 11.1:
/// i64 cpu_ticks_prev, i64 cpu_ticks_offset, u32 vm_clock_seqlock, u32 vm_clock_lock, i16
/// cpu_ticks_enabled.
const STATE_BYTES: usize = 26;

/// One TCG virtual machine.
#[derive(Debug)]
pub struct TcgMapping {
    memory: ProcessMemory,
    /// Address of timers_state in the process.
    state: u64,
    /// Address of use_icount in the process, if the executable has it.
    icount: Option<u64>,
}

impl TcgMapping {
    /// Finds the timer state of a running QEMU.
    ///
    /// # Errors
    /// When QEMU lacks the symbol, or we lack CAP_SYS_PTRACE.
    pub fn attach(process: Process) -> Result<Self, MappingError> {
        // Opened first: it is bound to the process, so everything after refers to the same one.
        let memory = ProcessMemory::open(process)?;
        let program = Program::of(process)?;
        let state = program.symbol("timers_state").ok_or(MappingError::NoSymbol("timers_state"))?;
        Ok(Self { memory, state, icount: program.symbol("use_icount") })
    }

    /// The bytes of the state, and the host's counter between two reads that agreed on them. The
    /// previous ticks (first word) and the lock may differ: both change with every counter read of
    /// a busy guest.
    fn stable_state(&self) -> Result<([u8; STATE_BYTES], u64), MappingError> {
        let read = || -> Result<[u8; STATE_BYTES], MappingError> {
            let mut bytes = [0; STATE_BYTES];
            self.memory.read_at(self.state, &mut bytes)?;
            Ok(bytes)
        };
        let mut last = read()?;
        for _ in 0..TRIES {
            let between = host_ticks();
            let next = read()?;
            // An odd sequence count means that QEMU is in the middle of a change.
            let alike = last[8..20] == next[8..20] && last[24..] == next[24..];
            if alike && next[16] & 1 == 0 {
                return Ok((last, between));
            }
            last = next;
        }
        Err(MappingError::Unstable)
    }
}

impl MappingSource for TcgMapping {
    fn read(&mut self) -> Result<CounterMapping, MappingError> {
        if let Some(address) = self.icount {
            let mut mode = [0; 4];
            self.memory.read_at(address, &mut mode)?;
            if mode != [0; 4] {
                return Err(MappingError::Icount);
            }
        }
        let (state, later) = self.stable_state()?;
        decode(&state, later)
    }
}

/// The host counter that QEMU reads for a guest's ticks (cpu_get_host_ticks).
fn host_ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    let ticks = timevisor_linux::counter::Tsc::unchecked().read_ordered();
    #[cfg(target_arch = "aarch64")]
    let ticks = timevisor_linux::counter::Cntvct::new().read_ordered();
    ticks
}

/// The mapping for a state that did not change until the host's counter read `later`.
fn decode(bytes: &[u8; STATE_BYTES], later: u64) -> Result<CounterMapping, MappingError> {
    let [p0, p1, p2, p3, p4, p5, p6, p7, offset @ .., _, _, _, _, l0, l1, l2, l3, e0, e1] = *bytes;
    let before = u64::from_le_bytes([p0, p1, p2, p3, p4, p5, p6, p7]);
    let offset = i64::from_le_bytes(offset);
    let lock = u32::from_le_bytes([l0, l1, l2, l3]);
    let running = match (i16::from_le_bytes([e0, e1]), lock) {
        (0, 0 | 1) => false,
        (1, 0 | 1) => true,
        (enabled, lock) => {
            return Err(MappingError::UnknownLayout(format!("enabled {enabled}, lock {lock}")));
        }
    };
    // If the ticks are behind those that the guest has already read, the next read raises the
    // offset. Otherwise no later read can find them behind, because the host's counter only grows.
    let ticks = later.wrapping_add_signed(offset);
    if running && before.wrapping_sub(ticks).cast_signed() > 0 {
        return Err(MappingError::Unsettled);
    }
    Ok(CounterMapping { ratio: CounterRatio::ONE, offset, running })
}

/// A running program's symbols and load address.
struct Program {
    symbols: Vec<(String, u64)>,
    bias: u64,
}

impl Program {
    fn of(process: Process) -> Result<Self, MappingError> {
        let wrong = |reason: &str| MappingError::Program { reason: reason.to_owned() };
        let file: File = process.open_exe()?;
        let here = file.metadata().map_err(|error| wrong(&error.to_string()))?;
        let cache = ReadCache::new(file);
        let size = size_of_tables(&cache).map_err(|error| wrong(&error.to_string()))?;
        if size > LARGEST_TABLES {
            return Err(wrong("its symbol tables are larger than any QEMU's"));
        }
        let elf = object::File::parse(&cache).map_err(|error| wrong(&error.to_string()))?;
        let first = elf.segments().next().ok_or_else(|| wrong("no segments"))?;
        let (offset, _) = first.file_range();
        let path = process.exe()?;
        let path = path.to_string_lossy();
        let maps = process.maps()?;
        let map = maps
            .iter()
            .find(|map| {
                // On some file systems (btrfs) a mapping tells another device than the file does.
                let executable = map.is_of(&here) || (map.inode == here.ino() && map.path == path);
                executable && map.offset <= offset && offset - map.offset < map.end - map.start
            })
            .ok_or_else(|| wrong("the program's first segment is not mapped"))?;
        let bias = (map.start + (offset - map.offset)).wrapping_sub(first.address());
        let symbols = elf
            .dynamic_symbols()
            .filter(ObjectSymbol::is_definition)
            .filter_map(|symbol| Some((symbol.name().ok()?, symbol.address())))
            .filter(|(name, _)| WANTED.contains(name))
            .map(|(name, address)| (name.to_owned(), address))
            .collect();
        Ok(Self { symbols, bias })
    }

    fn symbol(&self, name: &str) -> Option<u64> {
        let (_, address) = self.symbols.iter().find(|(known, _)| known == name)?;
        Some(address.wrapping_add(self.bias))
    }
}

const WANTED: [&str; 2] = ["timers_state", "use_icount"];

/// QEMU's dynamic symbols and their names take less than a megabyte. Whoever makes an executable
/// chooses how large its tables are, and parsing takes all of them into memory.
const LARGEST_TABLES: u64 = 64 << 20;

/// The size of all symbol and string tables together, bytes, as the section headers state it.
fn size_of_tables(cache: &ReadCache<File>) -> object::Result<u64> {
    let header = elf::FileHeader64::<Endianness>::parse(cache)?;
    let endian = header.endian()?;
    let tables = [elf::SHT_DYNSYM, elf::SHT_SYMTAB, elf::SHT_STRTAB];
    let sections = header.section_headers(endian, cache)?;
    let sizes = sections.iter().filter(|section| tables.contains(&section.sh_type(endian)));
    Ok(sizes.fold(0, |sum, section| sum.saturating_add(section.sh_size(endian))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes read from QEMU 7.2.22 and 10.0.2 (the same layout).
    fn state(offset: i64, sequence: u32, lock: u32, enabled: i16) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        bytes[8..16].copy_from_slice(&offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&sequence.to_le_bytes());
        bytes[20..24].copy_from_slice(&lock.to_le_bytes());
        bytes[24..26].copy_from_slice(&enabled.to_le_bytes());
        bytes
    }

    #[test]
    fn states_decode() {
        let running = decode(&state(-3_183_874_828_902, 2, 0, 1), 3_183_874_828_903).unwrap();
        assert_eq!(
            running,
            CounterMapping { ratio: CounterRatio::ONE, offset: -3_183_874_828_902, running: true }
        );
        let stopped = decode(&state(522_311_348, 4, 0, 0), 0).unwrap();
        assert_eq!((stopped.running, stopped.guest_from_host(u64::MAX)), (false, 522_311_348));
    }

    /// As seen when a snapshot was loaded: QEMU 10.0 moved the offset from -4,626,563,810,878 by
    /// 3,324,114,904.
    #[test]
    fn ticks_that_are_still_behind_are_not_settled() {
        let mut bytes = state(-4_626_563_810_878, 8, 0, 1);
        let now = 4_638_560_000_000_u64;
        bytes[..8].copy_from_slice(&15_392_483_546_u64.to_le_bytes());
        assert!(matches!(decode(&bytes, now), Err(MappingError::Unsettled)));
        bytes[8..16].copy_from_slice(&(-4_623_239_695_974_i64).to_le_bytes());
        assert_eq!(decode(&bytes, now + 100_000_000).unwrap().offset, -4_623_239_695_974);
        // A value equal to the last ticks is not behind, and while the VM is stopped the next run
        // starts from this state.
        bytes[..8].copy_from_slice(&now.wrapping_add_signed(-4_623_239_695_974).to_le_bytes());
        assert!(decode(&bytes, now).is_ok() && decode(&bytes, now - 1).is_err());
        bytes[24] = 0;
        assert!(!decode(&bytes, now - 1).unwrap().running);
    }

    #[test]
    fn an_unknown_layout_is_refused() {
        assert!(matches!(decode(&state(0, 0, 0, 7), 0), Err(MappingError::UnknownLayout(_))));
        assert!(matches!(decode(&state(0, 0, 0xdead, 1), 0), Err(MappingError::UnknownLayout(_))));
    }

    #[test]
    fn a_program_without_the_symbol_says_so() {
        let us = Process::open(std::process::id()).unwrap();
        assert_eq!(Program::of(us).unwrap().symbol("timers_state"), None);
    }
}
