use proptest::prelude::*;

use super::effort::Effort;
use super::*;
use crate::testing::Flat;

/// The kernel's linked address, and its address in this boot.
const TEXT: u64 = 0xffff_ffff_8b00_0000;
const PHYSICAL: u64 = 0x40_0000;
const IMAGE: u64 = 0x20_0000;
const TABLES: u64 = 0x10_0000;
const PAGES: u64 = 0x1000;
const BANNER: u64 = 0x8000;
const CALLS: u64 = 0x9000;
const FILLERS: u64 = 600;

/// The layouts that scripts/kallsyms.c writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    /// 5.18 to 6.1.
    Old,
    /// The same, with sequences.
    Sequences,
    /// From 6.5 on.
    Percpu,
    /// From 6.15 on.
    Based,
    /// From 7.2 on.
    Relative,
}

const LAYOUTS: [Layout; 5] =
    [Layout::Old, Layout::Sequences, Layout::Percpu, Layout::Based, Layout::Relative];

fn symbols(layout: Layout) -> Vec<(u64, String)> {
    let named = [
        (0, "T_text"),
        (PAGES, "Dinit_top_pgt"),
        (BANNER, "Rlinux_banner"),
        (CALLS, "Rsys_call_table"),
        (CALLS + 0x100, "T__x64_sys_read"),
        (CALLS + 0x200, "T__x64_sys_write"),
        (IMAGE, "B_end"),
    ];
    let fillers = (0..FILLERS).map(|n| (0xa000 + n, format!("tfiller_{n}")));
    let twice = [(0xb000, "tsame".to_owned()), (0xb001, "tsame".to_owned())];
    let named = named.into_iter().map(|(at, name)| (at, name.to_owned()));
    let image = named.chain(fillers).chain(twice).map(|(at, name)| (TEXT + at, name));
    let absolute = !matches!(layout, Layout::Based | Layout::Relative);
    let percpu = absolute.then(|| (0x1_fb80, "Acurrent_task".to_owned()));
    let mut all: Vec<_> = percpu.into_iter().chain(image).collect();
    all.sort_by_key(|(address, _)| *address);
    all
}

struct Writer {
    bytes: Vec<u8>,
    align: usize,
}

impl Writer {
    fn label(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(self.align), 0);
    }

    fn words(&mut self, words: impl IntoIterator<Item = u32>) {
        self.label();
        self.bytes.extend(words.into_iter().flat_map(u32::to_le_bytes));
    }

    fn offsets(&mut self, layout: Layout, all: &[(u64, String)]) {
        self.label();
        let at = PHYSICAL + TABLES + self.bytes.len() as u64;
        let words: Vec<u32> = all
            .iter()
            .zip((at..).step_by(4))
            .map(|((address, _), at)| match layout {
                Layout::Relative => (address - TEXT + PHYSICAL).wrapping_sub(at),
                Layout::Based => address - TEXT,
                _ if *address < TEXT => *address,
                _ => (TEXT - 1).wrapping_sub(*address),
            })
            .map(|value| u32::try_from(value & 0xffff_ffff).unwrap())
            .collect();
        self.words(words);
        if layout != Layout::Relative {
            self.label();
            self.bytes.extend(TEXT.to_le_bytes());
        }
    }
}

/// The tables of a kernel, as bytes at [`TABLES`].
fn tables(layout: Layout) -> Vec<u8> {
    tables_of(layout, &symbols(layout))
}

fn tables_of(layout: Layout, all: &[(u64, String)]) -> Vec<u8> {
    let mut to =
        Writer { bytes: Vec::new(), align: if layout == Layout::Relative { 4 } else { 8 } };
    let old = matches!(layout, Layout::Old | Layout::Sequences);
    if old {
        to.offsets(layout, all);
    }
    to.words([u32::try_from(all.len()).unwrap()]);
    to.label();
    let (names, mut markers) = (to.bytes.len(), Vec::new());
    for (n, (_, name)) in all.iter().enumerate() {
        if n % 256 == 0 {
            markers.push(u32::try_from(to.bytes.len() - names).unwrap());
        }
        // The length of one name does not fit in a byte.
        let long = if name.ends_with("filler_7") { "x".repeat(200) } else { String::new() };
        let name = format!("{name}{long}");
        let len = name.len();
        if len < 0x80 {
            to.bytes.push(u8::try_from(len).unwrap());
        } else {
            to.bytes.extend([
                u8::try_from(len & 0x7f | 0x80).unwrap(),
                u8::try_from(len >> 7).unwrap(),
            ]);
        }
        to.bytes.extend(name.as_bytes());
    }
    to.words(markers);
    if layout == Layout::Sequences {
        to.label();
        to.bytes.extend((0..all.len()).flat_map(|n| n.to_be_bytes()[5..].to_vec()));
    }
    to.label();
    let (start, mut index) = (to.bytes.len(), Vec::new());
    for code in 0..=255u8 {
        index.push(u16::try_from(to.bytes.len() - start).unwrap());
        let token = if code.is_ascii_graphic() {
            char::from(code).to_string()
        } else {
            format!("t{code:02x}")
        };
        to.bytes.extend(token.as_bytes());
        to.bytes.push(0);
    }
    to.label();
    to.bytes.extend(index.into_iter().flat_map(u16::to_le_bytes));
    if !old {
        to.offsets(layout, all);
    }
    to.bytes
}

