//! Page files: one folder per virtual machine with the page that QEMU shows to the guest from a
//! memory-backend-file.
//!
//! The nvdimm and the ivshmem device both use them. A file is 2 MiB in size, as an nvdimm requires;
//! its first 4096 bytes are the page. QEMU opens it read-only (`readonly=on`), so neither the guest
//! nor QEMU can write it.

use std::fs::Metadata;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page_file::{self, PageSize};
use timevisor_linux::process::MapLine;

use super::interface::DeliveryError;
use crate::command_line::CommandLine;
use crate::qemu::Qemu;

/// The directory of the virtual machines' pages: `DIRECTORY/NAME/page`.
pub const DIRECTORY: &str = "/run/timevisor/vms";

/// QEMU's nvdimm.
pub(super) const NVDIMM: &str = "nvdimm";
/// QEMU's ivshmem device.
pub(super) const IVSHMEM: &str = "ivshmem-plain";
/// The devices that can show a page file to a guest.
const DEVICES: [&str; 2] = [NVDIMM, IVSHMEM];

/// The page files below one directory.
#[derive(Clone, Debug)]
pub struct PageFiles {
    directory: PathBuf,
}

impl Default for PageFiles {
    fn default() -> Self {
        Self::new(DIRECTORY)
    }
}

impl PageFiles {
    /// Page files under `directory`, normally [`DIRECTORY`].
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The folder of the virtual machine `name`.
    ///
    /// # Errors
    /// When the name would lead outside the directory.
    pub fn folder(&self, name: &str) -> Result<PathBuf, DeliveryError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if name.is_empty() || name.starts_with('.') || name.len() > 200 || !name.chars().all(plain)
        {
            return Err(DeliveryError::Name(name.to_owned()));
        }
        Ok(self.directory.join(name))
    }

    /// The page file of the virtual machine `name`.
    ///
    /// # Errors
    /// As [`Self::folder`].
    pub fn path(&self, name: &str) -> Result<PathBuf, DeliveryError> {
        self.folder(name).map(|folder| folder.join("page"))
    }

    /// Creates the page file of a virtual machine that has not started yet, and maps it so that the
    /// page can be initialized.
    ///
    /// The mapping holds the writer's lock: keep it in place of
    /// [`attach`](super::PageDelivery::attach), or drop it first.
    ///
    /// # Errors
    /// When the folder or file cannot be created, or another process writes the page.
    pub fn prepare(&self, name: &str) -> Result<SharedMapping, DeliveryError> {
        let folder = self.folder(name)?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&folder)
            .map_err(|source| DeliveryError::Folder { path: folder.clone(), source })?;
        page_file::create(&folder.join("page"), PageSize::Nvdimm)
            .map_err(|source| DeliveryError::PageFile { name: name.to_owned(), source })
    }

    /// The name for which the page of `qemu` was prepared, which is the name of its folder; `None`
    /// without a page of ours.
    #[must_use]
    pub fn name_of(&self, qemu: &Qemu) -> Option<String> {
        let path = DEVICES.iter().find_map(|device| self.page_of(qemu, device))?;
        path.parent()?.file_name()?.to_str().map(str::to_owned)
    }

    /// The page file behind a QEMU's devices of one kind: by its options, or, where those name files
    /// of another mount namespace, by what it has mapped.
    fn page_of(&self, qemu: &Qemu, device: &str) -> Option<PathBuf> {
        let line = &qemu.command_line;
        if let Some(path) = self.named_by(line, device) {
            return Some(path);
        }
        let is_elsewhere = !backends(line, device).is_empty()
            && DEVICES.iter().all(|device| self.named_by(line, device).is_none());
        if is_elsewhere { self.mapped_by(qemu) } else { None }
    }

    fn named_by(&self, line: &CommandLine, device: &str) -> Option<PathBuf> {
        backends(line, device).into_iter().find(|path| self.is_ours(path))
    }

    /// The page of ours that a QEMU has mapped, wherever that is mounted for it.
    fn mapped_by(&self, qemu: &Qemu) -> Option<PathBuf> {
        let folders = std::fs::read_dir(&self.directory).ok()?;
        let pages = folders.filter_map(|folder| Some(folder.ok()?.path().join("page")));
        pages.into_iter().find(|page| {
            let file = std::fs::symlink_metadata(page).ok().filter(Metadata::is_file);
            file.is_some_and(|file| qemu.files.iter().any(|map| map.is_of(&file)))
        })
    }

    /// Exactly `DIRECTORY/NAME/page`: further down are folders that belong to VMs' owners, who can
    /// make a link to another VM's page there.
    fn is_ours(&self, path: &Path) -> bool {
        let Ok(within) = path.strip_prefix(&self.directory) else { return false };
        let parts: Vec<_> = within.components().collect();
        matches!(parts[..], [Component::Normal(_), Component::Normal(page)] if page == "page")
    }

    /// The page behind a QEMU's devices of one kind, mapped for writing; `None` when there is none
    /// of ours.
    ///
    /// # Errors
    /// When QEMU has mapped a different file than the one at this path, or we are not its only
    /// possible writer.
    pub(super) fn attach(
        &self,
        qemu: &Qemu,
        device: &str,
    ) -> Result<Option<SharedMapping>, DeliveryError> {
        let Some(path) = self.page_of(qemu, device) else { return Ok(None) };
        let replaced = || DeliveryError::Replaced { name: qemu.name.clone(), path: path.clone() };
        // QEMU's mapping names the file that is actually mapped; the name of a replaced one ends in
        // " (deleted)".
        let file = std::fs::symlink_metadata(&path).map_err(|_| replaced())?;
        // On some file systems (btrfs) a mapping tells another device than the file does.
        let named = |map: &MapLine| map.inode == file.ino() && Path::new(&map.path) == path;
        let mapped = |map: &MapLine| map.is_of(&file) || named(map);
        if !qemu.files.iter().any(mapped) {
            return Err(replaced());
        }
        page_file::create(&path, PageSize::Nvdimm)
            .map(Some)
            .map_err(|source| DeliveryError::PageFile { name: qemu.name.clone(), source })
    }
}

