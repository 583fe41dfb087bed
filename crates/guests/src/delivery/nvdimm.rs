//! A page file that QEMU shows to the guest as a read-only nvdimm.
//!
//! Works with every QEMU since 7; needs the table of [`crate::acpi`] in the guest.

use std::path::PathBuf;

use timevisor_linux::mapping::SharedMapping;

use super::files::{NVDIMM, PageFiles};
use super::interface::{DeliveryError, DeliveryKind, PageDelivery};
use crate::qemu::Qemu;

/// Delivery by nvdimm.
#[derive(Clone, Debug, Default)]
pub struct NvdimmPage(PageFiles);

impl NvdimmPage {
    /// Delivery of pages under `directory`, normally [`super::files::DIRECTORY`].
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(PageFiles::new(directory))
    }
}

impl PageDelivery for NvdimmPage {
    fn kind(&self) -> DeliveryKind {
        DeliveryKind::Nvdimm
    }

    fn attach(&self, qemu: &Qemu) -> Result<Option<SharedMapping>, DeliveryError> {
        self.0.attach(qemu, NVDIMM)
    }
}
