//! Kernels that were found before: a guest that is attached again is not searched through again, if it is the same one still.
//!
//! A kernel is kept only after an orderly detachment, and only if it was the only one in memory; it is used once, and only after it was
//! compared with what is there (`GuestOs::is_there`) and seen to run. Whatever speaks against that leads to a full search.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use timevisor_introspection::backend::kvm::layout::KvmLayout;
use timevisor_introspection::os::guest_os::GuestOs;
use timevisor_linux::process::Process;

use super::probe::Found;
use super::session::Shared;
use super::target::Target;

/// A guest that has something to do ticks within this; an idle one may not, and is searched through.
const HEARTBEAT: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(2);

/// A kernel, and what was learned with it.
pub struct Kept {
    /// QEMU.
    pub process: Process,
    pub guest_os: Box<dyn GuestOs>,
    /// Where the guest's memory is in QEMU's.
    pub base: u64,
    /// Of this host's KVM, which cannot change under a VM that runs.
    pub layout: Option<KvmLayout>,
}

/// All of them, by QEMU.
#[derive(Default)]
pub struct Known(Mutex<Vec<Kept>>);

impl Known {
    /// For the next attachment. Those of VMs that have ended are forgotten.
    pub fn keep(&self, mut kept: Kept) {
        kept.guest_os.cleanup();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.process != kept.process && other.process.is_running());
        all.push(kept);
    }

    fn take(&self, process: Process) -> Option<Kept> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let which = all.iter().position(|kept| kept.process == process)?;
        Some(all.swap_remove(which))
    }
}

/// What was found in this VM before, if it is there still and runs.
///
/// # Errors
/// When QEMU's memory cannot be reached.
pub fn again(target: &Target, shared: &Shared) -> Result<Option<Found>> {
    let Some(kept) = target.common.known.take(target.process) else { return Ok(None) };
    let Kept { guest_os, base, layout, .. } = kept;
    let memories = target.memories()?;
    let Some((memory, _)) = memories.into_iter().find(|(_, at)| *at == base) else {
        return Ok(None);
    };
    if !guest_os.is_there(&memory) {
        return Ok(None);
    }
    let Some(before) = guest_os.heartbeat(&memory) else { return Ok(None) };
    let late = Instant::now() + HEARTBEAT;
    while guest_os.heartbeat(&memory).is_none_or(|now| now == before) {
        if Instant::now() > late || shared.lock().is_over() {
            return Ok(None);
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(Some(Found { guest_os, memory, base, is_only: true, layout }))
}
