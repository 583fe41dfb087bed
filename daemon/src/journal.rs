//! What a restarted daemon must know so that time does not go back: the host's lines in force, written *before* each
//! publication and replaced atomically.
//!
//! It is valid for this boot, this counter and this history of suspends only; otherwise it is ignored, with the reason.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use timevisor_clock_page::{Line, Lines};
use timevisor_estimate::RateLimits;
use timevisor_time::{Duration, Instant, Period, Tai};

/// For a page that was left torn. Its lines were decided moments after those in the journal: at most a few 10 ns ahead of
/// them (twice the rate limits times a publication's duration). Resuming this much ahead is never behind.
const RESUME_AHEAD: Duration = Duration::from_micros(1);

/// Readings of CLOCK_BOOTTIME - CLOCK_MONOTONIC differ by less than this unless the host was suspended in between.
const SUSPEND_NOISE_NS: i64 = 1_000_000;

/// The counter's history, as far as it decides whether lines still hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CounterHistory {
    /// This boot.
    pub boot_id: String,
    /// Which counter.
    pub counter: String,
    /// CLOCK_BOOTTIME - CLOCK_MONOTONIC, ns.
    pub suspended_ns: i64,
}

impl CounterHistory {
    /// Whether what was learned in this history holds in the one `now`; if not, why.
    pub fn same_as(&self, now: &Self) -> Result<(), String> {
        if self.boot_id != now.boot_id {
            return Err("the machine was booted since".to_owned());
        }
        if self.counter != now.counter {
            return Err(format!("the counter was {} then", self.counter));
        }
        if (self.suspended_ns - now.suspended_ns).abs() > SUSPEND_NOISE_NS {
            return Err("the machine was suspended since".to_owned());
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    version: u32,
    history: CounterHistory,
    base: u64,
    expiry: u64,
    /// Earliest, estimate, latest: (seconds, 2^-64 fraction, period in 2^-84 s).
    lines: [(u64, u64, u64); 3],
    holdover: u64,
    /// The shortest and the longest period that the counter may have, 2^-84 s.
    rate: Option<(u64, u64)>,
}

/// What the journal said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// The lines to resume from.
    pub lines: Lines<Tai>,
    /// The limits of the counter's rate, if they were known.
    pub rate: Option<RateLimits>,
}

/// The file.
pub struct Journal {
    path: PathBuf,
    fresh: PathBuf,
}

impl Journal {
    /// In the run directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("recovery.json"), fresh: directory.join("recovery.json.new") }
    }

    /// Replaces the journal.
    pub fn write(
        &self,
        history: &CounterHistory,
        lines: &Lines<Tai>,
        rate: Option<&RateLimits>,
    ) -> std::io::Result<()> {
        let pack = |line: &Line<Tai>| {
            let (sec, frac) = line.time.to_words();
            (sec, frac, line.period.to_bits())
        };
        let entry = Entry {
            version: 1,
            history: history.clone(),
            base: lines.base,
            expiry: lines.expiry,
            lines: [pack(&lines.earliest), pack(&lines.estimate), pack(&lines.latest)],
            holdover: lines.holdover,
            rate: rate.map(|r| (r.shortest.to_bits(), r.longest.to_bits())),
        };
        fs::write(&self.fresh, serde_json::to_vec(&entry)?)?;
        fs::rename(&self.fresh, &self.path)
    }

    /// Forgets it: the lines do not hold any more.
    pub fn clear(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// The lines to resume from at counter value `now`, or why there are none.
    pub fn read(&self, history: &CounterHistory, now: u64) -> Result<Recovered, String> {
        let bytes = fs::read(&self.path)
            .map_err(|_| "no recovery journal: first start since boot".to_owned())?;
        let entry: Entry = serde_json::from_slice(&bytes)
            .map_err(|e| format!("recovery journal not understood: {e}"))?;
        if entry.version != 1 {
            return Err(format!("recovery journal of version {}", entry.version));
        }
        entry.history.same_as(history)?;
        if now.wrapping_sub(entry.base) >> 63 != 0 {
            return Err("the counter went back since".to_owned());
        }
        let [earliest, mut estimate, latest] = entry.lines.map(|(sec, frac, period)| Line {
            time: Instant::from_words(sec, frac),
            period: Period::from_bits(period),
        });
        // Not beyond the upper bound, where the page's estimate was not either: bounds nest across a restart.
        estimate.time = (estimate.time + RESUME_AHEAD).min(latest.time);
        let lines = Lines {
            base: entry.base,
            expiry: entry.expiry,
            earliest,
            estimate,
            latest,
            holdover: entry.holdover,
        };
        let rate = entry.rate.map(|(shortest, longest)| RateLimits {
            shortest: Period::from_bits(shortest),
            longest: Period::from_bits(longest),
        });
        Ok(Recovered { lines, rate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines<Tai> {
        let line = |ns| Line {
            time: Instant::from_unix_nanos(ns),
            period: Period::from_hz(1_000_000_000).unwrap(),
        };
        Lines {
            base: 1000,
            expiry: 2000,
            earliest: line(1_700_000_000_000_000_000),
            estimate: line(1_700_000_000_000_020_000),
            latest: line(1_700_000_000_000_040_000),
            holdover: 7,
        }
    }

    fn history() -> CounterHistory {
        CounterHistory { boot_id: "b".into(), counter: "tsc".into(), suspended_ns: 5 }
    }

    #[test]
    fn resumes_slightly_ahead_and_never_behind() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_directory(dir.path());
        let period = lines().estimate.period;
        let rate = RateLimits { shortest: period, longest: period };
        journal.write(&history(), &lines(), Some(&rate)).unwrap();
        let recovered = journal.read(&history(), 5000).unwrap();
        assert_eq!(recovered.rate, Some(rate));
        let back = recovered.lines;
        assert_eq!(back.estimate.time, lines().estimate.time + RESUME_AHEAD);
        assert_eq!(
            (back.earliest, back.latest, back.holdover),
            (lines().earliest, lines().latest, 7)
        );
    }

    #[test]
    fn a_journal_of_other_circumstances_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_directory(dir.path());
        assert!(journal.read(&history(), 5000).unwrap_err().contains("first start"));
        journal.write(&history(), &lines(), None).unwrap();
        let with = |change: fn(&mut CounterHistory)| {
            let mut other = history();
            change(&mut other);
            journal.read(&other, 5000).unwrap_err()
        };
        assert!(with(|h| h.boot_id = "c".into()).contains("booted"));
        assert!(with(|h| h.counter = "monotonic-raw".into()).contains("counter was tsc"));
        assert!(with(|h| h.suspended_ns = 2_000_000_000).contains("suspended"));
        assert!(journal.read(&history(), 999).unwrap_err().contains("went back"));
        fs::write(dir.path().join("recovery.json"), b"{half").unwrap();
        assert!(journal.read(&history(), 5000).unwrap_err().contains("not understood"));
    }
}
