//! The on-disk journal of changes to guests' code: an entry is written before the change, and
//! removed after the change has been undone.

use std::path::Path;

use serde::{Deserialize, Serialize};
use timevisor_linux::crash_file::CrashFile;
use timevisor_linux::process::Process;

use super::patches::Patch;
use super::trap::Trap;

/// The changes in one VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patched {
    /// QEMU's process id.
    pub pid: u32,
    /// Start time in clock ticks after boot (proc(5), field 22): distinguishes a process from a
    /// later one with the same pid.
    pub start_time: u64,
    /// Patches that may be in place.
    pub patches: Vec<Patch>,
}

impl Patched {
    /// This QEMU, which may have ended.
    #[must_use]
    pub const fn process(&self) -> Process {
        Process::of(self.pid, self.start_time)
    }

    /// Whether any patch needs the host's switch.
    #[must_use]
    pub fn needs_switch(&self) -> bool {
        self.patches.iter().any(|patch| patch.patched == Trap::Prefix.bytes())
    }
}

/// The whole journal.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InPlace {
    /// An earlier version turned the host's switch on, and noted that here.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub switched_on: bool,
    /// One entry for each VM.
    pub vms: Vec<Patched>,
}

/// The path of the journal.
#[must_use]
pub fn file(directory: &Path) -> CrashFile<InPlace> {
    CrashFile::new(directory, "introspection.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::SLOT;

    #[test]
    fn the_switch_is_for_prefixes_only() {
        let with = |traps: &[Trap]| {
            let patch = |trap: &Trap| Patch { address: 9, original: SLOT, patched: trap.bytes() };
            let patches = traps.iter().map(patch).collect();
            Patched { pid: 1, start_time: 2, patches }
        };
        assert!(!with(&[]).needs_switch() && !with(&[Trap::Port]).needs_switch());
        assert!(with(&[Trap::Port, Trap::Prefix]).needs_switch());
    }
}
