//! Finds all tables, beginning with the token index. scripts/kallsyms.c writes them one after the
//! other, so each table is found by its end, where the next one begins. The tables are used only if
//! all their numbers agree.
//!
//! | layout | order | addresses |
//! | --- | --- | --- |
//! | 5.18 to 6.4 | offsets, base, count, names, markers, (sequences,) tokens, index | base - 1 - offset; not negative: absolute (per CPU) |
//! | 6.5 on | count, names, markers, tokens, index, offsets, base | the same, or base + offset (6.15) |
//! | 7.2 or so on | the same without base, aligned at 4 | the address of the entry + what it holds |
//!
//! Sequences (3 bytes for each name) are in 6.2 and in later releases of 6.1.

use super::effort::Effort;
use super::index::{INDEX, numbers};
use super::symbols::{MAX_SYMBOLS, NAME, Symbols, Tokens, length};
use crate::memory::{GuestMemory, MemoryError, read_some};

const TOKENS: usize = 65536;
/// The longest token with its end: a length is at most 255.
const LONGEST_TOKEN: usize = 256;
/// Maximum size of the names for one marker.
const BLOCK: usize = 256 * NAME;
const MARKERS: usize = MAX_SYMBOLS / 256;
/// Kernel addresses of an image (arch/x86/include/asm/page_64_types.h: 1 GiB from
/// __START_KERNEL_map on).
pub(super) const IMAGE: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;

/// How a symbol's entry gives its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Addresses {
    /// Virtual addresses.
    Virtual,
    /// Guest-physical addresses: only the distances in the tables are meaningful.
    Physical,
}

/// The tables, as read from memory.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) symbols: Symbols,
    pub(super) addresses: Addresses,
    /// Physical address of the index, which lies inside the image.
    pub(super) index: u64,
}

/// Why the bytes are not a table.
pub(super) type Why = String;

/// Reads the tables around an index.
///
/// # Errors
/// When they do not agree, or `effort` is at an end.
pub(super) fn read(
    memory: &dyn GuestMemory,
    index: u64,
    effort: &mut Effort,
) -> Result<Tables, Why> {
    let read = |address: u64, len: usize| -> Result<Vec<u8>, Why> {
        let mut bytes = vec![0; len];
        memory.read(address, &mut bytes).map_err(|e: MemoryError| e.to_string())?;
        Ok(bytes)
    };
    let before = |end: u64, len: usize| -> Result<(u64, Vec<u8>), Why> {
        let start = end.saturating_sub(len as u64);
        Ok((start, read(start, usize::try_from(end - start).unwrap_or(len))?))
    };
    let numbers: Vec<u16> = numbers(&read(index, INDEX)?).collect();
    let (start, bytes) = before(index, TOKENS + 512)?;
    let found = tokens(&bytes, &numbers, effort);
    effort.check()?;
    let (tokens_at, tokens) = found.ok_or("there are no tokens before the index")?;
    let tokens_address = start + tokens_at as u64;

    // Most kernels have nothing between the two, so a megabyte search is not needed.
    let near = before(tokens_address, 4 * MARKERS + 16)?;
    let found = match markers(&near.1) {
        Some((at, markers)) => Some((near.0 + at as u64, markers)),
        None => {
            let (start, bytes) = before(tokens_address, 4 * MARKERS + 3 * MAX_SYMBOLS + 16)?;
            markers(&bytes).map(|(at, markers)| (start + at as u64, markers))
        }
    };
    let (markers_address, markers) = found.ok_or("there are no markers before the tokens")?;
    let last = *markers.last().ok_or("no markers")? as usize;

    let (start, bytes) = before(markers_address, last + BLOCK + 16)?;
    let named = names(&bytes, &markers, effort);
    effort.check()?;
    let (names_at, count) = named.ok_or("no names agree with the markers")?;
    let names_address = start + names_at as u64;
    let names = &bytes[names_at..];

    let old = || {
        // 5.18 to 6.1: before the count, which is 8-byte aligned.
        let base = u64_at(&read(names_address.checked_sub(16)?, 8).ok()?, 0)?;
        let at = names_address.checked_sub(16 + (4 * count as u64).next_multiple_of(8))?;
        let offsets = words(&read(at, 4 * count).ok()?);
        Some((based(base, &offsets)?, Addresses::Virtual))
    };
    let after = index + INDEX as u64;
    let offsets = || read_some(memory, after, 4 * count).ok().filter(|b| b.len() == 4 * count);
    let new = || {
        let base = after + (4 * count as u64).next_multiple_of(8);
        let base = u64_at(&read(base, 8).ok()?, 0)?;
        Some((based(base, &words(&offsets()?))?, Addresses::Virtual))
    };
    let relative = || {
        let entries = words(&offsets()?).into_iter().zip((after..).step_by(4));
        let all =
            entries.map(|(distance, at)| at.checked_add_signed(i64::from(distance.cast_signed())));
        Some((ascending(all.collect::<Option<_>>()?)?, Addresses::Physical))
    };
    let (values, addresses) =
        old().or_else(new).or_else(relative).ok_or("no addresses agree with the names")?;
    let symbols = Symbols::decode(names, &tokens, &values, effort);
    effort.check()?;
    let symbols = symbols.ok_or("a name cannot be decoded")?;
    Ok(Tables { symbols, addresses, index })
}

