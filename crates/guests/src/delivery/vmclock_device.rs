//! The page of QEMU's own vmclock device (QEMU 10 and newer; hw/acpi/vmclock.c).
//!
//! With `-machine aux-ram-share=on` the page is a memfd of the QEMU process, which we open through
//! /proc/PID/fd. The guest sees it read-only, but QEMU itself may write it: it increments the
//! disruption marker after migration and snapshots.

use std::os::unix::fs::FileExt;
use std::path::Path;

use timevisor_linux::mapping::{Access, PAGE_BYTES, SharedMapping};
use timevisor_linux::page_file;

use super::interface::{DeliveryError, DeliveryKind, PageDelivery};
use crate::qemu::Qemu;

/// Delivery by QEMU's vmclock device.
#[derive(Clone, Copy, Debug, Default)]
pub struct VmclockDevice;

/// The name that QEMU gives to the device's memory.
const NAME: &str = "vmclock_page";
/// `VMCLOCK_MAGIC` in memory order; QEMU writes it when it creates the device.
const MAGIC: [u8; 4] = *b"VCLK";

impl PageDelivery for VmclockDevice {
    fn kind(&self) -> DeliveryKind {
        DeliveryKind::Vmclock
    }

    fn attach(&self, qemu: &Qemu) -> Result<Option<SharedMapping>, DeliveryError> {
        let links = qemu.process.fds()?;
        let Some(link) = links.into_iter().find(|link| is_page(&link.target)) else {
            let name = qemu.name.clone();
            return match qemu.command_line.devices_of("vmclock").next() {
                // QEMU listens on its sockets before it creates its devices.
                Some(_) if qemu.command_line.aux_ram_share => Err(DeliveryError::Starting(name)),
                Some(_) => Err(DeliveryError::NotShared(name)),
                None => Ok(None),
            };
        };
        let file = qemu.process.open_fd(link.fd)?;
        let not_a_page = |reason: String| DeliveryError::NotAPage {
            name: qemu.name.clone(),
            target: link.target.clone(),
            reason,
        };
        let bytes = file.metadata().map_err(|error| not_a_page(error.to_string()))?.len();
        if bytes != PAGE_BYTES as u64 {
            return Err(not_a_page(format!("it has {bytes} bytes")));
        }
        let mut magic = [0; 4];
        file.read_exact_at(&mut magic, 0).map_err(|error| not_a_page(error.to_string()))?;
        if magic != MAGIC {
            return Err(not_a_page(format!("it begins with {magic:02x?}")));
        }
        page_file::lock(Path::new(&link.target), &file)
            .map_err(|source| DeliveryError::PageFile { name: qemu.name.clone(), source })?;
        SharedMapping::new(file, PAGE_BYTES, Access::ReadWrite)
            .map(Some)
            .map_err(|source| DeliveryError::Map { name: qemu.name.clone(), source })
    }
}

/// A memfd, or shared memory in /dev/shm on hosts without memfd; never an ordinary file of that
/// name.
fn is_page(target: &str) -> bool {
    let anonymous = target.strip_prefix("/memfd:").or_else(|| target.strip_prefix("/dev/shm/"));
    anonymous.is_some_and(|name| name.contains(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_anonymous_memory_is_a_page() {
        assert!(is_page("/memfd:vmclock_page (deleted)"));
        assert!(is_page("/dev/shm/qemu-1234-vmclock_page (deleted)"));
        assert!(!is_page("/memfd:pc.bios (deleted)"));
        assert!(!is_page("/etc/vmclock_page"));
    }
}
