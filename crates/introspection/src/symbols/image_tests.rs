use proptest::prelude::*;

use super::*;
use crate::registry;
use crate::testing_elf::Elf;

/// The parts of a FreeRTOS kernel's file that are read.
fn sample(wide: bool) -> Elf {
    Elf::with(wide, &["first", "second"]).note(7, &[1, 2, 3]).note(8, &[4]).symbol("data", 0x5000)
}

#[test]
fn what_a_file_says() {
    for wide in [false, true] {
        let (elf, bytes) = (sample(wide), sample(wide).bytes());
        let image = Image::parse(&bytes).unwrap();
        assert_eq!(image.is_wide(), wide);
        assert_eq!(image.note(8).unwrap(), Some(&4u32.to_le_bytes()[..]));
        assert_eq!(image.note(9).unwrap(), None);
        assert_eq!(image.address("data"), Ok(0x5000));
        assert_eq!(image.address("nothing"), Err(ImageError::NoSymbol("nothing".into())));
        assert_eq!((image.near("frist"), image.near("thrid")), (Some("first"), None));
        assert_eq!(image.slot("second"), Ok(0x10_0010));
        assert_eq!(image.slot("data"), Err(ImageError::Outside("data".into())));
        assert_eq!(image.is_in(&elf.memory()), Ok(()));
    }
}

#[test]
fn another_build_is_refused() {
    let elf = sample(false);
    let bytes = elf.bytes();
    let image = Image::parse(&bytes).unwrap();
    for at in 0..elf.code.len() {
        let mut memory = elf.memory();
        let address = elf.address + at as u64;
        memory.0[usize::try_from(address).unwrap()] ^= 1;
        assert_eq!(image.is_in(&memory), Err(ImageError::Another(address)));
    }
    let mut memory = elf.memory();
    memory.0.truncate(usize::try_from(elf.address).unwrap() + 3);
    assert!(matches!(image.is_in(&memory), Err(ImageError::Memory(MemoryError::NotRam(_)))));
}

#[test]
fn what_is_missing_is_said() {
    let refused = |elf: &Elf| Image::parse(&elf.bytes()).map(drop).unwrap_err();
    assert_eq!(refused(&Elf { kind: 3, ..sample(false) }), ImageError::NotLinked);
    assert_eq!(refused(&Elf { code: Vec::new(), ..sample(true) }), ImageError::Parts(0));
    let high = Elf { address: u64::MAX - 3, ..sample(true) };
    assert!(matches!(refused(&high), ImageError::Elf(_)));
    let mut other = sample(false).bytes();
    other[18] = 40; // EM_ARM
    assert!(Image::parse(&other).unwrap_err().to_string().contains("processor"));
    let mut apart = sample(false).bytes();
    apart[52 + 12] ^= 16; // p_paddr
    assert!(matches!(Image::parse(&apart), Err(ImageError::NotFlat { .. })));
    assert!(matches!(Image::parse(b"#!/bin/sh\n"), Err(ImageError::Elf(_))));
    assert_eq!(Image::parse(&vec![0; MOST_BYTES + 1]).unwrap_err(), ImageError::Long);

    let of = |elf: Elf, symbol: &str| {
        let bytes = elf.bytes();
        let image = Image::parse(&bytes).unwrap();
        image.slot(symbol).unwrap_err()
    };
    let twice = sample(false).symbol("first", 0x10_0010);
    assert_eq!(of(twice, "first"), ImageError::Ambiguous("first".into()));
    let inside = sample(false).symbol("inside", 0x10_0005);
    assert!(matches!(of(inside, "inside"), ImageError::NoSlot { .. }));
    // The note that reports the problem must exist for each kind of guest.
    let bytes = sample(false).bytes();
    let why = registry::probe_image(&Image::parse(&bytes).unwrap()).unwrap_err();
    let why: Vec<String> = why.iter().map(ToString::to_string).collect();
    assert!(why.len() == 2 && why.iter().all(|why| why.contains("no note of")), "{why:?}");
}

/// Makes every query; true if all answers equal those for the undamaged file.
fn ask(bytes: &[u8]) -> bool {
    let Ok(image) = Image::parse(bytes) else { return false };
    let known = [image.slot("first") == Ok(0x10_0000), image.address("data") == Ok(0x5000)];
    let note = image.note(7).is_ok_and(|note| note.is_some());
    let _ = image.is_in(&sample(false).memory());
    let _ = registry::probe_image(&image);
    note && known.iter().all(|known| *known)
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        prop_assert!(!ask(&bytes));
        let elf = [b"\x7fELF", &bytes[..]].concat();
        prop_assert!(!ask(&elf));
    }

    #[test]
    fn truncated(wide: bool, at in any::<prop::sample::Index>()) {
        let bytes = sample(wide).bytes();
        let len = at.index(bytes.len());
        prop_assert!(!ask(&bytes[..len]), "{} of {}", len, bytes.len());
    }

    #[test]
    fn damaged(wide: bool, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = sample(wide).bytes();
        prop_assert!(ask(&bytes));
        for (at, value) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        ask(&bytes);
    }

    /// Offsets and sizes of every kind, up to their maximum.
    #[test]
    fn hostile_numbers(wide: bool, at in any::<prop::sample::Index>(), value in prop::sample::select(vec![
        u32::MAX, u32::MAX - 1, 1 << 31, 1 << 16, 0x7fff_ffff, 0xffff_0000,
    ])) {
        let mut bytes = sample(wide).bytes();
        let at = at.index(bytes.len() / 4 - 1) * 4;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        ask(&bytes);
    }
}
