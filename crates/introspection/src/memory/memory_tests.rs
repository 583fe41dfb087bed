use proptest::prelude::*;

use super::*;
use crate::testing::Flat;

fn put(memory: &mut Flat, at: u64, value: u64) {
    let at = usize::try_from(at).unwrap();
    memory.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Page tables at 0x1000 and above that map one page of each size, through 4 or 5 levels.
fn tables(five: bool) -> (Flat, PageTables) {
    let mut memory = Flat(vec![0; 0x20_0000]);
    let (root, l4) = if five { (0x1000, 0x2000) } else { (0x2000, 0x2000) };
    if five {
        put(&mut memory, root + 8 * 511, l4 | 1);
    }
    put(&mut memory, l4 + 8 * 511, 0x3000 | 1);
    put(&mut memory, 0x3000 + 8 * 510, 0x4000 | 1);
    put(&mut memory, 0x3000 + 8 * 509, (1 << 63) | 0x81); // 1 GiB at 0, not executable
    put(&mut memory, 0x4000 + 8 * 8, 0x81); // 2 MiB at 0
    put(&mut memory, 0x4000 + 8 * 9, 0x5000 | 1);
    put(&mut memory, 0x5000, 0x7000 | 1);
    put(&mut memory, 0x5000 + 8, 0x6000 | 1);
    (memory, PageTables { root, five_levels: five })
}

#[test]
fn pages_of_every_size() {
    for five in [false, true] {
        let (memory, tables) = tables(five);
        let translate = |address| tables.translate(&memory, address);
        assert_eq!(translate(0xffff_ffff_8100_1234), Ok(0x1234));
        assert_eq!(translate(0xffff_ffff_8120_0abc), Ok(0x7abc));
        assert_eq!(translate(0xffff_ffff_7fff_f000), Ok(0x3fff_f000), "inside a page of 1 GiB");
        assert_eq!(
            translate(0xffff_ffff_8140_0000),
            Err(MemoryError::NotMapped(0xffff_ffff_8140_0000))
        );
        assert!(translate(0x8000_0000_0000_0000).is_err(), "not canonical");
        assert!(translate(0x1000).is_err());
    }
}

#[test]
fn reads_cross_pages() {
    let (mut memory, tables) = tables(false);
    memory.0[0x7fff] = 7;
    memory.0[0x6000] = 6;
    let mut two = [0; 2];
    tables.read(&memory, 0xffff_ffff_8120_0fff, &mut two).unwrap();
    assert_eq!(two, [7, 6]);
    assert!(tables.read(&memory, u64::MAX, &mut two).is_err());
    assert_eq!(
        read_some(&memory, 0x1f_fffe, 100).map(|bytes| bytes.len()),
        Ok(2),
        "no more than there is"
    );
    assert_eq!(read_some(&memory, 0x20_0000, 1), Err(MemoryError::NotRam(0x20_0000)));
}

proptest! {
    /// Random tables yield a result or an error, with at most five reads.
    #[test]
    fn hostile_tables(
        words in prop::collection::vec(any::<u64>(), 64),
        address in any::<u64>(),
        root in any::<u64>(),
        five_levels in any::<bool>(),
    ) {
        let mut memory = Flat(vec![0; 0x4000]);
        for (n, byte) in memory.0.iter_mut().enumerate() {
            let word = words[n / 8 % words.len()];
            // Half of the entries point into these tables.
            let word = if word & 2 == 0 { word & 0x3fff | 1 } else { word };
            *byte = word.to_le_bytes()[n % 8];
        }
        let tables = PageTables { root, five_levels };
        let _some_answer = tables.translate(&memory, address);
        let _some_answer = tables.read(&memory, address, &mut [0; 64]);
    }

    #[test]
    fn self_reference_ends(address in any::<u64>(), five_levels in any::<bool>()) {
        let mut memory = Flat(vec![0; 0x1000]);
        for at in (0..0x1000).step_by(8) {
            put(&mut memory, at, 1);
        }
        let _some_answer = PageTables { root: 0, five_levels }.translate(&memory, address);
    }
}
