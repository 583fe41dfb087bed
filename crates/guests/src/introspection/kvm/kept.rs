//! What is in place in guests, on disk: written before it is, forgotten after it is gone.

use std::path::Path;

use serde::{Deserialize, Serialize};
use timevisor_linux::process::Process;

use super::patches::Patch;
use crate::kept::Kept;

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

/// The file.
#[must_use]
pub fn file(directory: &Path) -> Kept<InPlace> {
    Kept::new(directory, "introspection.json")
}
