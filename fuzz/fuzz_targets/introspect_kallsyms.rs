//! A guest's memory with a kernel's tables in it, damaged: a kernel or an error, with names that
//! are safe to print, and every address of the image where the image is.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::{decode, edited};
use timevisor_introspection::memory::{GuestMemory, MemoryError};
use timevisor_introspection::symbols::kallsyms;

const PHYSICAL: u64 = 0x20_0000;
const TEXT: u64 = 0xffff_ffff_8100_0000;
const TABLES: u64 = 0x2_0000;
const END: u64 = 0x4_0000;

struct Memory(Vec<u8>);

impl GuestMemory for Memory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> std::result::Result<(), MemoryError> {
        let at = usize::try_from(address).ok();
        let found = at.and_then(|at| self.0.get(at..at.checked_add(buffer.len())?));
        buffer.copy_from_slice(found.ok_or(MemoryError::NotRam(address))?);
        Ok(())
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        vec![(0, self.0.len() as u64)]
    }
}

fuzz_target!(|data: &[u8]| decode(data, run));

fn run(u: &mut Unstructured) -> Result<()> {
    let mut memory = Memory(vec![0; usize::try_from(PHYSICAL + END).expect("small")]);
    let mut put = |at: u64, bytes: &[u8]| {
        let at = usize::try_from(PHYSICAL + at).expect("small");
        let len = bytes.len().min(memory.0.len() - at);
        memory.0[at..at + len].copy_from_slice(&bytes[..len]);
    };
    put(0x8000, b"Linux version 7.2.0 (x) ");
    put(0x9000, &(TEXT + 0x9100).to_le_bytes());
    put(0x9008, &(TEXT + 0x9200).to_le_bytes());
    put(0x1000 + 8 * 511, &(PHYSICAL + 0x2001).to_le_bytes());
    put(0x2000 + 8 * 510, &(PHYSICAL + 0x3001).to_le_bytes());
    put(0x3000 + 8 * 8, &(PHYSICAL | 0x81).to_le_bytes());
    put(TABLES, &edited(u, &tables())?);
    match kallsyms::find(&memory) {
        Ok(kernel) => {
            for (address, _, name) in kernel.symbols.iter() {
                assert!(name.bytes().all(|byte| byte.is_ascii_graphic()));
                if let Ok(physical) = kernel.physical(address) {
                    assert_eq!(physical, address - TEXT + PHYSICAL);
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Ok(())
}

/// As scripts/kallsyms.c of 7.2 lays them out.
fn tables() -> Vec<u8> {
    let named = [
        (0, "T_text"),
        (0x1000, "Dinit_top_pgt"),
        (0x8000, "Rlinux_banner"),
        (0x9000, "Rsys_call_table"),
        (0x9100, "T__x64_sys_read"),
        (0x9200, "T__x64_sys_write"),
    ];
    let mut all: Vec<(u64, String)> = named.map(|(at, name)| (at, name.to_owned())).to_vec();
    all.extend((0..300).map(|n| (0xa000 + n, format!("tf{n}"))));
    all.push((END, "B_end".to_owned()));
    let mut bytes = u32::try_from(all.len()).expect("few").to_le_bytes().to_vec();
    let mut markers = Vec::new();
    for (n, (_, name)) in all.iter().enumerate() {
        if n % 256 == 0 {
            markers.push(u32::try_from(bytes.len() - 4).expect("small"));
        }
        bytes.push(u8::try_from(name.len()).expect("short"));
        bytes.extend(name.as_bytes());
    }
    let align = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(4), 0);
    align(&mut bytes);
    bytes.extend(markers.into_iter().flat_map(u32::to_le_bytes));
    let (start, mut index) = (bytes.len(), Vec::new());
    for code in 0..=255u8 {
        index.push(u16::try_from(bytes.len() - start).expect("small"));
        let graphic = code.is_ascii_graphic();
        let token = if graphic { char::from(code).to_string() } else { format!("t{code:02x}") };
        bytes.extend(token.as_bytes());
        bytes.push(0);
    }
    align(&mut bytes);
    bytes.extend(index.into_iter().flat_map(u16::to_le_bytes));
    for (address, _) in all {
        let relative = address.wrapping_sub(TABLES + bytes.len() as u64);
        bytes.extend(&relative.to_le_bytes()[..4]);
    }
    bytes
}
