//! The traces, by condition.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use timevisor_simulation::conditions::Condition;
use timevisor_simulation::trace::{Trace, truth_path};
use timevisor_time::Duration;

/// Seeds of the simulated days.
const SEEDS: [u64; 2] = [1, 2];
/// Length and poll interval of the recorded traces.
const DAY: Duration = Duration::from_secs(86_400);
const POLL: Duration = Duration::from_secs(16);

/// Traces of one condition.
pub(crate) struct Days {
    /// `a_lan`
    pub(crate) condition: String,
    /// One per seed.
    pub(crate) traces: Vec<Trace>,
}

/// `a_lan_s1` is condition `a_lan` with seed 1. Another name is a condition of its own.
fn condition(name: &str) -> &str {
    match name.rsplit_once("_s") {
        Some((condition, seed)) if seed.parse::<u64>().is_ok() => condition,
        _ => name,
    }
}

fn grouped(traces: impl IntoIterator<Item = Trace>) -> Vec<Days> {
    let mut groups: BTreeMap<String, Vec<Trace>> = BTreeMap::new();
    for trace in traces {
        groups.entry(condition(&trace.name).to_owned()).or_default().push(trace);
    }
    groups.into_iter().map(|(condition, traces)| Days { condition, traces }).collect()
}

/// All exchange traces in `folder` that have a truth file beside them.
pub(crate) fn recorded(folder: &Path) -> Result<Vec<Days>> {
    let read = || format!("cannot read the traces' folder {}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(read)? {
        let path = entry.with_context(read)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_trace = name.ends_with(".csv") || name.ends_with(".csv.gz");
        if is_trace && !name.contains(".truth.csv") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut traces: Vec<Trace> = Vec::new();
    for path in paths {
        let Some(truth) = truth_path(&path) else {
            eprintln!("bench-sync: {} has no truth beside it and is left out", path.display());
            continue;
        };
        let trace = Trace::load(&path, Some(&truth))?;
        // NAME.csv and NAME.csv.gz are the same trace.
        if traces.iter().all(|known| known.name != trace.name) {
            traces.push(trace);
        }
    }
    if traces.is_empty() {
        bail!(
            "there are no NAME.csv[.gz] with a NAME.truth.csv[.gz] in {}; name another folder with --traces, or leave it \
             out to simulate",
            folder.display()
        );
    }
    Ok(grouped(traces))
}

/// The same laws from our own generators.
pub(crate) fn simulated() -> Vec<Days> {
    let seeds = |condition: Condition| SEEDS.map(|seed| condition.generate(seed, DAY, POLL));
    grouped(Condition::ALL.into_iter().flat_map(seeds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_not_part_of_the_condition() {
        assert_eq!(condition("a_lan_s1"), "a_lan");
        assert_eq!(condition("g_sine_s12"), "g_sine");
        assert_eq!(condition("my_site"), "my_site");
        assert_eq!(condition("sydney"), "sydney");
    }

    #[test]
    fn a_folder_without_traces_is_an_error_that_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("README.md"), "no trace").unwrap();
        fs::write(folder.path().join("x.csv"), "no truth").unwrap();
        let error = recorded(folder.path()).err().unwrap().to_string();
        assert!(error.contains("leave it out to simulate"), "{error}");
    }
}
