//! One line: its bytes, its check, and its place in the chain.
//!
//! ```text
//! {"seq":7,"prev":"<64 hex>","utc":["...Z","...Z"],"vouched":true,"event":"...",...,"sum":"<64 hex>"}
//! ```
//!
//! `prev` is the SHA-256 of the line before, without its line feed; `sum` that of this line up to the
//! comma before `"sum"`. So a changed byte is also found in the last line, which no other line names.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::event::Event;
use crate::stamp::{Interval, Stamp};

/// The longest line that is written or read, bytes.
pub const LONGEST: usize = 64 << 10;
/// Texts from elsewhere are cut after this many characters.
const LONGEST_TEXT: usize = 400;

/// The end of a chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The last line's number; 0 before the first.
    pub seq: u64,
    /// Its SHA-256 in hex.
    pub hash: String,
}

impl Default for Head {
    /// Before the first line: a hash of zeros.
    fn default() -> Self {
        Self { seq: 0, hash: "0".repeat(64) }
    }
}

/// A line that was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Its number.
    pub seq: u64,
    /// The hash of the line before.
    pub prev: String,
    /// When it was recorded.
    pub stamp: Stamp,
    /// What.
    pub event: Event,
}

/// Why bytes are not a line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LineError {
    /// It does not end as lines do.
    #[error("it does not end with its sum: bytes are missing or were changed")]
    NoSum,
    /// The sum is another.
    #[error("its sum is that of other bytes: the line was changed")]
    Sum,
    /// It is not JSON of the right form.
    #[error("it is not a record: {0}")]
    Form(String),
}

#[derive(Serialize, Deserialize)]
struct Form {
    seq: u64,
    prev: String,
    utc: Interval,
    vouched: bool,
    #[serde(flatten)]
    event: Event,
}

const BEFORE_SUM: &str = ",\"sum\":\"";

/// The SHA-256 of bytes, in hex.
#[must_use]
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Head {
    /// Writes the next line of the chain to the end of `out`, with its line feed, and becomes its head.
    pub fn append(&mut self, stamp: Stamp, event: &Event, out: &mut Vec<u8>) {
        let form = Form {
            seq: self.seq + 1,
            prev: self.hash.clone(),
            utc: stamp.interval(),
            vouched: stamp.vouched,
            event: shortened(event.clone()),
        };
        // These types have no maps with keys that are not text: it cannot fail.
        let mut line = serde_json::to_string(&form).unwrap_or_default();
        line.pop();
        let sum = hash(line.as_bytes());
        line += BEFORE_SUM;
        line += &sum;
        line += "\"}";
        *self = Self { seq: self.seq + 1, hash: hash(line.as_bytes()) };
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
    }
}

impl Line {
    /// Reads one line, without its line feed.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, LineError> {
        let text = std::str::from_utf8(bytes).map_err(|_| LineError::NoSum)?;
        let body = text.strip_suffix("\"}").ok_or(LineError::NoSum)?;
        let (body, sum) = body.rsplit_once(BEFORE_SUM).ok_or(LineError::NoSum)?;
        if hash(body.as_bytes()) != sum {
            return Err(LineError::Sum);
        }
        let form: Form = serde_json::from_str(&format!("{body}}}"))
            .map_err(|error| LineError::Form(error.to_string()))?;
        let Interval([earliest_ns, latest_ns]) = form.utc;
        let stamp = Stamp { earliest_ns, latest_ns, vouched: form.vouched };
        Ok(Self { seq: form.seq, prev: form.prev, stamp, event: form.event })
    }
}

/// Names and reasons come from elsewhere: none of them makes a line too long to be read again.
fn shortened(mut event: Event) -> Event {
    let cut = |text: &mut String| {
        if text.chars().count() > LONGEST_TEXT {
            *text = text.chars().take(LONGEST_TEXT).chain(['\u{2026}']).collect();
        }
    };
    match &mut event {
        Event::Gap { reason, .. } => cut(reason),
        Event::Status { reason, .. } => reason.iter_mut().for_each(cut),
        Event::Reference { name, detail, .. } => {
            cut(name);
            cut(detail);
        }
        Event::Bound { reference, .. } => reference.iter_mut().for_each(cut),
        Event::Vm { name, .. } => cut(name),
        Event::Reservation { vm, .. } => cut(vm),
        Event::Start { assumption, counter, .. } => {
            cut(assumption);
            cut(counter);
        }
        Event::File { .. }
        | Event::Stop {}
        | Event::Torn { .. }
        | Event::Contradiction { .. }
        | Event::Leap { .. }
        | Event::Unknown => {}
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(ns: i64) -> Stamp {
        Stamp { earliest_ns: ns - 10, latest_ns: ns + 10, vouched: true }
    }

    #[test]
    fn golden_line() {
        let mut out = Vec::new();
        Head::default().append(stamp(1_796_060_472_000_000_010), &Event::Stop {}, &mut out);
        let text = String::from_utf8(out).unwrap();
        let zeros = "0".repeat(64);
        let body = format!(
            "{{\"seq\":1,\"prev\":\"{zeros}\",\"utc\":[\"2026-11-30T17:41:12.000000000Z\",\
             \"2026-11-30T17:41:12.000000020Z\"],\"vouched\":true,\"event\":\"stop\""
        );
        // Also the output of: printf '%s' "$body" | sha256sum
        assert_eq!(text, format!("{body},\"sum\":\"{}\"}}\n", hash(body.as_bytes())));
    }

    #[test]
    fn the_hash_is_sha_256() {
        // FIPS 180-4's example "abc".
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash(b"abc"), abc);
    }

    #[test]
    fn a_line_reads_back_and_long_texts_are_cut() {
        let event = Event::Status {
            before: None,
            status: "unreliable".into(),
            reason: Some("\u{1F4A5}\"\n".repeat(100_000)),
        };
        let (mut head, mut out) = (Head::default(), Vec::new());
        head.append(Stamp::unvouched(5), &event, &mut out);
        assert!(out.len() < LONGEST && !out[..out.len() - 1].contains(&b'\n'));
        let line = Line::parse(&out[..out.len() - 1]).unwrap();
        assert_eq!((line.seq, line.prev), (1, Head::default().hash));
        assert!(!line.stamp.vouched);
        assert_eq!(head, Head { seq: 1, hash: hash(&out[..out.len() - 1]) });
    }

    #[test]
    fn an_event_of_a_later_version_is_a_line() {
        let body = format!(
            "{{\"seq\":1,\"prev\":\"{}\",\"utc\":[\"2026-11-30T17:41:12Z\",\"2026-11-30T17:41:12Z\"],\"vouched\":true,\
             \"event\":\"moonrise\",\"phase\":3",
            "0".repeat(64)
        );
        let text = format!("{body},\"sum\":\"{}\"}}", hash(body.as_bytes()));
        assert_eq!(Line::parse(text.as_bytes()).unwrap().event, Event::Unknown);
    }
}
