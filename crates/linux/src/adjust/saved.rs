//! Saves the kernel's clock settings from before this daemon steered. If this daemon is killed, the
//! next one restores them, at once or when its own steering ends. timevisord and timevisor-guest
//! share this module; each has its own file.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Rate, Settings};
use crate::state_file::{self, Readers};

/// The file has a dozen numbers.
const MOST_BYTES: u64 = 64 << 10;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// A reboot restores everything by itself.
    boot_id: String,
    tick_us: i64,
    frequency: i64,
    status: i32,
    nano: bool,
    constant: i64,
    max_error_us: i64,
    estimated_error_us: i64,
    tai_offset: i32,
}

/// The file with the saved settings.
pub struct Saved {
    path: PathBuf,
    boot_id: String,
}

impl Saved {
    /// Names the file, which need not exist.
    #[must_use]
    pub fn at(path: PathBuf, boot_id: String) -> Self {
        Self { path, boot_id }
    }

    /// Reads what an earlier daemon of this boot left behind.
    #[must_use]
    pub fn read(&self) -> Option<Settings> {
        let bytes = state_file::read(&self.path, MOST_BYTES).ok()?;
        let entry: Entry = serde_json::from_slice(&bytes).ok()?;
        (entry.boot_id == self.boot_id).then_some(Settings {
            rate: Rate { tick_us: entry.tick_us, frequency: entry.frequency },
            status: entry.status,
            nano: entry.nano,
            constant: entry.constant,
            max_error_us: entry.max_error_us,
            estimated_error_us: entry.estimated_error_us,
            tai_offset: entry.tai_offset,
        })
    }

    /// Saves the settings. Must come before the first setting is changed.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, settings: &Settings) -> std::io::Result<()> {
        let entry = Entry {
            boot_id: self.boot_id.clone(),
            tick_us: settings.rate.tick_us,
            frequency: settings.rate.frequency,
            status: settings.status,
            nano: settings.nano,
            constant: settings.constant,
            max_error_us: settings.max_error_us,
            estimated_error_us: settings.estimated_error_us,
            tai_offset: settings.tai_offset,
        };
        state_file::write(&self.path, &serde_json::to_vec(&entry)?, Readers::Owner)
    }

    /// Deletes the file after everything was restored.
    pub fn clear(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_boots_settings_count() {
        let dir = tempfile::tempdir().unwrap();
        let saved = |boot: &str| Saved::at(dir.path().join("saved.json"), boot.to_owned());
        let settings = Settings {
            rate: Rate { tick_us: 10_000, frequency: -123_456 },
            status: 0x40,
            nano: false,
            constant: 2,
            max_error_us: 16_000_000,
            estimated_error_us: 7,
            tai_offset: 0,
        };
        assert_eq!(saved("a").read(), None);
        saved("a").write(&settings).unwrap();
        assert_eq!(saved("a").read(), Some(settings));
        assert_eq!(saved("b").read(), None);
        saved("a").clear();
        assert_eq!(saved("a").read(), None);
    }
}
