//! VMs that root has prepared by `timevisor vm args`: to whom their names belong, and the page files
//! of those that have not started yet. The pages are valid from the start, because a guest's driver
//! reads the counter and the timescale only when it probes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use timevisor_clock_page::PageWriter;
use timevisor_guests::acpi::ssdt;
use timevisor_guests::delivery::PageFiles;
use timevisor_guests::owner::Owner;
use timevisor_guests::vm::{HostIdentity, identity};
use timevisor_linux::page::WritePage;
use timevisor_linux::state_file::{self, Readers};
use timevisor_protocols::control::{TimeType, VmPrepare};

pub struct Prepared {
    directory: PathBuf,
    /// Pages that we hold until their VM starts.
    held: BTreeMap<String, PageWriter<WritePage>>,
    /// Who may run which VM.
    owners: BTreeMap<String, Owner>,
}

impl Prepared {
    pub fn in_directory(directory: &Path) -> Self {
        let owners = noted_owners(directory);
        Self { directory: directory.to_owned(), held: BTreeMap::new(), owners }
    }

    /// The owners of the prepared names.
    pub fn owners(&self) -> &BTreeMap<String, Owner> {
        &self.owners
    }

    /// Notes to whom the name belongs.
    pub fn bind(&mut self, prepare: &VmPrepare) -> Result<()> {
        let owner = Owner { uid: prepare.user, namespace: prepare.user_namespace };
        let folder = PageFiles::new(&self.directory).folder(&prepare.name)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        state_file::write(&folder.join(OWNER), &serde_json::to_vec(&owner)?, Readers::Owner)
            .context("cannot note the owner")?;
        self.owners.insert(prepare.name.clone(), owner);
        Ok(())
    }

    /// Creates or replaces the page, with a table for the usual address. The CLI creates tables for
    /// other addresses.
    pub fn prepare(
        &mut self,
        prepare: &VmPrepare,
        host: HostIdentity,
    ) -> Result<(PathBuf, PathBuf)> {
        let VmPrepare { name, time_type, .. } = prepare;
        let time_type = *time_type;
        if host.tai_offset.is_none() && time_type == TimeType::Tai {
            bail!(
                "TAI - UTC is not known, and guest kernels before 7.0 refuse a TAI page without it; see `timevisor status`"
            );
        }
        self.held.remove(name);
        let pages = PageFiles::new(&self.directory);
        let mapping = pages.prepare(name)?;
        let writer = PageWriter::take_over(
            WritePage::new(mapping)?,
            identity(name, super::timescale(time_type), host),
            host.tai_offset,
        );
        let folder = pages.folder(name)?;
        let table = folder.join("vmclock.aml");
        state_file::write(&table, &ssdt(DEFAULT_ADDRESS), Readers::All)
            .with_context(|| format!("cannot write {}", table.display()))?;
        let note = serde_json::to_vec(&time_type)?;
        state_file::write(&folder.join("time_type"), &note, Readers::Owner)
            .context("cannot note the time type")?;
        self.bind(prepare)?;
        self.held.insert(name.clone(), writer);
        Ok((pages.path(name)?, table))
    }

    /// Releases a page so that its VM can be attached.
    pub fn release(&mut self, name: &str) {
        self.held.remove(name);
    }

    /// The timescale of a prepared page, even if an earlier daemon prepared it.
    pub fn time_type(&self, name: &str) -> Option<TimeType> {
        let folder = PageFiles::new(&self.directory).folder(name).ok()?;
        let note = state_file::read(&folder.join("time_type"), MOST_NOTE_BYTES).ok()?;
        serde_json::from_slice(&note).ok()
    }

    /// Removes a VM's files; returns false if there are none.
    pub fn remove(&mut self, name: &str) -> Result<bool> {
        self.held.remove(name);
        let folder = PageFiles::new(&self.directory).folder(name)?;
        if !folder.exists() {
            return Ok(false);
        }
        self.owners.remove(name);
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
        Ok(true)
    }
}

/// The first address above memory for VMs with up to 2 GiB; `timevisor vm args` computes others.
const DEFAULT_ADDRESS: u64 = 0x1_0000_0000;
/// A time type is one word, an owner a number and a word.
const MOST_NOTE_BYTES: u64 = 64;
/// The file that says to whom the name of its folder belongs.
const OWNER: &str = "owner";

/// The owners that an earlier daemon noted.
fn noted_owners(directory: &Path) -> BTreeMap<String, Owner> {
    let Ok(folders) = fs::read_dir(directory) else { return BTreeMap::new() };
    let names = folders.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter_map(|name| {
            let owner = noted_owner(&directory.join(&name)).unwrap_or_else(|error| {
                tracing::warn!(
                    "VM {name} belongs to nobody: its owner is not understood ({error}); \
                     prepare it again with `timevisor vm args`"
                );
                None
            });
            Some((name, owner?))
        })
        .collect()
}

fn noted_owner(folder: &Path) -> io::Result<Option<Owner>> {
    match state_file::read(&folder.join(OWNER), MOST_NOTE_BYTES) {
        Ok(note) => Ok(Some(serde_json::from_slice(&note)?)),
        // Prepared by a version that did not note the owner. It gave the folder of the QMP socket to
        // the user who was to run QEMU.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let monitor = fs::symlink_metadata(folder.join("monitor")).ok();
            Ok(monitor.filter(fs::Metadata::is_dir).map(|folder| Owner::user(folder.uid())))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_protocols::control::UserNamespace;

    #[test]
    fn a_name_stays_with_its_owner_across_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let vms = directory.path().join("vms");
        let mut prepared = Prepared::in_directory(&vms);
        assert!(prepared.owners().is_empty());
        let request = |name: &str, user| VmPrepare {
            name: name.to_owned(),
            time_type: TimeType::Utc,
            user,
            user_namespace: UserNamespace::Other,
            files: false,
        };
        prepared.bind(&request("web", 4001)).unwrap();
        prepared.bind(&request("web", 4002)).unwrap();
        prepared.bind(&request("gone", 4003)).unwrap();
        assert!(prepared.remove("gone").unwrap());
        // Of an earlier version.
        let old = vms.join("old/monitor");
        fs::create_dir_all(&old).unwrap();
        let us = fs::metadata(&old).unwrap().uid();
        // What is damaged binds nobody.
        fs::create_dir_all(vms.join("odd")).unwrap();
        fs::write(vms.join("odd/owner"), "{").unwrap();
        let web = Owner { uid: 4002, namespace: UserNamespace::Other };
        let expected = [("old".to_owned(), Owner::user(us)), ("web".to_owned(), web)];
        let mut later = Prepared::in_directory(&vms);
        assert_eq!(later.owners(), &expected.into());
        later.remove("web").unwrap();
        assert_eq!(later.owners().len(), 1);
    }
}
