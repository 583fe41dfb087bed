//! Kernels found by earlier attachments, so that the next attachment to the same guest needs no
//! search.
//!
//! A kernel is kept only after an orderly detachment, and only if it was the only one in memory. It
//! is used once, after `probe.rs` has checked it.

use std::sync::{Mutex, PoisonError};

use timevisor_introspection::backend::kvm::layout::KvmLayout;
use timevisor_introspection::os::guest_os::GuestOs;
use timevisor_linux::process::Process;

/// A kernel, and what else was found along with it.
pub struct Kept {
    /// QEMU's process.
    pub process: Process,
    pub guest_os: Box<dyn GuestOs>,
    /// Address of the guest's memory in QEMU's address space.
    pub base: u64,
    /// Offsets in this host's KVM, which cannot change while a VM runs.
    pub layout: Option<KvmLayout>,
}

/// The kept kernels, one for each QEMU.
#[derive(Default)]
pub struct Known(Mutex<Vec<Kept>>);

impl Known {
    /// Keeps a kernel for the next attachment, and drops those of VMs that have ended.
    pub fn keep(&self, mut kept: Kept) {
        kept.guest_os.cleanup();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.process != kept.process && other.process.is_running_patiently());
        all.push(kept);
    }

    /// The kernel that was found in this QEMU's guest earlier, if there is one.
    pub fn take(&self, process: Process) -> Option<Kept> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let which = all.iter().position(|kept| kept.process == process)?;
        Some(all.swap_remove(which))
    }
}
