//! Finds a trap point in the guest's memory, and checks that KVM can emulate the instruction that
//! follows it.

use super::trap::Trap;
use crate::backend::Site;
use crate::memory::{GuestMemory, MemoryError, PageTables};
use crate::point::{Point, SLOT};

/// Number of bytes after the NOP that are checked.
const NEXT: usize = 8;

/// Why a point cannot be trapped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SiteError {
    /// The site is not in the guest's memory.
    #[error("{symbol}: {source}")]
    Memory {
        /// The function.
        symbol: String,
        /// Why not.
        source: MemoryError,
    },
    /// The site holds something other than the NOP.
    #[error("{symbol} has {found:02x?} where its NOP was: something in the guest traces it now")]
    Changed {
        /// The function.
        symbol: String,
        /// What is there.
        found: [u8; 5],
    },
    /// The function has no NOP that may be overwritten.
    #[error("{0} has no NOP where a trap could be; under KVM it cannot be trapped")]
    NoSlot(String),
    /// The NOP spans two pages, which may be far apart in physical memory.
    #[error("{0}: its NOP crosses a page")]
    Crosses(String),
    /// KVM's emulator may execute the next instruction differently from the processor.
    #[error(
        "{symbol}: the instruction behind its NOP, {next:02x?}, is none that KVM is known to emulate exactly; this guest's kernel can be trapped by \
         `--backend port` only"
    )]
    Instruction {
        /// The function.
        symbol: String,
        /// Its bytes after the NOP.
        next: [u8; NEXT],
    },
}

/// Finds the sites of these points for this form of trap. `tables` belong to the guest's kernel.
///
/// # Errors
/// For the first point that cannot be trapped.
pub fn find(
    memory: &dyn GuestMemory,
    tables: &PageTables,
    points: &[Point],
    trap: Trap,
) -> Result<Vec<Site>, SiteError> {
    points.iter().map(|point| site(memory, tables, point, trap)).collect()
}

fn site(
    memory: &dyn GuestMemory,
    tables: &PageTables,
    point: &Point,
    trap: Trap,
) -> Result<Site, SiteError> {
    let symbol = || point.symbol.clone();
    let failed = |source| SiteError::Memory { symbol: symbol(), source };
    let mut bytes = [0; 5 + NEXT];
    tables.read(memory, point.address, &mut bytes).map_err(failed)?;
    let [a, b, c, d, e, next @ ..] = bytes;
    let found = [a, b, c, d, e];
    if found != point.expected {
        return Err(SiteError::Changed { symbol: symbol(), found });
    }
    if point.expected != SLOT {
        return Err(SiteError::NoSlot(symbol()));
    }
    if point.address & 4095 > 4096 - 5 {
        return Err(SiteError::Crosses(symbol()));
    }
    if trap == Trap::Prefix && !is_emulated(next) {
        return Err(SiteError::Instruction { symbol: symbol(), next });
    }
    let address = tables.translate(memory, point.address).map_err(failed)?;
    Ok(Site { point: point.id, address })
}

