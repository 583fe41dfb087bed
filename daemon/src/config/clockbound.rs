//! `[clockbound]`: this host's clock for programs linked with AWS ClockBound's clients.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Deserialize;
use timevisor_protocols::clockbound;

/// `[clockbound]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClockboundConfig {
    /// Whether the segments are written.
    pub enabled: bool,
    /// Where; clients look in /var/run/clockbound unless they are told otherwise.
    pub directory: PathBuf,
}

impl Default for ClockboundConfig {
    fn default() -> Self {
        Self { enabled: false, directory: PathBuf::from(clockbound::DIRECTORY) }
    }
}

impl ClockboundConfig {
    /// Validates every key.
    ///
    /// # Errors
    /// The first invalid key, with what would be valid.
    pub fn validate(&self) -> Result<()> {
        ensure!(
            self.directory.is_absolute(),
            "clockbound.directory must be an absolute path, such as {}",
            clockbound::DIRECTORY
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn the_directory_is_absolute() {
        let parse = |text: &str| Config::parse(&format!("[clockbound]\n{text}"));
        let config = parse("enabled = true").unwrap();
        assert_eq!(config.clockbound.directory.to_str(), Some("/var/run/clockbound"));
        let error = parse("directory = \"here\"").unwrap_err();
        assert!(format!("{error:#}").contains("clockbound.directory must be an absolute path"));
        assert!(parse("path = \"/run\"").is_err());
    }
}
