//! Scenario files: mistakes are explained, and a world that validation lets through can be run: no
//! value that it accepts makes the simulation panic or the clock leave its own rules.
#![no_main]

use std::error::Error as _;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use timevisor_simulation::{Scenario, run};

/// Longer or larger worlds are parsed only: a run costs time in proportion.
const LONGEST_S: f64 = 200.0;
const MOST_REFERENCES: usize = 3;
const SHORTEST_POLL_S: f64 = 0.5;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Scenario::parse(text, Path::new("scenarios/fuzz.toml")) {
        Ok(scenario) => {
            assert_eq!(scenario.reference_names().len(), scenario.references.len());
            if is_small(&scenario) {
                let report = run(&scenario);
                assert!((0.0..=1.0).contains(&report.coverage));
                assert!((0.0..=1.0).contains(&report.synchronized));
                // The rules for successive readings hold in every world.
                assert_eq!((report.unnested, report.backward), (0, 0));
            }
        }
        Err(error) => {
            assert!(error.to_string().contains("fuzz.toml"));
            assert!(error.source().is_none_or(|source| !source.to_string().is_empty()));
        }
    }
});

fn is_small(scenario: &Scenario) -> bool {
    let polls = scenario.references.iter().map(|r| r.poll_s.unwrap_or(scenario.host.poll_s));
    scenario.duration_s <= LONGEST_S
        && scenario.references.len() <= MOST_REFERENCES
        && polls.chain([scenario.host.burst_spacing_s]).all(|s| s >= SHORTEST_POLL_S)
}
