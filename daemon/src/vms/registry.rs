//! The on-disk list of served VMs, so that a restarted daemon serves them under the same names and
//! timescales. An entry is valid for one process only (pid and start time).

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use timevisor_guests::owner::Owner;
use timevisor_linux::clock::monotonic;
use timevisor_linux::state_file::{self, MOST_BYTES, Readers};
use timevisor_protocols::control::{ElapsedSince, TimeType};

use crate::announce::Budget;

/// One VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    pub pid: u32,
    /// Start time in clock ticks after boot (proc(5), field 22): distinguishes a process from a
    /// later one with the same pid.
    pub start_time: u64,
    pub time_type: TimeType,
    pub qmp: Option<PathBuf>,
    /// Root wants it to run as soon as its page is right.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resume: bool,
    /// Whether it waited for a migration; nothing where QEMU had not said so, and in lists of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaited: Option<bool>,
    /// From when its age goes on once it has arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_since: Option<ElapsedSince>,
    /// To whom the process belonged when root added it (`timevisor vm add`). Without it, discovery
    /// has found the VM, and its rules decide again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<Owner>,
}

/// The registry file.
pub struct Registry {
    path: PathBuf,
    written: Option<Vec<Entry>>,
    /// How often a write that failed may still be logged: whoever starts a VM causes one.
    told: Budget,
}

impl Registry {
    /// The registry in the run directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("vms.json"), written: None, told: Budget::default() }
    }

    /// The VMs of an earlier daemon. A file that cannot be read or parsed is reported and ignored,
    /// because discovery still works.
    pub fn read(&self) -> Vec<Entry> {
        let bytes = match state_file::read(&self.path, MOST_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                tracing::warn!(
                    "{} is not read ({error}); VMs will be discovered instead",
                    self.path.display()
                );
                return Vec::new();
            }
        };
        serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            tracing::warn!(
                "{} is not understood ({error}); VMs will be discovered instead",
                self.path.display()
            );
            Vec::new()
        })
    }

    /// Replaces the file if anything has changed.
    pub fn write(&mut self, entries: Vec<Entry>) {
        if self.written.as_ref() == Some(&entries) {
            return;
        }
        let written = serde_json::to_vec(&entries)
            .map_err(io::Error::from)
            .and_then(|bytes| state_file::write(&self.path, &bytes, Readers::Owner));
        if let Err(error) = written
            && self.told.take(monotonic())
        {
            tracing::warn!(
                "cannot write {}: {error}; a restart will have to discover the VMs",
                self.path.display()
            );
        }
        self.written = Some(entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_damaged_list_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::in_directory(dir.path());
        let entry = |name: &str| Entry {
            name: name.into(),
            pid: 7,
            start_time: 8,
            time_type: TimeType::Utc,
            qmp: Some(PathBuf::from("/run/x")),
            resume: true,
            awaited: Some(true),
            elapsed_since: Some(ElapsedSince { tai_ns: 5, within_ns: 6 }),
            added: Some(Owner::user(4001)),
        };
        registry.write(vec![entry("web"), entry("db")]);
        let valid = fs::read(dir.path().join("vms.json")).unwrap();
        crate::mutation::each(&valid, 2000, |bytes| {
            fs::write(dir.path().join("vms.json"), bytes).unwrap();
            assert!(registry.read().len() <= 4);
        });
    }

    #[test]
    fn what_is_written_is_read_and_garbage_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::in_directory(dir.path());
        assert_eq!(registry.read(), []);
        let entry = Entry {
            name: "web".into(),
            pid: 7,
            start_time: 8,
            time_type: TimeType::Utc,
            qmp: Some(PathBuf::from("/run/x")),
            resume: true,
            awaited: Some(true),
            elapsed_since: Some(ElapsedSince { tai_ns: 5, within_ns: 6 }),
            added: Some(Owner::user(4001)),
        };
        registry.write(vec![entry.clone()]);
        assert_eq!(Registry::in_directory(dir.path()).read(), [entry]);
        fs::write(dir.path().join("vms.json"), "[{]").unwrap();
        assert_eq!(registry.read(), []);
    }
}
