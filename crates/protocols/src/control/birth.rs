//! The instant at which a VM's elapsed clock read 0, as one word: an operator copies it from one
//! host's `vm list` to another host's `vm add`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// `TAI_NS~WITHIN_NS`: nanoseconds of TAI since 1970, and the greatest distance from true time on
/// either side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ElapsedSince {
    /// TAI, ns since 1970.
    pub tai_ns: i64,
    /// Error on either side; at least 1.
    pub within_ns: i64,
}

/// A text that `vm list` does not print.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} says not when a VM was born; give `elapsed_since` of `timevisor vm list --json` on the host it comes from"
)]
pub struct ElapsedSinceError {
    /// The text.
    pub text: String,
}

impl fmt::Display for ElapsedSince {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}~{}", self.tai_ns, self.within_ns)
    }
}

impl FromStr for ElapsedSince {
    type Err = ElapsedSinceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('~').and_then(|(at, within)| {
            let since = Self { tai_ns: at.parse().ok()?, within_ns: within.parse().ok()? };
            // On the page, 0 means that the birth is not known.
            (since.within_ns > 0).then_some(since)
        });
        parsed.ok_or_else(|| ElapsedSinceError { text: text.to_owned() })
    }
}

impl TryFrom<String> for ElapsedSince {
    type Error = ElapsedSinceError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ElapsedSince> for String {
    fn from(since: ElapsedSince) -> Self {
        since.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_through_text_and_refuses_everything_else() {
        let since = ElapsedSince { tai_ns: 1_795_000_000_123_456_789, within_ns: 42 };
        assert_eq!(since.to_string().parse(), Ok(since));
        let json = "\"1795000000123456789~42\"";
        assert!(serde_json::to_string(&since).is_ok_and(|text| text == json));
        assert!(serde_json::from_str(json).is_ok_and(|read: ElapsedSince| read == since));
        for bad in ["", "12", "12~", "~3", "12~0", "12~-3", "x~3", "12~9223372036854775808"] {
            assert!(bad.parse::<ElapsedSince>().is_err(), "{bad:?}");
        }
    }
}