/// The tokens that end where `bytes` ends, and where they start.
pub(super) fn tokens(bytes: &[u8], index: &[u16], effort: &mut Effort) -> Option<(usize, Tokens)> {
    let last = usize::from(*index.last()?);
    // Neither the last token's length nor the size of the padding before the index is known.
    let newest = bytes.len().checked_sub((last + 2).next_multiple_of(4))?;
    let oldest = newest.saturating_sub(264);
    (oldest..=newest).rev().step_by(4).find_map(|start| {
        let table = &bytes[start..];
        let mut all = Vec::with_capacity(256);
        for (n, begin) in index.iter().enumerate() {
            // The guest may have changed its index since it was found, so it may no longer ascend.
            let text = table.get(usize::from(*begin)..)?;
            // A token is short, whatever follows.
            let text = &text[..text.len().min(LONGEST_TOKEN)];
            effort.take(1 + text.len() / 64)?;
            let len = text.iter().position(|byte| *byte == 0)?;
            let end = usize::from(*begin) + len + 1;
            match index.get(n + 1) {
                Some(next) if usize::from(*next) != end => return None,
                None if table.len() - end >= 8 || table[end..].iter().any(|b| *b != 0) => {
                    return None;
                }
                _ => all.push(text[..len].to_vec()),
            }
        }
        all.iter().flatten().all(u8::is_ascii_graphic).then_some((start, Tokens(all)))
    })
}

/// The markers before the end of `bytes`: they start at 0 and grow by at most the size of 256
/// names. They are followed by the end of `bytes`, or by the sequences of as many names.
fn markers(bytes: &[u8]) -> Option<(usize, Vec<u32>)> {
    let offset = bytes.len() % 4;
    let all = words(&bytes[offset..]);
    let steps = 512..=u32::try_from(BLOCK).unwrap_or(u32::MAX);
    (0..all.len()).rev().find_map(|first| {
        if all[first] != 0 || !steps.contains(all.get(first + 1)?) {
            return None;
        }
        let grows =
            |pair: &&[u32]| pair[1].checked_sub(pair[0]).is_some_and(|s| steps.contains(&s));
        let count = 1 + all[first..].windows(2).take_while(grows).count();
        let gap = 4 * (all.len() - first - count);
        // Names have sequences, padded by up to 11 bytes.
        let sequences = |gap: usize| (gap / 3).div_ceil(256) == count;
        let fits = gap < 8 || (gap.saturating_sub(11)..=gap).any(sequences);
        (count <= MARKERS && fits).then(|| (offset + 4 * first, all[first..first + count].to_vec()))
    })
}

/// The names that end where `bytes` ends: where they start, and how many there are.
fn names(bytes: &[u8], markers: &[u32], effort: &mut Effort) -> Option<(usize, usize)> {
    let last = *markers.last()? as usize;
    // Aligned like their end.
    let newest = bytes.len().checked_sub((last + 2).next_multiple_of(4))?;
    let oldest = newest.saturating_sub(BLOCK + 8).max(8);
    (oldest..=newest).rev().step_by(4).find_map(|start| {
        // The count is a word, 8-byte or 4-byte aligned.
        [4, 8].into_iter().find_map(|before| {
            let count = u32_at(bytes, start - before)? as usize;
            let right = count.div_ceil(256) == markers.len() && count <= MAX_SYMBOLS;
            let padding = before == 4 || u32_at(bytes, start - 4) == Some(0);
            let fits = right && padding && walk(&bytes[start..], markers, count, effort);
            fits.then_some((start, count))
        })
    })
}

/// Whether exactly this number of names fills `bytes`, and the markers point at every 256th of
/// them.
fn walk(bytes: &[u8], markers: &[u32], count: usize, effort: &mut Effort) -> bool {
    let mut at = 0;
    for n in 0..count {
        if n % 256 == 0 && markers.get(n / 256).is_none_or(|marker| *marker as usize != at) {
            return false;
        }
        let name = effort.take(1).and_then(|()| length(&bytes[at.min(bytes.len())..]));
        let Some((len, head)) = name else { return false };
        at += head + len;
    }
    at <= bytes.len() && bytes.len() - at < 8
}

/// Addresses computed from a base.
fn based(base: u64, offsets: &[u32]) -> Option<Vec<u64>> {
    // CONFIG_KALLSYMS_ABSOLUTE_PERCPU, until 6.14: all offsets except those of per-CPU symbols are
    // negative.
    let absolute = offsets.iter().any(|offset| offset.cast_signed() < 0);
    if !IMAGE.contains(&base) {
        return None;
    }
    let address = |offset: &u32| match offset.cast_signed() {
        negative if negative < 0 => (base - 1).checked_add(u64::from(negative.unsigned_abs())),
        value if absolute => Some(u64::from(value.unsigned_abs())),
        _ => base.checked_add(u64::from(*offset)),
    };
    ascending(offsets.iter().map(address).collect::<Option<_>>()?)
}

fn ascending(all: Vec<u64>) -> Option<Vec<u64>> {
    all.is_sorted().then_some(all)
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}
