//! What the fuzz targets share: decoding choices from the fuzzer's bytes.
//!
//! | item | for |
//! | --- | --- |
//! | [`decode`] | a target's body that stops where the bytes end |
//! | [`log_scaled`] | numbers of every magnitude from two bytes |
//! | [`edited`] | a copy of authentic bytes with damage |
//! | [`pieces`] | a stream as a peer may cut it |
//!
//! What it does not do: know any format. Each file in `fuzz_targets` says what it asserts beyond
//! "no panic".
#![forbid(unsafe_code)]

use libfuzzer_sys::arbitrary::{Result, Unstructured};

/// Runs `body` on the fuzzer's bytes; that they end early is no failure.
pub fn decode(data: &[u8], body: impl FnOnce(&mut Unstructured) -> Result<()>) {
    let _ended_early = body(&mut Unstructured::new(data));
}

/// 0 to 4095 times a power of two up to 2^15: small and large numbers are equally near for a
/// mutation.
///
/// # Errors
/// No bytes are left.
pub fn log_scaled(u: &mut Unstructured) -> Result<i64> {
    let word: u16 = u.arbitrary()?;
    Ok(i64::from(word & 0xfff) << (word >> 12))
}

/// So many bytes as the next byte says, or as are left.
///
/// # Errors
/// No bytes are left.
pub fn some_bytes<'a>(u: &mut Unstructured<'a>) -> Result<&'a [u8]> {
    let wanted: u8 = u.arbitrary()?;
    u.bytes(usize::from(wanted).min(u.len()))
}

/// `original` with up to three edits: bytes replaced, inserted, removed.
///
/// # Errors
/// No bytes are left.
pub fn edited(u: &mut Unstructured, original: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = original.to_vec();
    for _ in 0..u.int_in_range(0..=3)? {
        let from = u.int_in_range(0..=bytes.len())?;
        let to = (from + usize::from(u.arbitrary::<u8>()? % 9)).min(bytes.len());
        let with = some_bytes(u)?;
        bytes.splice(from..to, with.iter().copied());
    }
    Ok(bytes)
}

/// `stream` in pieces of `first`, then `second` bytes, and so on in turns; the lengths count
/// from 1.
pub fn pieces(stream: &[u8], first: u8, second: u8) -> impl Iterator<Item = &[u8]> {
    let mut lengths = [first, second].into_iter().cycle();
    let mut rest = stream;
    std::iter::from_fn(move || {
        let length = usize::from(lengths.next()?) + 1;
        let (piece, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}
