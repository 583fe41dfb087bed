//! `[audit]`: the record of what the clock was worth.

use std::path::PathBuf;
use std::time::Duration as StdDuration;

use anyhow::{Result, ensure};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use timevisor_audit::{Keep, Settings};

use super::span;

/// Less than this is a file for each hour or so.
const LEAST_ROTATE: u64 = 64 << 10;
/// `timevisor audit` reads whole files.
const MOST_ROTATE: u64 = 1 << 30;

/// `[audit]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    pub enabled: bool,
    /// Where the files are. One daemon at a time writes there.
    pub directory: PathBuf,
    /// A file that would be larger is full, bytes.
    #[serde(deserialize_with = "size")]
    pub rotate: u64,
    /// A number of files, or an age.
    pub keep: KeepChoice,
}

/// `keep = 100` or `keep = "7years"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number of files, or an age such as \"7years\"")]
pub enum KeepChoice {
    Files(u64),
    Age(#[serde(with = "humantime_serde")] StdDuration),
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            directory: PathBuf::from("/var/lib/timevisor/audit"),
            rotate: 16 << 20,
            keep: KeepChoice::Files(100),
        }
    }
}

impl AuditConfig {
    /// Validates every key.
    ///
    /// # Errors
    /// The first invalid key, with what would be valid.
    pub fn validate(&self) -> Result<()> {
        ensure!(self.directory.is_absolute(), "audit.directory must be an absolute path");
        ensure!(
            (LEAST_ROTATE..=MOST_ROTATE).contains(&self.rotate),
            "audit.rotate must be from 64K to 1G"
        );
        match self.keep {
            KeepChoice::Files(files) => {
                ensure!(files >= 2, "audit.keep must be at least 2 files, or an age");
            }
            KeepChoice::Age(age) => {
                ensure!(age.as_secs() >= 3600, "audit.keep must be at least \"1h\"");
            }
        }
        Ok(())
    }

    /// The journal's parameters.
    pub fn settings(&self) -> Settings {
        let keep = match self.keep {
            KeepChoice::Files(files) => Keep::Files(files),
            KeepChoice::Age(age) => Keep::Age(span(age).floor_nanos()),
        };
        Settings { rotate: self.rotate, keep }
    }
}

/// An amount of memory, such as "16M": powers of 1024.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong =
        || D::Error::custom(format!("{text:?} is no size; write one as \"16M\" or \"512K\""));
    let unit = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let (number, shift) = match text.char_indices().next_back() {
        _ if !unit.is_empty() && unit.len() != text.len() => return Err(wrong()),
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        _ => (text.as_str(), 0),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<AuditConfig> {
        let config: AuditConfig = toml::from_str(text)?;
        config.validate()?;
        Ok(config)
    }

    #[test]
    fn sizes_and_ages() {
        let config = parsed("enabled = true\nrotate = \"512K\"\nkeep = \"7years\"").unwrap();
        let settings = config.settings();
        assert_eq!(settings.rotate, 512 << 10);
        assert!(matches!(settings.keep, Keep::Age(ns) if ns > 7 * 365 * 86_400_000_000_000));
        assert_eq!(parsed("keep = 3").unwrap().settings().keep, Keep::Files(3));
        let error = |text: &str| format!("{:#}", parsed(text).unwrap_err());
        assert!(error("rotate = \"16 MB\"").contains("write one as"));
        assert!(error("rotate = \"1K\"").contains("64K to 1G"));
        assert!(error("keep = 1").contains("at least 2"));
        assert!(error("keep = \"1s\"").contains("1h"));
        assert!(error("directory = \"audit\"").contains("absolute"));
        assert!(error("keep = \"long\"").contains("7years"));
    }
}
