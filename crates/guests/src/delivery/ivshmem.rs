//! A page file that QEMU shows to the guest as the memory of a PCI device (ivshmem-plain), for
//! kernels without ptp_vmclock.
//!
//! Works with every QEMU since 7 and needs only PCI support in the guest's kernel: programs map the
//! device's `resource2` (`timevisor_linux::pci`). There is no /dev/vmclock0 and no PTP clock.
//!
//! Limitation: such a VM cannot be live-migrated. QEMU refuses this while the device is a peer, the
//! default; with `master=on` and read-only memory, QEMU 7.2 fails during the migration ("Mismatched
//! GPAs").

use std::path::PathBuf;

use timevisor_linux::mapping::SharedMapping;

use super::files::{IVSHMEM, PageFiles};
use super::interface::{DeliveryError, DeliveryKind, PageDelivery};
use crate::qemu::Qemu;

/// Delivery by ivshmem.
#[derive(Clone, Debug, Default)]
pub struct IvshmemPage(PageFiles);

impl IvshmemPage {
    /// Delivery of pages under `directory`, normally [`super::files::DIRECTORY`].
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(PageFiles::new(directory))
    }
}

impl PageDelivery for IvshmemPage {
    fn kind(&self) -> DeliveryKind {
        DeliveryKind::Ivshmem
    }

    fn attach(&self, qemu: &Qemu) -> Result<Option<SharedMapping>, DeliveryError> {
        self.0.attach(qemu, IVSHMEM)
    }
}
