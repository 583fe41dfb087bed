//! A timeline's name: checked once, then a small value that is copied and compared like a number.
//!
//! What it does not do: know which names exist or are reserved.

use std::fmt;
use std::str::FromStr;

use timevisor_protocols::channel::message::MAX_NAME_LEN;

/// 1 to 32 of `A-Z a-z 0-9 . _ -`, not starting with `.` or `-`, which would look like a hidden
/// file or an option.
///
/// Stored as on the page: zero padded. Zero sorts before every character of a name, so names sort
/// like strings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimelineName([u8; MAX_NAME_LEN]);

/// A string that is not a valid name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidName {
    /// No bytes at all.
    #[error("the name is empty")]
    Empty,
    /// Does not fit into a page's entry.
    #[error("the name has {0} bytes, more than {MAX_NAME_LEN}")]
    TooLong(usize),
    /// Starts like a hidden file or an option.
    #[error("the name begins with {0:?}")]
    First(char),
    /// Not one of the characters above.
    #[error("the name contains {0:?}")]
    Character(char),
}

impl TimelineName {
    /// `tai`, which always exists.
    pub const TAI: Self = Self::builtin(b"tai");
    /// `utc`, which always exists.
    pub const UTC: Self = Self::builtin(b"utc");

    /// `elapsed`, which always exists.
    pub const ELAPSED: Self = Self::builtin(b"elapsed");

    /// All names that always exist.
    pub const BUILTIN: [Self; 3] = [Self::TAI, Self::UTC, Self::ELAPSED];

    /// Sorts before every name; not a name.
    pub(crate) const FIRST: Self = Self([0; MAX_NAME_LEN]);

    const fn builtin(text: &[u8]) -> Self {
        let mut bytes = [0; MAX_NAME_LEN];
        let mut at = 0;
        while at < text.len() {
            bytes[at] = text[at];
            at += 1;
        }
        Self(bytes)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(MAX_NAME_LEN);
        // Only ASCII is accepted.
        std::str::from_utf8(&self.0[..len]).unwrap_or_default()
    }

    /// As in a page's entry: 32 bytes, zero padded.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; MAX_NAME_LEN] {
        self.0
    }
}

impl FromStr for TimelineName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        match text.chars().next() {
            None => return Err(InvalidName::Empty),
            Some(first @ ('.' | '-')) => return Err(InvalidName::First(first)),
            Some(_) => {}
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if let Some(other) = text.chars().find(|c| !allowed(*c)) {
            return Err(InvalidName::Character(other));
        }
        let mut bytes = [0; MAX_NAME_LEN];
        bytes
            .get_mut(..text.len())
            .ok_or(InvalidName::TooLong(text.len()))?
            .copy_from_slice(text.as_bytes());
        Ok(Self(bytes))
    }
}

impl fmt::Display for TimelineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for TimelineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<TimelineName, InvalidName> {
        text.parse()
    }

    #[test]
    fn refusals_say_why() {
        assert_eq!(parse(""), Err(InvalidName::Empty));
        assert_eq!(parse(".hidden"), Err(InvalidName::First('.')));
        assert_eq!(parse("-o"), Err(InvalidName::First('-')));
        assert_eq!(parse("a b"), Err(InvalidName::Character(' ')));
        assert_eq!(parse("zell\u{e9}"), Err(InvalidName::Character('\u{e9}')));
        assert_eq!(parse("a\0"), Err(InvalidName::Character('\0')));
        assert_eq!(parse(&"x".repeat(33)), Err(InvalidName::TooLong(33)));
        assert!(parse(&"x".repeat(32)).is_ok());
        assert_eq!(parse("tai"), Ok(TimelineName::TAI));
        assert_eq!(parse("utc"), Ok(TimelineName::UTC));
    }

    proptest! {
        #[test]
        fn names_keep_their_text_and_order(
            a in "[A-Za-z0-9_][A-Za-z0-9._-]{0,31}",
            b in "[A-Za-z0-9_][A-Za-z0-9._-]{0,31}",
        ) {
            let (x, y) = (parse(&a).unwrap(), parse(&b).unwrap());
            prop_assert_eq!(x.as_str(), a.as_str());
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        }
    }
}