/// Whether these bytes begin with an instruction that is common at the start of functions and that
/// KVM emulates exactly. Each was compared with the processor, in registers and memory: pushes,
/// moves between registers, `xor` and `test` of registers, `sub` from the stack, jumps and calls.
fn is_emulated(next: [u8; NEXT]) -> bool {
    let registers = |modrm: u8| modrm >> 6 == 3;
    match next {
        // mov, xor and test of registers, with and without REX
        [0x31 | 0x33 | 0x85 | 0x89 | 0x8b, modrm, ..]
        | [0x40..=0x4f, 0x31 | 0x33 | 0x85 | 0x89 | 0x8b, modrm, ..] => registers(modrm),
        // push r64; sub rsp, imm8 or imm32; mov r32, imm32; call; jmp
        _ => matches!(
            next,
            [0x50..=0x57 | 0xb8..=0xbf | 0xe8 | 0xe9, ..]
                | [0x41, 0x50..=0x57, ..]
                | [0x48, 0x81 | 0x83, 0xec, ..]
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::SLOT;
    use crate::testing::Flat;

    #[test]
    fn instructions() {
        let of = |bytes: &[u8]| {
            let mut next = [0x90; NEXT];
            next[..bytes.len()].copy_from_slice(bytes);
            is_emulated(next)
        };
        // push rbp; push r15; mov rbp, rsp; mov edi, esi; xor eax, eax; sub rsp, 16; sub rsp, 256;
        // mov eax, 1; call
        let good: [&[u8]; 9] = [
            &[0x55],
            &[0x41, 0x57],
            &[0x48, 0x89, 0xe5],
            &[0x89, 0xf7],
            &[0x31, 0xc0],
            &[0x48, 0x83, 0xec, 0x10],
            &[0x48, 0x81, 0xec, 0, 1, 0, 0],
            &[0xb8, 1, 0, 0, 0],
            &[0xe8, 0, 0, 0, 0],
        ];
        assert!(good.iter().all(|bytes| of(bytes)));
        // endbr64, mfence, popcnt, rdtscp, int3, lzcnt, mov from memory, swapgs, stac, sub rax, a
        // VEX prefix
        let bad: [&[u8]; 11] = [
            &[0xf3, 0x0f, 0x1e, 0xfa],
            &[0x0f, 0xae, 0xf0],
            &[0xf3, 0x0f, 0xb8, 0xc0],
            &[0x0f, 0x01, 0xf9],
            &[0xcc],
            &[0xf3, 0x0f, 0xbd, 0xc0],
            &[0x48, 0x8b, 0x07],
            &[0x0f, 0x01, 0xf8],
            &[0x0f, 0x01, 0xcb],
            &[0x48, 0x83, 0xe8, 1],
            &[0xc5, 0xf8, 0x77],
        ];
        assert!(!bad.iter().any(|bytes| of(bytes)));
    }

    /// One page table that maps 2 MiB at 0 to themselves.
    fn memory(at: usize, bytes: &[u8]) -> (Flat, PageTables) {
        let mut all = vec![0; 0x10_000];
        for (table, entry) in [(0x1000, 0x2003u64), (0x2000, 0x3003), (0x3000, 0x83)] {
            all[table..table + 8].copy_from_slice(&entry.to_le_bytes());
        }
        all[at..at + bytes.len()].copy_from_slice(bytes);
        (Flat(all), PageTables { root: 0x1000, five_levels: false })
    }

    fn find_at(address: usize, bytes: &[u8], trap: Trap) -> Result<Vec<Site>, SiteError> {
        find_expected(address, bytes, SLOT, trap)
    }

    fn find_expected(
        address: usize,
        bytes: &[u8],
        expected: [u8; 5],
        trap: Trap,
    ) -> Result<Vec<Site>, SiteError> {
        let (memory, tables) = memory(address, bytes);
        let point = Point {
            id: 7,
            symbol: "f".into(),
            address: address as u64,
            expected,
            reads: Vec::new(),
            filter: None,
        };
        find(&memory, &tables, &[point], trap)
    }

    #[test]
    fn sites_are_found_or_refused() {
        let good = [&SLOT[..], &[0x55]].concat();
        assert_eq!(
            find_at(0x8010, &good, Trap::Prefix),
            Ok(vec![Site { point: 7, address: 0x8010 }])
        );
        assert!(matches!(find_at(0x8ffc, &good, Trap::Port), Err(SiteError::Crosses(_))));
        let changed = find_at(0x8010, &[0xe8, 1, 2, 3, 4, 0x55], Trap::Port);
        assert_eq!(
            changed,
            Err(SiteError::Changed { symbol: "f".into(), found: [0xe8, 1, 2, 3, 4] })
        );
        let compare = [0x81, 0xfe, 0xc4, 0, 0];
        let refused = find_expected(0x8010, &compare, compare, Trap::Port);
        assert_eq!(refused, Err(SiteError::NoSlot("f".into())), "an instruction would be lost");
        // Only the prefix form has KVM emulate the next instruction.
        let fence = [&SLOT[..], &[0x0f, 0xae, 0xf0]].concat();
        let refused = find_at(0x8010, &fence, Trap::Prefix);
        assert!(matches!(refused, Err(SiteError::Instruction { .. })));
        assert!(find_at(0x8010, &fence, Trap::Port).is_ok());
        assert!(matches!(find_at(0xfffa, &good, Trap::Prefix), Err(SiteError::Memory { .. })));
    }
}