fn put(memory: &mut Flat, at: u64, bytes: &[u8]) {
    let at = usize::try_from(at).unwrap();
    memory.0[at..at + bytes.len()].copy_from_slice(bytes);
}

fn guest(layout: Layout) -> Flat {
    let mut memory = Flat(vec![0; 0x80_0000]);
    kernel_at(&mut memory, layout, PHYSICAL);
    memory
}

fn kernel_at(memory: &mut Flat, layout: Layout, physical: u64) {
    let long = u64::to_le_bytes;
    put(memory, physical + TABLES, &tables(layout));
    put(memory, physical + BANNER, b"Linux version 6.1.0-50-test (someone) ");
    put(memory, physical + CALLS, &long(TEXT + CALLS + 0x100));
    put(memory, physical + CALLS + 8, &long(TEXT + CALLS + 0x200));
    let tables = physical + PAGES;
    put(memory, tables + 8 * 511, &long((tables + 0x1000) | 1));
    put(memory, tables + 0x1000 + 8 * 510, &long((tables + 0x2000) | 1));
    put(memory, tables + 0x2000 + 8 * ((TEXT >> 21) & 511), &long(physical | 0x81));
}

#[test]
fn every_layout() {
    for layout in LAYOUTS {
        let kernel = find(&guest(layout)).unwrap_or_else(|e| panic!("{layout:?}: {e}"));
        assert_eq!((kernel.release.as_str(), kernel.version), ("6.1.0-50-test", Version(6, 1)));
        let expected = symbols(layout);
        assert_eq!(kernel.symbols.len(), expected.len());
        for ((address, kind, name), (at, wanted)) in kernel.symbols.iter().zip(&expected) {
            assert_eq!(address, *at, "{layout:?} {name}");
            assert!(format!("{kind}{name}").starts_with(wanted.as_str()), "{name} is {wanted}");
        }
        assert_eq!(kernel.symbols.address("filler_8"), Ok(TEXT + 0xa008));
        assert_eq!(kernel.symbols.address("same"), Err(SymbolError::Several("same".into(), 2)));
        assert!(
            matches!(kernel.symbols.address("filler_7"), Err(SymbolError::Missing(_))),
            "it is longer"
        );
        assert_eq!(kernel.physical(TEXT + 5), Ok(PHYSICAL + 5));
        assert!(kernel.physical(TEXT + IMAGE).is_err() && kernel.physical(TEXT - 1).is_err());
    }
}

#[test]
fn what_does_not_fit_together() {
    let not = |why: &str, change: &dyn Fn(&mut Flat)| {
        for layout in LAYOUTS {
            let mut memory = guest(layout);
            change(&mut memory);
            let error = find(&memory).expect_err(why).to_string();
            assert!(error.contains(why), "{layout:?}: {error}");
        }
    };
    not("no banner", &|m| put(m, PHYSICAL + BANNER, b"x"));
    not("page tables", &|m| put(m, PHYSICAL + PAGES + 8 * 511, &[0]));
    not("no such table", &|m| m.0.fill(0));
    not("without numbers", &|m| put(m, PHYSICAL + BANNER, b"Linux version six"));
    let mut memory = guest(Layout::Relative);
    put(&mut memory, PHYSICAL + CALLS, &[1]);
    assert!(find(&memory).unwrap_err().to_string().contains("syscall table"));
}

#[test]
fn a_banner_below_the_image() {
    let mut all = symbols(Layout::Based);
    for (_, name) in &mut all {
        *name = match name.as_str() {
            "T_text" => "Rlinux_banner".to_owned(),
            "Rlinux_banner" => "T_text".to_owned(),
            other => other.to_owned(),
        };
    }
    let mut memory = guest(Layout::Based);
    put(&mut memory, PHYSICAL + TABLES, &tables_of(Layout::Based, &all));
    assert!(find(&memory).unwrap_err().to_string().contains("no banner"));
}

