//! A guest's type information: parsed or refused, and whatever member is found lies in its
//! structure's own words.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::decode;
use timevisor_introspection::symbols::btf::Btf;

const NAMES: &[u8] = b"\0task\0pid\0dl\0comm\0";

fuzz_target!(|data: &[u8]| {
    look(data.to_vec());
    decode(data, run);
});

/// Types of the fuzzer's words behind a right header.
fn run(u: &mut Unstructured) -> Result<()> {
    let mut types: Vec<u8> = Vec::new();
    while !u.is_empty() {
        let (kind, count): (u8, u8) = (u.int_in_range(1..=20)?, u.int_in_range(0..=5)?);
        let bits = u32::from(u.ratio(1, 8)?) << 31;
        let name = *u.choose(&[0u32, 1, 6, 10, 13])?;
        types.extend(name.to_le_bytes());
        types.extend((bits | u32::from(kind) << 24 | u32::from(count)).to_le_bytes());
        types.extend(u32::from(u.arbitrary::<u8>()?).to_le_bytes());
        let more = match kind {
            1 | 14 | 17 => 1,
            3 => 3,
            4 | 5 | 15 | 19 => 3 * count,
            6 | 13 => 2 * count,
            _ => 0,
        };
        for _ in 0..more {
            types.extend(u32::from(u.arbitrary::<u8>()?).to_le_bytes());
        }
    }
    let len = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short");
    let header = [0x0001_eb9f, 24, 0, len(&types), len(&types), len(NAMES)];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend(types);
    bytes.extend(NAMES);
    look(bytes);
    Ok(())
}

fn look(bytes: Vec<u8>) {
    match Btf::parse(bytes.clone()) {
        Ok(btf) => {
            assert_eq!(btf.bytes(), bytes);
            for path in ["pid", "dl", "dl.pid", "comm", "task.dl.comm", "", "."] {
                let once = btf.member("task", path);
                assert_eq!(once, btf.member("task", path));
                assert!(!path.is_empty() || once.is_err());
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
