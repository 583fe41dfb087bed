//! Kernels that were found before, so that the next attachment to the same guest needs no search.
//!
//! A kernel is kept only after an orderly detachment, and only if it was the only one in memory. It
//! is used once, after a comparison with memory (`GuestOs::is_there`) and a heartbeat. Otherwise
//! memory is searched in full.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use timevisor_introspection::backend::kvm::layout::KvmLayout;
use timevisor_introspection::os::guest_os::GuestOs;
use timevisor_linux::process::Process;

use super::probe::Found;
use super::session::Shared;
use super::target::Target;

/// How long to wait for a heartbeat. A busy guest ticks within this time; the memory of an idle one
/// may have to be searched.
const HEARTBEAT: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(2);

/// A kernel, and what else was found with it.
pub struct Kept {
    /// QEMU's process.
    pub process: Process,
    pub guest_os: Box<dyn GuestOs>,
    /// Address of the guest's memory in QEMU's.
    pub base: u64,
    /// Offsets in this host's KVM, which cannot change while a VM runs.
    pub layout: Option<KvmLayout>,
}

/// The kernels, one for each QEMU.
#[derive(Default)]
pub struct Known(Mutex<Vec<Kept>>);

impl Known {
    /// Keeps a kernel for the next attachment, and forgets those of VMs that have ended.
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

/// The kernel that was found in this VM before, if it still runs.
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
