//! Recognizes kallsyms_token_index: 256 ascending 16-bit numbers that start at 0, at a multiple of
//! 4. Nothing else in memory looks like it.

/// Its size in bytes.
pub(super) const INDEX: usize = 512;
/// Maximum length of a token with its terminator.
const LONGEST: u16 = 256;

/// Offsets in `chunk` at which an index begins. Looks for growing numbers at every 256th byte,
/// because every index covers such a byte.
pub(super) fn indices(chunk: &[u8]) -> Vec<usize> {
    const PROBE: usize = 16;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(probe) = chunk.get(at..at + PROBE) {
        // Most of memory is zero.
        if probe[2..4] != probe[..2] && grow(probe) {
            let first = at.saturating_sub(INDEX - PROBE).next_multiple_of(4);
            let starts = (first..=at).step_by(4);
            let is = |start: &usize| chunk.get(*start..start + INDEX).is_some_and(is_index);
            found.extend(
                starts
                    .filter(is)
                    .filter(|start| found.last() != Some(start))
                    .take(1)
                    .collect::<Vec<_>>(),
            );
        }
        at += 256;
    }
    found
}

fn is_index(bytes: &[u8]) -> bool {
    bytes[..2] == [0, 0] && grow(bytes)
}

/// Whether each number exceeds the previous one by the size of a token and its terminator.
fn grow(bytes: &[u8]) -> bool {
    let mut last = None;
    numbers(bytes).all(|number| {
        let grows = last.is_none_or(|last: u16| {
            number.checked_sub(last).is_some_and(|step| (2..=LONGEST).contains(&step))
        });
        last = Some(number);
        grows
    })
}

/// The bytes as 16-bit numbers.
pub(super) fn numbers(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
}
