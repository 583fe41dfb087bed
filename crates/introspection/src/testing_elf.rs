//! ELF files for tests: just what a linker produces for a flat guest.

/// A guest's file.
#[derive(Clone, Debug)]
pub(super) struct Elf {
    /// Whether it is a 64-bit file.
    pub(super) wide: bool,
    /// ET_*.
    pub(super) kind: u16,
    /// The address of its code.
    pub(super) address: u64,
    /// Its code, in one section.
    pub(super) code: Vec<u8>,
    /// Types and contents of its notes.
    pub(super) notes: Vec<(u32, Vec<u8>)>,
    /// Names and addresses of its symbols.
    pub(super) symbols: Vec<(String, u64)>,
}

impl Elf {
    /// A file with functions of 16 bytes, each with a slot, from 1 MiB on.
    pub(super) fn with(wide: bool, functions: &[&str]) -> Self {
        let address = 0x10_0000;
        let mut code = Vec::new();
        let mut symbols = Vec::new();
        for name in functions {
            symbols.push(((*name).to_owned(), address + code.len() as u64));
            code.extend([0x0f, 0x1f, 0x44, 0, 0, 0xc3]);
            code.extend([0x90; 10]);
        }
        Self { wide, kind: 2, address, code, notes: Vec::new(), symbols }
    }

    /// Adds a note.
    pub(super) fn note(mut self, kind: u32, words: &[u32]) -> Self {
        self.notes.push((kind, words.iter().flat_map(|word| word.to_le_bytes()).collect()));
        self
    }

    /// Adds a symbol.
    pub(super) fn symbol(mut self, name: &str, address: u64) -> Self {
        self.symbols.push((name.to_owned(), address));
        self
    }

    /// The guest's memory, from address 0 on.
    pub(super) fn memory(&self) -> crate::testing::Flat {
        let start = usize::try_from(self.address).unwrap();
        let mut memory = vec![0; start + self.code.len() + 8192];
        memory[start..start + self.code.len()].copy_from_slice(&self.code);
        crate::testing::Flat(memory)
    }

    /// The bytes of the file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        // Sizes of the header, a program header and a section header.
        let [header, program, section] = if self.wide { [64, 56, 64] } else { [52, 32, 40] };
        let code = header + program;
        let (mut notes, mut names, mut symbols) =
            (Vec::new(), vec![0], vec![0; if self.wide { 24 } else { 16 }]);
        for (kind, content) in &self.notes {
            let words = [10, u32::try_from(content.len()).unwrap(), *kind];
            notes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            notes.extend(b"Timevisor\0\0\0");
            notes.extend(content);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        for (name, address) in &self.symbols {
            let mut put = Put(&mut symbols, self.wide);
            put.half(names.len(), 4);
            if self.wide {
                // A global function of section 1.
                put.half(0x0001_0012, 4);
                put.word(*address);
                put.word(16);
            } else {
                put.word(*address);
                put.word(16);
                put.half(0x0001_0012, 4);
            }
            names.extend(name.as_bytes());
            names.push(0);
        }
        let notes_at = (code + self.code.len()).next_multiple_of(8);
        let symbols_at = (notes_at + notes.len()).next_multiple_of(8);
        let names_at = symbols_at + symbols.len();
        let sections_at = (names_at + names.len()).next_multiple_of(8);

        let mut out = b"\x7fELF".to_vec();
        out.extend([if self.wide { 2 } else { 1 }, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut put = Put(&mut out, self.wide);
        put.half(self.kind.into(), 2);
        put.half(if self.wide { 62 } else { 3 }, 2);
        put.half(1, 4);
        put.word(self.address);
        put.word(header as u64);
        put.word(sections_at as u64);
        put.half(0, 4);
        for half in [header, program, 1, section, 5, 4] {
            put.half(half, 2);
        }
        // One segment: readable and executable.
        put.half(1, 4);
        if self.wide {
            put.half(5, 4);
        }
        for word in [code as u64, self.address, self.address] {
            put.word(word);
        }
        for _ in 0..2 {
            put.word(self.code.len() as u64);
        }
        if !self.wide {
            put.half(5, 4);
        }
        put.word(4096);
        for (at, content) in
            [(code, &self.code), (notes_at, &notes), (symbols_at, &symbols), (names_at, &names)]
        {
            out.resize(at, 0);
            out.extend(content);
        }
        out.resize(sections_at, 0);
        let mut put = Put(&mut out, self.wide);
        // Type, offset, size, the section with its names, alignment, entry size.
        let entry = if self.wide { 24 } else { 16 };
        for (kind, at, size, link, align, entry) in [
            (0, 0, 0, 0, 0, 0),
            (1, code, self.code.len(), 0, 16, 0),
            (7, notes_at, notes.len(), 0, 4, 0),
            (2, symbols_at, symbols.len(), 4, 8, entry),
            (3, names_at, names.len(), 0, 1, 0),
        ] {
            put.half(0, 4);
            put.half(kind, 4);
            // Loaded and executable.
            put.word(if kind == 1 { 6 } else { 0 });
            put.word(if kind == 1 { self.address } else { 0 });
            put.word(at as u64);
            put.word(size as u64);
            put.half(link, 4);
            put.half(1, 4);
            put.word(align);
            put.word(entry);
        }
        out
    }
}

struct Put<'a>(&'a mut Vec<u8>, bool);

impl Put<'_> {
    /// A field of this size, whatever the class.
    fn half(&mut self, value: usize, size: usize) {
        self.0.extend(&value.to_le_bytes()[..size]);
    }

    /// An address or an offset.
    fn word(&mut self, value: u64) {
        self.0.extend(&value.to_le_bytes()[..if self.1 { 8 } else { 4 }]);
    }
}
