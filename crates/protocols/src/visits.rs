//! What servers said when they were asked once: the file that `timevisor cluster bootstrap --save`
//! writes, and from which a host without a network runs.
//!
//! A visit is an interval of UTC at one value of this machine's counter, so it is worth something for
//! as long as that counter goes on: until the next boot, or a suspend.
//!
//! What it does not do: read or write files, ask anybody, or judge whether the counter is the same.

use serde::{Deserialize, Serialize};
use timevisor_time::{Instant, Interval, Utc};

/// Visits that are kept: the first, whose age tells most about the counter's rate, and the latest.
const MOST: usize = 64;
const VERSION: u32 = 1;

/// The longest file: a visit has some 300 bytes.
pub const MOST_BYTES: u64 = 256 << 10;

/// One visit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Visit {
    /// Who was asked.
    pub server: String,
    /// Of which cluster; empty for the server's own clock.
    pub cluster: String,
    /// The boot's id, as 32 hexadecimal digits.
    pub boot_id: String,
    /// The name of the counter.
    pub counter: String,
    /// CLOCK_BOOTTIME - CLOCK_MONOTONIC, ns: it changes when the machine is suspended.
    pub suspended_ns: i64,
    /// The counter's value.
    pub ticks: u64,
    /// UTC was not earlier than this at that value, ns since 1970.
    pub earliest_utc_ns: i64,
    /// UTC was not later than this, ns since 1970.
    pub latest_utc_ns: i64,
    /// The server's best guess, ns since 1970; without one, the middle is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guess_utc_ns: Option<i64>,
}

/// The file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Visits {
    version: u32,
    visits: Vec<Visit>,
}

impl Default for Visits {
    fn default() -> Self {
        Self { version: VERSION, visits: Vec::new() }
    }
}

impl Visit {
    /// The interval that held UTC at [`Self::ticks`]; `None` for one that holds nothing.
    #[must_use]
    pub fn interval(&self) -> Option<Interval<Utc>> {
        let at = |ns: i64| Instant::from_unix_nanos(i128::from(ns));
        Interval::new(at(self.earliest_utc_ns), at(self.latest_utc_ns))
    }
}

impl Visits {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let visits: Self = serde_json::from_slice(bytes)
            .map_err(|error| format!("it is not understood: {error}"))?;
        if visits.version != VERSION {
            return Err(format!(
                "its version is {}, and this program knows {VERSION}",
                visits.version
            ));
        }
        if visits.visits.len() > MOST || !visits.visits.is_sorted_by_key(|visit| visit.ticks) {
            return Err(format!("it has more than {MOST} visits, or they are out of order"));
        }
        match visits.visits.iter().find(|visit| visit.interval().is_none()) {
            Some(visit) => Err(format!("its visit at {} ends before it begins", visit.ticks)),
            None => Ok(visits),
        }
    }

    /// The file's content.
    #[must_use]
    pub fn text(&self) -> String {
        // Nothing in it can fail: no maps with other keys than strings.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// All visits, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Visit> {
        self.visits.iter()
    }

    /// Adds a visit. Those of another counter, another boot, or before a suspend are dropped, because
    /// nothing follows from them any more; `is_valid` says which ones stay.
    pub fn add(&mut self, visit: Visit, is_valid: impl Fn(&Visit) -> bool) {
        self.visits.retain(is_valid);
        self.visits.push(visit);
        self.visits.sort_by_key(|visit| visit.ticks);
        while self.visits.len() > MOST {
            self.visits.remove(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(ticks: u64) -> Visit {
        Visit {
            server: "192.0.2.1:123".to_owned(),
            cluster: "lab".to_owned(),
            boot_id: "0".repeat(32),
            counter: "tsc".to_owned(),
            suspended_ns: 0,
            ticks,
            earliest_utc_ns: 1_000,
            latest_utc_ns: 3_001,
            guess_utc_ns: Some(2_100),
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let mut visits = Visits::default();
        visits.add(visit(7), |_| true);
        visits.add(visit(5), |_| true);
        let read = Visits::parse(visits.text().as_bytes()).unwrap();
        assert_eq!(read, visits);
        assert_eq!(read.iter().map(|visit| visit.ticks).collect::<Vec<_>>(), [5, 7]);
        let interval = read.iter().next().unwrap().interval().unwrap();
        // Nanoseconds are no whole bits of an instant.
        assert!((2_001..=2_002).contains(&interval.width().ceil_nanos()));
    }

    #[test]
    fn the_first_and_the_latest_visits_stay() {
        let mut visits = Visits::default();
        for ticks in 0..100 {
            visits.add(visit(ticks), |_| true);
        }
        let kept: Vec<u64> = visits.iter().map(|visit| visit.ticks).collect();
        assert_eq!((kept.len(), kept[0], kept[1], kept[63]), (64, 0, 37, 99));
        visits.add(visit(3), |_| false);
        assert_eq!(visits.iter().count(), 1);
    }

    #[test]
    fn what_is_no_file_of_visits_is_refused_with_the_reason() {
        let refused = |text: &str| Visits::parse(text.as_bytes()).unwrap_err();
        assert!(refused("{").contains("not understood"));
        assert!(refused("{\"version\":2,\"visits\":[]}").contains("version is 2"));
        let mut visits = Visits::default();
        visits.add(Visit { latest_utc_ns: 999, ..visit(7) }, |_| true);
        assert!(refused(&visits.text()).contains("ends before it begins"));
    }
}
