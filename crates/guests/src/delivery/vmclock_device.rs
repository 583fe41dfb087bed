//! The page of QEMU's own vmclock device (QEMU 10 and newer; hw/acpi/vmclock.c).
//!
//! With `-machine aux-ram-share=on` the page is nameless shared memory of the QEMU process. Its
//! descriptor is duplicated (pidfd_getfd) and examined; nothing that the process names is opened.
//! The guest sees the page read-only, but QEMU itself may write it: it increments the disruption
//! marker after migration and snapshots. It may also truncate it: the VM is then retired
//! ([`crate::vm::Vm::has_lost_page`]).

use std::os::unix::fs::FileExt;
use std::path::Path;

use timevisor_linux::foreign_memory;
use timevisor_linux::mapping::{Access, PAGE_BYTES, SharedMapping};
use timevisor_linux::page_file;
use timevisor_linux::process::FdLink;

use super::interface::{DeliveryError, DeliveryKind, PageDelivery};
use crate::qemu::Qemu;

/// Delivery by QEMU's vmclock device.
#[derive(Clone, Copy, Debug, Default)]
pub struct VmclockDevice;

/// The name that QEMU gives to the device's memory.
const NAME: &str = "vmclock_page";
/// How many descriptors with that name are tried. A QEMU has one.
pub(crate) const MOST_CANDIDATES: usize = 8;
/// `VMCLOCK_MAGIC` in memory order; QEMU writes it when it creates the device.
const MAGIC: [u8; 4] = *b"VCLK";

impl PageDelivery for VmclockDevice {
    fn kind(&self) -> DeliveryKind {
        DeliveryKind::Vmclock
    }

    fn attach(&self, qemu: &Qemu) -> Result<Option<SharedMapping>, DeliveryError> {
        let search = &qemu.pages;
        let mut refused = None;
        for link in &search.found {
            match open(qemu, link) {
                Ok(page) => return Ok(Some(page)),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        if let Some(error) = refused {
            return Err(error);
        }
        let name = qemu.name.clone();
        if search.cut {
            return Err(DeliveryError::TooManyDescriptors(name));
        }
        match qemu.command_line.devices_of("vmclock").next() {
            // QEMU listens on its sockets before it creates its devices.
            Some(_) if qemu.command_line.aux_ram_share => Err(DeliveryError::Starting(name)),
            Some(_) => Err(DeliveryError::NotShared(name)),
            None => Ok(None),
        }
    }
}

/// The page behind one descriptor, locked against other daemons.
fn open(qemu: &Qemu, link: &FdLink) -> Result<SharedMapping, DeliveryError> {
    let not_a_page = |reason: String| DeliveryError::NotAPage {
        name: qemu.name.clone(),
        target: link.target.clone(),
        reason,
    };
    let file = foreign_memory::open(qemu.process, link.fd, PAGE_BYTES as u64)
        .map_err(|error| not_a_page(error.to_string()))?;
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).map_err(|error| not_a_page(error.to_string()))?;
    if magic != MAGIC {
        return Err(not_a_page(format!("it begins with {magic:02x?}")));
    }
    page_file::lock(Path::new(&link.target), &file)
        .map_err(|source| DeliveryError::PageFile { name: qemu.name.clone(), source })?;
    SharedMapping::new(file, PAGE_BYTES, Access::ReadWrite)
        .map_err(|source| DeliveryError::Map { name: qemu.name.clone(), source })
}

/// Looks like a memfd, or like shared memory in /dev/shm on hosts without memfd. The name is the
/// process's choice; what counts is what [`foreign_memory`] finds.
pub(crate) fn is_page(target: &str) -> bool {
    let anonymous = target.strip_prefix("/memfd:").or_else(|| target.strip_prefix("/dev/shm/"));
    anonymous.is_some_and(|name| name.contains(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::OpenOptionsExt;

    use timevisor_linux::process::Process;
    use timevisor_linux::truncation;

    use crate::qemu::Accelerator;

    /// A file in shared memory that looks like the device's page.
    fn shared(name: &str) -> (File, std::path::PathBuf) {
        let path = Path::new("/dev/shm").join(format!("{name}-{}-{NAME}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(PAGE_BYTES as u64).unwrap();
        file.write_all_at(&MAGIC, 0).unwrap();
        (file, path)
    }

    /// This process stands for a QEMU: it chooses what its descriptors are. One test, because they
    /// are the whole process's.
    #[test]
    fn a_page_is_what_the_process_made_and_may_write() {
        let process = Process::open(std::process::id()).unwrap();
        let look = || {
            let pages = process.find_fds(MOST_CANDIDATES, is_page).unwrap();
            let qemu = Qemu::unexamined(process, Accelerator::Tcg);
            VmclockDevice.attach(&Qemu { name: "web".to_owned(), pages, ..qemu })
        };
        assert!(look().unwrap().is_none());

        // Somebody else's file, which a process can name without being allowed to open it.
        let (file, path) = shared("named");
        let named = OpenOptions::new().read(true).custom_flags(O_PATH).open(&path).unwrap();
        drop(file);
        let refused = look();
        assert!(matches!(refused, Err(DeliveryError::NotAPage { .. })), "{refused:?}");
        let open = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        drop(named);
        let refused = look();
        assert!(matches!(refused, Err(DeliveryError::NotAPage { .. })), "{refused:?}");

        // A page behind others that are none.
        let (page, made) = shared("page");
        std::fs::remove_file(made).unwrap();
        let mapping = look().unwrap().unwrap();
        // The refusal of the lowest descriptor is told. Other tests of this process open files, too, so
        // either of the two may have that.
        let told = look().unwrap_err();
        let is_of_open = matches!(told, DeliveryError::NotAPage { .. });
        assert_eq!(is_of_open, open.as_raw_fd() < page.as_raw_fd(), "{told:?}");
        std::fs::remove_file(path).unwrap();
        drop(open);
        let second = look();
        assert!(matches!(second, Err(DeliveryError::PageFile { .. })), "it has one writer");

        // Its owner takes it away.
        truncation::survive().unwrap();
        page.set_len(0).unwrap();
        let lost = timevisor_linux::page::WritePage::new(mapping).unwrap();
        assert!(!lost.is_lost() && lost.bytes()[..4] == [0; 4] && lost.is_lost());
        let refused = look();
        assert!(matches!(refused, Err(DeliveryError::NotAPage { .. })), "{refused:?}");
    }

    /// O_PATH of Linux (fcntl.h).
    const O_PATH: i32 = 0o10_000_000;

    #[test]
    fn only_names_of_anonymous_memory_are_looked_at() {
        assert!(is_page("/memfd:vmclock_page (deleted)"));
        assert!(is_page("/dev/shm/qemu-1234-vmclock_page (deleted)"));
        assert!(!is_page("/memfd:pc.bios (deleted)"));
        assert!(!is_page("/etc/vmclock_page"));
    }
}
