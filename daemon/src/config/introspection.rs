//! `[introspection]`: defaults for the attachment of guests, and where plugins are.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use timevisor_introspection::os::described;

/// `[introspection]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IntrospectionConfig {
    pub kvm: KvmChoice,
    /// The directory with files that describe guest systems; it need not exist.
    pub plugins: PathBuf,
}

impl Default for IntrospectionConfig {
    fn default() -> Self {
        let plugins = PathBuf::from(described::DEFAULT_DIRECTORY);
        Self { kvm: KvmChoice::default(), plugins }
    }
}

impl IntrospectionConfig {
    pub fn validate(&self) -> Result<()> {
        ensure!(self.plugins.is_absolute(), "introspection.plugins must be an absolute path");
        Ok(())
    }
}

/// `kvm = "off" | "prefix" | "port"`: how guests under KVM are trapped when they are attached
/// without `--backend`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KvmChoice {
    /// Not at all.
    #[default]
    Off,
    /// Like `--backend kvm`.
    Prefix,
    /// Like `--backend port`.
    Port,
}
