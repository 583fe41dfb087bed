//! `[introspection]`: defaults for the attachment of guests.

use serde::{Deserialize, Serialize};

/// `[introspection]`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IntrospectionConfig {
    pub kvm: KvmChoice,
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
