//! A scenario: what differs from the default world, and what the clock must reach there.
//!
//! | file | owns |
//! | --- | --- |
//! | this file | [`Scenario`], its parts, reading a file |
//! | `limits.rs` | [`Limits`]: the numbers a run is judged by |
//! | `validate.rs` | which values make sense |
//!
//! The default world, of which a file states only its deltas: six hours, the first of them
//! convergence; a 1 GHz counter 20 ppm fast with 1 ppb/sqrt(s) of wander; one perfect server on a
//! LAN (30 us + Exp(20 us) each way, no loss); the daemon's default configuration, 4 s polls after
//! a burst of eight. scenarios/README.md lists every key.
//!
//! What it does not do: run ([`crate::world`]).

mod limits;
mod validate;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use timevisor_estimate::Parameters;
use timevisor_time::{Duration, RateError};

pub use limits::{Accuracy, CONFIDENCES, KnownFailure, Limits, Share, Window};
pub(crate) use validate::ntp_config;

use crate::host::HostModel;
use crate::link::Direction;
use crate::oscillator::OscillatorModel;
use crate::server::ServerModel;

/// One world with its limits.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// The file's name without its extension.
    #[serde(skip)]
    pub name: String,
    /// A one-line description.
    pub description: String,
    /// The seed of all random streams.
    pub seed: u64,
    /// Length, true seconds.
    pub duration_s: f64,
    /// Accuracy counts from here on; coverage, order and statuses count from the start.
    pub warmup_s: f64,
    /// A leap second is inserted this many seconds after the start.
    pub leap_at_s: Option<i64>,
    /// Whether it is deleted instead.
    pub leap_deleted: bool,
    /// When an assumption starts to fail; earlier alarms are false.
    pub fault_at_s: Option<f64>,
    /// The host's oscillator.
    pub oscillator: OscillatorModel,
    /// The host and its daemon's configuration.
    pub host: HostModel,
    /// What the bounds assume.
    pub estimate: EstimateModel,
    /// The servers, each with its path.
    #[serde(rename = "reference")]
    pub references: Vec<ReferenceModel>,
    /// What the clock must reach.
    pub limits: Limits,
    /// Limits that the current code misses, and why.
    pub known_failure: Option<KnownFailure>,
}

/// One server and the path to it.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReferenceModel {
    /// Its name in reports; `reference N` by default.
    pub name: Option<String>,
    /// Both directions of the path.
    pub link: Direction,
    /// Client to server, if it differs from `link`.
    pub forward: Option<Direction>,
    /// Server to client, if it differs from `link`.
    pub backward: Option<Direction>,
    /// The server.
    pub server: ServerModel,
    /// Interval between requests, if it differs from the host's, s.
    pub poll_s: Option<f64>,
}

/// Deltas from [`Parameters::default`].
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EstimateModel {
    /// Bound on the rate before any data, ppm.
    pub unmeasured_rate_ppm: Option<u32>,
    /// Bound on the rate relative to the measured one, ppm.
    pub measured_rate_ppm: Option<u32>,
    /// The operator's statement about the oscillator: its rate changes by at most this, 1/s.
    pub wander_floor: Option<f64>,
    /// Without an exchange for this long the status is `freerunning`, s.
    pub stale_after_s: Option<f64>,
}

impl EstimateModel {
    /// The ensemble's parameters.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        let mut parameters = Parameters::default();
        if let Some(ppm) = self.unmeasured_rate_ppm {
            parameters.unmeasured_rate = RateError::from_ppm(ppm);
        }
        if let Some(ppm) = self.measured_rate_ppm {
            parameters.measured_rate = RateError::from_ppm(ppm);
        }
        if let Some(wander) = self.wander_floor {
            parameters.bounds.wander_floor = wander;
        }
        if let Some(seconds) = self.stale_after_s {
            parameters.stale_after = Duration::from_secs_f64(seconds);
        }
        parameters
    }
}

impl ReferenceModel {
    /// Client to server.
    #[must_use]
    pub fn forward(&self) -> &Direction {
        self.forward.as_ref().unwrap_or(&self.link)
    }

