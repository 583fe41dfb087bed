//! The audit log: what a host's clock was worth at each moment, as evidence for auditors.
//!
//! JSON lines, each with the SHA-256 of the line before. Bytes and `now` in, actions out: this crate
//! reads no clock and no file. timevisord writes the files, `timevisor audit` reads them.
//!
//! | file | owns |
//! | --- | --- |
//! | `stamp.rs` | when something was recorded: a UTC interval |
//! | `event.rs` | what is recorded |
//! | `line.rs` | one line: its bytes, its check, its place in the chain |
//! | `journal.rs` | what is written where: appends, rotation, torn lines, lost records |
//! | `watch.rs` | which changes of a host's state are events |
//! | `verify.rs` | whether files are an unbroken chain |
//! | `report.rs` | how long the clock was within a bound |
//!
//! What it does not do: prove that nobody with the rights of root wrote a new log. Who wants that
//! keeps the last line's hash elsewhere (docs/how-to/auditors.md).
#![forbid(unsafe_code)]

pub mod event;
pub mod journal;
pub mod line;
pub mod report;
pub mod stamp;
pub mod verify;
pub mod watch;

pub use event::Event;
pub use journal::{Action, Found, Journal, Keep, Settings};
pub use line::{Head, Line, LineError};
pub use stamp::Stamp;

/// The name of file number `number` of a log.
#[must_use]
pub fn file_name(number: u64) -> String {
    format!("audit-{number:06}.jsonl")
}

/// The number of a log's file with this name; `None` if it is not one.
#[must_use]
pub fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
    let number = digits.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for number in [1, 42, 999_999, 1_000_000] {
            assert_eq!(file_number(&file_name(number)), Some(number));
        }
        for name in ["audit-1.jsonl", "audit-000001.jsonl.gz", "lock", "audit--00001.jsonl"] {
            assert_eq!(file_number(name), None, "{name}");
        }
    }
}
