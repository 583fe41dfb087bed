//! The recovery journal: the host's lines, so that time does not go back when the daemon restarts.
//! The daemon writes it *before* each publication and replaces it atomically.
//!
//! The journal is valid for one boot, one counter and one history of suspends. Otherwise the daemon
//! ignores it and logs the reason.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use timevisor_clock_page::{Line, Lines};
use timevisor_estimate::RateLimits;
use timevisor_host_clock::JournalEntry;
use timevisor_linux::counter::CounterHistory;
use timevisor_linux::state_file::{self, Readers};
use timevisor_time::{Instant, Period, Tai};

/// A journal has a dozen numbers.
const MOST_BYTES: u64 = 64 << 10;

/// The contents of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    history: CounterHistory,
    base: u64,
    expiry: u64,
    /// Earliest, estimate, latest: (seconds, 2^-64 fraction, period in 2^-84 s).
    lines: [(u64, u64, u64); 3],
    holdover: u64,
    /// The shortest and the longest possible period of the counter, 2^-84 s.
    rate: Option<(u64, u64)>,
}

/// The file with the journal.
pub struct Journal {
    path: PathBuf,
}

impl Journal {
    /// The file `recovery.json` in the run directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("recovery.json") }
    }

    /// Replaces the journal's contents.
    pub fn write(&self, history: &CounterHistory, entry: &JournalEntry) -> io::Result<()> {
        let pack = |line: &Line<Tai>| {
            let (sec, frac) = line.time.to_words();
            (sec, frac, line.period.to_bits())
        };
        let lines = &entry.lines;
        let contents = Contents {
            version: 1,
            history: history.clone(),
            base: lines.base,
            expiry: lines.expiry,
            lines: [pack(&lines.earliest), pack(&lines.estimate), pack(&lines.latest)],
            holdover: lines.holdover,
            rate: entry.rate.map(|r| (r.shortest.to_bits(), r.longest.to_bits())),
        };
        state_file::write(&self.path, &serde_json::to_vec(&contents)?, Readers::Owner)
    }

    /// Deletes the journal, because its lines are no longer valid.
    ///
    /// After an error, the next daemon could still mistake them for facts.
    pub fn clear(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                // An empty file is not a valid journal either. The first error is the better
                // reason.
                state_file::empty(&self.path).map_err(|_| error)
            }
            _ => Ok(()),
        }
    }

    /// Reads the last entry, or says why none applies to this history.
    pub fn read(&self, history: &CounterHistory) -> Result<JournalEntry, String> {
        let bytes = state_file::read(&self.path, MOST_BYTES).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                "no recovery journal: first start since boot".to_owned()
            } else {
                format!("the recovery journal is not read: {error}")
            }
        })?;
        let contents: Contents = serde_json::from_slice(&bytes)
            .map_err(|e| format!("recovery journal not understood: {e}"))?;
        if contents.version != 1 {
            return Err(format!("recovery journal of version {}", contents.version));
        }
        contents.history.same_as(history)?;
        let [earliest, estimate, latest] = contents.lines.map(|(sec, frac, period)| Line {
            time: Instant::from_words(sec, frac),
            period: Period::from_bits(period),
        });
        if earliest.time > estimate.time || estimate.time > latest.time {
            return Err("the recovery journal's bounds are out of order".to_owned());
        }
        let lines = Lines {
            base: contents.base,
            expiry: contents.expiry,
            earliest,
            estimate,
            latest,
            holdover: contents.holdover,
        };
        let rate = contents.rate.map(|(shortest, longest)| RateLimits {
            shortest: Period::from_bits(shortest),
            longest: Period::from_bits(longest),
        });
        Ok(JournalEntry { lines, rate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(rate: Option<RateLimits>) -> JournalEntry {
        let line = |ns| Line {
            time: Instant::from_unix_nanos(ns),
            period: Period::from_hz(1_000_000_000).unwrap(),
        };
        let lines = Lines {
            base: 1000,
            expiry: 2000,
            earliest: line(1_700_000_000_000_000_000),
            estimate: line(1_700_000_000_000_020_000),
            latest: line(1_700_000_000_000_040_000),
            holdover: 7,
        };
        JournalEntry { lines, rate }
    }

    fn history() -> CounterHistory {
        CounterHistory { boot_id: "b".into(), counter: "tsc".into(), suspended_ns: 5 }
    }

    #[test]
    fn a_damaged_journal_is_refused_or_says_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_directory(dir.path());
        let period = Period::from_hz(1_000_000_000).unwrap();
        journal
            .write(&history(), &entry(Some(RateLimits { shortest: period, longest: period })))
            .unwrap();
        let valid = fs::read(&journal.path).unwrap();
        let mut read = 0;
        crate::mutation::each(&valid, 2000, |bytes| {
            fs::write(&journal.path, bytes).unwrap();
            let Ok(entry) = journal.read(&history()) else { return };
            read += 1;
            // Whatever it says, the daemon starts.
            let _ = entry.resume_at(entry.lines.base.wrapping_add(3_000_000_000));
        });
        // Digits may change unnoticed; who resumes from the lines checks what they say.
        assert!(read < 1000, "{read} of 2000 damaged journals were read");
    }

    #[test]
    fn what_was_written_is_read_to_the_bit() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_directory(dir.path());
        let period = Period::from_hz(1_000_000_000).unwrap();
        let written = entry(Some(RateLimits { shortest: period, longest: period }));
        journal.write(&history(), &written).unwrap();
        assert_eq!(journal.read(&history()), Ok(written));
        journal.write(&history(), &entry(None)).unwrap();
        assert_eq!(journal.read(&history()), Ok(entry(None)));
        journal.clear().unwrap();
        assert!(journal.read(&history()).unwrap_err().contains("first start"));
        journal.clear().unwrap();
    }

    #[test]
    fn a_journal_that_cannot_be_cleared_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_directory(dir.path());
        fs::create_dir(dir.path().join("recovery.json")).unwrap();
        assert!(journal.clear().is_err());
    }

    #[test]
    fn a_journal_of_other_circumstances_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_directory(dir.path());
        journal.write(&history(), &entry(None)).unwrap();
        let with = |change: fn(&mut CounterHistory)| {
            let mut other = history();
            change(&mut other);
            journal.read(&other).unwrap_err()
        };
        assert!(with(|h| h.boot_id = "c".into()).contains("booted"));
        assert!(with(|h| h.counter = "monotonic-raw".into()).contains("counter was tsc"));
        assert!(with(|h| h.suspended_ns = 2_000_000_000).contains("suspended"));
        fs::write(dir.path().join("recovery.json"), b"{half").unwrap();
        assert!(journal.read(&history()).unwrap_err().contains("not understood"));
    }
}
