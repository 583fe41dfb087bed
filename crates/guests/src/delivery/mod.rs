//! How a page reaches a guest.
//!
//! | module | owns |
//! | --- | --- |
//! | `interface.rs` | [`PageDelivery`]: the interface of a delivery |
//! | [`vmclock_device`] | [`VmclockDevice`]: the page of QEMU's vmclock device, QEMU 10 and newer |
//! | [`nvdimm`] | [`NvdimmPage`]: a page file that the guest sees as read-only memory, QEMU 7 and newer |
//! | [`ivshmem`] | [`IvshmemPage`]: a page file that the guest sees as a PCI device, for kernels without ptp_vmclock |
//! | [`files`] | [`PageFiles`]: the page files of the last two |
//!
//! What it does not do: write the page, or create the virtual machine ([`crate::arguments`] says
//! how).

pub mod files;
mod interface;
pub mod ivshmem;
pub mod nvdimm;
pub mod vmclock_device;

pub use files::PageFiles;
pub use interface::{DeliveryError, DeliveryKind, PageDelivery};
pub use ivshmem::IvshmemPage;
pub use nvdimm::NvdimmPage;
pub use vmclock_device::VmclockDevice;
