//! target/results/lab.json: a row for every test with the result of its last run. The next run
//! orders the tests by these rows.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::schedule::Ran;
use crate::programs;
use crate::scenario::Test;

const NAME: &str = "lab";

/// How long each test took when it last ran.
#[derive(Debug, Default)]
pub struct Times {
    rows: BTreeMap<String, f64>,
}

impl Times {
    /// Reads the durations of the last runs; empty if there were none.
    pub fn last() -> Self {
        let seconds =
            |row: &Value| Some((row["test"].as_str()?.to_owned(), row["seconds"].as_f64()?));
        Self { rows: rows().iter().filter_map(seconds).collect() }
    }

    /// The expected duration of `test`.
    pub fn seconds(&self, test: &Test) -> f64 {
        self.rows.get(test.name).copied().unwrap_or_else(|| f64::from(test.seconds))
    }
}

fn rows() -> Vec<Value> {
    let path = programs::workspace().map(|root| root.join(format!("target/results/{NAME}.json")));
    let text = path.ok().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    value["rows"].as_array().cloned().unwrap_or_default()
}

/// Writes the results; tests that did not run this time keep their rows.
///
/// # Errors
/// When it cannot be written.
pub fn write(ran: &[Ran], family: impl Fn(&str) -> &'static str) -> anyhow::Result<()> {
    let mut all = rows();
    all.retain(|row| !ran.iter().any(|ran| row["test"] == ran.test.name));
    all.extend(ran.iter().map(|ran| {
        json!({
            "test": ran.test.name, "family": family(ran.test.name), "tier": ran.test.tier.name(),
            "verdict": ran.verdict.word(), "seconds": (ran.seconds * 10.0).round() / 10.0, "tries": ran.tries,
        })
    }));
    all.sort_by(|a, b| a["test"].as_str().cmp(&b["test"].as_str()));
    programs::save_result(NAME, &all).map(drop)
}
