//! What is in place in guests, on disk: written before it is, forgotten after it is gone.

use std::path::Path;

use serde::{Deserialize, Serialize};
use timevisor_linux::crash_file::CrashFile;
use timevisor_linux::process::Process;

use super::patches::Patch;
use super::trap::Trap;

/// One VM's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patched {
    /// QEMU.
    pub pid: u32,
    /// Clock ticks after boot (proc(5), field 22): tells a process from a later one with the same pid.
    pub start_time: u64,
    /// What may be in place.
    pub patches: Vec<Patch>,
}

impl Patched {
    /// That very QEMU, if it still runs.
    #[must_use]
    pub fn process(&self) -> Option<Process> {
        let process = Process::open(self.pid).ok()?;
        process.start_time().is_ok_and(|now| now == self.start_time).then_some(process)
    }
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InPlace {
    /// The host's switch was off before, and is to be off again.
    pub switched_on: bool,
    /// By VM.
    pub vms: Vec<Patched>,
}

impl InPlace {
    /// Whether the host's switch has to be on.
    #[must_use]
    pub fn needs_switch(&self) -> bool {
        let mut patches = self.vms.iter().flat_map(|vm| &vm.patches);
        patches.any(|patch| patch.patched == Trap::Prefix.bytes())
    }
}

/// The file.
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
            InPlace { switched_on: true, vms: vec![Patched { pid: 1, start_time: 2, patches }] }
        };
        assert!(!InPlace::default().needs_switch() && !with(&[Trap::Port]).needs_switch());
        assert!(with(&[Trap::Port, Trap::Prefix]).needs_switch());
    }
}