/// The files behind the devices of one kind, as QEMU names them.
fn backends(line: &CommandLine, device: &str) -> Vec<PathBuf> {
    let paths = line.devices_of(device).filter_map(|device| {
        let backend = line.object(device.get("memdev")?)?;
        backend.get("mem-path").map(PathBuf::from)
    });
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        let pages = PageFiles::default();
        assert_eq!(
            pages.path("web-1.example").unwrap(),
            Path::new("/run/timevisor/vms/web-1.example/page")
        );
        for name in ["", ".", "..", "a/b", "../etc", "a b", "ä"] {
            assert!(matches!(pages.path(name), Err(DeliveryError::Name(_))), "{name}");
        }
        assert!(pages.is_ours(Path::new("/run/timevisor/vms/a/page")));
        assert!(!pages.is_ours(Path::new("/run/timevisor/vms/../../etc/passwd")));
        assert!(!pages.is_ours(Path::new("/run/timevisor/vmsx/page")));
        assert!(!pages.is_ours(Path::new("/run/timevisor/vms/a/monitor/a/page")));
        assert!(!pages.is_ours(Path::new("/run/timevisor/vms/a/monitor")));
    }

    #[test]
    fn a_prepared_page_is_there_for_qemu() {
        let root = tempfile::tempdir().unwrap();
        let pages = PageFiles::new(root.path().join("vms"));
        let page = pages.prepare("web").unwrap();
        assert_eq!(std::fs::metadata(pages.path("web").unwrap()).unwrap().len(), 2 << 20);
        assert!(matches!(pages.prepare("web"), Err(DeliveryError::PageFile { .. })));
        drop(page);
        pages.prepare("web").unwrap();
    }

    #[test]
    fn a_page_is_found_behind_its_own_device_only() {
        let line = |arguments: &str| {
            CommandLine::parse(&arguments.split(' ').map(str::to_owned).collect::<Vec<_>>())
        };
        let ivshmem = line(
            "qemu -object memory-backend-file,id=other,mem-path=/dev/shm/looking-glass,size=32M \
             -device ivshmem-plain,memdev=other \
             -object memory-backend-file,id=page,share=on,mem-path=/run/timevisor/vms/web/page,size=4K,readonly=on \
             -device ivshmem-plain,memdev=page",
        );
        let pages = PageFiles::default();
        let page = Some(PathBuf::from("/run/timevisor/vms/web/page"));
        assert_eq!(pages.named_by(&ivshmem, "ivshmem-plain"), page);
        assert_eq!(pages.named_by(&ivshmem, "nvdimm"), None);
        let nvdimm = line(
            "qemu -object memory-backend-file,id=page,mem-path=/run/timevisor/vms/web/page -device nvdimm,memdev=page",
        );
        assert_eq!(pages.named_by(&nvdimm, "nvdimm"), page);
        assert_eq!(pages.named_by(&nvdimm, "ivshmem-plain"), None);
    }
}