#[test]
fn two_kernels_are_none() {
    let mut memory = guest(Layout::Based);
    memory.0.resize(0x100_0000, 0);
    kernel_at(&mut memory, Layout::Based, 0xa0_0000);
    assert_eq!(find(&memory), Err(KallsymsError::Ambiguous(2)));
    // One of them is a copy in the page cache.
    let entry = 0xa0_0000 + PAGES + 0x2000 + 8 * ((TEXT >> 21) & 511);
    put(&mut memory, entry, &(PHYSICAL | 0x81).to_le_bytes());
    assert!(find(&memory).is_ok());
}

#[test]
fn imitations_end() {
    let index: Vec<u8> = (0..256u16).flat_map(|n| (2 * n).to_le_bytes()).collect();
    let mut memory = Flat(vec![0; 0x40_0000]);
    for n in 0..200 {
        put(&mut memory, 0x1_0000 + n * 0x1000, &index);
    }
    assert_eq!(find(&memory), Err(KallsymsError::TooMany(64)));
}

#[test]
fn a_search_in_pieces_finds_the_same() {
    let memory = guest(Layout::Old);
    let mut scan = Scan::new(&memory);
    while !scan.step(&memory, 1).unwrap() {}
    assert_eq!(scan.kernel(&memory), find(&memory));
    // Across the boundary of two 1 MiB pieces, at every position.
    let index: Vec<u8> = (0..256u16).flat_map(|n| (2 * n).to_le_bytes()).collect();
    for before in (4..512).step_by(36) {
        let mut memory = Flat(vec![0; 0x10_1000]);
        put(&mut memory, 0x10_0000 - before, &index);
        let error = find(&memory).unwrap_err().to_string();
        assert!(error.contains(&format!("at {:#x}, ", 0x10_0000 - before)), "{error}");
    }
}

/// Names of one byte, whose every fourth byte is also a number of names that agrees with the markers: each
/// start fits for almost all names. 262 KB took 6.4 s, and there may be 64 of them.
fn almost_everywhere() -> Vec<u8> {
    let (names, blocks) = (65_793usize, 258usize);
    let mut bytes: Vec<u8> = [1, 1, 1, 0].repeat(names / 2 + 0x1_0000 / 4);
    // No name ends in these.
    bytes.extend([0x7f; 8]);
    bytes.extend((0..u32::try_from(blocks).unwrap()).flat_map(|n| (512 * n).to_le_bytes()));
    let (start, mut index) = (bytes.len(), Vec::new());
    for _ in 0..256 {
        index.extend(u16::try_from(bytes.len() - start).unwrap().to_le_bytes());
        bytes.extend(b"a\0");
    }
    bytes.extend(index);
    bytes
}

#[test]
fn tables_that_fit_almost_everywhere_end_the_search() {
    let bytes = almost_everywhere();
    let mut memory = Flat(vec![0; bytes.len() * 3]);
    put(&mut memory, 0, &bytes);
    put(&mut memory, 2 * bytes.len() as u64, &bytes);
    let error = find(&memory).unwrap_err().to_string();
    assert!(error.contains("more work than any kernel's"), "{error}");
}

#[test]
fn a_kernel_is_far_from_the_limit() {
    for layout in LAYOUTS {
        let memory = guest(layout);
        let mut scan = Scan::new(&memory);
        while !scan.step(&memory, 64 << 20).unwrap() {}
        let mut effort = Effort::default();
        let table = tables::read(&memory, scan.found()[0], &mut effort).unwrap();
        let steps = effort.taken();
        assert!(steps < 10 * table.symbols.len() as u64 + 1000, "{layout:?}: {steps} steps");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Damage anywhere in the tables yields a kernel or an error, and never a symbol outside of the
    /// image.
    #[test]
    fn hostile_tables(
        which in 0usize..5,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        zeroes in any::<prop::sample::Index>(),
    ) {
        let mut memory = guest(LAYOUTS[which]);
        let from = usize::try_from(PHYSICAL + TABLES).unwrap();
        let len = tables(LAYOUTS[which]).len();
        for (at, byte) in changes {
            memory.0[from + at.index(len)] = byte;
        }
        if zeroes.index(4) == 0 {
            let at = from + zeroes.index(len);
            memory.0[at..at + 64].fill(0);
        }
        if let Ok(kernel) = find(&memory) {
            prop_assert!(kernel.symbols.iter().all(|(_, _, name)| name.is_ascii()));
        }
    }
}

proptest! {
    /// A booting guest may overwrite the index after it was found: it may hold any numbers when the
    /// tokens are read.
    #[test]
    fn an_index_that_has_changed_is_no_index(
        mut index in prop::collection::vec(any::<u16>(), 256),
        last in 0u16..64,
        bytes in prop::collection::vec(any::<u8>(), 0..512),
    ) {
        index[255] = last;
        prop_assert!(tables::tokens(&bytes, &index, &mut Effort::default()).is_none());
    }
}
