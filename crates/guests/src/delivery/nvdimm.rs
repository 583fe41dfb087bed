//! A page file that QEMU shows to the guest as a read-only nvdimm.
//!
//! Works with every QEMU since 7; needs the table of [`crate::acpi`] in the guest. The file is 2 MiB, its first 4096 bytes
//! are the page. The guest cannot write it (`readonly=on`), nor can QEMU, which opened it for reading.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page_file::{self, PageSize};

use super::{DeliveryError, DeliveryKind, PageDelivery};
use crate::qemu::Qemu;

/// Where the pages of virtual machines live: `DIRECTORY/NAME/page`.
pub const DIRECTORY: &str = "/run/timevisor/vms";

/// The delivery by nvdimm.
#[derive(Clone, Debug)]
pub struct NvdimmPage {
    directory: PathBuf,
}

impl Default for NvdimmPage {
    fn default() -> Self {
        Self::new(DIRECTORY)
    }
}

impl NvdimmPage {
    /// With pages under `directory`, normally [`DIRECTORY`].
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The folder of the virtual machine `name`.
    ///
    /// # Errors
    /// A name that would lead elsewhere.
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

    /// Makes the page file of a virtual machine that has yet to start, and maps it so that the page can be initialized.
    ///
    /// The mapping holds the writer's lock: keep it in place of [`attach`](PageDelivery::attach), or drop it before.
    ///
    /// # Errors
    /// When the folder or file cannot be made, or another process writes the page.
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

    /// The page file among a QEMU's nvdimms, by its options.
    fn page_of(&self, qemu: &Qemu) -> Option<PathBuf> {
        let paths = qemu.command_line.devices_of("nvdimm").filter_map(|device| {
            let backend = qemu.command_line.object(device.get("memdev")?)?;
            backend.get("mem-path").map(PathBuf::from)
        });
        paths.into_iter().find(|path| self.is_ours(path))
    }

    /// The name that the page of `qemu` was prepared for, if it has one of ours: its folder's.
    #[must_use]
    pub fn name_of(&self, qemu: &Qemu) -> Option<String> {
        let path = self.page_of(qemu)?;
        path.parent()?.file_name()?.to_str().map(str::to_owned)
    }

    fn is_ours(&self, path: &Path) -> bool {
        path.starts_with(&self.directory)
            && !path.components().any(|part| part == Component::ParentDir)
    }
}

impl PageDelivery for NvdimmPage {
    fn kind(&self) -> DeliveryKind {
        DeliveryKind::Nvdimm
    }

    fn attach(&self, qemu: &Qemu) -> Result<Option<SharedMapping>, DeliveryError> {
        let Some(path) = self.page_of(qemu) else { return Ok(None) };
        let replaced = || DeliveryError::Replaced { name: qemu.name.clone(), path: path.clone() };
        // QEMU's mapping names the file that it really has; a replaced one ends in " (deleted)".
        let inode = std::fs::symlink_metadata(&path).map_err(|_| replaced())?.ino();
        let mapped = |map: &timevisor_linux::process::MapLine| {
            map.inode == inode && Path::new(&map.path) == path
        };
        if !qemu.process.maps()?.iter().any(mapped) {
            return Err(replaced());
        }
        page_file::create(&path, PageSize::Nvdimm)
            .map(Some)
            .map_err(|source| DeliveryError::PageFile { name: qemu.name.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        let delivery = NvdimmPage::default();
        assert_eq!(
            delivery.path("web-1.example").unwrap(),
            Path::new("/run/timevisor/vms/web-1.example/page")
        );
        for name in ["", ".", "..", "a/b", "../etc", "a b", "ä"] {
            assert!(matches!(delivery.path(name), Err(DeliveryError::Name(_))), "{name}");
        }
        assert!(delivery.is_ours(Path::new("/run/timevisor/vms/a/page")));
        assert!(!delivery.is_ours(Path::new("/run/timevisor/vms/../../etc/passwd")));
        assert!(!delivery.is_ours(Path::new("/run/timevisor/vmsx/page")));
    }

    #[test]
    fn a_prepared_page_is_there_for_qemu() {
        let root = tempfile::tempdir().unwrap();
        let delivery = NvdimmPage::new(root.path().join("vms"));
        let page = delivery.prepare("web").unwrap();
        assert_eq!(std::fs::metadata(delivery.path("web").unwrap()).unwrap().len(), 2 << 20);
        assert!(matches!(delivery.prepare("web"), Err(DeliveryError::PageFile { .. })));
        drop(page);
        delivery.prepare("web").unwrap();
    }
}
