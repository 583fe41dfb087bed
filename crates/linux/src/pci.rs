//! Clock pages in PCI memory: a guest's ivshmem device, mapped through sysfs without a driver.
//!
//! For kernels without ptp_vmclock. Only the device's memory is touched: no driver is bound or
//! unbound, and a device is enabled only if firmware left its memory disabled. It does not validate
//! the page, except that memory without the magic number is ignored.
//!
//! Limitation: a kernel in lockdown mode (Secure Boot) does not let programs map PCI memory.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use timevisor_clock_page::reader::{OpenError, check};

use crate::mapping::{Access, MapError, PAGE_BYTES, SharedMapping};
use crate::page::ReadPage;

/// Where the kernel lists PCI devices.
const DEVICES: &str = "/sys/bus/pci/devices";
/// QEMU's ivshmem-plain and ivshmem-doorbell: Red Hat's vendor id and the device id of
/// docs/specs/ivshmem-spec.
const IVSHMEM: (u16, u16) = (0x1af4, 0x1110);
/// The BAR that holds the shared memory.
const RESOURCE: &str = "resource2";
/// PCI_COMMAND: the device responds to memory accesses.
const COMMAND_MEMORY: u16 = 1 << 1;

/// The shared memory of every ivshmem device: `.../0000:00:03.0/resource2`, by address. Empty on
/// machines without PCI.
///
/// # Errors
/// When sysfs cannot be read.
pub fn ivshmem_resources() -> io::Result<Vec<PathBuf>> {
    resources_in(Path::new(DEVICES))
}

fn resources_in(devices: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(devices) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let device = entry?.path();
        // A device may be unplugged while we look; one that cannot be read counts as absent.
        let id = (hexadecimal(&device.join("vendor")), hexadecimal(&device.join("device")));
        let resource = device.join(RESOURCE);
        if id == (Some(IVSHMEM.0), Some(IVSHMEM.1)) && resource.exists() {
            found.push(resource);
        }
    }
    found.sort();
    Ok(found)
}

/// `0x1af4`, as sysfs writes it.
fn hexadecimal(file: &Path) -> Option<u16> {
    let text = fs::read_to_string(file).ok()?;
    u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// The clock page among the ivshmem devices; devices that hold something else are skipped. `None`
/// if there is none.
///
/// # Errors
/// When no page was found and a device could not be examined.
pub fn ivshmem_page() -> Result<Option<ReadPage>, MapError> {
    page_in(Path::new(DEVICES))
}

fn page_in(devices: &Path) -> Result<Option<ReadPage>, MapError> {
    let open = |source| MapError::Open { path: devices.to_owned(), source };
    let mut failed = None;
    for resource in resources_in(devices).map_err(open)? {
        match SharedMapping::of_pci_resource(&resource).and_then(ReadPage::new) {
            Ok(page) if check(&page) == Err(OpenError::NotAPage) => {}
            Ok(page) => return Ok(Some(page)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(None), Err)
}

impl SharedMapping {
    /// Maps the first 4096 bytes of a PCI device's memory, read-only: one of [`ivshmem_resources`].
    ///
    /// # Errors
    /// When this user may not map it (root may), or the kernel refuses. Each error names the next
    /// step.
    pub fn of_pci_resource(path: &Path) -> Result<Self, MapError> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
            .map_err(|source| MapError::PciOpen { path: path.to_owned(), source })?;
        if let Some(device) = path.parent() {
            switch_on(device)?;
        }
        Self::new(file, PAGE_BYTES, Access::ReadOnly).map_err(|error| match error {
            MapError::Map(source) if source.raw_os_error() == Some(libc::EPERM) => {
                MapError::LockedDown { path: path.to_owned(), source }
            }
            other => other,
        })
    }
}

/// Disabled memory reads as ones. Firmware enables it, but not for a device that was plugged in
/// later.
fn switch_on(device: &Path) -> Result<(), MapError> {
    let mut header = [0; 6];
    let read = OpenOptions::new()
        .read(true)
        .open(device.join("config"))
        .and_then(|mut file| file.read_exact(&mut header));
    if read.is_err() || u16::from_le_bytes([header[4], header[5]]) & COMMAND_MEMORY != 0 {
        return Ok(());
    }
    let enable = device.join("enable");
    fs::write(&enable, "1").map_err(|source| MapError::PciDisabled { path: enable, source })
}

#[cfg(test)]
#[path = "pci_tests.rs"]
mod tests;
