//! Saves the estimators' state across restarts: once a minute and at the end, so that a restarted
//! daemon is as good as the previous one within a few exchanges. The file holds only estimates, no
//! bounds: bounds start from the journal's lines, or from nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use timevisor_estimate::estimators::shifted_exponential::Saved;
use timevisor_linux::counter::CounterHistory;
use timevisor_linux::state_file::{self, MOST_BYTES, Readers};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    history: CounterHistory,
    /// One state per reference.
    estimates: BTreeMap<String, Saved>,
}

/// The file with the saved estimates.
pub struct Estimates {
    path: PathBuf,
}

impl Estimates {
    /// The file `estimates.json` in the run directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("estimates.json") }
    }

    /// Replaces the file's contents.
    pub fn write(
        &self,
        history: &CounterHistory,
        estimates: BTreeMap<String, Saved>,
    ) -> io::Result<()> {
        let contents = Contents { version: 1, history: history.clone(), estimates };
        state_file::write(&self.path, &serde_json::to_vec(&contents)?, Readers::Owner)
    }

    /// Deletes the file, because the counter that it describes has a new history.
    pub fn clear(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Reads the estimates of the previous daemon, or says why there are none.
    pub fn read(&self, history: &CounterHistory) -> Result<BTreeMap<String, Saved>, String> {
        let bytes = state_file::read(&self.path, MOST_BYTES).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                "none were saved since boot".to_owned()
            } else {
                format!("not read: {error}")
            }
        })?;
        let contents: Contents =
            serde_json::from_slice(&bytes).map_err(|e| format!("not understood: {e}"))?;
        if contents.version != 1 {
            return Err(format!("of version {}", contents.version));
        }
        contents.history.same_as(history)?;
        Ok(contents.estimates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_estimate::estimators::Estimator;
    use timevisor_estimate::estimators::shifted_exponential::{Parameters, ShiftedExponential};
    use timevisor_time::{Duration, Instant, Period};

    fn history() -> CounterHistory {
        CounterHistory { boot_id: "b".into(), counter: "tsc".into(), suspended_ns: 5 }
    }

    fn saved() -> Saved {
        let nominal = Period::from_hz(1_000_000_000).unwrap();
        let mut estimator = ShiftedExponential::new(&Parameters::default(), nominal);
        for n in 1..100u64 {
            let ta = n * 16_000_000_000;
            let queue = n * 7919 % 40_000;
            let t = Instant::from_unix_nanos(i128::from(ta + 30_000 + queue));
            let error = Duration::ZERO;
            let exchange =
                timevisor_estimate::Exchange { ta, tb: t, te: t, tf: ta + 60_000 + queue, error };
            estimator.observe(&exchange);
        }
        estimator.saved().unwrap()
    }

    #[test]
    fn a_damaged_file_is_refused_or_an_estimator_goes_on_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = Estimates::in_directory(dir.path());
        file.write(&history(), BTreeMap::from([("server".to_owned(), saved())])).unwrap();
        let path = dir.path().join("estimates.json");
        let valid = fs::read(&path).unwrap();
        let nominal = Period::from_hz(1_000_000_000).unwrap();
        crate::mutation::each(&valid, 1000, |bytes| {
            fs::write(&path, bytes).unwrap();
            for saved in file.read(&history()).unwrap_or_default().values() {
                let resumed = ShiftedExponential::resume(&Parameters::default(), nominal, saved);
                let Ok(mut estimator) = resumed else { continue };
                for n in 100..110u64 {
                    let ta = n * 16_000_000_000;
                    let t = Instant::from_unix_nanos(i128::from(ta + 30_000));
                    let error = Duration::ZERO;
                    let exchange =
                        timevisor_estimate::Exchange { ta, tb: t, te: t, tf: ta + 60_000, error };
                    estimator.observe(&exchange);
                    let _ = estimator.at(exchange.tf);
                }
            }
        });
    }

    #[test]
    fn what_was_written_is_read_to_the_bit() {
        let dir = tempfile::tempdir().unwrap();
        let file = Estimates::in_directory(dir.path());
        assert!(file.read(&history()).unwrap_err().contains("none were saved"));
        let all = BTreeMap::from([("server".to_owned(), saved())]);
        file.write(&history(), all.clone()).unwrap();
        assert_eq!(file.read(&history()), Ok(all));
        let other = CounterHistory { boot_id: "c".into(), ..history() };
        assert!(file.read(&other).unwrap_err().contains("booted"));
        fs::write(dir.path().join("estimates.json"), b"{half").unwrap();
        assert!(file.read(&history()).unwrap_err().contains("not understood"));
    }
}
