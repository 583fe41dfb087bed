//! `[oscillator]`: what the operator states about the crystal behind the counter. The worst-case
//! bounds hold as long as the statement does.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use timevisor_estimate::{BoundParameters, CRYSTAL_WANDER, OCXO_WANDER, Parameters, TCXO_WANDER};
use timevisor_time::RateError;

/// `[oscillator]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OscillatorConfig {
    /// Maximum deviation of the rate from the nominal one, before any data.
    pub unmeasured_rate_ppm: u32,
    /// Maximum deviation of the rate from the measured one.
    pub measured_rate_ppm: u32,
    /// Maximum rate of change of the rate.
    pub wander: Wander,
}

/// `wander = "crystal" | "tcxo" | "ocxo"`, or a number per second.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "\"crystal\", \"tcxo\", \"ocxo\", or a number per second such as 3e-8"
)]
pub enum Wander {
    /// The type of oscillator.
    Kind(Kind),
    /// A number per second.
    PerSecond(f64),
}

/// Types of oscillators.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Any crystal, as in ordinary servers.
    Crystal,
    /// Temperature-compensated.
    Tcxo,
    /// Oven-controlled.
    Ocxo,
}

impl Wander {
    /// The wander as a number per second.
    pub fn per_second(self) -> f64 {
        match self {
            Self::Kind(Kind::Crystal) => CRYSTAL_WANDER,
            Self::Kind(Kind::Tcxo) => TCXO_WANDER,
            Self::Kind(Kind::Ocxo) => OCXO_WANDER,
            Self::PerSecond(wander) => wander,
        }
    }
}

impl Default for OscillatorConfig {
    fn default() -> Self {
        Self {
            unmeasured_rate_ppm: 100,
            measured_rate_ppm: 15,
            wander: Wander::Kind(Kind::Crystal),
        }
    }
}

impl OscillatorConfig {
    /// Validates every key.
    pub fn validate(&self) -> Result<()> {
        let wander = self.wander.per_second();
        ensure!(
            (1e-13..=1e-6).contains(&wander),
            "oscillator.wander is {wander}; it must be \"crystal\", \"tcxo\", \"ocxo\", or from 1e-13 to 1e-6 \
             per second (a crystal keeps 3e-8)"
        );
        self.parameters().validate().context("[oscillator]")
    }

    /// The estimate's parameters, with this statement applied.
    pub fn parameters(&self) -> Parameters {
        let measured_rate = RateError::from_ppm(self.measured_rate_ppm);
        let default = Parameters::default();
        Parameters {
            unmeasured_rate: RateError::from_ppm(self.unmeasured_rate_ppm),
            measured_rate,
            // A better oscillator's rate has to be proven better, too, before it counts as measured.
            rate_known_within: default.rate_known_within.min(measured_rate),
            bounds: BoundParameters {
                wander_floor: self.wander.per_second(),
                ..BoundParameters::default()
            },
            ..default
        }
    }
}
