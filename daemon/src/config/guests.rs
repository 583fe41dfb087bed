//! `[guests]`: which VMs are served, and on which timescale.

use std::collections::BTreeMap;
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use timevisor_protocols::control::TimeType;

use super::reserve::{self, ReserveConfig};

/// `[guests]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuestsConfig {
    /// Automatically serve QEMU processes that have a page for us.
    pub discover: bool,
    /// How often to look for them.
    #[serde(with = "humantime_serde")]
    pub discover_interval: StdDuration,
    /// The timescale of VMs' pages: TAI for guest kernels >= 7.0, UTC for older ones.
    pub time_type: TimeType,
    /// `[guests.vm.NAME]`.
    pub vm: BTreeMap<String, VmConfig>,
}

/// `[guests.vm.NAME]`: settings for a single VM.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmConfig {
    pub time_type: Option<TimeType>,
    /// `[[guests.vm.NAME.reserve]]`.
    pub reserve: Vec<ReserveConfig>,
}

impl Default for GuestsConfig {
    fn default() -> Self {
        Self {
            discover: true,
            discover_interval: StdDuration::from_millis(500),
            time_type: TimeType::Tai,
            vm: BTreeMap::new(),
        }
    }
}

impl GuestsConfig {
    /// Validates every key.
    pub fn validate(&self) -> Result<()> {
        ensure!(
            self.discover_interval >= StdDuration::from_millis(10),
            "guests.discover_interval must be 10ms or more"
        );
        for (name, vm) in &self.vm {
            timevisor_protocols::control::request::check_name(name)
                .with_context(|| format!("[guests.vm.{name}]"))?;
            reserve::validate(&vm.reserve)
                .with_context(|| format!("[[guests.vm.{name}.reserve]]"))?;
        }
        Ok(())
    }
}
