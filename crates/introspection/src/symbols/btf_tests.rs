use proptest::prelude::*;

use super::*;

/// A small example: struct task with an int, an anonymous union that holds a named struct, an array
/// and a bit field; and typedefs.
fn sample() -> Vec<u8> {
    let strings = b"\0int\0char\0task\0pid\0inner\0runtime\0dl\0comm\0flag\0u32\0loop\0";
    let at = |name: &str| {
        let needle = [name.as_bytes(), b"\0"].concat();
        let found = strings.windows(needle.len()).position(|w| w == needle).unwrap();
        u32::try_from(found).unwrap()
    };
    let info = |kind: u32, count: u32| kind << 24 | count;
    let mut types: Vec<u32> = Vec::new();
    types.extend([at("int"), info(kind::INT, 0), 4, 32]); // 1
    types.extend([at("char"), info(kind::INT, 0), 1, 8]); // 2
    types.extend([0, info(kind::ARRAY, 0), 0, 2, 1, 16]); // 3: char[16]
    types.extend([at("inner"), info(kind::STRUCT, 1), 8, at("runtime"), 6, 32]); // 4
    types.extend([0, info(kind::UNION, 1), 8, at("dl"), 4, 0]); // 5
    types.extend([at("u32"), info(kind::TYPEDEF, 0), 7]); // 6
    types.extend([0, info(kind::CONST, 0), 1]); // 7
    types.extend([at("task"), 1 << 31 | info(kind::STRUCT, 4), 40]); // 8
    types.extend([at("pid"), 1, 0]);
    types.extend([0, 5, 64]);
    types.extend([at("comm"), 3, 128]);
    types.extend([at("flag"), 1, 3 << 24 | 256]);
    types.extend([at("loop"), info(kind::TYPEDEF, 0), 9]); // 9: itself
    types.extend([at("inner"), info(kind::STRUCT, 1), 8, at("pid"), 9, 0]); // 10: another inner
    let types: Vec<u8> = types.into_iter().flat_map(u32::to_le_bytes).collect();
    let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
    let header = [0x0001_eb9f, 24, 0, len(&types), len(&types), len(strings)];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend(types);
    bytes.extend(strings);
    bytes
}

#[test]
fn members_by_name() {
    let btf = Btf::parse(sample()).unwrap();
    let member = |path| btf.member("task", path).map(|m| (m.offset, m.size));
    assert_eq!(member("pid"), Ok((0, 4)));
    assert_eq!(member("dl"), Ok((8, 8)), "through an anonymous union");
    assert_eq!(member("dl.runtime"), Ok((12, 4)), "through typedef and const");
    assert_eq!(member("comm"), Ok((16, 16)));
    for missing in ["flag", "runtime", "dl.pid", "pid.x", "", "comm.x"] {
        assert!(matches!(member(missing), Err(BtfError::Missing(_))), "{missing}");
    }
    assert!(matches!(btf.member("union", "dl"), Err(BtfError::Missing(_))));
    assert!(btf.member("inner", "pid").is_err(), "a type that is itself has no size");
}

#[test]
fn damage_is_named() {
    let parse = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = sample();
        change(&mut bytes);
        Btf::parse(bytes).unwrap_err()
    };
    assert_eq!(parse(&|b| b.truncate(10)), BtfError::Damaged("it is too short"));
    assert_eq!(parse(&|b| b[0] = 0), BtfError::Damaged("its beginning"));
    assert_eq!(parse(&|b| b[2] = 2), BtfError::Damaged("its version"));
    assert_eq!(parse(&|b| b[15] = 0xff), BtfError::Damaged("its types' place"));
    assert_eq!(parse(&|b| b[23] = 0xff), BtfError::Damaged("its strings' place"));
    assert_eq!(parse(&|b| b[12] -= 4), BtfError::Damaged("a type beyond the end"));
    assert_eq!(parse(&|b| b[31] = 0x1f), BtfError::Kind(31));
}

proptest! {
    #[test]
    fn hostile_changes(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = sample();
        for (at, byte) in changes {
            let len = bytes.len();
            bytes[at.index(len)] = byte;
        }
        if let Ok(btf) = Btf::parse(bytes) {
            for path in ["pid", "dl.runtime", "comm", "flag", "runtime"] {
                let _some_answer = btf.member("task", path);
            }
        }
    }

    #[test]
    fn anything(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _some_answer = Btf::parse(bytes);
    }
}

/// Anonymous structures that are nested in each other and in themselves.
#[test]
fn depth_ends() {
    for itself in [false, true] {
        let mut types: Vec<u32> = Vec::new();
        for n in 1..1000u32 {
            let next = if itself { n } else { n + 1 };
            types.extend([u32::from(n == 1), kind::STRUCT << 24 | 1, 8, 0, next, 0]);
        }
        let types: Vec<u8> = types.into_iter().flat_map(u32::to_le_bytes).collect();
        let len = u32::try_from(types.len()).unwrap();
        let header = [0x0001_eb9f, 24, 0, len, len, 3];
        let mut bytes: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend(types);
        bytes.extend(b"\0a\0");
        let btf = Btf::parse(bytes).unwrap();
        assert!(matches!(btf.member("a", "b"), Err(BtfError::Missing(_))));
    }
}

#[test]
fn a_module_numbers_its_types_and_strings_on() {
    let strings = b"\0more\0own\0";
    let base =
        u32::try_from(b"\0int\0char\0task\0pid\0inner\0runtime\0dl\0comm\0flag\0u32\0loop\0".len());
    let base = base.unwrap();
    // The module's strings start after the kernel's; 1 is the kernel's int, and 11 is the module's
    // own first type: a structure with that int in it.
    let pid = 15;
    let types: Vec<u32> = vec![base + 1, kind::STRUCT << 24 | 2, 8, pid, 1, 0, base + 6, 8, 32];
    let types: Vec<u8> = types.into_iter().flat_map(u32::to_le_bytes).collect();
    let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
    let header = [0x0001_eb9f, 24, 0, len(&types), len(&types), len(strings)];
    let mut module: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    module.extend(&types);
    module.extend(strings);
    let btf = Btf::parse(sample()).unwrap().with_module(&module).unwrap();
    let member = |of: &str, path| btf.member(of, path).map(|m| (m.offset, m.size));
    assert_eq!(member("more", "pid"), Ok((0, 4)));
    assert_eq!(member("more", "own.dl.runtime"), Ok((16, 4)), "through the kernel's type 8");
    assert_eq!(member("task", "pid"), Ok((0, 4)));
    assert!(Btf::parse(sample()).unwrap().with_module(&module[..40]).is_err());
    assert!(Btf::parse(sample()).unwrap().with_module(b"").is_err());
}
