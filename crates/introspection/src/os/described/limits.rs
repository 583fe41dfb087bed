//! What a plugin's file may be at most. Points, reads and data have the limits of every guest
//! system ([`crate::point::limits`]).

use super::error::{Fault, ensure};

/// Bytes of a file.
pub const FILE: u64 = 64 << 10;
/// Files in a directory.
pub const FILES: usize = 64;
/// Characters of a name.
pub(super) const NAME: usize = 64;
/// Characters of other texts and of symbols.
pub(super) const TEXT: usize = 200;
/// Bytes of a note.
pub(super) const NOTE: usize = 1024;
/// Fields of a note.
pub(super) const FIELDS: usize = 64;
/// Numbers in a list.
pub(super) const VALUES: usize = 64;
/// Tasks.
pub(super) const TASKS: usize = 32;
/// How often `otherwise` may lead to another task.
pub(super) const OTHERWISE: usize = 8;
/// The greatest distance of a read from its base, bytes.
pub(super) const OFFSET: i64 = 1 << 20;
/// The longest unit of time, ns: an hour.
pub(super) const UNIT_NS: i64 = 3_600_000_000_000;

/// Whether a text has only printable ASCII, which is safe on a terminal and in a log.
pub(super) fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
}

/// Checks a text for people.
pub(super) fn text(text: &str, key: &str, most: usize) -> Result<(), Fault> {
    ensure(
        !text.trim().is_empty() && text.len() <= most && is_printable(text),
        key,
        || format!("{text:?} is not 1 to {most} printable ASCII characters"),
        "give such a text",
    )
}

/// Checks the name of a read, a task or a field.
pub(super) fn identifier(name: &str, key: &str) -> Result<(), Fault> {
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    ensure(
        (1..=NAME).contains(&name.len()) && name.bytes().all(is_good),
        key,
        || format!("{name:?} is not a name"),
        "use a-z, 0-9 and _, at most 64 characters",
    )
}
