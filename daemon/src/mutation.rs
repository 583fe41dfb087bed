//! Damaged files for tests: what a full disk, an editor or an older version leaves. Bytes are
//! flipped, removed and doubled, and numbers become those that parsers forget.

/// Numbers at the ends of types, and beyond them.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1e999",
    "1e-999",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "0.5",
    "null",
    "\"\"",
    "[]",
    "{}",
    "\"99999999999999999999s\"",
    "nan",
    "inf",
];

/// Calls `check` with `count` damaged copies of `valid`, the same ones each time.
pub fn each(valid: &[u8], count: u64, mut check: impl FnMut(&[u8])) {
    for seed in 0..count {
        check(&damaged(valid, seed));
    }
}

fn damaged(valid: &[u8], seed: u64) -> Vec<u8> {
    // Numerical Recipes' generator: any will do.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut draw = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or(0) % below.max(1)
    };
    let mut bytes = valid.to_vec();
    for _ in 0..1 + draw(3) {
        let at = draw(bytes.len());
        let end = (at + 1 + draw(24)).min(bytes.len());
        match draw(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            3 if at < bytes.len() => bytes[at] ^= 1 << draw(8),
            _ => another_number(&mut bytes, at, NUMBERS[draw(NUMBERS.len())]),
        }
    }
    bytes
}

/// Replaces the first number after `at`.
fn another_number(bytes: &mut Vec<u8>, at: usize, number: &str) {
    let Some(begin) = bytes[at..].iter().position(u8::is_ascii_digit).map(|begin| at + begin)
    else {
        return;
    };
    let length = bytes[begin..].iter().position(|byte| !byte.is_ascii_digit());
    let end = length.map_or(bytes.len(), |length| begin + length);
    bytes.splice(begin..end, number.bytes());
}
