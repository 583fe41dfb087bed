//! The interface of a delivery, and the reasons why a page may be inaccessible.

use std::path::PathBuf;

use timevisor_linux::mapping::{MapError, SharedMapping};
use timevisor_linux::page_file::PageFileError;
use timevisor_linux::process::ProcessError;

use crate::qemu::Qemu;

/// The ways a page can reach a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveryKind {
    /// QEMU's vmclock device.
    Vmclock,
    /// A read-only nvdimm with an SSDT.
    Nvdimm,
    /// The memory of an ivshmem device.
    Ivshmem,
}

impl DeliveryKind {
    /// The name used in JSON and configuration: `vmclock`, `nvdimm`, `ivshmem`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vmclock => "vmclock",
            Self::Nvdimm => "nvdimm",
            Self::Ivshmem => "ivshmem",
        }
    }
}

/// Why a virtual machine's page is inaccessible.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// The QEMU process could not be examined.
    #[error("cannot look for the page in QEMU")]
    Process(#[from] ProcessError),
    /// A vmclock device whose page is private to QEMU.
    #[error(
        "{0} has a vmclock device, but its page is not shared; start it with `-machine aux-ram-share=on`"
    )]
    NotShared(String),
    /// A vmclock device whose shared page does not exist yet.
    #[error("the page of {0} is not there yet; try again when QEMU has started")]
    Starting(String),
    /// The page was not found among the first descriptors, and the rest is not looked at.
    #[error(
        "{0} has more open files than a QEMU has, and none of the first {limit} is a page; it is not looked at again",
        limit = timevisor_linux::process::MOST_DESCRIPTORS
    )]
    TooManyDescriptors(String),
    /// The file is not a page.
    #[error("{target} of {name} is not a vmclock page: {reason}")]
    NotAPage {
        /// The virtual machine.
        name: String,
        /// The file.
        target: String,
        /// Why not.
        reason: String,
    },
    /// The page could not be mapped.
    #[error("cannot map the page of {name}")]
    Map {
        /// The virtual machine.
        name: String,
        /// Why.
        #[source]
        source: MapError,
    },
    /// The page file could not be used.
    #[error("cannot use the page file of {name}")]
    PageFile {
        /// The virtual machine.
        name: String,
        /// Why.
        #[source]
        source: PageFileError,
    },
    /// The file that QEMU has mapped was replaced, so our writes would not reach the guest.
    #[error("{name} reads a page file that is no longer at {path}; restart the virtual machine")]
    Replaced {
        /// The virtual machine.
        name: String,
        /// The path.
        path: PathBuf,
    },
    /// A name that cannot be used as a folder name.
    #[error(
        "{0:?} cannot name a virtual machine here: use letters, digits, dot, dash and underscore"
    )]
    Name(String),
    /// The virtual machine's folder could not be created.
    #[error("cannot create {path}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
}

/// One way a page can reach a guest.
pub trait PageDelivery {
    /// The kind of delivery.
    fn kind(&self) -> DeliveryKind;

    /// Maps the page of this virtual machine for writing; `None` when it has no such device.
    ///
    /// # Errors
    /// When it has the device, but its page is inaccessible.
    fn attach(&self, qemu: &Qemu) -> Result<Option<SharedMapping>, DeliveryError>;
}