    /// Server to client.
    #[must_use]
    pub fn backward(&self) -> &Direction {
        self.backward.as_ref().unwrap_or(&self.link)
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            description: String::new(),
            seed: 1,
            duration_s: 21_600.0,
            warmup_s: 3600.0,
            leap_at_s: None,
            leap_deleted: false,
            fault_at_s: None,
            oscillator: OscillatorModel::default(),
            host: HostModel::default(),
            estimate: EstimateModel::default(),
            references: vec![ReferenceModel::default()],
            limits: Limits::default(),
            known_failure: None,
        }
    }
}

/// A scenario that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file does not exist or is not readable.
    #[error("cannot read {path}; check the name")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not TOML, a key that does not exist, or a value of the wrong type.
    #[error("{path} is not understood; scenarios/README.md lists every key")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value that makes no sense.
    #[error("{path}: {problem}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The key, what is wrong, and what would be right.
        problem: String,
    },
}

impl Scenario {
    /// Reads and checks a file; the name is the file's.
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Parses and checks the text of the file at `path`.
    ///
    /// # Errors
    /// [`ScenarioError::Parse`] and [`ScenarioError::Invalid`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ScenarioError> {
        let mut scenario: Self = toml::from_str(text)
            .map_err(|e| ScenarioError::Parse { path: path.to_owned(), source: Box::new(e) })?;
        scenario.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        validate::check(&scenario)
            .map_err(|problem| ScenarioError::Invalid { path: path.to_owned(), problem })?;
        Ok(scenario)
    }

    /// The references' names, in order.
    #[must_use]
    pub fn reference_names(&self) -> Vec<String> {
        let numbered = self.references.iter().enumerate();
        numbered
            .map(|(i, r)| r.name.clone().unwrap_or_else(|| format!("reference {}", i + 1)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Scenario, ScenarioError> {
        Scenario::parse(text, Path::new("scenarios/test.toml"))
    }

    #[test]
    fn a_file_states_deltas_only() {
        let text = "description = 'x'\n[oscillator]\nwander_ppb = 10\n[[reference]]\nserver.steps = [{ at_s = 5, by_us = 3 }]\n\
                    [[reference]]\nname = 'far'\nlink = { minimum_us = 10000 }\n";
        let scenario = parse(text).unwrap();
        assert_eq!(scenario.name, "test");
        assert_eq!(scenario.oscillator.frequency_ppm, 20.0);
        assert_eq!(scenario.oscillator.wander_ppb, 10.0);
        assert_eq!(scenario.references[1].forward().exponential_us, 20.0);
        assert_eq!(scenario.reference_names(), ["reference 1", "far"]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("duration = 5", "unknown field `duration`"),
            ("description = 'x'\nduration_s = 'long'", "invalid type"),
            ("description = 'x'\nwarmup_s = 30000", "warmup_s"),
            ("duration_s = 7200", "description"),
            ("description = 'x'\nreference = []", "reference"),
            ("description = 'x'\n[[reference]]\nlink.loss = 1.5", "loss"),
            ("description = 'x'\n[host]\npoll_s = 0.001", "poll_min"),
            ("description = 'x'\n[estimate]\nmeasured_rate_ppm = 200", "measured_rate"),
            ("description = 'x'\n[limits]\nnever = ['unsure']", "unsure"),
            ("description = 'x'\n[limits]\ndetected = true", "fault_at_s"),
            ("description = 'x'\n[limits.share]\nrms = { of = 0.9, why = 'x' }", "no limit"),
            ("description = 'x'\n[limits.share]\nrms_us = { of = 1.5, why = 'x' }", "below 1"),
            ("description = 'x'\n[limits.share]\nrms_us = { of = 0.9, why = '' }", "why"),
            ("description = 'x'\n[limits.share]\nrms_us = { of = 0.9 }", "missing field"),
            ("description = 'x'\n[limits]\nshares = 1", "unknown field"),
            (
                "description = 'x'\n[[reference]]\nserver.kisses = [{from_s=1,to_s=2,code='NO'}]",
                "code",
            ),
        ] {
            let error = parse(text).unwrap_err();
            let source =
                std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            let all = format!("{error}: {source}");
            assert!(all.contains(part) && all.contains("test.toml"), "{text}: {all}");
        }
    }
}
